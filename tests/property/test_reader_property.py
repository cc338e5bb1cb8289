"""The whole reader against a model of a log: nothing lost, nothing twice, nothing mixed up, everything ends.

Writers, some of them hostile, append plain messages, pointers, chunks and abort envelopes in any interleaving; the
broker redelivers and seeks; the application acknowledges or gives back. The transport is as thin as can be, so that the
resolver does all the work; tests/simulation has the real ones, with cumulative acknowledgements and retention.
"""

from __future__ import annotations

import logging
import re
import sys
import uuid
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import hypothesis.strategies as st
import pytest
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from claimcheck._receive.resolver import Dropped, Failed, Outcome, Resolved, Resolver
from claimcheck._wire.envelope import Abort, Chunk, decode, encode_abort, encode_chunk, encode_pointer
from claimcheck.config import ChunkingConfig
from claimcheck.errors import ChunkConflictError, IncompletePayloadError, PayloadTooLargeError
from tests.hypothesis_examples import examples

SOURCE = "s"
EXPIRY = 10.0
REDELIVERIES = 2
PIECES = st.integers(1, 4).flatmap(lambda count: st.lists(st.binary(max_size=6), min_size=count, max_size=count))
BOUNDS = {
    "max_payload_bytes": 30,
    "max_pending_bytes": 50,
    "max_pending_payloads": 5,
    "max_pending_messages": 11,
    "max_chunks": 4,
}


@pytest.fixture(autouse=True)
def quiet(caplog):
    """Abort envelopes are logged, thousands of them here."""
    caplog.set_level(logging.ERROR, logger="claimcheck")


Name = tuple[str, bytes | None]  # uuid and writer


# A log with one group, and a transport --------------------------------------------------------------------------


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
    def identity(self) -> Name | None:
        """Uuid and writer of a chunk or an abort envelope."""
        part = self.part
        return (part.uuid, self.key) if part is not None else None


@dataclass
class Broker:
    """A log, and which messages a group has acknowledged."""

    log: list[Entry] = field(default_factory=list)
    mark: int = 0
    acked: set[int] = field(default_factory=set)
    cursor: int = 0
    again: set[int] = field(default_factory=set)

    def is_acked(self, position: int) -> bool:
        return position < self.mark or position in self.acked

    def next(self) -> int | None:
        """The next message to deliver: one to redeliver, lowest first, or else a new one."""
        self.again = {position for position in self.again if not self.is_acked(position)}
        if self.again:
            position = min(self.again)
            self.again.discard(position)
            return position
        while self.cursor < len(self.log) and self.is_acked(self.cursor):
            self.cursor += 1
        if self.cursor == len(self.log):
            return None
        self.cursor += 1
        return self.cursor - 1

    def backlog(self) -> list[int]:
        return [position for position in range(len(self.log)) if not self.is_acked(position)]

    def reconnect(self) -> None:
        """Everything that is not acknowledged is delivered again, unasked."""
        self.again, self.cursor = set(), self.mark

    def seek(self, position: int) -> None:
        self.mark, self.acked, self.again, self.cursor = position, set(), set(), position


@dataclass(eq=False)
class Delivery:
    """What the application has in hands."""

    outcome: Resolved | Failed = field(repr=False)
    given_back: bool = False

    @property
    def positions(self) -> set[int]:
        """With late duplicates."""
        return set(self.outcome.positions)


