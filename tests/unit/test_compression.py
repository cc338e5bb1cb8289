"""Compressed streams: round trips, damaged streams, and streams that claim to be larger than they should be."""

import io
import json
import os
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import claimcheck
from claimcheck._content.compression import CODECS, Damaged, DecompressingReader, compress
from claimcheck._content.header import ContentHeader
from claimcheck._wire.buffers import PieceReader
from claimcheck._wire.digest import digest_of
from claimcheck._wire.pointer import Pointer
from claimcheck.errors import IntegrityError, PayloadTooLargeError, PointerRejectedError
from tests.vectors import UUID

zstandard = pytest.importorskip("zstandard")
lz4_frame = pytest.importorskip("lz4.frame")

WORDS = random.Random(7)
JSON = b"\n".join(json.dumps({"id": i, "amount": WORDS.random()}).encode() for i in range(30))
MIB = 1 << 20

every_codec = pytest.mark.parametrize("codec", CODECS)


def cut(data, piece_bytes):
    return [data[start : start + piece_bytes] for start in range(0, len(data), piece_bytes)]


def compressed(payload, codec, *, level=None, piece_bytes=MIB, size=True):
    pieces = cut(payload, piece_bytes)
    return b"".join(compress(pieces, codec=codec, level=level, size=len(payload) if size else None))


def read_all(stream, codec, size, *, piece_bytes=MIB, step=MIB):
    """Return what a reader hands out before it ends or raises, and the error."""
    reader = DecompressingReader(PieceReader(cut(stream, piece_bytes)), codec=codec, size=size)
    buffer, handed_out = memoryview(bytearray(step)), bytearray()
    try:
        while count := reader.readinto(buffer):
            handed_out += buffer[:count]
    except Damaged as error:
        return bytes(handed_out), error
    return bytes(handed_out), None


def is_refused(stream, codec, size, **how):
    """Whether a reader refuses a stream before it has handed out the last byte."""
    handed_out, error = read_all(stream, codec, size, **how)
    return error is not None and len(handed_out) < size


PAYLOADS = st.one_of(
    st.binary(min_size=1, max_size=300),
    st.builds(lambda part, times: part * times, st.binary(min_size=1, max_size=40), st.integers(1, 40_000)),
)


@given(
    payload=PAYLOADS, codec=st.sampled_from(CODECS), cuts=st.tuples(*[st.integers(1, 70_000)] * 3), known=st.booleans()
)
def test_a_payload_comes_back_however_it_was_cut(payload, codec, cuts, known):
    stream = compressed(payload, codec, piece_bytes=cuts[0], size=known)
    assert read_all(stream, codec, len(payload), piece_bytes=cuts[1], step=cuts[2]) == (payload, None)


@every_codec
@pytest.mark.parametrize("level", [None, 3, 9])
def test_the_stream_does_not_depend_on_how_the_payload_is_cut(codec, level):
    """A task that is repeated writes the same bytes, whatever reads its payload."""
    payload = random.Random(3).randbytes(150_000) + JSON * 1400  # several blocks, more than one window of level 1
    whole = compressed(payload, codec, level=level)
    assert all(compressed(payload, codec, level=level, piece_bytes=cut) == whole for cut in (999, 131_071, 262_145))


@every_codec
def test_other_programs_can_read_the_stream(codec):
    decompress = zstandard.ZstdDecompressor().decompress if codec == "zstd" else lz4_frame.decompress
    assert decompress(compressed(JSON, codec)) == JSON


@every_codec
def test_a_truncated_stream_is_refused_wherever_it_ends(codec):
    stream = compressed(JSON, codec)
    for end in range(len(stream)):
        assert all(is_refused(stream[:end], codec, len(JSON), piece_bytes=size) for size in (MIB, 1)), end


@every_codec
def test_a_longer_stream_is_refused(codec):
    stream = compressed(JSON, codec)
    skippable = b"\x50\x2a\x4d\x18\x00\x00\x00\x00"  # a frame that decoders of both formats ignore
    for more in (b"x", bytes(1), bytes(100), skippable, stream):
        assert all(is_refused(stream + more, codec, len(JSON), piece_bytes=size) for size in (MIB, 5, 1)), more


@every_codec
@pytest.mark.parametrize("difference", [-len(JSON), -100, -1, 1, 100])
def test_another_size_than_that_of_the_payload_is_refused(codec, difference):
    size = len(JSON) + difference
    for known in (True, False):
        handed_out, error = read_all(compressed(JSON, codec, size=known), codec, size)
        assert error is not None
        assert len(handed_out) <= max(0, size - 1)


@given(stream=st.binary(max_size=200), codec=st.sampled_from(CODECS), size=st.integers(0, 5000))
def test_any_stream_of_bytes_ends_in_one_kind_of_error(stream, codec, size):
    handed_out, error = read_all(stream, codec, size)
    assert len(handed_out) == size if error is None else len(handed_out) < max(1, size)


