"""A model of a log with one group, and the thinnest transport over the resolver: what the property test drives."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from claimcheck._receive.resolver import Dropped, Failed, Outcome, Resolved, Resolver
from claimcheck._wire.envelope import Abort, Chunk, decode
from claimcheck.transports.pulsar._message import CumulativeAcks

SOURCE = "s"


@dataclass(frozen=True)
class Entry:
    """One message of the log."""

    value: bytes
    key: bytes | None = None

    @property
    def part(self) -> Chunk | Abort | None:
        envelope = decode(self.value)
        return envelope if isinstance(envelope, (Chunk, Abort)) else None

    @property
    def number(self) -> int | None:
        """Which chunk it is; ``None`` for no chunk."""
        return self.part.position if isinstance(self.part, Chunk) else None

    @property
    def piece(self) -> bytes:
        return bytes(self.part.piece) if isinstance(self.part, Chunk) else b""

    @property
    def identity(self) -> tuple[str, bytes | None] | None:
        """Uuid and writer of a chunk or an abort envelope."""
        part = self.part
        return (part.uuid, self.key) if part is not None else None


@dataclass
class Broker:
    """A log, and what a group has acknowledged of it: everything below a mark, and single messages behind it."""

    log: dict[int, Entry] = field(default_factory=dict)
    history: list[Entry] = field(default_factory=list)  # with what retention has deleted
    low: int = 0
    end: int = 0
    mark: int = 0
    acked: set[int] = field(default_factory=set)
    cursor: int = 0
    again: set[int] = field(default_factory=set)

    def append(self, entry: Entry) -> None:
        self.log[self.end] = entry
        self.history.append(entry)
        self.end += 1

    def is_acked(self, position: int) -> bool:
        return position < self.mark or position in self.acked

    def next(self) -> int | None:
        """The next message to deliver: one to redeliver, lowest first, or else a new one."""
        self.again = {position for position in self.again if position in self.log and not self.is_acked(position)}
        if self.again:
            position = min(self.again)
            self.again.discard(position)
            return position
        self.cursor = max(self.cursor, self.low, self.mark)
        while self.cursor < self.end and self.is_acked(self.cursor):
            self.cursor += 1
        if self.cursor == self.end:
            return None
        self.cursor += 1
        return self.cursor - 1

    def backlog(self) -> list[int]:
        return [position for position in self.log if not self.is_acked(position)]

    def reconnect(self) -> None:
        """Everything that is not acknowledged is delivered again, unasked."""
        self.again, self.cursor = set(), self.mark

    def seek(self, position: int) -> None:
        self.mark, self.acked, self.again, self.cursor = position, set(), set(), position

    def delete_below(self, position: int) -> None:
        """Retention: it does not ask who still needs a message."""
        self.low = max(self.low, position)
        self.log = {at: entry for at, entry in self.log.items() if at >= self.low}


@dataclass(eq=False)
class Delivery:
    """What the application has in hands: an outcome, or a message that never went through the resolver."""

    positions: tuple[int, ...]
    outcome: Resolved | Failed | None = field(default=None, repr=False)
    given_back: bool = False

    @property
    def end(self) -> int:
        return self.positions[-1]

    @property
    def all_positions(self) -> set[int]:
        """With late duplicates."""
        return set(self.positions if self.outcome is None else self.outcome.positions)


class Reader:
    """A transport: gives messages to a resolver, and does at the broker what its outcomes demand.

    Args:
        broker: The log.
        resolver: Takes every message, or with ``bypass`` chunks and abort envelopes only.
        bypass: As the wrappers of Kafka and Pulsar do.
        seen: Called with every outcome, before anything is done with it.
    """

    def __init__(self, broker: Broker, resolver: Resolver, *, bypass: bool, seen: Callable[[Outcome], None]) -> None:
        self.broker, self.resolver, self.bypass, self.seen = broker, resolver, bypass, seen
        self.outstanding: list[Delivery] = []
        self.given_back: list[Outcome] = []
        self.received: set[int] = set()
        self.acks = CumulativeAcks()
        self.feeding: int | None = None

    def poll(self) -> int | None:
        """Take one message and return its position. Only if there is none, time is looked at for its own sake."""
        position = self.feeding = self.broker.next()
        if position is None:
            self._act(self.resolver.tick())
            return None
        entry = self.broker.log[position]
        self.received.add(position)
        if entry.part is None and self.bypass:
            self.acks.received(position, position)
            self.outstanding.append(Delivery((position,)))
            self._act(self.resolver.tick())
            return position
        self._end_earlier_delivery(position)
        self._act(self.resolver.feed(SOURCE, position, entry.value, key=entry.key, handle=position))
        return position

    def ack(self, delivery: Delivery) -> None:
        self.outstanding.remove(delivery)
        for position in delivery.all_positions:
            self._acked(position)
        if delivery.outcome is not None:
            self.resolver.settle(delivery.outcome, acked=True)

    def ack_up_to(self, delivery: Delivery) -> None:
        target, settled = delivery.end, list[tuple[int, int]]()
        for each in [each for each in self.outstanding if each.end <= target]:
            self.outstanding.remove(each)
            if each.outcome is not None:
                settled += [(position, position) for position in each.all_positions]
                self.resolver.settle(each.outcome, acked=True)
        plan = self.acks.up_to(target, hole=self.resolver.safe_position(SOURCE), settled=settled)
        self.broker.mark = max(self.broker.mark, target + 1 if plan.before is None else plan.before)
        for position in plan.individually:
            self._acked(position)

    def nack(self, delivery: Delivery) -> None:
        self.outstanding.remove(delivery)
        if delivery.outcome is not None:
            self._give_back(delivery.outcome)
        else:
            self.acks.pop(delivery.end, None)
            self.broker.again |= delivery.all_positions

    def clear(self) -> None:
        """The broker moved the group: what was received before is stale."""
        self.resolver.clear(SOURCE)
        self.acks = CumulativeAcks()
        self.outstanding, self.given_back, self.received = [], [], set()

    def deleted_below(self, low: int) -> None:
        """What was given back and is gone will not be redelivered: it counts as settled."""
        for outcome in self.given_back:
            gone = [slot for slot in outcome.slots if slot.position < low and slot.position not in self.received]
            if gone:
                lost = Dropped(source=SOURCE, slots=gone, since=outcome.since, reason="expired", action="ack")
                self.resolver.settle(lost, acked=True)

    def _end_earlier_delivery(self, position: int) -> None:
        """The broker delivers again by itself what was delivered and is not settled: that is another attempt."""
        for delivery in self.outstanding:
            if delivery.outcome is not None and not delivery.given_back and position in delivery.all_positions:
                delivery.given_back = True
                self.resolver.settle(delivery.outcome, acked=False)

    def _act(self, outcomes: list[Outcome]) -> None:
        for outcome in outcomes:
            self.seen(outcome)
            if not isinstance(outcome, Dropped):
                self.outstanding.append(Delivery(outcome.positions, outcome))
            elif outcome.action == "redeliver":
                self._give_back(outcome)
            else:  # dead letters are as good as acknowledged
                for position in outcome.positions:
                    self._acked(position)
                self.resolver.settle(outcome, acked=True)

    def _give_back(self, outcome: Outcome) -> None:
        self.resolver.settle(outcome, acked=False)
        self.received -= set(outcome.positions)
        self.broker.again |= set(outcome.positions)
        self.given_back.append(outcome)
        self.deleted_below(self.broker.low)

    def _acked(self, position: int) -> None:
        self.acks.pop(position, None)
        self.broker.acked.add(position)
