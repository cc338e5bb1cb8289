"""A hostile store changes ciphertexts: readers get the original bytes or an error, never other bytes."""

from __future__ import annotations

import contextlib
import io

import hypothesis.strategies as st
import pytest
from hypothesis import assume, given

from claimcheck._content.encryption import DecryptingReader, Forged, ciphertext_bytes, encrypt, plaintext_bytes
from tests.hypothesis_examples import examples
from tests.tink_oracle import KEY, plaintext

SEGMENT = 1 << 20
PLAIN = SEGMENT - 16
ASSOCIATED_DATA = b"store, key, destination"
SIZES = [0, 1, 1000, PLAIN - 41, PLAIN - 40, PLAIN - 39, 2 * PLAIN - 40, 2 * PLAIN - 39, 2_500_000]
SEALED = {size: b"".join(encrypt([plaintext(size)], key=KEY, associated_data=ASSOCIATED_DATA)) for size in SIZES}
OTHER = {size: b"".join(encrypt([plaintext(size)], key=KEY, associated_data=ASSOCIATED_DATA)) for size in SIZES}

sizes = st.sampled_from(SIZES)


@st.composite
def places(draw, size):
    """Any position, and often one close to a border: stream header, tags, segments, end."""
    borders = [0, 1, 33, 40, *range(SEGMENT - 16, size, SEGMENT), *range(SEGMENT, size, SEGMENT), size - 16, size]
    near = st.builds(lambda border, offset: border + offset, st.sampled_from(borders), st.integers(-2, 2))
    return min(max(0, draw(st.one_of(st.integers(0, size), near))), size)


@st.composite
def mutations(draw, size):
    """A ciphertext that differs from the original one."""
    original = SEALED[size]
    segments = [original[i : i + SEGMENT] for i in range(0, len(original), SEGMENT)]
    i, j = draw(st.integers(0, len(segments) - 1)), draw(st.integers(0, len(segments) - 1))
    at = draw(places(len(original)))
    kind = draw(st.sampled_from(["flip", "cut", "insert", "remove", "extend", "swap", "drop", "repeat", "other"]))
    if kind == "flip":
        at = min(at, len(original) - 1)
        return original[:at] + bytes([original[at] ^ draw(st.integers(1, 255))]) + original[at + 1 :]
    if kind == "cut":
        return original[:at]
    if kind == "insert":
        return original[:at] + draw(st.binary(min_size=1, max_size=40)) + original[at:]
    if kind == "remove":
        return original[:at] + original[at + draw(st.integers(1, 40)) :]
    if kind == "extend":
        return original + draw(st.sampled_from([bytes(16), segments[-1], segments[0][40:], original]))
    if kind == "other":  # a segment of another ciphertext of the same payload
        segments[i] = OTHER[size][i * SEGMENT : (i + 1) * SEGMENT]
    if kind == "swap":
        segments[i], segments[j] = segments[j], segments[i]
    if kind == "drop":
        del segments[i]
    if kind == "repeat":
        segments.insert(j, segments[i])
    return b"".join(segments)


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


@examples(1000)
@given(st.data(), sizes, st.sampled_from([777, 300_000, SEGMENT]), st.booleans())
def test_no_change_of_a_ciphertext_yields_other_bytes(data, size, buffer_bytes, knows_size):
    """Whether the reader believes the size of the pointer or that of the stored object."""
    changed = data.draw(mutations(size))
    assume(changed != SEALED[size] and changed != OTHER[size])
    believed = len(changed) if knows_size else len(SEALED[size])
    assume(changed[:believed] != SEALED[size] and changed[:believed] != OTHER[size])  # the rest is never read

    got, failed = read(changed, size=believed, buffer_bytes=buffer_bytes)

    assert failed
    assert plaintext(size).startswith(got)
    assert len(got) in (0, *range(PLAIN - 40, size + 1, PLAIN))  # whole segments


@examples(1000)
@given(st.data(), sizes)
def test_a_range_of_a_changed_ciphertext_has_the_right_bytes_or_fails(data, size):
    changed = data.draw(mutations(size))
    start = data.draw(st.integers(0, size))
    stop = data.draw(st.integers(start, size))

    got, failed = read(changed, size=len(SEALED[size]), start=start, stop=stop, buffer_bytes=300_000)

    assert plaintext(size)[start:stop].startswith(got)
    assert failed or got == plaintext(size)[start:stop]


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
