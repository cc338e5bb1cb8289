"""The arithmetic of message sizes."""

from __future__ import annotations

import pytest

from claimcheck._wire.headers import byte_length, kafka_overhead


@pytest.mark.parametrize(
    ("value", "length"),
    [(None, 0), (b"ab", 2), (bytearray(b"ab"), 2), (memoryview(b"abcd").cast("H"), 4), ("ä", 2), (17, 2), (1.5, 3)],
)
def test_bytes_are_counted_never_characters(value, length):
    assert byte_length(value) == length


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
        (None, {"h": b"x" * 100}, 72 + 1 + 1 + 2 + 100),
        (None, [("h", None)], 72 + 1 + 1 + 1),
        (None, [("h", b"")] * 63, 72 + 63 * 3),
        (None, [("h", b"")] * 64, 72 + 64 * 3 + 1),  # and so does their number
    ],
)
def test_overhead_is_that_of_kafkas_records(key, headers, overhead):
    assert kafka_overhead(key, headers) == overhead
