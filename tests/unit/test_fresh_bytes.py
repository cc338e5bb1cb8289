import gc
import mmap
import tracemalloc

import pytest

from claimcheck._wire import buffers as fresh
from claimcheck._wire.buffers import FreshBytes


@pytest.fixture
def advised(monkeypatch):
    """What the system is asked, as (address, size) pairs; the same question is put to it then."""
    calls, ask = [], fresh._madvise()
    monkeypatch.setattr(fresh, "_HUGE_FROM_BYTES", 100_000)
    monkeypatch.setattr(fresh, "_HUGE_UP_TO_BYTES", 1_000_000)
    monkeypatch.setattr(fresh, "_madvise", lambda: lambda *call: calls.append(call) or ask(*call))
    return calls


def test_is_never_copied():
    size = 10 << 20
    tracemalloc.start()
    try:
        with FreshBytes(size) as room:
            room.view[:6] = b"\0\0\0\0\0\1"
        payload = room.payload
        assert tracemalloc.get_traced_memory()[1] < 1.01 * size
    finally:
        tracemalloc.stop()
    assert payload[:6] == b"\0\0\0\0\0\1"


@pytest.mark.skipif(not hasattr(mmap, "MADV_HUGEPAGE"), reason="only Linux has huge pages on demand")
def test_large_room_asks_for_huge_pages_within_itself(advised):
    FreshBytes(99_999)
    FreshBytes(1_000_001)
    FreshBytes(1_000_000, huge_pages=False)
    with FreshBytes(1_000_000):
        [(address, size, advice)] = advised

    assert address % mmap.PAGESIZE == size % mmap.PAGESIZE == 0
    assert 1_000_000 - 2 * mmap.PAGESIZE < size <= 1_000_000
    assert advice == mmap.MADV_HUGEPAGE


def test_the_garbage_collector_finds_it_with_views_without_an_error():
    """Warnings are errors here, and an error in a finalizer is a warning."""

    class Cycle:
        def __init__(self):
            self.fresh = FreshBytes(10)
            self.part, self.itself = self.fresh.view[:5], self

    Cycle()
    gc.collect()
