"""The whole reader against a model of a log: nothing lost, nothing twice, nothing mixed up, everything ends.

Writers, some of them hostile, append plain messages, pointers, chunks and abort envelopes in any interleaving; the
broker redelivers, deletes its head, and seeks; the application acknowledges one by one, cumulatively, or gives back.
The transport is as thin as can be (`tests.property.model_broker`), so that the resolver and the decision about
cumulative acknowledgements do all the work.
"""

from __future__ import annotations

import logging
import re
import sys
import uuid
from collections import Counter

import hypothesis.strategies as st
import pytest
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from claimcheck._receive.resolver import Dropped, Failed, Outcome, Resolved, Resolver
from claimcheck._wire.envelope import encode_abort, encode_chunk, encode_pointer
from claimcheck.config import ChunkingConfig
from claimcheck.errors import ChunkConflictError, IncompletePayloadError, PayloadTooLargeError
from tests.hypothesis_examples import examples
from tests.property.model_broker import SOURCE, Broker, Entry, Reader

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

    @initialize(bypass=st.booleans(), actions=st.tuples(*[st.sampled_from(["redeliver", "dead_letter", "ack"])] * 2))
    def start(self, bypass, actions):
        chunking = ChunkingConfig(
            expire_after_seconds=EXPIRY,
            max_redeliveries=REDELIVERIES,
            on_expire=actions[0],
            on_evict=actions[1],
            **BOUNDS,
        )
        resolver = Resolver(lambda data: b"stored " + data, chunking=chunking, clock=lambda: self.now)
        self.reader = Reader(self.broker, resolver, bypass=bypass, seen=self.seen)

    # Writers ---------------------------------------------------------------------------------------------------

    @rule(pointer=st.booleans())
    def write_own(self, pointer):
        self.broker.append(Entry(encode_pointer(b"p") if pointer else b"plain %d" % self.broker.end, b"k"))

    @rule(pieces=PIECES, key=st.sampled_from([None, b"a", b"b"]), missing=st.integers(0, 2))
    def write_payload(self, pieces, key, missing):
        payload = Payload((str(uuid.UUID(int=len(self.payloads) + 1)), key), pieces)
        self.payloads[payload.name] = payload
        for _ in range(max(1, len(pieces) - missing)):
            self.send_next(payload)

    def send_next(self, payload):
        if payload.sent < len(payload.pieces):
            self.broker.append(payload.chunk(payload.sent))
            payload.sent += 1

    @precondition(lambda self: self.payloads)
    @rule(data=st.data())
    def write_more(self, data):
        self.send_next(self.some_payload(data))

    @precondition(lambda self: self.payloads)
    @rule(data=st.data())
    def write_duplicate(self, data):
        payload = self.some_payload(data)
        self.broker.append(payload.chunk(data.draw(st.integers(0, len(payload.pieces) - 1), label="number")))

    @precondition(lambda self: self.payloads)
    @rule(data=st.data(), own=st.booleans())
    def write_abort(self, data, own):
        payload = self.some_payload(data)
        key = payload.name[1] if own else b"foreign"
        payload.aborted |= own
        self.broker.append(Entry(encode_abort(payload.name[0]), key))

    @precondition(lambda self: self.payloads)
    @rule(data=st.data(), own=st.booleans(), number=st.integers(0, 3), more=st.integers(0, 2), piece=st.just(b"EVIL"))
    def write_forged(self, data, own, number, more, piece):
        """Another chunk with the uuid of a payload, with its key or another one, of any position and count."""
        payload = self.some_payload(data)
        name = payload.name if own else (payload.name[0], b"foreign")
        count = max(number + 1, len(payload.pieces) + more)
        self.payloads.setdefault(name, Payload(name, [piece])).contradicted = True
        self.broker.append(Entry(encode_chunk(name[0], number, count, piece), name[1]))

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
        joined = {at for each in current for at in each.all_positions}
        if self.broker.history[position].number is not None and position not in self.mentioned | joined:
            self.held.setdefault(position, self.now)
        oldest = min(self.held.values(), default=self.now)
        assert oldest > self.now - EXPIRY, f"chunks are held for {self.now - oldest} s on a busy topic"
        return True

    @rule(seconds=st.sampled_from([0.5, 3.0, EXPIRY]))
    def wait(self, seconds):
        self.now += seconds

    @rule(share=st.integers(0, 4))
    def retention(self, share):
        low = self.broker.low + share * (self.broker.end - self.broker.low) // 8
        self.broker.delete_below(low)
        self.reader.deleted_below(low)

    @rule()
    def reconnect(self):
        self.broker.reconnect()

    @rule(share=st.integers(0, 4), really=st.integers(0, 3))
    def seek(self, share, really):
        if really:  # often enough it would forget all that is of interest
            return
        self.broker.seek(self.broker.low + share * (self.broker.end - self.broker.low) // 4)
        self.reader.clear()
        self.held, self.acknowledged, self.ended = {}, {}, set()

    # The application -------------------------------------------------------------------------------------------

    @precondition(lambda self: self.reader.outstanding)
    @rule(data=st.data(), how=st.sampled_from(["ack", "ack", "ack_up_to", "nack"]))
    def settle(self, data, how):
        delivery = data.draw(st.sampled_from(self.reader.outstanding), label="delivery")
        if how == "ack":
            self.ack(delivery)
        elif how == "nack":
            self.reader.nack(delivery)
        else:
            self.ack_up_to(delivery)

    def ack(self, delivery):
        self.note_acknowledged(delivery)
        self.reader.ack(delivery)

    def ack_up_to(self, delivery):
        covered = [each for each in self.reader.outstanding if each.end <= delivery.end]
        for each in covered:
            self.note_acknowledged(each)
        self.reader.ack_up_to(delivery)
        left = [at for each in covered for at in each.all_positions if not self.broker.is_acked(at)]
        assert not left, f"a cumulative acknowledgement left {left} unacknowledged"

    def note_acknowledged(self, delivery):
        outcome = delivery.outcome
        if outcome is None or outcome.uuid is None or getattr(outcome, "late", False):
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
        names = {self.broker.history[position].identity for position in outcome.positions}
        assert len(names) == 1, "an outcome mixes payloads"
        name: Name | None = names.pop()
        assert name is not None
        return name

    def chunks_of(self, outcome: Outcome) -> dict[int, bytes]:
        """Pieces by number; duplicates are equal, or else what is acknowledged together contradicts itself."""
        pieces: dict[int, bytes] = {}
        for position in outcome.positions:
            entry = self.broker.history[position]
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
        for position in [at for at in self.redelivered if self.broker.history[at].identity == name]:
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
        numbers = {self.broker.history[position].number for position in outcome.positions}
        return payload.contradicted or len(numbers) < len(payload.pieces)

    def check_bound(self, outcome: Dropped) -> None:
        """The bound that the error names is exceeded by what is held, the message that is fed and what is evicted."""
        position = self.reader.feeding
        if outcome.reason != "evicted" or position in outcome.positions:  # the tail of an evicted payload
            return
        [(bound, value)] = re.findall(r"chunking\.(\w+) is (\d+)", str(outcome.error))
        assert BOUNDS[bound] == int(value)
        entries = [self.broker.history[at] for at in {*self.held, *outcome.positions, position}]
        load = {
            "max_pending_messages": len(entries),
            "max_pending_payloads": len({entry.identity for entry in entries}),
            "max_pending_bytes": sum(len(entry.piece) for entry in entries),
        }
        assert load[bound] > BOUNDS[bound], f"evicted although {bound} was not exceeded"

    @invariant()
    def bounds_what_it_remembers_of_payloads_that_ended(self):
        assembler = self.reader.resolver._assembler
        remembered = sum(record.weight for record in assembler._closed.values())
        assert assembler._remembered_positions == remembered

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
