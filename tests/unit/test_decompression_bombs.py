"""Content that decompresses to far more than it declares, or than is allowed: memory stays bounded by ``limits``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

zstandard = pytest.importorskip("zstandard")
lz4 = pytest.importorskip("lz4.frame")
pytestmark = pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="no /proc here")

EXPANDED = 512 << 20
LIMIT = 16 << 20
MOST = 100 << 20  # the limit, and what the libraries need for windows and blocks: 80 MiB with LZ4

# Reads a bomb in each way, with several declared sizes, and prints the results and the memory that this took.
CHILD = f"""
import json, sys
import claimcheck
from claimcheck._content.header import ContentHeader
from claimcheck._wire.envelope import encode_chunk, encode_pointer
from claimcheck._wire.pointer import Pointer, encode
path, codec = sys.argv[1:]
UUID = "6ba7b810-9dad-11d1-80b4-00c04fd430c8"
def peak():
    return int(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))
limits = {{"max_payload_bytes": {LIMIT}}}
cc = claimcheck.from_dict({{"store": "s", "stores": {{"s": {{"type": "memory"}}}}, "limits": limits}})
store, body, start = cc.store("s"), open(path, "rb").read(), cc.config.header + b"\4"
def tried(read):
    try:
        return f"returned {{len(read())}} bytes"
    except claimcheck.ClaimCheckError as error:
        return type(error).__name__
def fed(*messages):
    resolver = cc.resolver()
    outcome = [o for i, message in enumerate(messages) for o in resolver.feed("t", i, message)][-1]
    raise outcome.error
def streamed(message):
    with cc.open(message) as file:
        while file.read(1 << 20): pass
def all_ways(size):
    fields = {{"id": UUID.replace("-", ""), "size": size, "codec": codec}}
    sent = start + ContentHeader(**fields).encode() + body
    store._payloads["bomb"] = stored = ContentHeader(**fields, store="s", stored_as="bomb").encode() + body
    declared, half = size or {LIMIT}, len(sent) // 2
    pointer = Pointer(key="bomb", store="s", size=declared, stored_bytes=len(stored), codec=codec, checksum="crc32:0")
    return {{
        "resolve": tried(lambda: cc.resolve(sent)),
        "feed": tried(lambda: fed(sent)),
        "chunks": tried(lambda: fed(encode_chunk(UUID, 0, 2, sent[:half]), encode_chunk(UUID, 1, 2, sent[half:]))),
        "read": tried(lambda: store.read(pointer)),
        "range": tried(lambda: store.read_range(pointer, max(0, declared - 5), 5)),
        "open": tried(lambda: streamed(encode_pointer(encode(pointer)))),
    }}
small = start + ContentHeader(id=UUID, size=1, codec=codec).encode() + b"x"
tried(lambda: cc.resolve(small))  # imports
before, found = peak(), {{}}
for size in ({LIMIT}, {LIMIT // 2}, 1, 2**45, None):
    found |= {{f"{{name}} {{size}}": result for name, result in all_ways(size).items()}}
print(json.dumps([found, (peak() - before) << 10]))
"""


def zstd_bomb() -> bytes:
    compressor, piece = zstandard.ZstdCompressor(level=1).compressobj(), bytes(8 << 20)
    return bytes(b"".join(compressor.compress(piece) for _ in range(EXPANDED // len(piece))) + compressor.flush())


def zstd_with_a_large_window() -> bytes:
    options = zstandard.ZstdCompressionParameters.from_level(1, window_log=27)
    compressor = zstandard.ZstdCompressor(compression_params=options).compressobj()
    return bytes(compressor.compress(bytes(256 << 20)) + compressor.flush())


def lz4_bomb() -> bytes:
    with lz4.LZ4FrameCompressor(block_size=lz4.BLOCKSIZE_MAX4MB) as compressor:
        parts = [compressor.begin()] + [compressor.compress(bytes(8 << 20)) for _ in range(EXPANDED >> 25)]
        return bytes(b"".join(parts) + compressor.flush())


@pytest.mark.parametrize("bomb", [zstd_bomb, zstd_with_a_large_window, lz4_bomb])
def test_memory_is_bounded(bomb: Callable[[], bytes], tmp_path: Path, worker_env: dict[str, str]) -> None:
    path = tmp_path / "bomb"
    path.write_bytes(bomb())
    arguments = [str(path), "lz4" if bomb is lz4_bomb else "zstd"]
    child = subprocess.run(
        [sys.executable, "-c", CHILD, *arguments],
        env=os.environ | worker_env,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert child.returncode == 0, child.stderr
    found, grown = json.loads(child.stdout)
    assert len(found) == 30
    allowed = {"IntegrityError", "PayloadTooLargeError", "PointerRejectedError"}
    assert {way: result for way, result in found.items() if result not in allowed} == {}
    assert grown < MOST
