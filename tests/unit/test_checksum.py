import importlib
import io
import os
import sys
import zlib

import pytest

from claimcheck._content.source import Source
from claimcheck._wire import checksum


@pytest.fixture(params=["isal", "zlib"])
def engine(request, monkeypatch):
    """The module as it is, and as it would be where nothing but Python is installed."""
    if request.param == "zlib":
        monkeypatch.setitem(sys.modules, "isal", None)
        monkeypatch.setitem(sys.modules, "isal.isal_zlib", None)
    yield importlib.reload(checksum)
    monkeypatch.undo()
    importlib.reload(checksum)


@pytest.mark.parametrize("sizes", [(0, 0), (1, 0), (0, 1), (1, 1), (1000, 5 << 20), (3, 255), (70_000, 65_536)])
def test_checksums_of_parts_make_that_of_the_whole(engine, sizes):
    first, second = map(os.urandom, sizes)

    combined = engine.crc32_combine(engine.crc32(first), engine.crc32(second), len(second))

    assert combined == zlib.crc32(first + second)


def test_no_engine_changes_the_values(engine):
    data = os.urandom(100_000)

    assert engine.crc32(data) == zlib.crc32(data)
    assert engine.crc32(memoryview(data)[5:], engine.crc32(data[:5])) == zlib.crc32(data)


@pytest.mark.parametrize("payload", [bytes, bytearray, io.BytesIO])
def test_a_source_takes_checksums_from_whoever_sends_its_pieces(payload):
    data = os.urandom(10_000)
    source = Source(payload(data), limit=1 << 20)
    source.leave_checksum()

    pieces = list(source.pieces(3000))
    assert (source.taken, source.checksum) == (10_000, "crc32:00000000")
    for piece in pieces:
        source.add_checksum(zlib.crc32(piece), len(piece))

    assert source.checksum == f"crc32:{zlib.crc32(data):08x}"
    assert source.taken == source.size
