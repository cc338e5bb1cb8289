"""A store that is slow, fails before or after an operation has had its effect, and loses or damages payloads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from claimcheck._wire.buffers import Reader
from claimcheck._wire.pointer import Pointer
from claimcheck.stores.memory import MemoryStore
from tests.simulation.scheduler import Process, Scheduler


class Medium:
    """What several processes store: payloads by key, and why some are not there any more."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.payloads: dict[str, bytes] = {}
        self.owners: dict[str, int] = {}  # key to the number of what was sent
        self.spoiled: set[int] = set()  # payloads that were evicted or damaged by a fault
        self.undeletable: set[int] = set()  # a deletion failed, or its process died
        self.is_readable: Callable[[str], bool] = lambda key: False  # whether a message points at it
        self.down_until = 0.0
        self.fails = 0.0

    def spoil(self) -> None:
        """Evict a payload, or damage one of its bytes."""
        if self.payloads:
            key = self.scheduler.choice(sorted(self.payloads))
            payload = self.payloads.pop(key)
            self.spoiled.add(self.owners[key])
            if self.scheduler.chance(0.5):
                at = self.scheduler.random.randrange(len(payload))
                self.payloads[key] = payload[:at] + bytes([payload[at] ^ 1]) + payload[at + 1 :]


class SimulatedStore(MemoryStore):
    """One process's connection to a `Medium`, which is set after it was opened."""

    medium: Medium
    process: Process
    owner: int = -1

    def _write(self, pointer: Pointer, source: Any) -> None:
        self._before("write")
        self.medium.owners[pointer.key] = self.owner
        super()._write(pointer, source)
        self._after("write")

    def _open(self, pointer: Pointer, start: int, stop: int | None) -> Reader:
        self._before("read")
        reader = super()._open(pointer, start, stop)
        self._after("read")
        return reader

    def _delete(self, pointer: Pointer) -> None:
        owner = self.medium.owners.get(pointer.key, -1)
        try:
            self._before("delete")
        except BaseException:
            self.medium.undeletable.add(owner)
            raise
        if self.medium.is_readable(pointer.key):
            self.medium.scheduler.violated(f"payload {owner} was deleted, although a message points at it")
        super()._delete(pointer)
        self._after("delete")

    def _before(self, operation: str) -> None:
        self.process.check()
        scheduler = self.medium.scheduler
        scheduler.point()
        self.process.check()
        if scheduler.strikes(f"store is down for a {operation}", self.medium.fails):
            self.medium.down_until = scheduler.now + scheduler.choice((0.0, 1.0, 20.0))
            raise ConnectionError("simulated")
        if scheduler.is_faulty and scheduler.now < self.medium.down_until:
            raise ConnectionError("simulated")

    def _after(self, operation: str) -> None:
        scheduler = self.medium.scheduler
        scheduler.point()
        self.process.check()
        if scheduler.strikes(f"store loses the answer to a {operation}", self.medium.fails):
            raise ConnectionError("simulated, after it had its effect")


def open_store(cc: Any, medium: Medium, process: Process) -> SimulatedStore:
    """Open the store of a configuration in a process."""
    store: SimulatedStore = cc.store("m")
    store.medium, store.process, store._payloads = medium, process, medium.payloads
    return store