def wide_window(log):
    """Return a zstd frame that declares a window of 2 to the power of ``log`` bytes."""
    parameters = zstandard.ZstdCompressionParameters(
        window_log=log, strategy=1, hash_log=10, chain_log=10, search_log=1, min_match=5, target_length=0
    )
    stream = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    return stream.compress(JSON) + stream.flush()


def test_a_window_that_is_too_wide_is_refused():
    assert read_all(wide_window(23), "zstd", len(JSON)) == (JSON, None)
    assert "memory" in str(read_all(wide_window(24), "zstd", len(JSON))[1])


# In a store ----------------------------------------------------------------------------------------------------

LARGE = JSON * 3000  # about 5 MiB: hashed in a thread where the checksum is slow


@pytest.mark.parametrize(
    ("codec", "checksum", "payload"),
    [("zstd", "crc32", JSON * 20), ("lz4", "sha256", LARGE), ("zstd", "sha256", LARGE)],
)
def test_a_store_compresses_and_verifies_payloads(tmp_path, codec, checksum, payload):
    cc = compressing(tmp_path, codec, checksum=checksum)
    store = cc.store("disk")
    for written in (payload, io.BytesIO(payload)):
        pointer = store.write(written, destination="orders")
        assert (pointer.codec, pointer.size) == (codec, len(payload))
        assert pointer.checksum == digest_of(payload, algorithm=checksum)
        assert (tmp_path / pointer.key).stat().st_size == pointer.stored_bytes < len(payload) // 2
        assert store.read(pointer) == payload
        assert store.read_range(pointer, len(payload) - 7, 100) == payload[-7:]
        with store.open(pointer) as file:
            file.seek(len(payload) // 2)
            assert file.read() == payload[len(payload) // 2 :]


@every_codec
def test_what_does_not_shrink_is_stored_as_it_is(tmp_path, codec):
    store, noise = compressing(tmp_path, codec).store("disk"), random.Random(9).randbytes(200_000)
    for payload in (noise, JSON[:1000]):
        pointer = store.write(payload)
        assert pointer.codec is None
        assert (tmp_path / pointer.key).read_bytes() == payload


def compressing(tmp_path, codec, **more):
    disk = {"type": "filesystem", "path": str(tmp_path)}
    return claimcheck.from_dict({"stores": {"disk": disk}, "compression": {"codec": codec}} | more)


# Bombs: content that decompresses to far more than it declares, or than is allowed ---------------------------------

EXPANDED = 512 << 20
LIMIT = 16 << 20
MOST = 100 << 20  # the limit, and what the libraries need for windows and blocks: 80 MiB with LZ4


def lz4_bomb():
    with lz4_frame.LZ4FrameCompressor(block_size=lz4_frame.BLOCKSIZE_MAX4MB) as compressor:
        parts = [compressor.begin()] + [compressor.compress(bytes(8 << 20)) for _ in range(EXPANDED >> 25)]
        return b"".join(parts) + compressor.flush()


def resident(name):
    """Bytes of this process, by their name in /proc/self/status."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(name))
    return int(line.split()[1]) << 10


def all_ways(cc, body, size):
    """Return a function for each way to read content that declares this size, in a message and in a store."""
    fields = {"id": UUID.replace("-", ""), "size": size, "codec": "lz4"}
    sent = cc.config.header + b"\4" + ContentHeader(**fields).encode() + body
    stored = ContentHeader(**fields, store="s", stored_as="bomb").encode() + body
    store, declared = cc.store("s"), size or LIMIT
    store._payloads["bomb"] = stored
    pointer = Pointer(key="bomb", store="s", size=declared, stored_bytes=len(stored), codec="lz4", checksum="crc32:0")

    def streamed():
        with cc.open(cc.seal(pointer)) as file:
            while file.read(1 << 20):
                pass

    return [
        lambda: cc.resolve(sent),
        lambda: store.read(pointer),
        lambda: store.read_range(pointer, max(0, declared - 5), 5),
        streamed,
    ]


@pytest.mark.skipif(not os.access("/proc/self/clear_refs", os.W_OK), reason="no /proc here")
def test_a_bomb_takes_no_more_memory_than_the_limits_allow():
    """Those of zstd, with all readers: see `tests/harness/test_bounds.py`."""
    body = lz4_bomb()
    stores = {"s": {"type": "memory", "space": "bombs"}}
    with claimcheck.from_dict({"stores": stores, "limits": {"max_payload_bytes": LIMIT}}) as cc:
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
        before = resident("VmRSS")
        for size in (LIMIT, LIMIT // 2, 1, 2**45, None):
            for read in all_ways(cc, body, size):
                with pytest.raises((IntegrityError, PayloadTooLargeError, PointerRejectedError)):
                    read()
    assert resident("VmHWM") - before < MOST