class Reader:
    """A transport: gives messages to a resolver, and does at the broker what its outcomes demand.

    Args:
        broker: The log.
        resolver: Takes every message.
        seen: Called with every outcome, before anything is done with it.
    """

    def __init__(self, broker: Broker, resolver: Resolver, *, seen: Callable[[Outcome], None]) -> None:
        self.broker, self.resolver, self.seen = broker, resolver, seen
        self.outstanding: list[Delivery] = []
        self.feeding: int | None = None

    def poll(self) -> int | None:
        """Take one message and return its position. Only if there is none, time is looked at for its own sake."""
        position = self.feeding = self.broker.next()
        if position is None:
            self._act(self.resolver.tick())
            return None
        entry = self.broker.log[position]
        self._end_earlier_delivery(position)
        self._act(self.resolver.feed(SOURCE, position, entry.value, key=entry.key, handle=position))
        return position

    def ack(self, delivery: Delivery) -> None:
        self.outstanding.remove(delivery)
        self.broker.acked |= delivery.positions
        self.resolver.settle(delivery.outcome, acked=True)

    def nack(self, delivery: Delivery) -> None:
        self.outstanding.remove(delivery)
        self._give_back(delivery.outcome)

    def clear(self) -> None:
        """The broker moved the group: what was received before is stale."""
        self.resolver.clear(SOURCE)
        self.outstanding = []

    def _end_earlier_delivery(self, position: int) -> None:
        """The broker delivers again by itself what was delivered and is not settled: that is another attempt."""
        for delivery in self.outstanding:
            if not delivery.given_back and position in delivery.positions:
                delivery.given_back = True
                self.resolver.settle(delivery.outcome, acked=False)

    def _act(self, outcomes: list[Outcome]) -> None:
        for outcome in outcomes:
            self.seen(outcome)
            if not isinstance(outcome, Dropped):
                self.outstanding.append(Delivery(outcome))
            elif outcome.action == "redeliver":
                self._give_back(outcome)
            else:  # dead letters are as good as acknowledged
                self.broker.acked |= set(outcome.positions)
                self.resolver.settle(outcome, acked=True)

    def _give_back(self, outcome: Outcome) -> None:
        self.resolver.settle(outcome, acked=False)
        self.broker.again |= set(outcome.positions)


# Everything that happens ----------------------------------------------------------------------------------------


class Payload:
    """What a writer wants to send."""

    def __init__(self, name: Name, pieces: list[bytes]) -> None:
        self.name, self.pieces, self.sent = name, pieces, 0
        self.contradicted = self.aborted = False

    def __repr__(self) -> str:
        return f"Payload({self.name[0][-2:]}, {self.name[1]!r}, {self.pieces})"

    def chunk(self, number: int) -> Entry:
        return Entry(encode_chunk(self.name[0], number, len(self.pieces), self.pieces[number]), self.name[1])


