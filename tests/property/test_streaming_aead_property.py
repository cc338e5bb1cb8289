"""A hostile store changes ciphertexts: readers get the original bytes or an error, never other bytes."""

from __future__ import annotations

import contextlib
import io

import hypothesis.strategies as st
import pytest
from hypothesis import given

from claimcheck._content.encryption import DecryptingReader, Forged, ciphertext_bytes, encrypt, plaintext_bytes
from tests.hypothesis_examples import examples
from tests.tink_oracle import KEY, plaintext

SEGMENT = 1 << 20
PLAIN = SEGMENT - 16
ASSOCIATED_DATA = b"store, key, destination"
SIZES = [0, 1, 1000, PLAIN - 41, PLAIN - 40, PLAIN - 39, 2 * PLAIN - 40, 2 * PLAIN - 39, 2_500_000]
SEALED = {size: b"".join(encrypt([plaintext(size)], key=KEY, associated_data=ASSOCIATED_DATA)) for size in SIZES}

sizes = st.sampled_from(SIZES)


@st.composite
def places(draw, size):
    """Any position, and often one close to a border: stream header, tags, segments, end."""
    borders = [0, 1, 33, 40, *range(SEGMENT - 16, size, SEGMENT), *range(SEGMENT, size, SEGMENT), size - 16, size]
    near = st.builds(lambda border, offset: border + offset, st.sampled_from(borders), st.integers(-2, 2))
    return min(max(0, draw(st.one_of(st.integers(0, size), near))), size)


def read(stored, *, size, key=KEY, associated_data=ASSOCIATED_DATA, start=0, stop=None, buffer_bytes=SEGMENT):
    """What the reader returned, and whether it failed."""
    got, buffer = bytearray(), memoryview(bytearray(buffer_bytes))
    try:
        reader = DecryptingReader(
            lambda a, b: io.BytesIO(stored[a:b]), size=size, key=key, associated_data=associated_data,
            start=start, stop=stop,
        )  # fmt: skip
        while count := reader.readinto(buffer):
            got += buffer[:count]
    except Forged:
        return bytes(got), True
    return bytes(got), False


@examples(300)
@given(st.data(), sizes, st.integers(1, 3_000_000))
def test_a_range_is_the_slice(data, size, buffer_bytes):
    start = data.draw(places(size))
    stop = data.draw(st.integers(start, size))

    got, failed = read(SEALED[size], size=len(SEALED[size]), start=start, stop=stop, buffer_bytes=buffer_bytes)

    assert not failed
    assert got == plaintext(size)[start:stop]


@pytest.mark.parametrize("size", SIZES)
def test_another_key_or_other_associated_data_reads_nothing(size):
    stored = SEALED[size]
    for other in (ASSOCIATED_DATA + b"x", ASSOCIATED_DATA[:-1], b""):
        assert read(stored, size=len(stored), associated_data=other) == (b"", True)
    for other in (bytes(32), KEY[:-1] + b"x"):
        assert read(stored, size=len(stored), key=other) == (b"", True)


@given(st.integers(0, 1 << 50))
def test_sizes_are_inverse(size):
    assert plaintext_bytes(ciphertext_bytes(size)) == size
    with contextlib.suppress(Forged):
        assert ciphertext_bytes(plaintext_bytes(size)) == size
