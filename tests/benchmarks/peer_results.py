"""What the rounds of all libraries amount to."""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Iterator
from typing import Any

from tests.benchmarks.peer_environments import Peer
from tests.benchmarks.peer_process import PeerError
from tests.benchmarks.rounds import MIB, size_text

METHOD = (
    "Every library puts a payload and gets it back, in turns with all others, and what came back is compared. Seconds "
    "are the median over the rounds of put and get together; up to 1 MiB, a round has 8 payloads in a row. Extra "
    "memory is the peak of the library's process beyond what it had before, in a first round that counts for nothing "
    "else; the payload that is put is not in it, the one that comes back is."
)


class Results:
    """Collects the rounds.

    Attributes:
        left_out: Why a library is not there, by its name.
        versions: By name.
        stores: What payloads rest in, by name.
        rounds: By name and size.
    """

    def __init__(self, left_out: dict[str, str]) -> None:
        self.left_out = left_out
        self.versions: dict[str, str] = {}
        self.stores: dict[str, str] = {}
        self.rounds: dict[str, dict[int, list[dict[str, float]]]] = {}

    def add(self, peer: Peer, size: int, taken: dict[str, float]) -> None:
        """Count one round."""
        self.stores[peer.name] = peer.store
        self.rounds.setdefault(peer.name, {}).setdefault(size, []).append(taken)

    @contextlib.contextmanager
    def failure_of(self, peer: Peer, running: dict[Peer, Any]) -> Iterator[None]:
        """Let a library fail for itself only: it is out of the running, with the reason."""
        try:
            yield
        except PeerError as error:
            self.left_out[peer.name] = str(error)
            del running[peer]

    def label(self, name: str) -> str:
        """Name and version."""
        first, _, rest = name.partition(" ")
        return f"{first} {self.versions[name]} {rest}".strip()

    def seconds(self, name: str, size: int) -> float:
        """Of put and get together, at the median."""
        return statistics.median(one["put"] + one["get"] for one in self.rounds[name][size][1:])

    def extra(self, name: str, size: int) -> float:
        """Bytes of memory at the peak."""
        return self.rounds[name][size][0]["extra"]

    def rates(self) -> dict[str, dict[str, dict[int, float]]]:
        """MB/s of put and get together, by store, library and size."""
        found: dict[str, dict[str, dict[int, float]]] = {}
        for name, by_size in self.rounds.items():
            rates = {size: size / self.seconds(name, size) / 1e6 for size in sorted(by_size)}
            found.setdefault(self.stores[name], {})[self.label(name)] = rates
        return found

    def table(self) -> list[str]:
        """Seconds and extra memory of all, as Markdown."""
        sizes = sorted({size for by_size in self.rounds.values() for size in by_size})
        lines = ["| library | store | " + " | ".join(f"{size_text(size)}: ms, MiB" for size in sizes) + " |"]
        lines.append("|---" * (2 + len(sizes)) + "|")
        for name in self.rounds:
            cells = [self._cell(name, size) for size in sizes]
            lines.append(f"| {self.label(name)} | {self.stores[name]} | {' | '.join(cells)} |")
        return [*lines, *(f"Left out: {name}: {why}" for name, why in self.left_out.items())]

    def as_dict(self) -> dict[str, Any]:
        """For JSON, with every round."""
        libraries = [
            {"name": name, "version": self.versions[name], "store": self.stores[name], "sizes": self._sizes(name)}
            for name in self.rounds
        ]
        return {"libraries": libraries, "left_out": self.left_out}

    def _sizes(self, name: str) -> list[dict[str, Any]]:
        return [
            {"size": size, "seconds": self.seconds(name, size), "extra": self.extra(name, size), "rounds": rounds}
            for size, rounds in self.rounds[name].items()
        ]

    def _cell(self, name: str, size: int) -> str:
        if size not in self.rounds[name]:
            return "-"
        return f"{self.seconds(name, size) * 1000:.1f}, {self.extra(name, size) / MIB:.1f}"
