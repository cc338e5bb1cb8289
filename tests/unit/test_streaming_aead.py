"""The ciphertexts are Tink's, ranges read only what they need, forged ones give an error, and memory is bounded.

A hostile store that changes ciphertexts, keys and associated data: see `tests/property/test_hostile_property.py`.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import io
import json
import tracemalloc

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from hypothesis import given
from hypothesis import strategies as st

from claimcheck._content.encryption import (
    HEADER_BYTES,
    DecryptingReader,
    Forged,
    ciphertext_bytes,
    encrypt,
    plaintext_bytes,
)
from claimcheck._wire.buffers import PieceReader
from tests import content_oracle as tink
from tests.content_oracle import DATA_KEY, plaintext
from tests.hypothesis_examples import examples

SEGMENT = 1 << 20
LARGE = 3_500_000


class Ciphertext:
    """A stored ciphertext that knows which ranges were opened, and whether they were closed."""

    def __init__(self, stored: bytes) -> None:
        self.stored = stored
        self.opened: list[tuple[int, int]] = []
        self.files: list[io.BytesIO] = []

    def __call__(self, start: int, stop: int) -> io.BytesIO:
        self.opened.append((start, stop))
        self.files.append(io.BytesIO(self.stored[start:stop]))
        return self.files[-1]


@functools.cache
def sealed(size: int, associated_data: bytes = b"") -> bytes:
    return b"".join(encrypt([plaintext(size)], key=DATA_KEY, associated_data=associated_data))


def read(source, size, *, buffer_bytes=100_000, associated_data=b"", **range_) -> bytes:
    reader = DecryptingReader(source, size=size, key=DATA_KEY, associated_data=associated_data, **range_)
    whole, buffer = bytearray(), memoryview(bytearray(buffer_bytes))
    while count := reader.readinto(buffer):
        whole += buffer[:count]
    reader.close()
    return bytes(whole)


STREAMS = json.loads(tink.STREAMS.read_text())["streams"]


@pytest.mark.parametrize("vector", STREAMS, ids=lambda vector: str(vector["plaintext_bytes"]))
def test_ciphertexts_are_those_of_tink(vector, monkeypatch):
    plain, associated_data = plaintext(vector["plaintext_bytes"]), vector["associated_data"].encode()
    header = bytes.fromhex(vector["stream_header"])

    monkeypatch.setattr("os.urandom", lambda size: header[1 : 1 + size])
    ciphertext = b"".join(encrypt([plain], key=DATA_KEY, associated_data=associated_data))

    assert hashlib.sha256(ciphertext).hexdigest() == vector["ciphertext_sha256"]
    assert ciphertext_bytes(len(plain)) == vector["ciphertext_bytes"] == len(ciphertext)
    assert read(Ciphertext(ciphertext), len(ciphertext), associated_data=associated_data) == plain


@tink.needs_tink
@pytest.mark.parametrize("size", tink.SIZES)
def test_tink_reads_ours_and_we_read_tinks(size):
    assert tink.decrypt(sealed(size, b"here"), associated_data=b"here") == plaintext(size)
    theirs = tink.encrypt(plaintext(size), associated_data=b"there")
    assert read(Ciphertext(theirs), len(theirs), associated_data=b"there") == plaintext(size)


@given(st.integers(0, 1 << 50))
def test_sizes_are_inverse_or_refused(size):
    assert plaintext_bytes(ciphertext_bytes(size)) == size
    with contextlib.suppress(Forged):
        assert ciphertext_bytes(plaintext_bytes(size)) == size
    for none in (0, 40, 55, SEGMENT + 1 + size % 16):
        with pytest.raises(Forged, match=f"{none} bytes"):
            plaintext_bytes(none)


@pytest.mark.parametrize("piece_bytes", [5, 65_536, SEGMENT - 56, 3 * SEGMENT])
def test_pieces_of_any_size_make_whole_segments(piece_bytes):
    plain = plaintext(3000 if piece_bytes < 10 else LARGE)
    cut = [plain[i : i + piece_bytes] for i in range(0, len(plain), piece_bytes)]

    segments = list(encrypt([b"", *cut, b""], key=DATA_KEY, associated_data=b""))

    assert {len(segment) for segment in segments[:-1]} <= {SEGMENT}
    assert read(Ciphertext(b"".join(segments)), ciphertext_bytes(len(plain))) == plain


def test_encryption_holds_two_segments_and_starts_before_the_payload_ends():
    taken = []

    def pieces():
        for number in range(32):
            taken.append(number)
            yield bytes(SEGMENT)

    tracemalloc.start()
    try:
        next(stream := encrypt(pieces(), key=DATA_KEY, associated_data=b""))
        assert taken == [0]
        for _ in stream:
            pass
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    copies = 0 if hasattr(AESGCM, "encrypt_into") else 2  # cryptography before 47
    assert peak < (6 + copies) * SEGMENT


def test_two_ciphertexts_of_one_payload_differ():
    one, two = (b"".join(encrypt([b"payload"], key=DATA_KEY, associated_data=b"")) for _ in range(2))
    assert one[:HEADER_BYTES] != two[:HEADER_BYTES]


@st.composite
def ranges(draw):
    """A size, and a range that often ends close to a border: stream header, tags, segments, end."""
    size = draw(st.sampled_from([0, 1, 1000, SEGMENT - 57, SEGMENT - 56, 2 * SEGMENT - 72, 2 * SEGMENT - 71, LARGE]))
    borders = [0, 1, 33, 40, *range(SEGMENT - 16, size, SEGMENT), *range(SEGMENT, size, SEGMENT), size - 16, size]
    near = st.builds(lambda border, offset: border + offset, st.sampled_from(borders), st.integers(-2, 2))
    start, stop = sorted(min(max(0, draw(st.one_of(st.integers(0, size), near))), size) for _ in range(2))
    return size, start, stop


@examples(300)
@given(ranges(), st.integers(1, 3_000_000))
def test_a_range_is_the_slice(chosen, buffer_bytes):
    size, start, stop = chosen
    stored = Ciphertext(sealed(size))
    found = read(stored, len(stored.stored), start=start, stop=stop, buffer_bytes=buffer_bytes)
    assert found == plaintext(size)[start:stop]
    assert all(file.closed for file in stored.files)


@pytest.mark.parametrize(
    ("start", "stop", "opened"),
    [
        (0, LARGE, [(0, 3_500_104)]),
        (5, 10, [(0, SEGMENT)]),
        (SEGMENT - 57, SEGMENT - 55, [(0, 2 * SEGMENT)]),
        (SEGMENT - 56, SEGMENT - 55, [(0, HEADER_BYTES), (SEGMENT, 2 * SEGMENT)]),
        (LARGE - 1, LARGE, [(0, HEADER_BYTES), (3 * SEGMENT, 3_500_104)]),
        (7, 7, []),
    ],
)
def test_a_range_opens_only_its_segments(start, stop, opened):
    stored = Ciphertext(sealed(LARGE))
    assert read(stored, 3_500_104, start=start, stop=stop) == plaintext(LARGE)[start:stop]
    assert stored.opened == opened


@pytest.mark.parametrize("buffer_bytes", [SEGMENT, 10_000])
def test_no_plaintext_of_a_forged_segment_is_in_the_callers_buffer(buffer_bytes):
    ciphertext = bytearray(sealed(100_000))
    ciphertext[-1] ^= 1
    reader = DecryptingReader(Ciphertext(bytes(ciphertext)), size=len(ciphertext), key=DATA_KEY, associated_data=b"")
    buffer = bytearray(buffer_bytes)

    for _ in range(2):  # it fails again
        with pytest.raises(Forged):
            reader.readinto(memoryview(buffer))
        assert not any(buffer)


@pytest.mark.parametrize("size", [0, 10, LARGE])
def test_bytes_after_the_end_are_found_where_the_store_does_not_know_sizes(size):
    stored = sealed(size) + b"x"

    with pytest.raises(Forged, match="more than"):
        read(lambda start, _: PieceReader([stored], start=start), len(stored) - 1)
