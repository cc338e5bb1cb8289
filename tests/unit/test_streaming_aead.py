"""The ciphertexts are Tink's, ranges read only what they need, and memory is bounded."""

from __future__ import annotations

import hashlib
import importlib.util
import io
import json
import tracemalloc

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from claimcheck._content.encryption import (
    HEADER_BYTES,
    DecryptingReader,
    Forged,
    ciphertext_bytes,
    encrypt,
    plaintext_bytes,
)
from claimcheck._wire.buffers import PieceReader
from tests import tink_oracle
from tests.conftest import IN_CI
from tests.tink_oracle import KEY, SIZES, plaintext

SEGMENT = 1 << 20
VECTORS = json.loads(tink_oracle.VECTORS.read_text())
needs_tink = pytest.mark.skipif(not IN_CI and importlib.util.find_spec("tink") is None, reason="tink is not installed")


class Ciphertext:
    """A stored ciphertext that knows which ranges were opened, and whether they were closed."""

    def __init__(self, stored: bytes) -> None:
        self.stored = stored
        self.opened: list[tuple[int, int]] = []
        self.open_files = 0

    def __call__(self, start: int, stop: int) -> io.BytesIO:
        self.opened.append((start, stop))
        self.open_files += 1
        outer = self

        class File(io.BytesIO):
            def close(self) -> None:
                outer.open_files -= not self.closed
                super().close()

        return File(self.stored[start:stop])


def sealed(plain: bytes, associated_data: bytes = b"", pieces: int = 1 << 30) -> bytes:
    cut = [plain[i : i + pieces] for i in range(0, len(plain), pieces)]
    return b"".join(encrypt(cut, key=KEY, associated_data=associated_data))


def read(source, size, *, buffer_bytes=100_000, associated_data=b"", **range_) -> bytes:
    reader = DecryptingReader(source, size=size, key=KEY, associated_data=associated_data, **range_)
    whole, buffer = bytearray(), memoryview(bytearray(buffer_bytes))
    while count := reader.readinto(buffer):
        whole += buffer[:count]
    reader.close()
    return bytes(whole)


@pytest.mark.parametrize("vector", VECTORS["streams"], ids=lambda vector: str(vector["plaintext_bytes"]))
def test_ciphertexts_are_those_of_tink(vector, monkeypatch):
    plain, associated_data = plaintext(vector["plaintext_bytes"]), vector["associated_data"].encode()
    header = bytes.fromhex(vector["stream_header"])

    monkeypatch.setattr("os.urandom", lambda size: header[1 : 1 + size])
    ciphertext = b"".join(encrypt([plain], key=KEY, associated_data=associated_data))

    assert hashlib.sha256(ciphertext).hexdigest() == vector["ciphertext_sha256"]
    assert ciphertext_bytes(len(plain)) == vector["ciphertext_bytes"] == len(ciphertext)
    assert read(Ciphertext(ciphertext), len(ciphertext), associated_data=associated_data) == plain


@needs_tink
@pytest.mark.parametrize("size", SIZES)
def test_tink_reads_ours_and_we_read_tinks(size):
    plain = plaintext(size)

    assert tink_oracle.decrypt(sealed(plain, b"here"), associated_data=b"here") == plain
    theirs = tink_oracle.encrypt(plain, associated_data=b"there")
    assert read(Ciphertext(theirs), len(theirs), associated_data=b"there") == plain


def test_sizes_that_no_ciphertext_has_are_refused():
    valid = {ciphertext_bytes(size) for size in range(SEGMENT - 100, SEGMENT + 100)}
    for size in range(min(valid), max(valid)):
        if size not in valid:
            with pytest.raises(Forged, match=f"{size} bytes"):
                plaintext_bytes(size)
    assert set(range(min(valid), max(valid))) - valid == set(range(SEGMENT + 1, SEGMENT + 17))
    for size in (0, 40, 55):
        with pytest.raises(Forged):
            plaintext_bytes(size)


