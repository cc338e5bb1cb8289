"""How far the work is, told across processes: one growing file on which everybody appends."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Tally"]

_ENTRY = struct.Struct(">q")


@dataclass(frozen=True, slots=True)
class Tally:
    """Counts files and bytes. Pickles as its path; appends of a few bytes are whole on every local disk.

    Attributes:
        path: The file; made by the first `add`.
    """

    path: Path

    def add(self, size: int) -> None:
        """Count one file of ``size`` bytes."""
        with self.path.open("ab", buffering=0) as file:
            file.write(_ENTRY.pack(size))

    def total(self) -> tuple[int, int]:
        """Return how many files were counted, and their bytes."""
        try:
            content = self.path.read_bytes()
        except FileNotFoundError:
            return 0, 0
        whole = content[: len(content) // _ENTRY.size * _ENTRY.size]
        sizes = [size for (size,) in _ENTRY.iter_unpack(whole)]
        return len(sizes), sum(sizes)

    def reset(self) -> None:
        """Begin anew."""
        self.path.unlink(missing_ok=True)
