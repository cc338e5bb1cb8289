"""What a payload may be, and what is refused before anything is sent."""

from __future__ import annotations

import io

import pytest

from claimcheck import envelope
from claimcheck.errors import (
    ClaimCheckError,
    PartialSendError,
    PayloadError,
    PayloadTooLargeError,
    PayloadTypeError,
)
from claimcheck.hints import TYPE
from tests.produce_rig import BIG, Rig, Unseekable


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


def test_a_closed_file_is_refused(rig):
    file = io.BytesIO(BIG)
    file.close()
    with pytest.raises(PayloadError, match="closed"):
        rig.publisher()("orders", file)


@pytest.mark.parametrize("strategy", ["external", "chunking", "hybrid", "inline"])
@pytest.mark.parametrize(
    "payload", [BIG, b"small", envelope.HEADER + b"\x01", envelope.HEADER + BIG, b"x" * 1928, b"x" * 1929]
)
@pytest.mark.parametrize("make", [io.BytesIO, Unseekable, bytearray, memoryview])
def test_files_and_buffers_of_every_kind_arrive(strategy, payload, make):
    rig = Rig(strategy)
    rig.publisher()("orders", make(payload))
    assert [outcome.payload for outcome in rig.received()] == [payload]


def test_a_file_is_read_from_where_it_stands(rig):
    file = io.BytesIO(b"skipped" + BIG)
    file.seek(7)
    rig.publisher()("orders", file)
    assert rig.received()[0].payload == BIG


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
    with pytest.raises(PayloadTooLargeError, match="no room"):
        rig.publisher()("orders", BIG, headers={"h": "x" * 1_000_000})
    assert (rig.sent, rig.stored) == ([], 0)
