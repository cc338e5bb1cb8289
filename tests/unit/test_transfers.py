"""How many connections are used, on lines that are computed; and payloads that come in parts.

tests/unit/test_s3_store.py has parts over HTTP.
"""

import os
import threading
from contextlib import closing
from types import SimpleNamespace

import pytest

from claimcheck._threads import Interrupted, interruptible
from claimcheck._wire.buffers import fill, lend_to
from claimcheck.errors import StoreUnavailableError
from claimcheck.stores._common import folder, part_size
from claimcheck.stores._parts import PartsReader, SameVersion, Slots, TransferPolicy

MIB = 1 << 20


PAYLOAD = bytes(range(256)) * 100


class Clock:
    """Passes a time for each MiB that is read."""

    def __init__(self, monkeypatch, rate):
        self.now, self.rate = 0.0, rate
        monkeypatch.setattr("claimcheck.stores._parts.time.perf_counter", lambda: self.now)

    def open(self, start, stop):
        clock, left = self, stop - start

        class Body:
            def readinto(self, buffer):
                nonlocal left
                count = min(len(buffer), left)
                left -= count
                clock.now += count / clock.rate
                return count

            def close(self):
                pass

        return Body()


@pytest.fixture
def requests():
    return []


def read_once(policy, clock, requests, size=24 * MIB):
    """Read a payload; returns how many requests that took."""

    def opened(start, stop):
        requests.append((start, stop))
        return clock.open(start, stop)

    requests.clear()
    with closing(policy.reader(opened, 0, size)) as reader:
        assert fill(reader, memoryview(bytearray(size))) == size
    return len(requests)


@pytest.mark.parametrize(
    ("rates", "taken"), [([90e6, 90e6], [6, 6]), ([900e6, 900e6, 900e6], [2, 1, 1]), ([900e6, 90e6, 90e6], [2, 1, 6])]
)
def test_parts_come_over_several_connections_where_one_is_slow(monkeypatch, requests, rates, taken):
    """A fast one stays alone until it becomes slow, which is noticed."""
    policy, clock = TransferPolicy(64 * MIB), Clock(monkeypatch, rates[0])
    counts = []
    for clock.rate in rates:
        counts.append(read_once(policy, clock, requests))

    assert counts == taken
    assert read_once(policy, clock, requests, size=8 * MIB - 1) == 1


def test_connections_are_shared_but_each_payload_has_one():
    slots = Slots(64 * MIB, connections=3)

    assert [slots.take() for _ in range(4)] == [True, True, True, False]
    assert slots.take(always=True)
    slots.leave()
    slots.leave()
    assert slots.take()


@pytest.mark.parametrize(("memory", "single", "part"), [(64 * MIB, 16 * MIB - 1, 5 * MIB), (0, 64 * MIB, 8 * MIB)])
def test_without_memory_one_connection_sends_larger_payloads_at_once(memory, single, part):
    policy = TransferPolicy(memory)

    assert (policy.single_put_bytes, policy.put_part_bytes(40 * MIB)) == (single, part)


class Part:
    """A reader of a part of the payload that returns a little at a time."""

    def __init__(self, start, stop):
        self.data = memoryview(PAYLOAD[start:stop])
        self.closed = False

    def readinto(self, buffer):
        count = min(len(buffer), len(self.data), 700)
        buffer[:count] = self.data[:count]
        self.data = self.data[count:]
        return count

    def close(self):
        self.closed = True


def reader_of(opened, start, stop, *, connections, memory=10_000, part_bytes=1000):
    slots = Slots(memory, connections=connections)
    slots.is_fast = False
    reader = PartsReader(opened, start, stop, slots=slots, part_bytes=part_bytes)
    reader._read = 1 << 30  # as if so much had been read in sequence
    return reader


@pytest.mark.parametrize("lent", [0, 700, 5500, len(PAYLOAD)])
@pytest.mark.parametrize("connections", [1, 3, 50])
@pytest.mark.parametrize(("start", "stop"), [(0, len(PAYLOAD)), (1, 2), (999, 10_001)])
def test_parts_make_the_whole_in_order(start, stop, connections, lent):
    parts = []
    reader = reader_of(lambda *place: parts.append(Part(*place)) or parts[-1], start, stop, connections=connections)
    room = memoryview(bytearray(stop - start))
    lend_to(reader, room[:lent])
    assert fill(reader, room[:lent]) + fill(reader, room[lent:]) == stop - start
    assert not reader.readinto(memoryview(bytearray(1)))
    reader.close()

    assert room == PAYLOAD[start:stop]
    assert all(part.closed for part in parts)
    assert reader._slots.active == 0