@pytest.mark.parametrize("piece_bytes", [1, 5, 65_536, SEGMENT, SEGMENT - 56, 3 * SEGMENT])
def test_pieces_of_any_size_make_whole_segments(piece_bytes):
    plain = plaintext(3000 if piece_bytes < 10 else 3_500_000)
    cut = [plain[i : i + piece_bytes] for i in range(0, len(plain), piece_bytes)]

    segments = list(encrypt([b"", *cut, b""], key=KEY, associated_data=b""))

    assert {len(segment) for segment in segments[:-1]} <= {SEGMENT}
    assert read(Ciphertext(b"".join(segments)), ciphertext_bytes(len(plain))) == plain


def test_encryption_holds_two_segments_and_starts_before_the_payload_ends():
    taken = []

    def pieces():
        for number in range(64):
            taken.append(number)
            yield bytes(SEGMENT)

    tracemalloc.start()
    try:
        first = next(stream := encrypt(pieces(), key=KEY, associated_data=b""))
        assert taken == [0]
        del first
        for _ in stream:
            pass
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    copies = 0 if hasattr(AESGCM, "encrypt_into") else 2  # cryptography before 47
    assert peak < (6 + copies) * SEGMENT


def test_a_segment_keeps_its_bytes_while_the_next_ones_are_encrypted():
    segments = list(encrypt([plaintext(3_500_000)], key=KEY, associated_data=b""))

    assert read(Ciphertext(b"".join(segments)), sum(map(len, segments))) == plaintext(3_500_000)


def test_two_ciphertexts_of_one_payload_differ():
    assert sealed(b"payload")[:HEADER_BYTES] != sealed(b"payload")[:HEADER_BYTES]


@pytest.mark.parametrize(
    ("start", "stop", "ranges"),
    [
        (0, 3_500_000, [(0, 3_500_104)]),
        (0, 10, [(0, SEGMENT)]),
        (5, 10, [(0, SEGMENT)]),
        (SEGMENT - 57, SEGMENT - 55, [(0, 2 * SEGMENT)]),
        (SEGMENT - 56, SEGMENT - 55, [(0, HEADER_BYTES), (SEGMENT, 2 * SEGMENT)]),
        (2_000_000, 2_500_000, [(0, HEADER_BYTES), (SEGMENT, 3 * SEGMENT)]),
        (3_499_999, 3_500_000, [(0, HEADER_BYTES), (3 * SEGMENT, 3_500_104)]),
        (7, 7, []),
    ],
)
def test_a_range_opens_only_its_segments(start, stop, ranges):
    stored = Ciphertext(sealed(plaintext(3_500_000)))

    assert read(stored, 3_500_104, start=start, stop=stop) == plaintext(3_500_000)[start:stop]
    assert stored.opened == ranges
    assert stored.open_files == 0


def test_a_range_must_be_within_the_payload():
    for start, stop in ((-1, 5), (6, 5), (0, 11), (11, 11)):
        with pytest.raises(ValueError, match="not within a payload of 10 bytes"):
            DecryptingReader(Ciphertext(b""), size=66, key=KEY, associated_data=b"", start=start, stop=stop)


@pytest.mark.parametrize("buffer_bytes", [SEGMENT, 10_000])
def test_no_plaintext_of_a_forged_segment_is_in_the_callers_buffer(buffer_bytes):
    ciphertext = bytearray(sealed(bytes([1]) * 100_000))
    ciphertext[-1] ^= 1
    reader = DecryptingReader(Ciphertext(bytes(ciphertext)), size=len(ciphertext), key=KEY, associated_data=b"")
    buffer = bytearray(buffer_bytes)

    for _ in range(2):  # it fails again
        with pytest.raises(Forged):
            reader.readinto(memoryview(buffer))
        assert not any(buffer)


@pytest.mark.parametrize("size", [0, 10, 3_500_000])
def test_bytes_after_the_end_are_found_where_the_store_does_not_know_sizes(size):
    stored = sealed(plaintext(size)) + b"x"

    with pytest.raises(Forged, match="more than"):
        read(lambda start, _: PieceReader([stored], start=start), len(stored) - 1)


def test_the_errors_of_the_store_are_not_changed():
    class Broken:
        def readinto(self, buffer):
            raise ConnectionResetError

        def close(self):
            pass

    with pytest.raises(ConnectionResetError):
        read(lambda start, stop: Broken(), 100)


def test_a_key_must_have_32_bytes():
    with pytest.raises(ValueError, match="32 bytes, not 16"):
        list(encrypt([b"x"], key=bytes(16), associated_data=b""))
