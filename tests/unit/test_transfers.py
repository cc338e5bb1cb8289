"""How many connections are used, on lines that are computed; and payloads that come in parts.

tests/unit/test_object_stores.py has parts over HTTP.
"""

import os
import threading
from contextlib import closing
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from claimcheck._threads import Interrupted, interruptible
from claimcheck._wire.buffers import fill, lend_to
from claimcheck.errors import StoreUnavailableError
from claimcheck.stores._common import folder, part_size
from claimcheck.stores._parts import PartsReader, SameVersion, Slots, TransferPolicy

MIB = 1 << 20
PAYLOAD = bytes(range(256)) * 100


class Part:
    """A reader of a part of the payload that returns a little at a time."""

    def __init__(self, start, stop, most=700):
        self.start, self.stop, self.most = start, stop, most
        self.data = memoryview(PAYLOAD[start:stop])
        self.closed = False

    def readinto(self, buffer):
        count = min(len(buffer), len(self.data), self.most)
        buffer[:count] = self.data[:count]
        self.data = self.data[count:]
        return count

    def close(self):
        self.closed = True


@pytest.mark.parametrize(
    ("rates", "taken"), [([90e6, 90e6], [6, 6]), ([900e6, 900e6, 900e6], [2, 1, 1]), ([900e6, 90e6, 90e6], [2, 1, 6])]
)
def test_parts_come_over_several_connections_where_one_is_slow(monkeypatch, rates, taken):
    """A fast one stays alone until it becomes slow, which is noticed."""
    policy, now, requests = TransferPolicy(64 * MIB), [0.0], []
    monkeypatch.setattr("claimcheck.stores._parts.time.perf_counter", lambda: now[0])

    def requests_for(size, rate):
        class Body(SimpleNamespace):
            def readinto(self, buffer):
                count = min(len(buffer), self.left)
                self.left -= count
                now[0] += count / rate
                return count

        def opened(start, stop):
            requests.append(start)
            return Body(left=stop - start, close=lambda: None)

        requests.clear()
        with closing(policy.reader(opened, 0, size)) as reader:
            assert fill(reader, memoryview(bytearray(size))) == size
        return len(requests)

    assert [requests_for(24 * MIB, rate) for rate in rates] == taken
    assert requests_for(8 * MIB - 1, rates[-1]) == 1


def test_connections_are_shared_but_each_payload_has_one_also_in_a_forked_process(monkeypatch):
    slots = Slots(64 * MIB, connections=3)

    assert [slots.take() for _ in range(4)] == [True, True, True, False]
    assert slots.take(always=True)
    slots.leave()
    slots.leave()
    assert slots.take()
    monkeypatch.setattr(os, "getpid", lambda: -1)
    slots.take()
    assert slots.active == 1


def reader_of(opened, start, stop, *, connections, memory=10_000, part_bytes=1000):
    slots = Slots(memory, connections=connections)
    slots.is_fast = False
    reader = PartsReader(opened, start, stop, slots=slots, part_bytes=part_bytes)
    reader._read = 1 << 30  # as if so much had been read in sequence
    return reader


@given(
    place=st.tuples(st.integers(0, 11_000), st.integers(0, 11_000)).map(sorted),
    connections=st.sampled_from([1, 2, 3, 50]),
    memory=st.sampled_from([0, 1000, 3000, 10_000]),
    lent=st.just(0) | st.integers(0, 11_000),
    most=st.sampled_from([1, 333, 700, 5000]),
)
def test_parts_make_the_whole_in_order_and_within_the_memory(place, connections, memory, lent, most):
    (start, stop), parts = place, []
    reader = reader_of(
        lambda *of: parts.append(Part(*of, most)) or parts[-1], start, stop, connections=connections, memory=memory
    )
    room = memoryview(bytearray(stop - start))
    if lent:
        lend_to(reader, room[:lent])
    done = fill(reader, room[:lent])
    while done < len(room):
        count = reader.readinto(room[done : done + 500])
        assert count
        done += count
        begun = sum(part.stop - part.start for part in parts)
        assert lent or connections == 1 or begun <= done + memory + 2 * 1000
    assert not reader.readinto(memoryview(bytearray(1)))
    reader.close()
    reader.close()

    assert room == PAYLOAD[start:stop]
    assert all(part.closed for part in parts)
    assert reader._slots.active == 0


def test_an_error_comes_where_it_belongs():
    def build(start, stop):
        if start == 1000:
            raise ConnectionError("the second part")
        return Part(start, stop)

    with closing(reader_of(build, 0, 3000, connections=3)) as reader:
        assert fill(reader, memoryview(bytearray(1000))) == 1000
        with pytest.raises(ConnectionError, match="second"):
            fill(reader, memoryview(bytearray(10)))
    assert reader._slots.active == 0


def test_a_short_part_is_the_end():
    with closing(reader_of(lambda start, stop: Part(start, stop - 5), 0, 3000, connections=2)) as reader:
        assert fill(reader, memoryview(bytearray(3000))) == 995


class Held(Part):
    """A part that stays in its thread until the test releases it."""

    release, begun = threading.Event(), threading.Semaphore(0)

    def readinto(self, buffer):
        if threading.current_thread() is not threading.main_thread():
            self.begun.release()
            self.release.wait(30)
        return super().readinto(buffer)


@pytest.fixture
def held(monkeypatch):
    monkeypatch.setattr(Held, "release", threading.Event())
    monkeypatch.setattr(Held, "begun", threading.Semaphore(0))
    return reader_of(Held, 0, 9000, connections=3)


def test_a_cancelled_caller_does_not_wait_for_a_part(held):
    stop = threading.Event()

    def all_of_it():
        while held.readinto(memoryview(bytearray(1000))):
            stop.set()

    with closing(held):
        with pytest.raises(Interrupted):
            interruptible(stop, all_of_it)
        Held.release.set()


def test_closing_stops_what_is_under_way(held):
    held.readinto(memoryview(bytearray(10)))
    assert all(Held.begun.acquire(timeout=10) for _ in range(2))
    closing_thread = threading.Thread(target=held.close)
    closing_thread.start()
    while not held._closed:
        pass
    Held.release.set()
    closing_thread.join(10)

    assert not Held.begun.acquire(blocking=False), "a part went on after the close"
    assert held._slots.active == 0


def test_parts_of_two_versions_are_never_joined():
    version = SameVersion("cold", "key")
    for each in (None, '"a"', '"a"', None):
        version.check(each)

    with pytest.raises(StoreUnavailableError, match="replaced"):
        version.check('"b"')


def test_parts_grow_where_ten_thousand_are_not_enough_and_prefixes_are_folders():
    sizes = [part_size(SimpleNamespace(size=size), 1000, part=16) for size in (0, 160_000, 160_001)]
    assert sizes == [16, 16, 17]
    assert [folder(prefix) for prefix in ("", "/", "a", "/a/b/")] == ["", "", "a/", "a/b/"]
