"""Threads for stores: calls for an event loop, requests that are sent together, and payloads that come in parts."""

import asyncio
import contextlib
import io
import os
import threading
from contextlib import closing
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from claimcheck import _threads
from claimcheck._threads import Interrupted, IoThreads, Pipelined, interruptible
from claimcheck._wire.buffers import fill, lend_to
from claimcheck.errors import StoreUnavailableError
from claimcheck.stores._common import folder, part_size
from claimcheck.stores._parts import PartsReader, Slots, TransferPolicy
from claimcheck.stores.filesystem import FilesystemStore
from tests.produce_rig import BIG, Rig
from tests.unit.scripted_redis import busy_thread

MIB = 1 << 20


@pytest.fixture
def store(tmp_path):
    return FilesystemStore(path=str(tmp_path))


class Gated(io.BytesIO):
    """A file whose first read waits until the test lets it go on."""

    def __init__(self, data):
        super().__init__(data)
        self.reached, self.go_on, self.threads = threading.Event(), threading.Event(), []

    def read(self, size=-1):
        self._wait()
        return super().read(size)

    def readinto(self, buffer):
        self._wait()
        return super().readinto(buffer)

    def _wait(self):
        self.threads.append(threading.current_thread())
        self.reached.set()
        assert self.go_on.wait(10)


@pytest.mark.parametrize("name", ["awrite", "aread"])
def test_a_cancelled_call_stops_at_the_next_piece_and_a_read_closes_what_it_opened(store, monkeypatch, name):
    file, pointer = Gated(bytes(10 * MIB)), store.write(bytes(10 * MIB))
    monkeypatch.setattr(store, "_open", lambda *_: file)

    async def main():
        task = asyncio.create_task(getattr(store, name)(file if name == "awrite" else pointer))
        assert await asyncio.to_thread(file.reached.wait, 10)
        task.cancel()
        asyncio.get_running_loop().call_later(0.01, file.go_on.set)
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert len(file.threads) == 1
    assert file.closed is (name == "aread")


# Threads for calls -----------------------------------------------------------------------------------------------


class Calls:
    """Calls that wait until they may end; remembers which began, and how many bytes ran together."""

    def __init__(self, threads, max_bytes=1000):
        self.pool = IoThreads(threads, max_bytes)
        self.begun, self.running, self.most = [], 0, 0
        self.changed, self.may_end = threading.Condition(), set()

    def submit(self, name, size=0):
        return self.pool.submit(lambda: self._run(name, size), size=size)

    def _run(self, name, size):
        with self.changed:
            self.begun.append(name)
            self.running += size
            self.most = max(self.most, self.running)
            self.changed.notify_all()
            assert self.changed.wait_for(lambda: name in self.may_end, 10)
            self.running -= size
        return name

    def end(self, *names):
        with self.changed:
            self.may_end |= set(names)
            self.changed.notify_all()

    def began(self, *names):
        """Wait until exactly these have begun."""
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.begun) >= len(names), 10)
            return sorted(self.begun) == sorted(names)


def test_the_oldest_call_is_next_and_one_that_is_cancelled_meanwhile_is_not_made():
    calls = Calls(threads=1)
    futures = [calls.submit(name) for name in "abcd"]
    assert calls.began("a")
    assert futures[1].cancel()
    calls.end(*"acd")
    assert [futures[n].result(10) for n in (0, 2, 3)] == calls.begun == list("acd")


def test_calls_wait_for_bytes_and_a_larger_one_is_not_passed_by():
    calls = Calls(threads=9, max_bytes=100)
    futures = [calls.submit(name, size) for name, size in (("a", 60), ("b", 40), ("huge", 500), ("c", 10))]
    assert calls.began("a", "b")
    calls.end("b")
    futures[1].result(10)
    assert calls.began("a", "b")  # there is room for c; but then the large one would never run
    calls.end("a")
    assert calls.began("a", "b", "huge")
    calls.end("huge", "c")
    assert [future.result(10) for future in futures] == ["a", "b", "huge", "c"]
    assert calls.most == 500


@pytest.mark.parametrize("error", [StoreUnavailableError("down", store="s"), _threads.Interrupted()])
def test_an_error_is_that_of_the_call_and_frees_its_thread(error):
    def fail():
        raise error

    pool = IoThreads(1, 10)
    future = pool.submit(fail, size=10)
    assert future.exception(10) is error
    assert pool.submit(lambda: 1, size=10).result(10) == 1


@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_a_forked_process_has_threads_of_its_own():
    _threads.io_threads().submit(lambda: None).result(10)
    child = os.fork()
    if child == 0:
        os._exit(_threads.io_threads().submit(lambda: 7).result(10))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


def test_reads_count_the_declared_bytes(monkeypatch):
    sizes, pool = [], IoThreads(1)
    submit = pool.submit
    monkeypatch.setattr(_threads, "_io", [pool])
    monkeypatch.setattr(pool, "submit", lambda work, *, size=0, **more: sizes.append(size) or submit(work, **more))
    rig = Rig()
    pointer = rig.cc.store("hot").write(BIG)

    async def main():
        await rig.cc.store("hot").aread(pointer)
        await rig.cc.aresolve(rig.cc.seal(pointer))

    asyncio.run(main())
    assert sizes == [len(BIG), len(BIG)]


# Requests that are sent together: each call has its own result and error ---------------------------------------------


@pytest.fixture
def pool(monkeypatch):
    with busy_thread(monkeypatch) as pool:
        yield pool


class Server:
    """Answers requests that were sent together with the requests themselves, and others with nothing."""

    def __init__(self):
        self.sent, self.closed, self.open = [], 0, ()

    @contextlib.contextmanager
    def send(self, requests):
        self.sent.append(list(requests))
        self.open = list(requests)
        yield
        self.open = ()
        self.closed += 1

    def reply(self, request):
        return request if request in self.open else None

    def submit(self, pool, *requests, size=1):
        return [
            pool.submit(lambda request=request: self.reply(request), size=size, pipelined=Pipelined(self.send, request))
            for request in requests
        ]


def test_calls_that_wait_are_sent_together_without_those_that_were_cancelled(pool):
    server, requests = Server(), [b"%d" % n for n in range(9)]
    futures = server.submit(pool, *requests)
    assert futures[1].cancel()
    pool.go()
    assert [future.result(10) for n, future in enumerate(futures) if n != 1] == requests[:1] + requests[2:]
    assert server.sent == [requests[:1] + requests[2:]]
    pool.submit(lambda: None).result(10)
    assert server.closed == 1


def test_bytes_that_are_sent_together_are_bounded(pool):
    server = Server()
    futures = server.submit(pool, *(b"%d" % n for n in range(8)), size=300 << 10)
    pool.go()
    assert all(future.result(10) is not None for future in futures[:6])
    assert max(map(len, server.sent)) == 4


# Parts: how many connections are used, on lines that are computed --------------------------------------------------


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


def test_parts_grow_where_ten_thousand_are_not_enough_and_prefixes_are_folders():
    sizes = [part_size(SimpleNamespace(size=size), 1000, part=16) for size in (0, 160_000, 160_001)]
    assert sizes == [16, 16, 17]
    assert [folder(prefix) for prefix in ("", "/", "a", "/a/b/")] == ["", "", "a/", "a/b/"]
