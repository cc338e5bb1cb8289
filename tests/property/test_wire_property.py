"""Properties of the wire format and of pointers, for any bytes whatever."""

from __future__ import annotations

import json
from dataclasses import replace

import hypothesis.strategies as st
from hypothesis import example, given

import claimcheck
from claimcheck._wire import envelope
from claimcheck._wire import pointer as pointers
from claimcheck._wire.envelope import Chunk, decode
from claimcheck._wire.pointer import Pointer
from claimcheck.config import HEADER

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


@given(
    st.one_of(st.binary(max_size=2000), st.binary(max_size=100).map(lambda rest: HEADER + rest)),
    st.sampled_from(["external", "chunking", "hybrid", "inline"]),
    st.none() | st.binary(max_size=20),
)
@example(HEADER, "hybrid", None)
@example(HEADER + b"\x02", "external", b"k")
@example(HEADER * 60, "chunking", None)
def test_any_payload_comes_back_as_it_was_sent(payload, strategy, key):
    cc = claimcheck.from_dict({"strategy": strategy, "threshold_bytes": 700, "stores": {"hot": {"type": "memory"}}})
    sent = []
    with cc.outbound(payload, destination="orders", key=key) as out:
        out.send(sent.append)
    resolver = cc.resolver()
    got = [
        outcome
        for offset, message in enumerate(sent)
        for outcome in resolver.feed("orders-0", offset, message.data, headers=message.headers, key=message.key)
    ]
    assert [(outcome.payload, outcome.key) for outcome in got] == [(payload, key)]
