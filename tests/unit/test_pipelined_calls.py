"""Calls whose requests are sent together: each has its own result, error and cancellation."""

import asyncio
import contextlib
import io
import threading
import time
from dataclasses import replace

import pytest

from claimcheck import _threads
from claimcheck._receive.messages import Work, _Window
from claimcheck._threads import IoThreads, Pipelined
from claimcheck._wire.digest import digest_of
from claimcheck._wire.pointer import Pointer
from claimcheck.errors import (
    IntegrityError,
    PayloadNotFoundError,
    PointerRejectedError,
    StoreError,
    StoreUnavailableError,
)
from tests.unit.scripted_redis import bulk, opened, scripted_redis


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


@pytest.fixture
def pool(monkeypatch):
    """One thread, which is busy until `go` is called, so that all calls wait at the same time."""
    pool, busy = IoThreads(1), threading.Event()
    monkeypatch.setattr(_threads, "_io", [pool])
    monkeypatch.setattr(_threads, "_PIPELINED_THREADS", 1)
    pool.submit(lambda: busy.wait(10))
    pool.go = busy.set
    yield pool
    busy.set()
    pool._executor.shutdown()


def submit(pool, server, *requests, size=1):
    return [
        pool.submit(lambda request=request: server.reply(request), size=size, pipelined=Pipelined(server.send, request))
        for request in requests
    ]


class TestThreads:
    def test_calls_that_wait_are_sent_together(self, pool):
        server, requests = Server(), [b"%d" % n for n in range(9)]
        futures = submit(pool, server, *requests)
        pool.go()
        assert [future.result(10) for future in futures] == requests
        assert server.sent == [requests]
        pool.submit(lambda: None).result(10)
        assert server.closed == 1

    def test_other_calls_between_them_keep_their_turn(self, pool):
        server, order = Server(), []
        futures = submit(pool, server, b"a", b"b")
        futures.append(pool.submit(lambda: order.append(len(server.sent))))
        futures += submit(pool, server, b"c", b"d")
        pool.go()
        assert [future.result(10) for future in futures] == [b"a", b"b", None, b"c", b"d"]
        assert server.sent == [[b"a", b"b"], [b"c", b"d"]]
        assert order == [1]

    def test_one_that_waits_alone_is_not_sent_before_it_runs(self, pool):
        server = Server()
        futures = submit(pool, server, b"a")
        pool.go()
        assert [future.result(10) for future in futures] == [None]
        assert server.sent == []

    def test_a_cancelled_call_is_not_sent(self, pool):
        server = Server()
        futures = submit(pool, server, b"a", b"b", b"c")
        assert futures[1].cancel()
        pool.go()
        assert [futures[0].result(10), futures[2].result(10)] == [b"a", b"c"]
        assert server.sent == [[b"a", b"c"]]

    def test_bytes_are_bounded(self, pool):
        server = Server()
        futures = submit(pool, server, *(b"%d" % n for n in range(8)), size=300 << 10)
        pool.go()
        assert all(future.result(10) is not None for future in futures[:6])
        assert max(map(len, server.sent)) == 4

    def test_an_error_of_one_call_is_not_that_of_the_next(self, pool):
        server = Server()
        failing = pool.submit(lambda: server.nothing, pipelined=Pipelined(server.send, b"fails"))
        [good] = submit(pool, server, b"good")
        pool.go()
        assert isinstance(failing.exception(10), AttributeError)
        assert good.result(10) == b"good"


@pytest.mark.parametrize(("is_pipelined", "taken"), [(True, 4), (False, 1)])
def test_a_full_window_is_refilled_with_as_many_as_are_requested_together(pool, is_pipelined, taken):
    server = Server()

    def prepare(value, headers):
        pipelined = Pipelined(server.send, value) if is_pipelined else None
        return Work(lambda: server.reply(value), blocks=True, size=1, pipelined=pipelined)

    window = _Window(prepare, 8, 100)
    pool.go()
    for n in range(8):
        assert not window.is_full
        window.add(b"%d" % n)
    assert window.is_full
    for _ in range(taken):
        assert window.is_full
        window.take()
    assert not window.is_full