class ReaderMachine(RuleBasedStateMachine):
    """Every rule does one thing that a writer, the broker, the application or the clock does."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.broker = Broker()
        self.payloads: dict[Name, Payload] = {}
        self.held: dict[int, float] = {}  # chunks, and since when
        self.mentioned: set[int] = set()  # in the outcomes of one poll
        self.redelivered: Counter[int] = Counter()  # by the resolver, because a payload was incomplete
        self.acknowledged: dict[Name, dict[int, bytes]] = {}  # chunks of payloads that were, since the last seek
        self.ended: set[Name] = set()  # the same, and those that ended otherwise

    @initialize(actions=st.tuples(*[st.sampled_from(["redeliver", "dead_letter", "ack"])] * 2))
    def start(self, actions):
        chunking = ChunkingConfig(
            expire_after_seconds=EXPIRY,
            max_redeliveries=REDELIVERIES,
            on_expire=actions[0],
            on_evict=actions[1],
            **BOUNDS,
        )
        resolver = Resolver(lambda data: b"stored " + data, chunking=chunking, clock=lambda: self.now)
        self.reader = Reader(self.broker, resolver, seen=self.seen)

    # Writers ---------------------------------------------------------------------------------------------------

    @rule(pointer=st.booleans())
    def write_own(self, pointer):
        self.broker.log.append(Entry(encode_pointer(b"p") if pointer else b"plain", b"k"))

    @rule(pieces=PIECES, key=st.sampled_from([None, b"a", b"b"]), missing=st.integers(0, 2))
    def write_payload(self, pieces, key, missing):
        payload = Payload((str(uuid.UUID(int=len(self.payloads) + 1)), key), pieces)
        self.payloads[payload.name] = payload
        for _ in range(max(1, len(pieces) - missing)):
            self.send_next(payload)

    def send_next(self, payload):
        if payload.sent < len(payload.pieces):
            self.broker.log.append(payload.chunk(payload.sent))
            payload.sent += 1

    @precondition(lambda self: self.payloads)
    @rule(data=st.data())
    def write_more(self, data):
        self.send_next(self.some_payload(data))

    @precondition(lambda self: self.payloads)
    @rule(data=st.data())
    def write_duplicate(self, data):
        payload = self.some_payload(data)
        self.broker.log.append(payload.chunk(data.draw(st.integers(0, len(payload.pieces) - 1), label="number")))

    @precondition(lambda self: self.payloads)
    @rule(data=st.data(), own=st.booleans())
    def write_abort(self, data, own):
        payload = self.some_payload(data)
        key = payload.name[1] if own else b"foreign"
        payload.aborted |= own
        self.broker.log.append(Entry(encode_abort(payload.name[0]), key))

    @precondition(lambda self: self.payloads)
    @rule(data=st.data(), own=st.booleans(), number=st.integers(0, 3), more=st.integers(0, 2), piece=st.just(b"EVIL"))
    def write_forged(self, data, own, number, more, piece):
        """Another chunk with the uuid of a payload, with its key or another one, of any position and count."""
        payload = self.some_payload(data)
        name = payload.name if own else (payload.name[0], b"foreign")
        count = max(number + 1, len(payload.pieces) + more)
        self.payloads.setdefault(name, Payload(name, [piece])).contradicted = True
        self.broker.log.append(Entry(encode_chunk(name[0], number, count, piece), name[1]))

    def some_payload(self, data):
        recent = list(self.payloads.values())[-5:]
        return data.draw(st.sampled_from([each for each in recent if each.name[1] != b"foreign"] or recent), "payload")

    # The broker and the clock ----------------------------------------------------------------------------------

    @rule(messages=st.integers(1, 6))
    def poll(self, messages):
        for _ in range(messages):
            self.poll_once()

    def poll_once(self):
        self.mentioned = set()
        position = self.reader.poll()
        if position is None:
            return False
        current = [each for each in self.reader.outstanding if not each.given_back]
        joined = {at for each in current for at in each.positions}
        if self.broker.log[position].number is not None and position not in self.mentioned | joined:
            self.held.setdefault(position, self.now)
        oldest = min(self.held.values(), default=self.now)
        assert oldest > self.now - EXPIRY, f"chunks are held for {self.now - oldest} s on a busy topic"
        return True

    @rule(seconds=st.sampled_from([0.5, 3.0, EXPIRY]))
    def wait(self, seconds):
        self.now += seconds

    @rule()
    def reconnect(self):
        self.broker.reconnect()

    @rule(share=st.integers(0, 4), really=st.integers(0, 3))
    def seek(self, share, really):
        if really:  # often enough it would forget all that is of interest
            return
        self.broker.seek(share * len(self.broker.log) // 4)
        self.reader.clear()
        self.held, self.acknowledged, self.ended = {}, {}, set()

    # The application -------------------------------------------------------------------------------------------

    @precondition(lambda self: self.reader.outstanding)
    @rule(data=st.data(), how=st.sampled_from(["ack", "ack", "nack"]))
    def settle(self, data, how):
        delivery = data.draw(st.sampled_from(self.reader.outstanding), label="delivery")
        self.ack(delivery) if how == "ack" else self.reader.nack(delivery)

    def ack(self, delivery):
        self.note_acknowledged(delivery.outcome)
        self.reader.ack(delivery)

    def note_acknowledged(self, outcome):
        if outcome.uuid is None or getattr(outcome, "late", False):
            return
        for position in outcome.positions:
            self.held.pop(position, None)
        name = self.name_of(outcome)
        self.ended.add(name)
        if isinstance(outcome, Resolved):
            self.acknowledged[name] = self.chunks_of(outcome)

    # What is said of every outcome -----------------------------------------------------------------------------

    def seen(self, outcome: Outcome) -> None:
        self.mentioned.update(outcome.positions)
        for position in outcome.positions:
            self.held.pop(position, None)
        if isinstance(outcome, Resolved):
            self.seen_resolved(outcome)
        elif isinstance(outcome, Failed):
            self.seen_failed(outcome)
        else:
            self.seen_dropped(outcome)

    def name_of(self, outcome: Outcome) -> Name:
        names = {self.broker.log[position].identity for position in outcome.positions}
        assert len(names) == 1, "an outcome mixes payloads"
        name: Name | None = names.pop()
        assert name is not None
        return name

    def chunks_of(self, outcome: Outcome) -> dict[int, bytes]:
        """Pieces by number; duplicates are equal, or else what is acknowledged together contradicts itself."""
        pieces: dict[int, bytes] = {}
        for position in outcome.positions:
            entry = self.broker.log[position]
            assert entry.number is not None
            assert pieces.setdefault(entry.number, entry.piece) == entry.piece
        return pieces

    def seen_resolved(self, outcome: Resolved) -> None:
        if outcome.uuid is None:
            return
        name = self.name_of(outcome)
        assert name not in self.acknowledged, "delivered again after it was acknowledged"
        chunks, payload = self.chunks_of(outcome), self.payloads[name]
        assert outcome.payload == b"".join(chunks[number] for number in sorted(chunks))
        assert payload.contradicted or outcome.payload == b"".join(payload.pieces)
        for position in [at for at in self.redelivered if self.broker.log[at].identity == name]:
            del self.redelivered[position]

    def seen_failed(self, outcome: Failed) -> None:
        payload, error = self.payloads[self.name_of(outcome)], outcome.error
        if isinstance(error, IncompletePayloadError):
            assert self.is_incomplete(outcome)
        elif isinstance(error, ChunkConflictError):
            assert payload.contradicted
        else:
            assert isinstance(error, PayloadTooLargeError)
            assert payload.contradicted or len(outcome.slots) > BOUNDS["max_pending_messages"]

    def seen_dropped(self, outcome: Dropped) -> None:
        name = self.name_of(outcome)
        if outcome.reason == "duplicate":
            assert name in self.ended
            delivered = self.acknowledged.get(name)
            assert delivered is None or self.chunks_of(outcome).items() <= delivered.items(), "not a duplicate"
        elif outcome.reason == "aborted":
            assert name[1] == b"foreign" or self.payloads[name].aborted, "aborted by another writer"
        else:
            assert self.is_incomplete(outcome)
            self.check_bound(outcome)
        if outcome.action == "redeliver":
            self.redelivered.update(outcome.positions)
            most = max(self.redelivered[position] for position in outcome.positions)
            assert most <= 2 * (REDELIVERIES + 1), "redelivered for ever"
        else:
            self.ended.add(name)

    def is_incomplete(self, outcome: Outcome) -> bool:
        payload = self.payloads[self.name_of(outcome)]
        numbers = {self.broker.log[position].number for position in outcome.positions}
        return payload.contradicted or len(numbers) < len(payload.pieces)

    def check_bound(self, outcome: Dropped) -> None:
        """The bound that the error names is exceeded by what is held, the message that is fed and what is evicted."""
        position = self.reader.feeding
        if outcome.reason != "evicted" or position in outcome.positions:  # the tail of an evicted payload
            return
        [(bound, value)] = re.findall(r"chunking\.(\w+) is (\d+)", str(outcome.error))
        assert BOUNDS[bound] == int(value)
        entries = [self.broker.log[at] for at in {*self.held, *outcome.positions, position}]
        load = {
            "max_pending_messages": len(entries),
            "max_pending_payloads": len({entry.identity for entry in entries}),
            "max_pending_bytes": sum(len(entry.piece) for entry in entries),
        }
        assert load[bound] > BOUNDS[bound], f"evicted although {bound} was not exceeded"

    @invariant()
    def bounds_what_it_holds_and_what_it_remembers(self):
        assembler = self.reader.resolver._assembler
        remembered = sum(record.weight for record in assembler._closed.values())
        assert assembler._remembered_positions == remembered
        assert self.reader.resolver.pending_bytes <= BOUNDS["max_pending_bytes"]
        assert self.reader.resolver.pending_payloads <= BOUNDS["max_pending_payloads"]

    @invariant()
    def no_commit_passes_what_is_held_or_not_settled(self):
        open_ones = [each for each in self.reader.outstanding if not each.given_back]
        positions = {*self.held, *(at for each in open_ones for at in each.positions)} - self.broker.acked
        safe = self.reader.resolver.safe_position(SOURCE)
        assert not positions or (safe is not None and safe <= min(positions))

    # The end ---------------------------------------------------------------------------------------------------

    def teardown(self):
        """From any state on everything ends, if only time passes and the application acknowledges what it gets."""
        if sys.exc_info()[0] is not None:  # a step has failed, and that is what is to be seen
            return
        for _ in range(4 * (REDELIVERIES + 2)):
            while self.poll_once():
                pass
            while self.reader.outstanding:
                self.ack(self.reader.outstanding[0])
            self.now += EXPIRY
        assert self.broker.backlog() == []
        assert self.reader.resolver.safe_position(SOURCE) is None
        assert self.reader.resolver.pending_payloads == 0
        assert self.reader.resolver.pending_bytes == 0


TestReader = ReaderMachine.TestCase
TestReader.settings = examples(500, stateful_step_count=60)
