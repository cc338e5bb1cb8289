"""What was sent, what is in the topic and the store, what each group was handed; and all checks of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from claimcheck._store.listing import Deletion, StoreEntry
from claimcheck._wire.buffers import Reader
from claimcheck._wire.envelope import Abort, Chunk, decode
from claimcheck._wire.pointer import Pointer
from claimcheck.errors import ClaimCheckError, IncompletePayloadError, IntegrityError, PayloadNotFoundError
from claimcheck.stores.memory import MemoryStore
from tests.harness.scheduler import OWNER, Process, Scheduler
from tests.harness.topic import Record, Topic


@dataclass
class Sent:
    """One payload that an application sends, and what it was told about it."""

    number: int
    content: bytes
    sender: Process | None = None
    outcome: Literal["open", "sent", "failed", "unknown"] = "open"
    is_given_up: bool = False  # the sender was told that it is not in the topic, or not as a whole


@dataclass(eq=False)
class Unit:
    """One message for the application: a record, or the chunks of one attempt. A duplicate record is another one."""

    owner: int
    partition: int
    key: Any
    uuid: str = ""
    total: int = 1
    positions: dict[int, int] = field(default_factory=dict)  # chunk to the position of its first copy
    records: list[int] = field(default_factory=list)
    is_aborted: bool = False
    is_removed: bool = False  # at least in part

    @property
    def is_complete(self) -> bool:
        return len(self.positions) == self.total

    @property
    def first(self) -> int:
        return min(self.positions.values())

    @property
    def last(self) -> int:
        return max(self.positions.values(), default=-1)

    def __repr__(self) -> str:
        state = "" if self.is_complete else f" of {self.total} chunks"
        return f"<payload {self.owner} in {self.partition}: {sorted(self.positions.values())}{state}>"


class Handed:
    """What a group of consumers was handed: the checks that a group of each broker has besides what it does."""

    name: str
    log: Ledger
    is_orderly: bool

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.returned: dict[Unit, Any] = {}  # records in the topic, those read, by whom, the first
        self.reported: set[Unit] = set()
        self.excused: set[Unit] = set()  # skipped by the application
        self.skipped: set[Unit] = set()  # by the client itself
        self.repeatable: set[Unit] = set()  # may be returned again: not committed as a whole, or sought
        self.unread: list[tuple[Any, Unit, Process]] = []  # the store was unavailable

    def held_at(self) -> object:
        """What is not committed or acknowledged, if anything is not: it holds the position of the group."""
        raise NotImplementedError

    def may_pass(self, unit: Unit) -> bool:
        """Whether a commit or an acknowledgement of this group may cover a message."""
        is_excused = unit in self.excused or unit in self.skipped or unit.is_removed or unit.is_aborted
        return unit in self.returned or is_excused or not unit.positions

    def received(self, position: tuple[int, int], message: Any, process: Process, upto: int = 1 << 30) -> Unit | None:
        """A call returned a message; reads it as an application does. ``upto``: what its client has not read yet."""
        unit = self.log.at.get(position)
        if unit is None:
            self.log.scheduler.violated(f"{self.name} got a message at {position}, where none begins")
            return None
        count, read, before, at = self.returned.get(unit, (0, 0, None, 0))
        # What lost its head since has another first record for the next owner, which no mark can name.
        is_excused = at < self.log.low[unit.partition] or unit in self.repeatable
        is_again = count == len(unit.records) and (read == count or before is process)  # no chunk came later
        if is_again and self.is_orderly and not is_excused:
            self.log.scheduler.violated(f"{self.name} got {unit} twice, without a reason")
        self.returned[unit] = len(unit.records), sum(each < upto for each in unit.records), process, position[1]
        self._read(unit, message, process)
        return unit

    def read_again(self) -> None:
        """Ask once more for payloads whose store was unavailable."""
        unread, self.unread = self.unread, []
        for message, unit, process in unread:
            if process.alive:
                self._read(unit, message, process)

    def _read(self, unit: Unit, message: Any, process: Process) -> None:
        """Ask for the payload, and check the answer."""
        log, violated = self.log, self.log.scheduler.violated
        try:
            content = message.value() if hasattr(message, "value") else message.data()
        except ClaimCheckError as error:
            if error.retryable:
                if not log.scheduler.is_faulty:
                    violated(f"{self.name} cannot read {unit} although the store is back: {error!r}")
                self.unread.append((message, unit, process))
            elif isinstance(error, IncompletePayloadError) or (
                isinstance(error, PayloadNotFoundError | IntegrityError) and unit.owner in log.spoiled
            ):
                self.reported.add(unit)
            else:
                violated(f"{self.name} cannot read {unit}: {error!r}")
            return
        if content != log.sent[unit.owner].content:
            violated(f"{self.name} got wrong bytes for {unit}: {content[:30]!r}")
        if not unit.is_complete:
            violated(f"{self.name} got {unit}, which is incomplete")


class Ledger(Topic):
    """A topic and the store of its payloads, which several processes use; and why payloads are not there any more."""

    def __init__(self, scheduler: Scheduler, partitions: int = 1) -> None:
        super().__init__(scheduler, partitions)
        self.sent: list[Sent] = []
        self.units: list[Unit] = []
        self.at: dict[tuple[int, int], Unit] = {}  # by partition and position
        self.groups: list[Any] = []
        self._chunked: dict[tuple[int, str], Unit] = {}
        self.payloads: dict[str, bytes] = {}  # what is stored
        self.owners: dict[str, int] = {}  # key to the number of what was sent
        self.spoiled: set[int] = set()  # payloads that were evicted or damaged by a fault
        self.undeletable: set[int] = set()  # a deletion failed, or its process died
        self.down_until = self.store_fails = 0.0

    def new_payload(self, sender: Process | None = None) -> Sent:
        """An application sends a payload of a size that is sent as it is, or stored, or split."""
        size = self.scheduler.choice((20, 40, 400, 600, 900, 1500))
        content = b"payload-%d-" % len(self.sent) + self.scheduler.random.randbytes(size)
        self.sent.append(Sent(len(self.sent), content, sender))
        OWNER.set(self.sent[-1].number)
        return self.sent[-1]

    def append(self, record: Record) -> int:
        partition, position, envelope = record.partition, super().append(record), decode(record.value)
        unit = self._chunked.get((partition, envelope.uuid)) if isinstance(envelope, Chunk | Abort) else None
        if unit is None:
            unit = Unit(record.owner, partition, record.key)
            self.units.append(unit)
            if isinstance(envelope, Chunk | Abort):
                unit.uuid, unit.total = envelope.uuid, 1 << 30
                self._chunked[partition, envelope.uuid] = unit
        unit.records.append(position)
        if isinstance(envelope, Abort):
            unit.is_aborted |= unit.key == record.key
            self.aborting.discard(envelope.uuid)
            return position
        number = 0
        if isinstance(envelope, Chunk):
            number, unit.total = envelope.position, envelope.count
            unit.owner = record.owner  # that of an abort envelope is what its sender sends at that moment
        unit.positions.setdefault(number, position)
        self.at[partition, position] = unit
        return position

    def append_markers(self) -> None:
        """Append a message to each partition, which is committed only after all that is before it."""
        for partition in range(len(self.logs)):
            marker = self.new_payload()
            marker.outcome = "sent"
            self.append(Record(marker.content, "", {}, partition, owner=marker.number))

    def remove(self) -> None:
        """Retention removes the oldest records of a partition, whoever may not have read them yet."""
        partition = self.scheduler.random.randrange(len(self.low))
        count = self.scheduler.choice((1, 2, 3, 9))
        self.low[partition] = min(self.low[partition] + count, len(self.logs[partition]))
        for position in range(self.low[partition]):
            if (unit := self.at.get((partition, position))) is not None:
                unit.is_removed = True

    def spoil(self) -> None:
        """Evict a payload, or damage one of its bytes."""
        if keys := sorted(key for key in self.payloads if self.owners[key] >= 0):
            key = self.scheduler.choice(keys)
            payload = self.payloads.pop(key)
            self.spoiled.add(self.owners[key])
            if self.scheduler.chance(0.5):
                at = self.scheduler.random.randrange(len(payload))
                self.payloads[key] = payload[:at] + bytes([payload[at] ^ 1]) + payload[at + 1 :]

    def check_at_rest(self) -> None:
        """Check what has to be true when no faults happen any more, and everybody has had time.

        That a group which has committed everything got everything was checked with each commit.
        """
        violated = self.scheduler.violated
        for group in self.groups:
            if place := group.held_at():
                violated(f"{group.name} is held at {place}")
        whole = {unit.owner for unit in self.units if unit.is_complete}
        stored = {self.owners[key] for key in self.payloads} - self.undeletable
        for sent in self.sent:
            if sent.outcome == "open":
                violated(f"the sender of payload {sent.number} was never told what became of it")
            if sent.outcome == "sent" and sent.number not in whole:
                violated(f"payload {sent.number} was reported as sent, and is not in the topic")
            if sent.outcome == "failed" and sent.number in whole:
                violated(f"payload {sent.number} was reported as failed, and is in the topic")
            if sent.outcome == "failed" and sent.number in stored:
                violated(f"payload {sent.number} definitely failed, and is stored for ever")
        for unit in self.units:
            if (
                not unit.is_complete
                and self.sent[unit.owner].is_given_up
                and not (unit.is_aborted or unit.uuid in self.aborting)
            ):
                violated(f"{unit} was given up, and its readers were not told")

    def check_collected(self) -> None:
        """Check that a collection after the grace period left no payload that no message points at."""
        for key in self.payloads:
            if self.owners[key] >= 0 and all(record.is_lost for record in self.pointing_at(key)):
                self.scheduler.violated(f"payload {self.owners[key]} is stored for ever, and no message points at it")


class SimulatedStore(MemoryStore):
    """One process's connection to a store that is slow, and fails before or after an operation has had its effect."""

    log: Ledger
    process: Process

    @classmethod
    def of(cls, cc: Any, log: Ledger, process: Process) -> SimulatedStore:
        """Open the store of a configuration in a process."""
        store: SimulatedStore = cc.store("m")
        store.log, store.process, store._payloads = log, process, log.payloads
        return store

    def _server_time(self) -> float:
        return self.log.scheduler.now

    def _write(self, pointer: Pointer, source: Any) -> None:
        self._before("write")
        self.log.owners[pointer.key] = OWNER.get()
        super()._write(pointer, source)
        self._after("write")

    def _open(self, pointer: Pointer, start: int, stop: int | None) -> Reader:
        self._before("read")
        reader = super()._open(pointer, start, stop)
        self._after("read")
        return reader

    def _delete(self, pointer: Pointer) -> None:
        log, owner = self.log, self.log.owners.get(pointer.key, -1)
        try:
            self._before("delete")
        except BaseException:
            log.undeletable.add(owner)
            raise
        if log.pointing_at(pointer.key):
            log.scheduler.violated(f"payload {owner} was deleted, although a message points at it")
        super()._delete(pointer)
        self._after("delete")

    def _scan(self) -> Iterator[StoreEntry]:
        for entry in super()._scan():
            self.process.reach()
            yield entry

    def _discard(self, entries: Sequence[StoreEntry]) -> Iterator[Deletion]:
        for entry in entries:
            self._before("delete")
            owner = self.log.owners[entry.key]
            if not all(record.is_lost for record in self.log.pointing_at(entry.key)):
                self.log.scheduler.violated(f"payload {owner} was collected, although a message points at it")
            self.log.spoiled.add(owner)  # retention may remove a message before its payload is read
            yield from super()._discard([entry])

    def _before(self, operation: str) -> None:
        self.process.reach()
        log, scheduler = self.log, self.log.scheduler
        if scheduler.strikes(f"store is down for a {operation}", log.store_fails):
            log.down_until = scheduler.now + scheduler.choice((0.0, 1.0, 20.0))
            raise ConnectionError("simulated")
        if scheduler.is_faulty and scheduler.now < log.down_until:
            raise ConnectionError("simulated")

    def _after(self, operation: str) -> None:
        self.process.reach()
        if self.log.scheduler.strikes(f"store loses the answer to a {operation}", self.log.store_fails):
            raise ConnectionError("simulated, after it had its effect")
