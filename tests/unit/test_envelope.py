"""The wire format: frozen by vectors written by hand, and closed against damage."""

from __future__ import annotations

import array

import pytest

from claimcheck._wire import envelope
from claimcheck._wire.envelope import Abort, Chunk, Literal, Plain, decode
from claimcheck._wire.headers import kafka_overhead
from claimcheck.config import HEADER
from claimcheck.errors import ClaimCheckError, EnvelopeError
from tests.vectors import UUID, golden, names

EXPECTED = {
    "literal": Literal(memoryview(b"PRF_wdkafcli_header_ and then some")),
    "chunk_middle": Chunk(UUID, 1, 3, memoryview(b"middle")),
    "chunk_last_of_many": Chunk(UUID, 99_999, 100_000, memoryview(b"\xff\x00\xfe")),
    "abort": Abort(UUID),
}


@pytest.mark.parametrize("name", EXPECTED)
def test_decodes_the_golden_bytes(name):
    assert decode(golden(name)) == EXPECTED[name]


def test_encodes_the_golden_bytes():
    assert envelope.encode_literal(b"PRF_wdkafcli_header_ and then some") == golden("literal")
    assert envelope.encode_chunk(UUID, 1, 3, b"middle") == golden("chunk_middle")
    assert envelope.encode_chunk(UUID, 99_999, 100_000, b"\xff\x00\xfe") == golden("chunk_last_of_many")
    assert envelope.encode_abort(UUID) == golden("abort")
    assert envelope.encode_pointer(b"\x02{}") == HEADER + b"\x02\x02{}"


@pytest.mark.parametrize("plain", [b"", b"x", HEADER, HEADER[:-1] + b"-\x02", b"y" + HEADER + b"\x02"])
def test_anything_else_is_a_plain_message_and_not_copied(plain):
    decoded = decode(plain)
    assert isinstance(decoded, Plain)
    assert decoded.payload is plain


@pytest.mark.parametrize("kind", [5, 127, 255])
def test_an_unknown_type_is_an_error_that_names_it_never_a_payload(kind):
    with pytest.raises(EnvelopeError, match=f"type {kind}") as caught:
        decode(HEADER + bytes([kind]) + b"rest")
    assert caught.value.kind == kind


@pytest.mark.parametrize("name", names())
def test_cut_at_every_byte_it_is_plain_or_an_error_of_ours_but_never_whole(name):
    whole = golden(name)
    for length in range(len(whole)):
        try:
            decoded = decode(whole[:length])
        except ClaimCheckError:
            continue
        assert decoded != decode(whole)
        assert isinstance(decoded, Plain) == (length <= len(HEADER))


@pytest.mark.parametrize(("position", "count"), [(-1, 3), (3, 3), (4, 3), (0, 0), (0, -1), (-(2**31), 2**31 - 1)])
def test_chunk_numbers_out_of_range_are_refused_in_both_directions(position, count):
    raw = bytearray(golden("chunk_middle"))
    raw[57:65] = position.to_bytes(4, "big", signed=True) + count.to_bytes(4, "big", signed=True)
    with pytest.raises(EnvelopeError, match="position"):
        decode(raw)
    with pytest.raises(EnvelopeError, match="position"):
        envelope.encode_chunk(UUID, position, count, b"")


def test_a_declared_count_allocates_nothing():
    raw = bytearray(golden("chunk_middle"))
    raw[61:65] = b"\x7f\xff\xff\xff"
    assert decode(raw) == Chunk(UUID, 1, 2**31 - 1, memoryview(b"middle"))


def test_lookalikes_in_any_shape():
    raw = HEADER + b"\x09"
    assert all(envelope.is_lookalike(k(raw)) for k in (bytes, bytearray, memoryview, lambda r: array.array("b", r)))
    assert envelope.is_lookalike(memoryview(bytes(b for byte in raw for b in (byte, 0)))[::2])
    assert not envelope.is_lookalike(HEADER)


def test_the_header_is_configurable():
    raw = envelope.encode_abort(UUID, header=b"OURS")
    assert decode(raw, header=b"OURS") == Abort(UUID)
    assert isinstance(decode(raw), Plain)
    assert isinstance(decode(golden("abort"), header=b"OURS"), Plain)


@pytest.mark.parametrize(
    ("key", "headers", "overhead"),
    [
        (None, None, 72),
        (None, {}, 72),
        (b"k", None, 73),
        (b"k", {}, 73),
        (b"k" * 63, None, 72 + 63),
        (b"k" * 64, None, 72 + 64 + 1),  # its length takes a second byte
        (b"k" * 8191, None, 72 + 8191 + 1),
        (b"k" * 8192, None, 72 + 8192 + 2),
        (b"k" * ((1 << 20) - 1), None, 72 + (1 << 20) - 1 + 2),
        (None, {"h": b"x" * 100}, 72 + 1 + 1 + 2 + 100),
        (None, [("h", None)], 72 + 1 + 1 + 1),
        (None, [("h", b"")] * 63, 72 + 63 * 3),
        (None, [("h", b"")] * 64, 72 + 64 * 3 + 1),  # and so does their number
    ],
)
def test_overhead_is_that_of_kafkas_records(key, headers, overhead):
    assert kafka_overhead(key, headers) == overhead