def test_without_memory_everything_is_read_in_this_thread():
    threads = set()

    def opened(start, stop):
        threads.add(threading.current_thread())
        return Part(start, stop)

    with closing(reader_of(opened, 0, len(PAYLOAD), connections=4, memory=0)) as reader:
        room = memoryview(bytearray(len(PAYLOAD)))
        while len(room):
            room = room[reader.readinto(room[:500]) :]

    assert threads == {threading.current_thread()}


def test_parts_ahead_are_bounded_by_the_memory():
    opened, gate = [], threading.Semaphore(0)

    def build(start, stop):
        opened.append(start)
        gate.release()
        return Part(start, stop)

    reader = reader_of(build, 0, len(PAYLOAD), connections=50, memory=3000)
    room = memoryview(bytearray(1000))
    for done in range(1, 6):
        assert fill(reader, room) == 1000
        assert len(opened) <= done + 4  # what was read, three in memory, and one that is read directly
    reader.close()


def test_an_error_comes_where_it_belongs():
    def build(start, stop):
        if start == 1000:
            raise ConnectionError("the second part")
        return Part(start, stop)

    reader = reader_of(build, 0, 3000, connections=3)
    assert fill(reader, memoryview(bytearray(1000))) == 1000

    with pytest.raises(ConnectionError, match="second"):
        fill(reader, memoryview(bytearray(10)))
    reader.close()
    reader.close()
    assert reader._slots.active == 0


def test_a_cancelled_caller_does_not_wait_for_a_part():
    stop, release = threading.Event(), threading.Event()

    class Stuck(Part):
        def readinto(self, buffer):
            if threading.current_thread() is not threading.main_thread():
                stop.set()
                release.wait(30)
            return super().readinto(buffer)

    def all_of_it():
        while reader.readinto(memoryview(bytearray(1000))):
            pass

    with closing(reader_of(Stuck, 0, 9000, connections=3)) as reader:
        with pytest.raises(Interrupted):
            interruptible(stop, all_of_it)
        release.set()


def test_closing_stops_what_is_under_way():
    release, begun = threading.Event(), threading.Semaphore(0)

    class Slow(Part):
        def readinto(self, buffer):
            if threading.current_thread() is threading.main_thread():
                return super().readinto(buffer)
            begun.release()
            release.wait(10)
            return super().readinto(buffer)

    reader = reader_of(Slow, 0, 9000, connections=3)
    reader.readinto(memoryview(bytearray(10)))
    assert begun.acquire(timeout=10)
    assert begun.acquire(timeout=10)
    closing_thread = threading.Thread(target=reader.close)
    closing_thread.start()
    while not reader._closed:
        pass
    release.set()
    closing_thread.join(10)

    assert not begun.acquire(blocking=False), "a part went on after the close"
    assert reader._slots.active == 0


def test_a_forked_process_begins_with_no_connection_in_use(monkeypatch):
    slots = Slots(0, connections=2)
    slots.take()
    monkeypatch.setattr(os, "getpid", lambda: -1)
    slots.take()

    assert slots.active == 1


def test_parts_of_two_versions_are_never_joined():
    version = SameVersion("cold", "key")
    version.check(None)
    version.check('"a"')
    version.check('"a"')
    version.check(None)

    with pytest.raises(StoreUnavailableError, match="replaced"):
        version.check('"b"')


@pytest.mark.parametrize(("size", "expected"), [(0, 16), (160_000, 16), (160_001, 17)])
def test_parts_grow_where_ten_thousand_are_not_enough(size, expected):
    assert part_size(SimpleNamespace(size=size), 1000, part=16) == expected


@pytest.mark.parametrize(("given", "prefix"), [("", ""), ("/", ""), ("a", "a/"), ("a/", "a/"), ("/a/b/", "a/b/")])
def test_prefixes_are_folders(given, prefix):
    assert folder(given) == prefix


def test_a_short_part_is_the_end():
    reader = reader_of(lambda start, stop: Part(start, stop - 5), 0, 3000, connections=2)

    assert fill(reader, memoryview(bytearray(3000))) == 995
    reader.close()
