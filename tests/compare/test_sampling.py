"""Payload sizes of messages in a topic, whatever strategy they were sent with."""

import pytest

import claimcheck
from claimcheck._wire.envelope import encode_abort, encode_chunk, encode_literal, encode_pointer
from tests.benchmarks.compare.sampling import PayloadSizes

UUID = "00000000-0000-4000-8000-00000000000{}"
STORES = {"m": {"type": "memory"}}


def sizes_of(*messages):
    found = PayloadSizes()
    for value, headers in messages:
        found.add(value, headers)
    return found.sizes


@pytest.mark.parametrize("strategy", ["external", "chunking"])
def test_a_payload_counts_once_with_its_size(strategy):
    settings = {
        "strategy": strategy,
        "threshold_bytes": 1000,
        "stores": STORES,
        "chunking": {"max_message_bytes": 2000},
    }
    with claimcheck.from_dict(settings) as cc, cc.outbound(bytes(10_000), destination="t") as out:
        envelopes = [(bytes(each.data), each.headers) for each in out.envelopes]
    assert (len(envelopes) > 1) == (strategy == "chunking")
    assert sizes_of((b"plain", None), *envelopes, (b"", None)) == [5, 10_000, 0]
    assert sizes_of(*envelopes[-1:]) == [10_000]  # the beginning is no longer in the sample


def test_chunks_without_headers_are_estimated():
    pieces = [encode_chunk(UUID.format(1), n, 3, bytes(size)) for n, size in enumerate((100, 100, 40))]
    other = encode_chunk(UUID.format(2), 1, 4, bytes(50))
    assert sizes_of(*((each, None) for each in (pieces[2], other, pieces[0]))) == [300, 200]


def test_a_literal_counts_without_its_header():
    assert sizes_of((encode_literal(b"PRF_wdkafcli_header_x"), None)) == [21]


@pytest.mark.parametrize(
    "value",
    [
        None,
        encode_abort(UUID.format(1)),
        encode_pointer(b"\x09damaged"),
        encode_pointer(b"\x01\x00\x00\x00\x02key"),  # version 1 says no size
        b"PRF_wdkafcli_header_\x07x",
    ],
)
def test_messages_without_a_known_payload_are_left_out(value):
    assert sizes_of((value, [("claimcheck-size", b"7")])) == []


@pytest.mark.parametrize("size", [b"-1", b"1e3", "\u0663", b"9" * 30])
def test_a_declared_size_that_is_none_is_ignored(size):
    headers = [("claimcheck-type", "chunk"), ("claimcheck-size", size)]
    assert sizes_of((encode_chunk(UUID.format(1), 0, 2, bytes(10)), headers)) == [20]