PAYLOADS = [b"payload %d" % n for n in range(6)]
POINTERS = [
    Pointer(key=f"claimcheck:{n}", store="hot", size=len(payload), checksum=digest_of(payload))
    for n, payload in enumerate(PAYLOADS)
]


class Redis:
    """Answers like Redis, unless told otherwise for the payload with a number, once."""

    def __init__(self):
        self.odd, self.written = {}, {}

    def __call__(self, conversation, command):
        if command[0] == b"SET":
            n = int(command[2][-1:] or 0)
            usual, self.written[command[1]] = b"+OK\r\n", command[2]
        else:
            n = int(command[1].split(b"-")[0].rpartition(b":")[2])
            usual = b":%d\r\n" % len(PAYLOADS[n]) if command[0] == b"STRLEN" else bulk(PAYLOADS[n])
        odd = self.odd.pop(n, usual)
        return odd(conversation, usual) if callable(odd) else odd


@pytest.fixture
def medium():
    return Redis()


@pytest.fixture
def server(medium):
    with scripted_redis(medium) as server:
        yield server


@pytest.fixture
def store(server):
    with opened(server.url, timeout_seconds=0.5) as store:
        yield store


def together(pool, *coroutines, cancel=None):
    """Run coroutines whose calls wait at the same time; returns their results and errors."""

    async def main():
        tasks = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
        await asyncio.sleep(0)
        pool.go()
        if cancel is not None:
            await asyncio.to_thread(cancel[1].wait, 10)
            tasks[cancel[0]].cancel()
        return await asyncio.gather(*tasks, return_exceptions=True)

    return asyncio.run(main())


def request(number):
    """Return the request for a payload: one byte more than it has would show that it is larger."""
    size = str(len(PAYLOADS[number])).encode()
    return [b"GETRANGE", f"claimcheck:{number}-0".encode(), b"0", size]


def read_all(pool, store):
    return together(pool, *map(store.aread, POINTERS))


class TestReading:
    def test_with_one_connection_and_no_request_twice(self, pool, store, server):
        assert read_all(pool, store) == PAYLOADS
        assert server.connections == 1
        assert server.asked == [request(n) for n in range(6)]
        pool.submit(lambda: None).result(10)
        assert store.read(POINTERS[0]) == PAYLOADS[0]
        assert server.connections == 1  # it was given back, with nothing to read

    def test_of_one_that_is_gone(self, pool, store, server, medium):
        medium.odd[2] = bulk(b"")
        found = read_all(pool, store)
        assert isinstance(found.pop(2), PayloadNotFoundError)
        assert found == PAYLOADS[:2] + PAYLOADS[3:]
        assert (server.connections, len(server.asked)) == (1, 6)

    def test_of_one_that_is_damaged(self, pool, store, medium):
        medium.odd[2] = bulk(PAYLOADS[1])
        found = read_all(pool, store)
        assert isinstance(found.pop(2), IntegrityError)
        assert found == PAYLOADS[:2] + PAYLOADS[3:]

    @pytest.mark.parametrize("odd", [None, b"+OK\r\n", b"-LOADING\r\n", b"\0" * 50, bulk(b"short"), b"$9\r\npay"])
    def test_an_unexpected_reply_never_becomes_payload(self, pool, store, medium, odd):
        medium.odd[2] = odd
        assert read_all(pool, store) == PAYLOADS

    def test_of_a_server_that_is_too_slow_waits_once(self, pool, store, server, medium):
        medium.odd[0] = lambda conversation, usual: time.sleep(2) or usual
        found = read_all(pool, store)
        assert {type(each) for each in found} == {StoreUnavailableError}
        assert len(server.asked) == 1  # the server did not read the others

    def test_without_a_server(self, pool, store, server):
        store._server._address = replace(store._server._address, url="redis://127.0.0.1:1/0")
        found = read_all(pool, store)
        assert [each.key for each in found] == [pointer.key for pointer in POINTERS]
        assert all(isinstance(each, StoreUnavailableError) for each in found)

    def test_of_one_pointer_by_several_tasks(self, pool, store):
        assert together(pool, *(store.aread(POINTERS[1]) for _ in range(5))) == [PAYLOADS[1]] * 5

    def test_nothing_is_requested_for_a_rejected_pointer(self, pool, store, server):
        bad = replace(POINTERS[0], key="elsewhere:0")
        found = together(pool, store.aread(bad), store.aread(POINTERS[1]), store.aread(POINTERS[2]))
        assert isinstance(found[0], PointerRejectedError)
        assert found[1:] == PAYLOADS[1:3]
        assert server.asked == [request(1), request(2)]


