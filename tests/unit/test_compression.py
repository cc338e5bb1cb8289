"""Compressed streams: round trips, damaged streams, and streams that claim to be larger than they should be."""

import io
import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

import claimcheck
from claimcheck._content.compression import Damaged, DecompressingReader, compress
from claimcheck._wire.buffers import PieceReader
from claimcheck._wire.digest import digest_of

zstandard = pytest.importorskip("zstandard")

WORDS = random.Random(7)
JSON = b"\n".join(json.dumps({"id": i, "amount": WORDS.random()}).encode() for i in range(30))
MIB = 1 << 20


def cut(data, piece_bytes):
    return [data[start : start + piece_bytes] for start in range(0, len(data), piece_bytes)]


def compressed(payload, *, level=1, piece_bytes=MIB, size=True):
    pieces = cut(payload, piece_bytes)
    return b"".join(compress(pieces, level=level, size=len(payload) if size else None))


def read_all(stream, size, *, piece_bytes=MIB, step=MIB):
    """Return what a reader hands out before it ends or raises, and the error."""
    reader = DecompressingReader(PieceReader(cut(stream, piece_bytes)), size=size)
    buffer, handed_out = memoryview(bytearray(step)), bytearray()
    try:
        while count := reader.readinto(buffer):
            handed_out += buffer[:count]
    except Damaged as error:
        return bytes(handed_out), error
    return bytes(handed_out), None


def is_refused(stream, size, **how):
    """Whether a reader refuses a stream before it has handed out the last byte."""
    handed_out, error = read_all(stream, size, **how)
    return error is not None and len(handed_out) < size


PAYLOADS = st.one_of(
    st.binary(min_size=1, max_size=300),
    st.builds(lambda part, times: part * times, st.binary(min_size=1, max_size=40), st.integers(1, 40_000)),
)


@given(payload=PAYLOADS, cuts=st.tuples(*[st.integers(1, 70_000)] * 3), known=st.booleans())
def test_a_payload_comes_back_however_it_was_cut(payload, cuts, known):
    stream = compressed(payload, piece_bytes=cuts[0], size=known)
    assert read_all(stream, len(payload), piece_bytes=cuts[1], step=cuts[2]) == (payload, None)


@pytest.mark.parametrize("level", [1, 3, 9, -7])
def test_the_stream_does_not_depend_on_how_the_payload_is_cut(level):
    """A task that is repeated writes the same bytes, whatever reads its payload."""
    payload = random.Random(3).randbytes(150_000) + JSON * 1400  # several blocks, more than one window of level 1
    whole = compressed(payload, level=level)
    assert all(compressed(payload, level=level, piece_bytes=cut) == whole for cut in (999, 131_071, 262_145))


def test_other_programs_can_read_the_stream():
    assert zstandard.ZstdDecompressor().decompress(compressed(JSON)) == JSON


def test_a_truncated_stream_is_refused_wherever_it_ends():
    stream = compressed(JSON)
    for end in range(len(stream)):
        assert all(is_refused(stream[:end], len(JSON), piece_bytes=size) for size in (MIB, 1)), end


def test_a_longer_stream_is_refused():
    stream = compressed(JSON)
    skippable = b"\x50\x2a\x4d\x18\x00\x00\x00\x00"  # a frame that decoders of both formats ignore
    for more in (b"x", bytes(1), bytes(100), skippable, stream):
        assert all(is_refused(stream + more, len(JSON), piece_bytes=size) for size in (MIB, 5, 1)), more


@pytest.mark.parametrize("difference", [-len(JSON), -100, -1, 1, 100])
def test_another_size_than_that_of_the_payload_is_refused(difference):
    size = len(JSON) + difference
    for known in (True, False):
        handed_out, error = read_all(compressed(JSON, size=known), size)
        assert error is not None
        assert len(handed_out) <= max(0, size - 1)


@given(stream=st.binary(max_size=200), size=st.integers(0, 5000))
def test_any_stream_of_bytes_ends_in_one_kind_of_error(stream, size):
    handed_out, error = read_all(stream, size)
    assert len(handed_out) == size if error is None else len(handed_out) < max(1, size)


def wide_window(log):
    """Return a zstd frame that declares a window of 2 to the power of ``log`` bytes."""
    parameters = zstandard.ZstdCompressionParameters(
        window_log=log, strategy=1, hash_log=10, chain_log=10, search_log=1, min_match=5, target_length=0
    )
    stream = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    return stream.compress(JSON) + stream.flush()


def test_a_window_that_is_too_wide_is_refused():
    assert read_all(wide_window(23), len(JSON)) == (JSON, None)
    assert "memory" in str(read_all(wide_window(24), len(JSON))[1])


# In a store ----------------------------------------------------------------------------------------------------

LARGE = JSON * 3000  # about 5 MiB: hashed in a thread where the checksum is slow


@pytest.mark.parametrize(("checksum", "payload"), [("crc32", JSON * 20), ("sha256", LARGE)])
def test_a_store_compresses_and_verifies_payloads(tmp_path, checksum, payload):
    cc = compressing(tmp_path, checksum=checksum)
    store = cc.store("disk")
    for written in (payload, io.BytesIO(payload)):
        pointer = store.write(written, destination="orders")
        assert (pointer.codec, pointer.size) == ("zstd", len(payload))
        assert pointer.checksum == digest_of(payload, algorithm=checksum)
        assert (tmp_path / pointer.key).stat().st_size == pointer.stored_bytes < len(payload) // 2
        assert store.read(pointer) == payload
        assert store.read_range(pointer, len(payload) - 7, 100) == payload[-7:]
        with store.open(pointer) as file:
            file.seek(len(payload) // 2)
            assert file.read() == payload[len(payload) // 2 :]


def test_what_does_not_shrink_is_stored_as_it_is(tmp_path):
    store, noise = compressing(tmp_path).store("disk"), random.Random(9).randbytes(200_000)
    for payload in (noise, JSON[:1000]):
        pointer = store.write(payload)
        assert pointer.codec is None
        assert (tmp_path / pointer.key).read_bytes() == payload


def compressing(tmp_path, **more):
    disk = {"type": "filesystem", "path": str(tmp_path)}
    return claimcheck.from_dict({"stores": {"disk": disk}, "compression": {"codec": "zstd"}} | more)
