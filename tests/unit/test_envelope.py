"""The wire format, envelopes and pointers: frozen by vectors written by hand, and closed against damage."""

from __future__ import annotations

import array
import json
from dataclasses import replace

import pytest

from claimcheck._wire import envelope
from claimcheck._wire import pointer as pointers
from claimcheck._wire.envelope import Abort, Chunk, Literal, Plain, decode
from claimcheck._wire.headers import byte_length, kafka_overhead
from claimcheck._wire.pointer import Pointer, is_key, is_key_prefix
from claimcheck.config import HEADER
from claimcheck.errors import ClaimCheckError, EnvelopeError, PointerRejectedError, UnknownVersionError
from tests.vectors import UUID, golden, names

EXPECTED = {
    "literal": Literal(memoryview(b"PRF_wdkafcli_header_ and then some")),
    "chunk_middle": Chunk(UUID, 1, 3, memoryview(b"middle")),
    "chunk_last_of_many": Chunk(UUID, 99_999, 100_000, memoryview(b"\xff\x00\xfe")),
    "abort": Abort(UUID),
}


def test_the_golden_bytes_in_both_directions():
    assert {name: decode(golden(name)) for name in EXPECTED} == EXPECTED
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


@pytest.mark.parametrize("uuid", ["x" * 36, UUID[:-1], UUID + "0", UUID.replace("-", "_"), "\u00e9" * 36])
def test_something_else_than_a_uuid_is_refused(uuid):
    with pytest.raises(EnvelopeError, match="uuid"):
        envelope.encode_chunk(uuid, 0, 1, b"")


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview, lambda raw: array.array("b", raw)])
def test_every_bytes_like_object_is_read_alike(kind):
    assert decode(kind(golden("abort"))) == Abort(UUID)
    assert envelope.is_lookalike(kind(HEADER + b"\x09"))
    assert not envelope.is_lookalike(kind(HEADER))


def test_the_header_is_configurable():
    raw = envelope.encode_abort(UUID, header=b"OURS")
    assert decode(raw, header=b"OURS") == Abort(UUID)
    assert isinstance(decode(raw), Plain)
    assert isinstance(decode(golden("abort"), header=b"OURS"), Plain)


@pytest.mark.parametrize(
    ("key", "headers", "overhead"),
    [
        (None, None, 72),
        (b"k" * 63, {}, 72 + 63),
        (b"k" * 64, None, 72 + 64 + 1),  # its length takes a second byte
        (b"k" * 8192, None, 72 + 8192 + 2),
        (None, [("h", None)], 72 + 1 + 1 + 1),
        (None, [("h", b"")] * 63, 72 + 63 * 3),
        (None, [("h", b"")] * 64, 72 + 64 * 3 + 1),  # and so does their number
    ],
)
def test_overhead_is_that_of_kafkas_records_in_bytes(key, headers, overhead):
    assert kafka_overhead(key, headers) == overhead
    assert [byte_length(each) for each in (None, memoryview(b"abcd").cast("H"), "ä", 17, 1.5)] == [0, 4, 2, 2, 3]


# Pointers ----------------------------------------------------------------------------------------------------------

SECRETS = {"k1": b"a secret of ours"}
V1 = Pointer(key="kafka-over-redis-orders-6ba7b810-9dad-11d1-80b4-00c04fd430c8", segments=7, version=1)
V2 = Pointer(
    key="claims/orders-1",
    store="hot",
    size=9,
    checksum="crc32:cbf43926",
    created_ms=1_765_000_000_000,
    expires_ms=1_765_604_800_000,
)
SHA256 = "sha256:15e2b0d3c33891ebb0f1ef609ec419420c20e320ce94c65fbc8c3312448eb225"
XXH3 = "xxh3-128:33119477ede5dcd5e9716427681d5860"


def pointer_bytes(name):
    return golden(name)[21:]


def v2(**fields):
    body = {"key": "k", "store": "hot", "size": 1, "segments": 1, "checksum": "crc32:00000000"} | fields
    return b"\x02" + json.dumps(body).encode()


def v2_text(unknown):
    """A pointer with an unknown field, whose value is given as JSON text."""
    return v2()[:-1] + b',"x":%s}' % unknown.encode()


@pytest.mark.parametrize(
    ("name", "pointer"),
    [
        ("pointer_v1", V1),
        ("pointer_v2", V2),
        ("pointer_v2_sha256", replace(V2, checksum=SHA256)),
        ("pointer_v2_xxh3_128", replace(V2, checksum=XXH3)),
    ],
)
def test_golden_pointers_in_both_directions(name, pointer):
    assert pointers.decode(pointer_bytes(name)) == pointer
    assert pointers.encode(pointer) == pointer_bytes(name)
    assert hash(pointers.decode(pointer_bytes(name))) == hash(pointer)