class TestWriting:
    def test_with_one_connection_and_no_payload_twice(self, pool, store, server, medium):
        pointers = together(pool, *map(store.awrite, PAYLOADS))
        assert [pointer.checksum for pointer in pointers] == [pointer.checksum for pointer in POINTERS]
        assert [medium.written[f"{pointer.key}-0".encode()] for pointer in pointers] == PAYLOADS
        assert (server.connections, len(server.asked)) == (1, 6)
        assert all(command[3:] == [b"PXAT", str(pointers[0].expires_ms).encode()] for command in server.asked[:1])

    @pytest.mark.parametrize("odd", [None, b"-LOADING\r\n", b"$9\r\npay"])
    def test_after_an_unexpected_reply_the_rest_is_sent_again(self, pool, store, medium, odd):
        medium.odd[2] = odd
        pointers = together(pool, *map(store.awrite, PAYLOADS))
        assert [medium.written[f"{pointer.key}-0".encode()] for pointer in pointers] == PAYLOADS

    def test_that_timed_out_is_deleted(self, pool, store, medium, monkeypatch):
        medium.odd[1] = lambda conversation, usual: time.sleep(2) or usual
        deleted = []
        monkeypatch.setattr(store, "_delete", lambda pointer: deleted.append(pointer.key))
        found = together(pool, *map(store.awrite, PAYLOADS))
        assert not isinstance(found[0], Exception)
        assert {type(each) for each in found[1:]} == {StoreUnavailableError}
        assert len(deleted) == 5

    def test_that_is_cancelled_leaves_nothing(self, pool, store, medium, monkeypatch):
        """Its request was sent: what it stored is deleted after the reply."""
        asked, go_on, deleted = threading.Event(), threading.Event(), []

        def held(conversation, usual):
            asked.set()
            go_on.wait(10)
            return usual

        medium.odd[0] = held
        monkeypatch.setattr(store, "_delete", lambda pointer: deleted.append(pointer.key))

        async def release():
            await asyncio.to_thread(asked.wait, 10)
            await asyncio.sleep(0.01)
            go_on.set()

        found = together(pool, *map(store.awrite, PAYLOADS), release(), cancel=(3, asked))
        pool.submit(lambda: None).result(10)
        assert isinstance(found[3], asyncio.CancelledError)
        names = {f"{pointer.key}-0".encode() for n, pointer in enumerate(found[:6]) if n != 3}
        assert {f"{key}-0".encode() for key in deleted} == set(medium.written) - names
        assert len(deleted) == 1

    def test_that_its_store_would_not_read_is_not_sent(self, pool, store, server):
        store.max_key_bytes = 20
        found = together(pool, store.awrite(PAYLOADS[0]), store.awrite(PAYLOADS[1]))
        assert {type(each) for each in found} == {StoreError}
        assert server.asked == []

    def test_large_ones_and_files_go_alone(self, pool, store, server, medium):
        large = b"0" * (1 << 20)
        found = together(pool, store.awrite(large), store.awrite(PAYLOADS[0]), store.awrite(io.BytesIO(PAYLOADS[1])))
        assert [pointer.size for pointer in found] == [len(large), len(PAYLOADS[0]), len(PAYLOADS[1])]
