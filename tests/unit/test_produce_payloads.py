"""What a payload may be, and what is refused before anything is sent."""

from __future__ import annotations

import array
import io
import mmap
import uuid

import pytest

from claimcheck import Envelope, Outbound, Strategy
from claimcheck._wire.headers import TYPE
from claimcheck.config import HEADER
from claimcheck.errors import (
    ClaimCheckError,
    PartialSendError,
    PayloadError,
    PayloadTooLargeError,
    PayloadTypeError,
    StoreUnavailableError,
)
from tests.produce_rig import BIG, QueueFullError, Rig, Unseekable


@pytest.fixture
def rig():
    return Rig()


@pytest.mark.parametrize("payload", ["text", 5, (x for x in b"abc"), ["a"], io.StringIO("text"), object()])
@pytest.mark.parametrize("strategy", ["external", "chunking", "hybrid", "inline"])
def test_what_is_neither_bytes_nor_a_binary_file_is_refused(strategy, payload):
    rig = Rig(strategy)
    with pytest.raises(PayloadTypeError) as caught:
        rig.publisher()("orders", payload)
    assert isinstance(caught.value, (ClaimCheckError, TypeError))
    assert (rig.sent, rig.stored) == ([], 0)


@pytest.mark.parametrize("strategy", ["external", "chunking", "hybrid", "inline"])
@pytest.mark.parametrize("payload", [BIG, b"small", HEADER + b"\x01", HEADER + BIG, b"x" * 1928, b"x" * 1929])
@pytest.mark.parametrize("make", [io.BytesIO, Unseekable, bytearray, memoryview])
def test_files_and_buffers_of_every_kind_arrive(strategy, payload, make):
    rig = Rig(strategy)
    rig.publisher()("orders", make(payload))
    assert [outcome.payload for outcome in rig.received()] == [payload]


class Shrinking(io.BytesIO):
    def read(self, size=-1):
        return super().read(size) if self.tell() < 5000 else b""


@pytest.mark.parametrize("strategy", ["external", "hybrid"])
def test_a_file_that_shrinks_leaves_nothing(strategy):
    rig = Rig(strategy)
    with pytest.raises(PayloadError, match="shrank"):
        rig.publisher()("orders", Shrinking(b"x" * (3 << 20)))
    assert (rig.sent, rig.stored) == ([], 0)


def test_a_file_that_shrinks_between_two_chunks_is_aborted():
    rig = Rig("chunking")
    with pytest.raises(PartialSendError, match="shrank"):
        rig.publisher()("orders", Shrinking(BIG))
    assert rig.sent[-1][3][TYPE] == "abort"


@pytest.mark.parametrize(
    ("strategy", "config"),
    [
        ("external", {"limits": {"max_payload_bytes": 5000}}),
        ("chunking", {"chunking": {"max_payload_bytes": 5000}}),
        ("chunking", {"limits": {"max_payload_bytes": 5000}}),
        ("chunking", {"chunking": {"max_chunks": 2}}),
        ("hybrid", {"limits": {"max_payload_bytes": 5000}}),
    ],
)
@pytest.mark.parametrize("make", [bytes, io.BytesIO, Unseekable])
def test_payloads_over_a_limit_are_refused_before_anything_is_sent(strategy, config, make):
    rig = Rig(strategy, **config)
    with pytest.raises(PayloadTooLargeError):
        rig.publisher()("orders", make(BIG))
    assert (rig.sent, rig.stored) == ([], 0)


@pytest.mark.parametrize("strategy", ["external", "chunking"])
def test_headers_that_leave_no_room_are_refused_before_anything_is_sent(strategy):
    rig = Rig(strategy, threshold_bytes="auto")
    with pytest.raises(PayloadTooLargeError, match="too little space for a pointer|fill a chunk"):
        rig.publisher()("orders", BIG, headers={"h": "x" * 1_000_000})
    assert (rig.sent, rig.stored) == ([], 0)


