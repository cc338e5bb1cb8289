"""Properties of the wire format and of pointers, for any bytes whatever."""

from __future__ import annotations

import array
import copy
import io
import json
import random
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import example, given

import claimcheck
from claimcheck._content.header import ContentHeader, Damaged, read_header
from claimcheck._wire import envelope
from claimcheck._wire import pointer as pointers
from claimcheck._wire.buffers import PieceReader
from claimcheck._wire.envelope import Chunk, decode
from claimcheck._wire.pointer import Pointer
from claimcheck._wire.signing import Seal
from claimcheck.config import HEADER
from claimcheck.errors import ClaimCheckError
from claimcheck.testing import _store_kit as store_kit
from tests.hypothesis_examples import examples
from tests.vectors import CONTENT as ENCODED
from tests.vectors import golden, names

uuids = st.uuids(version=4).map(str)
text = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=50)
numbers = st.integers(0, 2**63 - 1)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False) | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=5,
)
pointers_v2 = st.builds(
    Pointer,
    key=text,
    store=text,
    size=numbers,
    segments=st.integers(1, 2**31),
    segment_bytes=st.none() | numbers,
    checksum=text,
    created_ms=st.none() | numbers,
    expires_ms=st.none() | numbers,
    codec=st.none() | text,
    encryption=st.none() | text,
    extra=st.dictionaries(text.map(lambda name: "x-" + name), json_values, max_size=3),
)


@given(uuids, st.integers(1, 2**31 - 1), st.data(), st.binary(max_size=200))
def test_chunks_come_back(identity, count, data, piece):
    position = data.draw(st.integers(0, count - 1))
    assert decode(envelope.encode_chunk(identity, position, count, piece)) == Chunk(
        identity, position, count, memoryview(piece)
    )


@given(pointers_v2)
def test_pointers_are_encoded_as_canonical_json(pointer):
    for each in (pointer, replace(pointer, extra={})):
        data = pointers.encode(each)
        assert data[1:] == pointers.canonical_json(json.loads(data[1:]))
        assert pointers.decode(data) == each


STRATEGIES = st.sampled_from(["external", "chunking", "hybrid", "inline"])
HEADERS = [None, {"a": "1", "uuid": "mine"}, [("a", b"1"), ("a", b"2"), ("chunk_id", b"x")], (("a", "1"),)]
SHAPES = store_kit.SHAPES | {"array": lambda payload: array.array("B", payload), "file": io.BytesIO}


@given(
    st.one_of(
        st.binary(max_size=2000),
        st.binary(max_size=100).map(lambda rest: HEADER + rest),
        st.builds(lambda size: HEADER + bytes(size), st.integers(590, 640)),  # escaped, it may be too large
    ),
    st.sampled_from([*SHAPES]),
    STRATEGIES,
    STRATEGIES,
    st.none() | st.binary(max_size=20) | st.sampled_from(["k", "key"]),
    st.sampled_from(HEADERS),
)
@example(HEADER, "bytes", "hybrid", "inline", None, HEADERS[1])
@example(HEADER + b"\x02", "unseekable file", "external", "chunking", b"k", HEADERS[2])
@example(HEADER * 60, "file", "chunking", "external", None, HEADERS[2])
@example(HEADER * 60, "unseekable file", "hybrid", "inline", "k", HEADERS[1])
@example(HEADER * 60, "non-contiguous view", "inline", "hybrid", b"k", HEADERS[3])
@example(b"", "unseekable file", "chunking", "external", b"k", None)
def test_any_payload_in_any_shape_comes_back_as_it_was_sent(payload, shape, writer, reader, key, headers):
    stores, space = {"hot": {"type": "memory", "space": "test_wire_property"}}, {"threshold_bytes": 700}
    cc = claimcheck.from_dict({"strategy": writer, "stores": stores, **space})
    before, sent = copy.copy(headers), []
    with cc.outbound(SHAPES[shape](payload), destination="orders", key=key, headers=headers) as out:
        out.send(sent.append)
    resolver = claimcheck.from_dict({"strategy": reader, "stores": stores}).resolver()
    got = [
        outcome
        for offset, message in enumerate(sent)
        for outcome in resolver.feed("orders-0", offset, message.data, headers=message.headers, key=message.key)
    ]
    assert [(bytes(outcome.payload), outcome.key, outcome.headers or None) for outcome in got] == [
        (payload, key, headers)
    ]
    assert headers == before
    limit = claimcheck.WireLimit()
    if writer == "chunking":
        assert all(len(each.data) + limit.overhead(each.key, each.headers) <= 700 for each in sent)


