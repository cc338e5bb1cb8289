"""One topic and one store: what was sent, what is in the topic, what each group was handed; and all checks of it."""

from __future__ import annotations

import functools
from collections import deque
from dataclasses import dataclass, field
from typing import Any, Literal

from claimcheck._wire.envelope import Abort, Chunk, decode, encode_abort
from claimcheck.errors import ClaimCheckError, IncompletePayloadError, IntegrityError, PayloadNotFoundError
from tests.simulation.scheduler import Process, Scheduler
from tests.simulation.store import Medium

TOPIC = "t"
ABORT = encode_abort("0" * 36)[:21]


@dataclass
class Sent:
    """One payload that an application sends, and what it was told about it."""

    number: int
    content: bytes
    sender: Process | None = None
    outcome: Literal["open", "sent", "failed", "unknown"] = "open"
    is_given_up: bool = False  # the sender was told that it is not in the topic, or not as a whole


@dataclass(eq=False)
class Record:
    """A message of the broker. ``callback`` is what the sender gets the answer with."""

    owner: int
    value: bytes
    key: Any = None
    headers: Any = None
    partition: int = 0
    callback: Any = None


@dataclass(eq=False)
class Unit:
    """One message for the application: a record, or the chunks of one attempt. A duplicate record is another one."""

    owner: int
    partition: int
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


@dataclass(eq=False)
class Group:
    """What a group of consumers was handed. ``is_orderly``: nothing happened that may deliver a payload twice."""

    name: str
    ledger: Ledger
    returned: dict[Unit, Any] = field(default_factory=dict)  # records in the topic, those read, by whom, the first
    reported: set[Unit] = field(default_factory=set)
    excused: set[Unit] = field(default_factory=set)  # skipped by the application, or by the client itself
    repeatable: set[Unit] = field(default_factory=set)  # may be returned again: not committed as a whole, or sought
    unread: list[tuple[Any, Unit, Process]] = field(default_factory=list)  # the store was unavailable
    is_orderly: bool = True

    def is_done(self) -> bool:
        """Whether everything is committed or acknowledged: nothing holds the position of the group."""
        raise NotImplementedError

    def may_pass(self, unit: Unit) -> bool:
        """Whether a commit or an acknowledgement of this group may cover a message."""
        return unit in self.returned or unit in self.excused or unit.is_removed or unit.is_aborted or not unit.positions

    def received(self, position: tuple[int, int], message: Any, process: Process, upto: int = 1 << 30) -> Unit | None:
        """A call returned a message; reads it as an application does. ``upto``: what its client has not read yet."""
        unit = self.ledger.at.get(position)
        if unit is None:
            self.ledger.scheduler.violated(f"{self.name} got a message at {position}, where none begins")
            return None
        count, read, before, at = self.returned.get(unit, (0, 0, None, 0))
        # What lost its head since has another first record for the next owner, which no mark can name.
        is_excused = at < self.ledger.low[unit.partition] or unit in self.repeatable
        is_again = count == len(unit.records) and (read == count or before is process)  # no chunk came later
        if is_again and self.is_orderly and not is_excused:
            self.ledger.scheduler.violated(f"{self.name} got {unit} twice, without a reason")
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
        ledger, violated = self.ledger, self.ledger.scheduler.violated
        try:
            content = message.value() if hasattr(message, "value") else message.data()
        except ClaimCheckError as error:
            if error.retryable:
                if not ledger.scheduler.is_faulty:
                    violated(f"{self.name} cannot read {unit} although the store is back: {error!r}")
                self.unread.append((message, unit, process))
            elif isinstance(error, IncompletePayloadError) or (
                isinstance(error, PayloadNotFoundError | IntegrityError) and unit.owner in ledger.medium.spoiled
            ):
                self.reported.add(unit)
            else:
                violated(f"{self.name} cannot read {unit}: {error!r}")
            return
        if content != ledger.sent[unit.owner].content:
            violated(f"{self.name} got wrong bytes for {unit}: {content[:30]!r}")
        if not unit.is_complete:
            violated(f"{self.name} got {unit}, which is incomplete")


