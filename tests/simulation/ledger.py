"""What was sent, what is in the topic, and what each group was handed: the checks that are alike for all brokers."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any, Literal

from claimcheck._wire.envelope import Abort, Chunk, PointerData, decode, encode_abort
from claimcheck.errors import ClaimCheckError, IncompletePayloadError, IntegrityError, PayloadNotFoundError
from tests.simulation.scheduler import Process, Scheduler
from tests.simulation.store import Medium

ABORT = encode_abort("0" * 36)[:21]
Outcome = Literal["open", "sent", "failed", "unknown"]


@dataclass
class Sent:
    """One payload that an application sends, and what it was told about it."""

    number: int
    content: bytes
    outcome: Outcome = "open"


@dataclass(eq=False)
class Unit:
    """One message for the application: a record, or the chunks of one attempt. A duplicate record is another one."""

    owner: int
    source: Hashable
    total: int = 1
    positions: dict[int, Any] = field(default_factory=dict)  # chunk to the position of its first copy
    copies: list[Any] = field(default_factory=list)  # further positions of the same chunks
    is_aborted: bool = False
    is_removed: bool = False  # at least in part
    is_pointer: bool = False
    uuid: str = ""

    @property
    def is_complete(self) -> bool:
        return len(self.positions) == self.total

    @property
    def first(self) -> Any:
        return min(self.positions.values())

    @property
    def last(self) -> Any:
        return max(self.positions.values(), default=-1)

    def __repr__(self) -> str:
        state = "" if self.is_complete else f" of {self.total} chunks"
        return f"<payload {self.owner} at {self.source}: {sorted(self.positions.values())}{state}>"


@dataclass(eq=False)
class Group:
    """What a group of consumers was handed. ``is_orderly``: nothing happened that may deliver a payload twice."""

    name: str
    returned: set[Unit] = field(default_factory=set)
    reported: set[Unit] = field(default_factory=set)
    excused: set[Unit] = field(default_factory=set)  # skipped by the application, or by the client itself
    unread: list[tuple[Any, Unit, Process]] = field(default_factory=list)  # the store was unavailable
    is_orderly: bool = True


class Ledger:
    """Everything that one topic and one store should be consistent with."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.medium = Medium(scheduler)
        self.medium.is_readable = self.points_at
        self.sent: list[Sent] = []
        self.units: list[Unit] = []
        self.groups: list[Group] = []
        self.values: list[tuple[int, bytes]] = []  # of every record that is in the topic, or may get there
        self.given_up: set[int] = set()  # the sender was told that a payload is not in the topic, or not as a whole
        self.aborted: set[str] = set()  # uuids of which an abort envelope was sent, or could not be sent
        self._chunked: dict[tuple[Hashable, str], Unit] = {}
        self._at: dict[tuple[Hashable, Any], Unit] = {}

    # Sending

    def new_payload(self) -> Sent:
        """A payload of a size that is sent as it is, or stored, or split."""
        size = self.scheduler.choice((20, 40, 400, 600, 900, 1500))
        return self.add(b"payload-%d-" % len(self.sent) + self.scheduler.random.randbytes(size))

    def add(self, content: bytes) -> Sent:
        """An application sends something."""
        sent = Sent(len(self.sent), content)
        self.sent.append(sent)
        return sent

    def launched(self, owner: int, value: bytes | None) -> None:
        """A client has taken a record; from now on it may get into the topic."""
        if value is not None:
            self.values.append((owner, bytes(value)))

    def attempted(self, value: bytes | None) -> None:
        """A client is asked to send a record."""
        if value is not None and value.startswith(ABORT):
            self.aborted.add(value[len(ABORT) :].decode())

    def refused(self, owner: int, value: bytes | None) -> None:
        """A record is definitely not in the topic, and never will be."""
        if value is not None:
            self.values.remove((owner, bytes(value)))

    def points_at(self, key: str) -> bool:
        """Whether a record in the topic, or one that may get there, has a pointer to this payload."""
        text = key.encode()
        return any(text in value for _, value in self.values)

    def appended(self, owner: int, source: Hashable, position: Any, value: bytes) -> Unit | None:
        """A record is in the topic now; returns the message that it is a part of."""
        envelope = decode(value)
        if isinstance(envelope, Chunk | Abort):
            unit = self._chunked.get((source, envelope.uuid))
            if unit is None:
                unit = self._chunked[source, envelope.uuid] = self._unit(owner, source)
                unit.total, unit.uuid = 1 << 30, envelope.uuid
        else:
            unit = self._unit(owner, source)
            unit.is_pointer = isinstance(envelope, PointerData)
        if isinstance(envelope, Abort):
            unit.is_aborted = True
            return None
        number = envelope.position if isinstance(envelope, Chunk) else 0
        unit.total = envelope.count if isinstance(envelope, Chunk) else 1
        if number in unit.positions:
            unit.copies.append(position)
        unit.positions.setdefault(number, position)
        self._at[source, position] = unit
        return unit

    def _unit(self, owner: int, source: Hashable) -> Unit:
        unit = Unit(owner, source)
        self.units.append(unit)
        return unit

    # Receiving

    def unit_at(self, source: Hashable, position: Any) -> Unit | None:
        return self._at.get((source, position))

    def returned(self, group: Group, unit: Unit | None, where: object, message: Any, process: Process) -> None:
        """A call returned a message; reads it as an application does."""
        if unit is None:
            self.scheduler.violated(f"{group.name} got a message at {where}, where none begins")
            return
        if unit in group.returned and group.is_orderly:
            self.scheduler.violated(f"{group.name} got {unit} twice, without a reason")
        group.returned.add(unit)
        self.read(group, unit, message, process)

    def read(self, group: Group, unit: Unit, message: Any, process: Process) -> None:
        """Ask for the payload, and check the answer."""
        owner, violated = unit.owner, self.scheduler.violated
        try:
            content = message.value() if hasattr(message, "value") else message.data()
        except ClaimCheckError as error:
            if error.retryable:
                if not self.scheduler.is_faulty:
                    violated(f"{group.name} cannot read {unit} although the store is back: {error!r}")
                group.unread.append((message, unit, process))
            elif isinstance(error, IncompletePayloadError) or (
                isinstance(error, PayloadNotFoundError | IntegrityError) and owner in self.medium.spoiled
            ):
                group.reported.add(unit)
            else:
                violated(f"{group.name} cannot read {unit}: {error!r}")
            return
        if content != self.sent[owner].content:
            violated(f"{group.name} got wrong bytes for {unit}: {content[:30]!r}")
        if not unit.is_complete:
            violated(f"{group.name} got {unit}, which is incomplete")

    def read_again(self, group: Group) -> None:
        """Ask once more for payloads whose store was unavailable."""
        unread, group.unread = group.unread, []
        for message, unit, process in unread:
            if process.alive:
                self.read(group, unit, message, process)

    def may_pass(self, group: Group, unit: Unit) -> bool:
        """Whether a commit or an acknowledgement of this group may cover a message."""
        return (
            unit in group.returned or unit in group.excused or unit.is_removed or unit.is_aborted or not unit.positions
        )

    # At rest

    def is_at_rest(self) -> bool:
        """Whether every group got everything that it has to get."""
        missing = (unit for unit in self.units for group in self.groups if not self.may_pass(group, unit))
        return not any(group.unread for group in self.groups) and not any(unit.is_complete for unit in missing)

    def check_at_rest(self) -> None:
        """Check what has to be true when no faults happen any more, and everybody has had time."""
        violated = self.scheduler.violated
        for group in self.groups:
            for unit in self.units:
                if unit.is_complete and not self.may_pass(group, unit):
                    violated(f"{group.name} never got {unit}, which is {self.sent[unit.owner].outcome}")
            if group.unread:
                violated(f"{group.name} could never read {group.unread[0][1]}")
        whole = {unit.owner for unit in self.units if unit.is_complete}
        for sent in self.sent:
            if sent.outcome == "open":
                violated(f"the sender of payload {sent.number} was never told what became of it")
            if sent.outcome == "sent" and sent.number not in whole:
                violated(f"payload {sent.number} was reported as sent, and is not in the topic")
            if sent.outcome == "failed" and sent.number in whole:
                violated(f"payload {sent.number} was reported as failed, and is in the topic")
        self._check_leftovers()

    def _check_leftovers(self) -> None:
        """Check that what failed was undone."""
        for unit in self.units:
            if not unit.is_complete and unit.owner in self.given_up and unit.uuid not in self.aborted:
                self.scheduler.violated(f"{unit} was given up, and its readers were not told")
        for owner in {self.medium.owners[key] for key in self.medium.payloads} - self.medium.undeletable:
            if self.sent[owner].outcome == "failed":
                self.scheduler.violated(f"payload {owner} definitely failed, and is stored for ever")
