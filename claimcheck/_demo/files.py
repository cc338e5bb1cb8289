"""The input: every file below a folder, and clear words for what cannot be used."""

from __future__ import annotations

import os
import stat
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from claimcheck.errors import ClaimCheckError

__all__ = [
    "DemoError",
    "find",
    "Folder",
    "FolderError",
    "MAX_FILE_BYTES",
    "read_file",
    "Tally",
]

MAX_FILE_BYTES = 256 << 20
"""Larger files are left out: a payload is one value in a Spark row, and chunking has the same limit by default."""


class DemoError(ClaimCheckError):
    """The demo cannot run; nothing is left behind."""


class FolderError(DemoError):
    """The folder cannot be used: another one has to be named."""


@dataclass(frozen=True, slots=True)
class Folder:
    """What was found below a folder.

    Attributes:
        root: The folder.
        sizes: Bytes of each file by its path below ``root``, sorted by path.
        skipped: Why, by path below ``root``.
    """

    root: Path
    sizes: dict[str, int] = field(repr=False)
    skipped: dict[str, str] = field(repr=False)

    @property
    def total_bytes(self) -> int:
        """Bytes of all files together."""
        return sum(self.sizes.values())


def find(root: Path) -> Folder:
    """Look at every file below a folder, subfolders included; links to folders are not followed.

    Raises:
        FolderError: No such folder, no folder, or nothing in it that can be read.
    """
    _check_folder(root)
    skipped: dict[str, str] = {}
    sizes = {name: size for name in sorted(_names(root, skipped)) if (size := _size(root, name, skipped)) is not None}
    if not sizes:
        why = "; ".join(f"{name}: {reason}" for name, reason in list(skipped.items())[:3])
        raise FolderError(f"nothing below {root} can be sent" + (f" ({why})" if why else ": it holds no files"))
    return Folder(root, sizes, skipped)


def _check_folder(root: Path) -> None:
    try:
        if stat.S_ISDIR(root.stat().st_mode):
            return
    except FileNotFoundError:
        raise FolderError(f"there is no folder {root}: name another one with --dir") from None
    except (OSError, ValueError) as error:
        raise FolderError(f"{root} cannot be used: {error}") from error
    raise FolderError(f"{root} is a file, not a folder: name the folder that it is in")


def read_file(path: Path) -> bytes:
    """Read a file whole.

    Raises:
        DemoError: It vanished, cannot be read, or has grown too large; says which.
    """
    try:
        with path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise DemoError(_reason(error)) from error
    if len(content) > MAX_FILE_BYTES:
        raise DemoError(_TOO_LARGE)
    return content


def _names(root: Path, skipped: dict[str, str]) -> Iterator[str]:
    def unreadable(error: OSError) -> None:
        skipped[os.path.relpath(error.filename, root)] = _reason(error)

    for folder, _, names in os.walk(root, onerror=unreadable):
        yield from (os.path.relpath(os.path.join(folder, name), root) for name in names)


def _size(root: Path, name: str, skipped: dict[str, str]) -> int | None:
    try:
        found = (root / name).stat()
    except OSError as error:
        skipped[name] = "a link that leads nowhere" if (root / name).is_symlink() else _reason(error)
        return None
    if not stat.S_ISREG(found.st_mode):  # reading a pipe or a device could wait for ever
        skipped[name] = "not a regular file"
    elif found.st_size > MAX_FILE_BYTES:
        skipped[name] = _TOO_LARGE
    elif not os.access(root / name, os.R_OK):
        skipped[name] = "permission denied"
    return None if name in skipped else found.st_size


_TOO_LARGE = f"larger than the demo takes ({MAX_FILE_BYTES >> 20} MiB)"


def _reason(error: OSError) -> str:
    return "vanished" if isinstance(error, FileNotFoundError) else (error.strerror or str(error)).lower()


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