class Ledger:
    """A topic, in which positions below ``low`` were removed by retention; and the store of its payloads."""

    def __init__(self, scheduler: Scheduler, partitions: int = 1) -> None:
        self.scheduler = scheduler
        self.medium = Medium(scheduler)
        self.medium.is_readable = self._points_at
        self.logs: list[list[Record]] = [[] for _ in range(partitions)]
        self.low = [0] * partitions
        self.sent: list[Sent] = []
        self.units: list[Unit] = []
        self.at: dict[tuple[int, int], Unit] = {}  # by partition and position
        self.groups: list[Any] = []
        self.launched: list[Record] = []  # in the topic, or may get there
        self.aborted: set[str] = set()  # uuids of which an abort envelope was sent, or could not be sent
        self._chunked: dict[tuple[int, str], Unit] = {}

    def new_payload(self, sender: Process | None = None) -> Sent:
        """An application sends a payload of a size that is sent as it is, or stored, or split."""
        size = self.scheduler.choice((20, 40, 400, 600, 900, 1500))
        content = b"payload-%d-" % len(self.sent) + self.scheduler.random.randbytes(size)
        sent = Sent(len(self.sent), content, sender)
        self.sent.append(sent)
        return sent

    def append(self, record: Record) -> int:
        """A record is in the topic now; returns its position."""
        log, partition, envelope = self.logs[record.partition], record.partition, decode(record.value)
        log.append(record)
        position = len(log) - 1
        unit = self._chunked.get((partition, envelope.uuid)) if isinstance(envelope, Chunk | Abort) else None
        if unit is None:
            unit = Unit(record.owner, partition)
            self.units.append(unit)
            if isinstance(envelope, Chunk | Abort):
                unit.uuid, unit.total = envelope.uuid, 1 << 30
                self._chunked[partition, envelope.uuid] = unit
        unit.records.append(position)
        if isinstance(envelope, Abort):
            unit.is_aborted = True
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
            self.append(Record(marker.number, marker.content, "", {}, partition))

    def remove(self) -> None:
        """Retention removes the oldest records of a partition, whoever may not have read them yet."""
        partition = self.scheduler.random.randrange(len(self.low))
        count = self.scheduler.choice((1, 2, 3, 9))
        self.low[partition] = min(self.low[partition] + count, len(self.logs[partition]))
        for position in range(self.low[partition]):
            if (unit := self.at.get((partition, position))) is not None:
                unit.is_removed = True

    def _points_at(self, key: str) -> bool:
        """Whether a record in the topic, or one that may get there, has a pointer to this payload."""
        text = key.encode()
        return any(text in record.value for record in self.launched)

    def check_at_rest(self) -> None:
        """Check what has to be true when no faults happen any more, and everybody has had time.

        That a group which has committed everything got everything was checked with each commit.
        """
        violated = self.scheduler.violated
        for group in self.groups:
            if not group.is_done():
                violated(f"{group.name} is held at {group.place()}")
        whole = {unit.owner for unit in self.units if unit.is_complete}
        stored = {self.medium.owners[key] for key in self.medium.payloads} - self.medium.undeletable
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
            if not unit.is_complete and self.sent[unit.owner].is_given_up and unit.uuid not in self.aborted:
                violated(f"{unit} was given up, and its readers were not told")


class ProducerClient:
    """What the native producers share; ``owner`` is the payload that its caller sends at the moment."""

    faults = 0.03
    is_idempotent = False
    may_hang = False

    def __init__(self, ledger: Ledger, process: Process) -> None:
        self.ledger, self.process, self.scheduler = ledger, process, process.scheduler
        self.owner, self.open, self.is_lost = -1, 0, False
        self._queue: deque[Record] = deque()

    def reach(self, value: bytes) -> None:
        """The application asks to send a record."""
        self.process.check()
        if value.startswith(ABORT):
            self.ledger.aborted.add(value[len(ABORT) :].decode())
        self.scheduler.point()

    def take(self, record: Record) -> None:
        """From now on a record may get into the topic."""
        self.ledger.launched.append(record)
        self._queue.append(record)
        self.open += 1
        self.scheduler.later(self._send_next, self.scheduler.choice((0.0, 0.001, 0.05)))

    def _send_next(self) -> None:
        """Send the oldest record of the queue; the answer is lost, late, wrong, or what it should be."""
        record, strikes, scheduler = self._queue.popleft(), self.scheduler.strikes, self.scheduler
        append = functools.partial(self.ledger.append, record)
        if not self.process.alive:
            append() if scheduler.chance(0.5) else self.ledger.launched.remove(record)
        elif strikes("broker refuses a record", self.faults / 2):
            self.ledger.launched.remove(record)
            self.answer(record, "refused", -1)
        elif strikes("answer of the broker is lost", self.faults):
            append()
            self.answer(record, "timeout", -1)
        elif strikes("record arrives after its timeout", self.faults):
            scheduler.later(append, 3.0)
            self.answer(record, "timeout", -1)
        elif strikes("record never arrives", self.faults / 2):
            self.answer(record, "timeout", -1)
        elif self.may_hang and not record.value.startswith(ABORT) and strikes("no answer ever", self.faults / 4):
            self.is_lost = True
        else:
            position = append()
            if not self.is_idempotent and strikes("record is stored twice", self.faults):
                scheduler.later(append, scheduler.choice((0.0, 0.1)))
            self.answer(record, "ok", position)

    def answer(self, record: Record, result: Literal["ok", "refused", "timeout"], position: int) -> None:
        """Pass the answer of the broker on."""
        raise NotImplementedError
