"""Hybrid: pointers while the store answers, chunks while it does not, and back again."""

from __future__ import annotations

import io
import logging
from concurrent.futures import ThreadPoolExecutor

import pytest

import claimcheck
from claimcheck._send.strategy import Breaker
from claimcheck._wire import envelope
from claimcheck.errors import PayloadTooLargeError, StoreError, StoreUnavailableError
from claimcheck.hooks import BreakerEvent, FallbackEvent
from tests.produce_rig import BIG, Rig, Unseekable


class HybridRig(Rig):
    """A hybrid on a memory store that can be switched off, and a clock that can be turned."""

    def __init__(self, monkeypatch, **config):
        super().__init__("hybrid", **config)
        self.events: list[object] = []
        self.cc = claimcheck.ClaimCheck(self.cc.config, hooks=[self.events.append])
        self.down: Exception | None = None
        self.asked = 0
        self.now = self.delay = 0.0
        self.store = self.cc.store("hot")
        self._write = self.store._write
        monkeypatch.setattr(self.store, "_write", self._guarded)
        self.cc.opened.strategy(self.cc.config).context.breaker.clock = lambda: self.now

    def _guarded(self, pointer, source):
        self.asked += 1
        if self.down is not None:
            next(iter(source))  # it dies in the middle, not before
            self.now += self.delay
            raise self.down
        self._write(pointer, source)

    def kind(self, payload=BIG):
        """What a payload becomes; that it arrives is checked on the way."""
        self.sent = []
        with self.cc.outbound(payload, destination="orders") as out:
            out.send(lambda each: self.sent.append(("orders", each.data, each.key, each.headers)))
        assert [outcome.payload for outcome in self.received()] == [BIG]
        return type(envelope.decode(self.sent[0][1])).__name__

    def told(self, kind):
        return [event for event in self.events if isinstance(event, kind)]


@pytest.fixture
def rig(monkeypatch):
    return HybridRig(monkeypatch)


@pytest.mark.parametrize(
    ("make", "down"),
    [
        (bytes, TimeoutError("slow")),
        (io.BytesIO, ConnectionError("refused")),
        (Unseekable, OSError(28, "No space left on device")),
    ],
)
def test_a_store_that_dies_half_way_costs_nothing_but_chunks(rig, make, down, caplog):
    rig.down, rig.delay, rig.now = down, 2.5, 5.0
    with caplog.at_level(logging.WARNING, logger="claimcheck"):
        assert rig.kind(make(BIG)) == "Chunk"
    assert rig.store._payloads == {}
    (event,) = rig.told(FallbackEvent)
    assert (event.destination, event.size, event.store, event.duration_seconds) == ("orders", len(BIG), "hot", 2.5)
    assert isinstance(event.error, StoreError)
    [record] = caplog.records
    assert str(event.error) in record.getMessage()
    facts = (record.store, record.destination, record.payload_bytes, record.duration_seconds)
    assert facts == ("hot", "orders", len(BIG), 2.5)


def test_a_store_that_failed_is_left_alone_then_asked_once_then_used_again(rig, caplog):
    caplog.set_level(logging.INFO, logger="claimcheck")
    rig.down = ConnectionError("refused")
    assert [rig.kind() for _ in range(3)] == ["Chunk"] * 3
    assert rig.asked == 1
    rig.now = 30
    assert [rig.kind() for _ in range(2)] == ["Chunk"] * 2
    assert rig.asked == 2
    rig.now, rig.down = 60, None
    assert [rig.kind() for _ in range(2)] == ["PointerData"] * 2
    assert rig.asked == 4
    assert [(event.store, event.state) for event in rig.told(BreakerEvent)] == [("hot", "open"), ("hot", "closed")]
    assert [event.error is None for event in rig.told(FallbackEvent)] == [False, True, True, False, True]
    assert caplog.text.count("not used after a recent failure") == 3


def test_it_fails_only_if_both_fail_and_says_both(monkeypatch):
    rig = HybridRig(monkeypatch, chunking={"max_payload_bytes": 5000})
    rig.down = ConnectionError("refused")
    with pytest.raises(StoreUnavailableError, match="refused") as caught:
        rig.kind()
    assert "max_payload_bytes" in caught.value.__notes__[0]


@pytest.mark.parametrize("make", [bytes, io.BytesIO, Unseekable])
@pytest.mark.parametrize("limits", [{"max_payload_bytes": 5000}, {"max_chunks": 2}])
def test_a_payload_too_large_for_chunks_asks_the_store_even_while_the_breaker_is_open(monkeypatch, limits, make):
    rig = HybridRig(monkeypatch, chunking=limits)
    rig.down = ConnectionError("refused")
    with pytest.raises(StoreUnavailableError):
        rig.kind(make(BIG))
    rig.down = None
    assert rig.kind(make(BIG)) == "PointerData"


@pytest.mark.parametrize(
    ("below", "chunking", "kind"),
    [(len(BIG) - 1, {}, "PointerData"), (len(BIG), {}, "Chunk"), (1 << 20, {"max_payload_bytes": 5000}, "PointerData")],
)
def test_the_band_sends_small_ones_as_chunks_within_their_limits(monkeypatch, below, chunking, kind):
    rig = HybridRig(monkeypatch, hybrid={"chunk_below_bytes": below}, chunking=chunking)
    assert rig.kind() == kind
    assert not rig.told(FallbackEvent)


def test_a_payload_over_the_limit_is_no_failure_of_the_store(monkeypatch):
    rig = HybridRig(monkeypatch, limits={"max_payload_bytes": 5000})
    with pytest.raises(PayloadTooLargeError):
        rig.kind()
    assert rig.events == []


def test_after_the_pause_one_caller_of_many_tries():
    breaker = Breaker(retry_after_seconds=30, clock=lambda: now[0])
    now = [0.0]
    assert breaker.failed()
    assert not breaker.failed()
    now[0] = 60
    with ThreadPoolExecutor(8) as threads:
        assert sorted(threads.map(lambda _: breaker.allows(), range(8))) == [False] * 7 + [True]
    assert breaker.succeeded()
    assert [breaker.allows(), breaker.allows()] == [True, True]  # closed: no longer one at a time


def test_destinations_share_what_is_known_of_their_store(monkeypatch):
    rig = HybridRig(monkeypatch, destinations={"other": {"threshold_bytes": 3000}})
    rig.down = ConnectionError("refused")
    rig.kind()
    with rig.cc.outbound(BIG, destination="other") as out:
        assert {each.kind.name for each in out.envelopes} == {"CHUNK"}
    assert rig.asked == 1
