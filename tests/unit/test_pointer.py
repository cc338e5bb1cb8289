"""Pointers of both versions, their signatures, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from claimcheck._wire import pointer as pointers
from claimcheck._wire.pointer import Pointer, is_key
from claimcheck.errors import ClaimCheckError, EnvelopeError, PointerRejectedError, UnknownVersionError
from tests.vectors import golden

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


def pointer_bytes(name):
    return golden(name)[21:]


def v2(**fields):
    body = {"key": "k", "store": "hot", "size": 1, "segments": 1, "checksum": "crc32:00000000"} | fields
    return b"\x02" + json.dumps(body).encode()


def v2_text(unknown):
    """A pointer with an unknown field, whose value is given as JSON text."""
    return v2()[:-1] + b',"x":%s}' % unknown.encode()


SHA256 = "sha256:15e2b0d3c33891ebb0f1ef609ec419420c20e320ce94c65fbc8c3312448eb225"


XXH3 = "xxh3-128:33119477ede5dcd5e9716427681d5860"


@pytest.mark.parametrize(
    ("name", "pointer"),
    [
        ("pointer_v1", V1),
        ("pointer_v2", V2),
        ("pointer_v2_sha256", replace(V2, checksum=SHA256)),
        ("pointer_v2_xxh3_128", replace(V2, checksum=XXH3)),
    ],
)
def test_golden_bytes_in_both_directions(name, pointer):
    assert pointers.decode(pointer_bytes(name)) == pointer
    assert pointers.encode(pointer) == pointer_bytes(name)


def verify(pointer, *, secrets, require):
    """As a reader does it."""

    def refuse(reason, why):
        raise PointerRejectedError(f"it {why}", reason=reason)

    if require or pointer.mac is not None:
        pointers.verify(pointers.fields(pointer), secrets, refuse)


def test_the_golden_signature_holds_over_fields_that_we_do_not_know():
    pointer = pointers.decode(pointer_bytes("pointer_v2_signed"))
    verify(pointer, secrets=SECRETS, require=True)
    assert pointer.extra == {"future": {"a": [1, "é"]}}
    assert pointers.encode(pointer) == pointer_bytes("pointer_v2_signed")
    signed = pointers.encode_signed(replace(pointer, mac=None), key_id="k1", secret=SECRETS["k1"])
    assert pointers.decode(signed) == pointer


def test_every_changed_byte_of_a_signed_pointer_is_noticed():
    raw = pointer_bytes("pointer_v2_signed")
    for index in range(len(raw)):
        changed = bytearray(raw)
        changed[index] ^= 1
        with pytest.raises(ClaimCheckError):
            verify(pointers.decode(bytes(changed)), secrets=SECRETS, require=True)


@pytest.mark.parametrize(
    ("pointer", "secrets", "require", "why"),
    [
        (V2, SECRETS, True, "not signed"),
        (V1, SECRETS, True, "not signed"),
        (replace(V2, mac="00" * 32, key_id="k1"), SECRETS, False, "does not match"),
        (replace(V2, mac="é", key_id="k1"), SECRETS, False, "does not match"),
        (replace(V2, mac="00" * 32, key_id="k9"), SECRETS, False, "'k9'"),
    ],
)
def test_what_a_signature_refuses(pointer, secrets, require, why):
    with pytest.raises(PointerRejectedError, match=why) as caught:
        verify(pointer, secrets=secrets, require=require)
    assert caught.value.reason == "signature"


def test_unsigned_passes_where_it_may_and_signed_where_nothing_can_be_checked():
    verify(V2, secrets=SECRETS, require=False)
    verify(replace(V2, mac="00" * 32), secrets={}, require=False)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\x01",
        b"\x01\x00\x00\x00\x01",  # no key
        b"\x01\x00\x00\x00\x00k",  # no segments
        b"\x01\xff\xff\xff\xffk",  # -1 segments
        b"\x01\x00\x00\x00\x01\xff",  # no UTF-8
        b"\x02",
        b"\x02[]",
        b"\x02{",
        b"\x02null",
        b'\x02{"key":"a","key":"b","store":"s","size":1,"segments":1}',
        b"\x02" + b"[" * 8000,
        b'\x02{"key":"k","store":"s","size":NaN,"segments":1}',
        b'\x02{"key":"k","store":"s","size":1e400,"segments":1}',
        v2(size="1"),
        v2(size=True),
        v2(size=1.0),
        v2(size=-1),
        v2(size=2**63),
        v2(segments=0),
        v2(segments=-1),
        v2(key=""),
        v2(key=None),
        v2(store=None),
        v2(checksum=5),
        v2(key="\ud800"),
        v2(checksum=""),
        b"\x02" + b"9" * 8000,
        v2_text("1e400"),
        v2_text("-1e400"),
        v2_text("Infinity"),
        v2_text("NaN"),
        v2_text("9" * 5000),
        v2_text('{"a":1,"a":2}'),
        v2_text('"\\udfff"'),
        v2_text("[" * 32 + "]" * 32),
        v2_text('{"a":' * 985 + "1" + "}" * 985),
        v2_text('["]]]]",' * 40 + "1" + "]" * 40),
        v2_text('"' + '\\"' * 4000 + "[" * 40),  # a string without an end
    ],
)
def test_damaged_pointers_are_envelope_errors(raw):
    with pytest.raises(EnvelopeError):
        pointers.decode(raw)


@pytest.mark.parametrize(
    "unknown",
    ["[" * 31 + "]" * 31, '{"a":' * 31 + "1" + "}" * 31, '"' + "[{" * 1000 + '"', "[" + "[]," * 500 + "1]", "1e-400"],
)
def test_unknown_fields_may_hold_anything_of_limited_depth(unknown):
    pointer = pointers.decode(v2_text(unknown))
    assert pointer.extra == {"x": json.loads(unknown)}
    signed = pointers.encode_signed(pointer, key_id="k1", secret=SECRETS["k1"])
    verify(pointers.decode(signed), secrets=SECRETS, require=True)


@pytest.mark.parametrize("missing", ["key", "store", "size", "segments", "checksum"])
def test_a_missing_field_is_named(missing):
    body = json.loads(pointer_bytes("pointer_v2")[1:])
    del body[missing]
    with pytest.raises(EnvelopeError, match=missing):
        pointers.decode(b"\x02" + json.dumps(body).encode())


def test_a_newer_version_says_both_versions():
    with pytest.raises(UnknownVersionError, match="version 3.*up to 2") as caught:
        pointers.decode(b"\x03whatever")
    assert (caught.value.version, caught.value.supported) == (3, 2)


def test_a_long_pointer_is_refused_before_it_is_read():
    with pytest.raises(PointerRejectedError, match="8193") as caught:
        pointers.decode(b"\x02" + b" " * 8192)
    assert caught.value.reason == "size"


@pytest.mark.parametrize("key", ["a", "a/b", "a" * 1024, "é" * 512, "漢" * 341, "...", "a..b"])
def test_good_keys(key):
    assert is_key(key)


@pytest.mark.parametrize(
    "key", ["", "/a", "\\a", "a/../b", "..\\a", "./a", "a\n", "a" * 1025, "é" * 513, "漢" * 342, "\ud800", "a\0"]
)
def test_keys_that_are_refused(key):
    assert not is_key(key)
