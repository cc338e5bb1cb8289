"""Any traffic whatever: a payload comes out whole, once, or its messages come back; bounds hold; nothing vanishes."""

from __future__ import annotations

import uuid
from collections import Counter

import hypothesis.strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule

from claimcheck._receive.assembler import Assembled, Assembler, Discarded
from claimcheck._receive.record import Slot
from claimcheck._wire.envelope import Chunk
from claimcheck.config import ChunkingConfig
from tests.hypothesis_examples import examples

MAX_BYTES, MAX_PAYLOADS = 40, 4


class Traffic(RuleBasedStateMachine):
    """Writers send pieces in any order and twice; readers acknowledge, give back, seek; time passes."""

    payloads = Bundle("payloads")

    def __init__(self):
        super().__init__()
        self.now = 0.0
        config = ChunkingConfig(
            max_pending_bytes=MAX_BYTES,
            max_pending_payloads=MAX_PAYLOADS,
            max_payload_bytes=30,
            expire_after_seconds=10,
        )
        self.assembler = Assembler(config, clock=lambda: self.now)
        self.position = 0
        self.held: set[int] = set()  # fed, and neither handed out nor handed back
        self.delivered: list[Assembled] = []
        self.accounted: Counter[int] = Counter()

    @rule(target=payloads, pieces=st.lists(st.binary(max_size=8), min_size=1, max_size=4))
    def write(self, pieces):
        return str(uuid.uuid4()), pieces

    @rule(payload=payloads, data=st.data())
    def deliver(self, payload, data):
        identity, pieces = payload
        number = data.draw(st.integers(0, len(pieces) - 1))
        self.position += 1
        self.held.add(self.position)
        chunk = Chunk(identity, number, len(pieces), memoryview(pieces[number]))
        declared = {"total_chunk_msg_size": str(data.draw(st.just(len(b"".join(pieces))) | st.integers(0, 40)))}
        for event in self.assembler.feed("s", Slot(self.position, self.position, declared), chunk):
            self.account(event, pieces if event.identity.uuid == identity else None)

    @rule(seconds=st.floats(0, 6))
    def wait(self, seconds):
        self.now += seconds
        for event in self.assembler.tick():
            self.account(event, None)

    @rule()
    def seek(self):
        self.held -= {slot.handle for slot in self.assembler.clear("s")}
        self.settle_all(acked=True)

    @rule(acked=st.booleans())
    def settle_all(self, acked):
        for event in self.delivered:
            self.held -= {slot.handle for slot in event.slots}
            (self.assembler.acked if acked else self.assembler.nacked)(event.attempt)
        self.delivered.clear()

    def account(self, event, pieces):
        if isinstance(event, Assembled):
            if pieces is not None:
                assert event.content == [b"".join(pieces)]
            self.delivered.append(event)
            return
        assert isinstance(event, Discarded)
        for slot in event.slots:
            self.accounted[slot.handle] += 1
            self.held.discard(slot.handle)

    @invariant()
    def bounds_hold(self):
        assert 0 <= self.assembler.pending_bytes <= MAX_BYTES
        assert self.assembler.pending_payloads <= MAX_PAYLOADS

    @invariant()
    def every_message_is_held_handed_out_or_handed_back_once(self):
        assert all(times == 1 for times in self.accounted.values())
        out = {slot.handle for event in self.delivered for slot in event.slots}
        pending = {slot.handle for record in self.assembler._open.values() for slot in record.slots}
        assert self.held == out | pending


TestTraffic = Traffic.TestCase
TestTraffic.settings = examples(60, stateful_step_count=40)