@given(st.sampled_from([-1, 0, 1]), st.integers(0, 40), st.sampled_from(["external", "chunking"]))
def test_the_threshold_counts_the_message_on_the_wire_to_the_byte(extra, more, strategy):
    """What is larger becomes an envelope, what is not stays as it is; Kafka's framing, key and header count."""
    stores = {"hot": {"type": "memory", "space": "test_wire_property"}}
    cc = claimcheck.from_dict({"strategy": strategy, "threshold_bytes": 900, "stores": stores})
    key, headers = b"k" * more, {"name": "välue" * more}
    varint = 2 if 6 * more >= 64 else 1
    framing = 72 + len(key) + 1 + (1 + 4) + (varint + 6 * more) - 1  # record, key without its length, name and value
    payload = b"x" * (900 - framing + extra)
    with cc.outbound(payload, destination="orders", key=key, headers=headers) as out:
        first = next(iter(out.envelopes))
    assert (first.data == payload) == (extra <= 0)


# Bytes of others: errors of claimcheck, never other exceptions. The hostile world has whole readers. ------------------

SIGNING = {"strategy": "chunking", "signing": {"key_id": "s1", "keys": {"s1": "signing key " * 4}}}
SEAL = Seal(claimcheck.from_dict(SIGNING).config, clock=lambda: 1)
STATEMENT = SEAL.statement("chunks", "orders", uuid="1", chunks=3, size=5, checksum="sha256:0").encode()
CONTENT = [*ENCODED.values()]
MESSAGES = [golden(name) for name in names()] + [HEADER + b"\x04" + each for each in CONTENT]
TOKENS = [b"null", b"-1", b"1e999", b"NaN", b"[" * 40, b'{"a":' * 40, b"\\ud800", b"9" * 5000, b'"', b"\x00", b"\xff"]


def check_statement(data: bytes) -> None:
    SEAL.check_chunks([data.decode("latin-1")], uuid="1", count=3, pieces=[b"piece"], destination="orders")


PARSERS: dict[str, tuple[Callable[[bytes], Any], list[bytes]]] = {
    "messages": (envelope.decode, MESSAGES),
    "pointers": (pointers.decode, [message[21:] for message in MESSAGES if message[20] == 2]),
    "content": (lambda data: read_header(PieceReader([data])), CONTENT),
    "headers": (ContentHeader.parse, [content[8 : 8 + int.from_bytes(content[4:8], "big")] for content in CONTENT]),
    "statements": (check_statement, [STATEMENT]),
}


def mutated(pick: random.Random, seeds: list[bytes]) -> bytes:
    data = bytearray(pick.choice(seeds))
    for _ in range(pick.choice((1, 1, 2, 5))):
        at, other = pick.randrange(len(data) + 1), pick.choice(seeds)
        end = at + pick.choice((0, 1, 1, 8, 20, len(data)))
        start = pick.randrange(len(other) + 1)
        data[at:end] = pick.choice([b"", pick.randbytes(1), pick.randbytes(8), pick.choice(TOKENS), other[start:]])
    return bytes(data)


@pytest.mark.parametrize("kind", PARSERS)
def test_changed_bytes_are_read_or_refused(kind: str) -> None:
    parse, seeds = PARSERS[kind]
    pick, refused = random.Random(1), 0
    for _ in range(examples(20_000).max_examples):
        try:
            parse(mutated(pick, seeds))
        except (ClaimCheckError, Damaged):
            refused += 1
    assert refused


@pytest.mark.parametrize("parse", [pointers.decode, ContentHeader.parse], ids=["pointer", "header"])
@pytest.mark.parametrize("nested", [b"[", b'{"a":'])
def test_deep_nesting_does_not_exhaust_the_stack(parse: Callable[[bytes], object], nested: bytes) -> None:
    start = b"\x02" if parse is pointers.decode else b""
    for depth in (31, 33, sys.getrecursionlimit() - 50, sys.getrecursionlimit() * 3):
        with pytest.raises((ClaimCheckError, Damaged)):
            parse(start + b'{"id":' + nested * depth)