def verify(pointer):
    """As a reader does it; tests/unit/test_signing.py has what readers refuse."""

    def refuse(reason, why):
        raise PointerRejectedError(f"it {why}", reason=reason)

    pointers.verify(pointers.fields(pointer), SECRETS, refuse)


def test_the_golden_signature_holds_over_fields_that_we_do_not_know():
    raw = pointer_bytes("pointer_v2_signed")
    pointer = pointers.decode(raw)
    verify(pointer)
    assert pointer.extra == {"future": {"a": [1, "é"]}}
    assert pointers.encode(pointer) == raw
    assert pointers.encode_signed(replace(pointer, mac=None), key_id="k1", secret=SECRETS["k1"]) == raw
    for index in range(len(raw)):
        changed = bytearray(raw)
        changed[index] ^= 1
        with pytest.raises(ClaimCheckError):
            verify(pointers.decode(bytes(changed)))
    with pytest.raises(PointerRejectedError, match="does not match"):
        verify(replace(pointer, mac="é"))


@pytest.mark.parametrize(
    "raw",
    [
        *(b"", b"\x01", b"\x02", b"\x02[]", b"\x02{", b"\x02null", b"\x02" + b"[" * 8000, b"\x02" + b"9" * 8000),
        b"\x01\x00\x00\x00\x01",  # no key
        b"\x01\x00\x00\x00\x00k",  # no segments
        b"\x01\xff\xff\xff\xffk",  # -1 segments
        b"\x01\x00\x00\x00\x01\xff",  # no UTF-8
        b'\x02{"key":"a","key":"b","store":"s","size":1,"segments":1}',
        *(v2(size=size) for size in ("1", True, 1.0, -1, 2**63, float("nan"))),
        *(v2(segments=0), v2(segments=-1), v2(key=""), v2(key=None), v2(store=None), v2(checksum=5), v2(checksum="")),
        *(v2(key="\ud800"), v2() + b"{}"),
        *map(v2_text, ("1e400", "-1e400", "Infinity", "NaN", "9" * 5000, '{"a":1,"a":2}', '"\\udfff"')),
        *map(v2_text, ("[" * 32 + "]" * 32, '{"a":' * 985 + "1" + "}" * 985, '["]]]]",' * 40 + "1" + "]" * 40)),
        v2_text('"' + '\\"' * 4000 + "[" * 40),  # a string without an end
    ],
)
def test_damaged_pointers_are_envelope_errors(raw):
    with pytest.raises(EnvelopeError) as caught:
        pointers.decode(raw)
    assert caught.value.kind == 2, "a pointer"


@pytest.mark.parametrize(
    "unknown",
    ["[" * 31 + "]" * 31, '{"a":' * 31 + "1" + "}" * 31, '"' + "[{" * 1000 + '"', "[" + "[]," * 500 + "1]", "1e-400"],
)
def test_unknown_fields_may_hold_anything_of_limited_depth(unknown):
    pointer = pointers.decode(v2_text(unknown))
    assert pointer.extra == {"x": json.loads(unknown)}
    verify(pointers.decode(pointers.encode_signed(pointer, key_id="k1", secret=SECRETS["k1"])))


@pytest.mark.parametrize("missing", ["key", "store", "size", "segments", "checksum"])
def test_a_missing_field_is_named(missing):
    body = json.loads(pointer_bytes("pointer_v2")[1:])
    del body[missing]
    with pytest.raises(EnvelopeError, match=missing):
        pointers.decode(b"\x02" + json.dumps(body).encode())


def test_a_newer_version_says_both_versions_and_a_long_pointer_is_refused_before_it_is_read():
    with pytest.raises(UnknownVersionError, match="version 3.*up to 2") as caught:
        pointers.decode(b"\x03whatever")
    assert (caught.value.version, caught.value.supported) == (3, 2)
    with pytest.raises(PointerRejectedError, match="8193") as refused:
        pointers.decode(b"\x02" + b" " * 8192)
    assert refused.value.reason == "size"


def test_keys_are_limited_in_bytes_and_lead_nowhere_else():
    good = ["a", "a/b", "a" * 1024, "é" * 512, "漢" * 341, "...", "a..b"]
    bad = ["", "/a", "\\a", "a/../b", "..\\a", "./a", "a\n", "a" * 1025, "é" * 513, "漢" * 342, "\ud800", "a\0"]
    assert [is_key(key) for key in good] == [True] * len(good)
    assert [is_key(key) for key in bad] == [False] * len(bad)
    assert [is_key_prefix("é" * size) for size in (450, 451)] == [True, False]
