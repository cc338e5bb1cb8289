"""Stores for an event loop: it goes on meanwhile, and a task that is cancelled leaves nothing behind."""

import asyncio
import contextlib
import io
import os
import threading

import pytest

from claimcheck import _threads
from claimcheck._threads import IoThreads, Pipelined
from claimcheck.errors import StoreUnavailableError
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


def test_resolve_asks_stores_in_a_thread_and_has_all_else_at_hand(monkeypatch):
    rig, file = Rig(), Gated(BIG)
    rig.publisher()("t", BIG)
    rig.publisher()("t", b"small")
    monkeypatch.setattr(rig.cc.store("hot"), "read", lambda pointer: file.read())
    (_, pointer, _, _), (_, plain, _, _) = rig.sent

    async def main():
        resolving = asyncio.create_task(rig.cc.aresolve(pointer))
        await asyncio.to_thread(file.reached.wait, 10)
        file.go_on.set()  # nobody could, if the loop stood still
        assert await resolving == BIG
        assert await rig.cc.aresolve(plain) is plain
        assert await rig.cc.aresolve(None) is None

    asyncio.run(main())
    assert threading.main_thread() not in file.threads


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
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
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