@pytest.mark.parametrize("payload", [BIG, b"small"])
@pytest.mark.parametrize("strategy", ["external", "chunking", "hybrid"])
def test_the_same_file_may_be_sent_again_after_a_failure(strategy, payload):
    rig, file = Rig(strategy), io.BytesIO(b"skipped" + payload)
    file.seek(7)
    with pytest.raises(QueueFullError):
        rig.publisher(error=QueueFullError())("orders", file)
    rig.publisher()("orders", file)
    assert rig.received()[-1].payload == payload


def test_the_same_file_may_be_sent_again_after_the_store_failed(monkeypatch):
    rig, file = Rig(), io.BytesIO(BIG)

    def down(pointer, source):
        next(iter(source))
        raise ConnectionError

    with monkeypatch.context() as patch:
        patch.setattr(rig.cc.store("hot"), "_write", down)
        with pytest.raises(StoreUnavailableError):
            rig.publisher()("orders", file)
    rig.publisher()("orders", file)
    assert rig.received()[0].payload == BIG


def test_a_memory_map_is_bytes_and_its_position_is_its_owners():
    rig = Rig()
    with mmap.mmap(-1, len(BIG)) as mapped:
        mapped[:] = BIG
        mapped.seek(3)
        for _ in range(2):
            rig.publisher()("orders", mapped)
        assert mapped.tell() == 3
    assert [outcome.payload for outcome in rig.received()] == [BIG, BIG]


@pytest.mark.parametrize("strategy", ["external", "chunking", "hybrid", "inline"])
def test_views_of_odd_shapes(strategy):
    rig = Rig(strategy)
    spread = memoryview(bytes(b for byte in HEADER + BIG for b in (byte, 0)))[::2]
    rig.publisher()("orders", spread)
    rig.publisher()("orders", array.array("i", range(3000)))
    payloads = [bytes(outcome.payload) for outcome in rig.received()]
    assert payloads == [HEADER + BIG, array.array("i", range(3000)).tobytes()]


def test_a_view_that_was_released_is_refused(rig):
    view = memoryview(BIG)
    view.release()
    with pytest.raises(PayloadTypeError):
        rig.publisher()("orders", view)


def test_a_buffer_is_free_again_when_the_call_has_failed():
    rig, buffer = Rig("chunking"), bytearray(BIG)
    try:
        rig.publisher(error=QueueFullError())("orders", buffer)
    except QueueFullError:
        buffer.clear()


def test_a_third_party_strategy_may_read_a_file_as_files_are_read():
    rig = Rig(f"{__name__}:WholeStrategy")
    rig.publisher()("orders", Unseekable(BIG))
    assert rig.sent[0][1] == BIG


class WholeStrategy(Strategy):
    def _offload(self, message):
        return Outbound([Envelope(message.payload.read())])


@pytest.mark.parametrize("strategy", ["external", "hybrid"])
def test_a_destination_may_have_a_lower_limit(strategy):
    rig = Rig(strategy, destinations={"small.*": {"limits": {"max_payload_bytes": 5000}}})
    rig.publisher()("large", BIG)
    with pytest.raises(PayloadTooLargeError, match="5000"):
        rig.publisher()("small.one", BIG)
    assert (len(rig.sent), rig.stored) == (1, 1)


@pytest.mark.parametrize("strategy", ["external", "chunking", "hybrid"])
def test_an_empty_file_stays_empty_however_large_its_headers(strategy):
    rig = Rig(strategy)
    rig.publisher()("orders", io.BytesIO(b""), headers={"h": "x" * 3000})
    assert [sent[1] for sent in rig.sent] == [b""]


@pytest.mark.parametrize("strategy", ["external", "hybrid"])
def test_the_lifetime_of_a_stored_payload_begins_when_a_delayed_message_is_delivered(strategy):
    rig = Rig(strategy, stores={"hot": {"type": "memory", "space": str(uuid.uuid4()), "ttl_seconds": 60}})
    for delay, lifetime in ((0, 60), (3600, 3660)):
        with rig.cc.outbound(BIG, destination="orders", key=b"k", delay_seconds=delay) as out:
            (envelope,) = out.envelopes
        pointer = rig.cc.pointer(envelope.data)
        assert pointer.expires_ms - pointer.created_ms == lifetime * 1000
