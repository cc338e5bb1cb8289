"""What is asked of an S3 server to read a payload or a part of it, and what becomes of the connection."""

import os
import socket
import threading
from dataclasses import replace

import pytest

from claimcheck._store.contract import StoreContext
from claimcheck.errors import IntegrityError, StoreError, StoreUnavailableError
from claimcheck.stores import s3 as s3_store
from claimcheck.stores.s3 import S3Store
from tests.parts import divided
from tests.unit.tiny_s3 import Answer, TinyS3

MIB = 1 << 20
PAYLOAD = os.urandom(3 * MIB + 17)


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch):
    monkeypatch.setattr("botocore.endpoint.time.sleep", lambda seconds: None)


@pytest.fixture(params=[True, False], ids=["direct", "by the SDK"])
def direct(request, monkeypatch):
    """Everything is as good, only slower, where the response is not the one that we know."""
    if not request.param:
        monkeypatch.setattr(s3_store, "_direct", lambda body: None)
    return request.param


@pytest.fixture
def server():
    with TinyS3() as server:
        yield server


@pytest.fixture
def store(server):
    with S3Store(bucket="b", endpoint_url=server.url) as store:
        store.context = StoreContext(name="cold")
        yield store


@pytest.fixture
def pointer(server, store):
    pointer = store.write(PAYLOAD)
    server.requests.clear()
    return pointer


class Recording:
    """A response that tells where it was asked to read to."""

    def __init__(self, response, seen):
        self.response, self.seen = response, seen

    def readinto(self, buffer):
        self.seen.append(memoryview(buffer).obj)
        return self.response.readinto(buffer)

    def __bool__(self):
        return True


class TestWhole:
    def test_comes_in_one_request_without_a_range(self, server, store, pointer, direct):
        assert store.read(pointer) == PAYLOAD
        assert [(request.method, request.headers.get("range")) for request in server.requests] == [("GET", None)]

    def test_is_read_straight_into_the_callers_memory(self, store, pointer, monkeypatch):
        seen, find = [], s3_store._direct
        monkeypatch.setattr(s3_store, "_direct", lambda body: Recording(find(body), seen))
        room = bytearray(len(PAYLOAD))

        store.read_into(pointer, room)

        assert room == PAYLOAD
        assert len(seen) > 1
        assert all(buffer is room for buffer in seen)

    def test_response_of_the_standard_library_is_found(self, store, pointer):
        """Else the fast way is gone, and only the clock would tell."""
        reader = store._open(pointer, 0, pointer.size)
        try:
            assert reader._direct is not None
        finally:
            reader.close()


class TestConnections:
    def test_is_used_again_after_a_payload_was_read(self, server, store, pointer, direct):
        for _ in range(5):
            store.read(pointer)
            with store.open(pointer) as file:
                assert file.read() == PAYLOAD
            store.read(store.write(b""))

        assert server.connections == 1

    def test_is_closed_when_a_reader_stops_early(self, server, store, pointer, direct):
        with store.open(pointer) as file:
            file.read(1000)
        assert store.read(pointer) == PAYLOAD

        assert server.connections == 2, "what was left over is on no line that is used again"

    def test_is_closed_when_the_payload_is_not_the_right_one(self, server, store, pointer, direct):
        server.objects = dict.fromkeys(server.objects, PAYLOAD[:-1])

        for _ in range(3):
            with pytest.raises(IntegrityError):
                store.read(pointer)

        assert server.connections == 3, "the writer's, which the first one takes, and a new one each time"

    def test_stays_open_as_long_as_it_is_read(self, store, pointer, direct):
        """The vendor closes what nobody refers to any more."""
        reader = store._open(pointer, 0, pointer.size)
        room = memoryview(bytearray(len(PAYLOAD)))
        done = 0
        while done < len(PAYLOAD):
            done += reader.readinto(room[done : done + 100_000])
        reader.close()
        reader.close()

        assert room == PAYLOAD


class TestRanges:
    @pytest.mark.parametrize(("start", "length"), [(0, 1), (1, MIB), (len(PAYLOAD) - 1, 1), (2 * MIB, 5 * MIB)])
    def test_only_what_is_wanted_is_asked_for(self, server, store, pointer, direct, start, length):
        stop = min(start + length, len(PAYLOAD))

        assert store.read_range(pointer, start, length) == PAYLOAD[start : start + length]
        assert server.said("range") == [f"bytes={start}-{stop - 1}"]

    def test_all_of_it_is_no_range(self, server, store, pointer):
        assert store.read_range(pointer, 0, 10 * MIB) == PAYLOAD
        assert server.said("range") == [None]

    def test_none_of_it_is_no_request(self, server, store, pointer):
        assert store.read_range(pointer, 5, 0) == b""
        assert server.requests == []

    @pytest.mark.parametrize(
        "answer",
        [
            Answer(200, body=PAYLOAD),
            Answer(206, headers={"Content-Range": f"bytes 2-11/{len(PAYLOAD)}"}, body=PAYLOAD[2:12]),
            Answer(206, headers={"Content-Range": f"bytes 1-9/{len(PAYLOAD)}"}, body=PAYLOAD[1:10]),
        ],
        ids=["the whole", "from elsewhere", "too little"],
    )
    def test_a_server_that_sends_something_else_is_no_server_for_ranges(self, server, store, pointer, answer):
        server.answers += [answer]

        with pytest.raises(StoreError, match="a different part"):
            store.read_range(pointer, 1, 10)


class TestTornLines:
    @pytest.mark.parametrize("after", [0, 1, MIB, len(PAYLOAD) - 1])
    def test_is_unavailable_and_not_short(self, server, store, pointer, direct, after):
        server.answers += [Answer(200, body=PAYLOAD, hang_up_after=after)]

        with pytest.raises(StoreUnavailableError):
            store.read(pointer)

        assert store.read(pointer) == PAYLOAD

    def test_reset(self, server, store, pointer, direct, monkeypatch):
        """The same by a line that breaks instead of ending."""
        reader = store._open(pointer, 0, pointer.size)
        monkeypatch.setattr(socket.SocketIO, "readinto", lambda *_: (_ for _ in ()).throw(ConnectionResetError()))
        with pytest.raises(Exception) as caught:
            reader.readinto(memoryview(bytearray(MIB)))
        reader.close()

        assert store._translate(caught.value) is StoreUnavailableError

    @pytest.mark.parametrize("headers", [b"Content-Le", b"Content-Length: 31"])
    def test_amid_the_headers(self, store, pointer, headers):
        """A number that was cut is not taken for the size of what is stored."""
        with cutting_server(b"HTTP/1.1 200 OK\r\n" + headers) as url, S3Store(bucket="b", endpoint_url=url) as far:
            far.context = store.context

            with pytest.raises(StoreUnavailableError):
                far.read(pointer)


class cutting_server:  # noqa: N801 - reads as what it is
    """Says the same to everybody and hangs up."""

    def __init__(self, words):
        self.words = words
        self.listener = socket.create_server(("127.0.0.1", 0))

    def __enter__(self):
        self.thread = threading.Thread(target=self.run)
        self.thread.start()
        return f"http://127.0.0.1:{self.listener.getsockname()[1]}"

    def run(self):
        while True:
            line, _ = self.listener.accept()
            with line:
                if not line.recv(65536):
                    return
                line.sendall(self.words)

    def __exit__(self, *exc):
        socket.create_connection(self.listener.getsockname()).close()
        self.thread.join()
        self.listener.close()


class TestSideBySide:
    PART = 5 * MIB
    LARGE = os.urandom(3 * PART + 1000)

    @pytest.fixture
    def fast(self, server):
        options = {"part": self.PART, "gets": 3}
        with divided(S3Store, bucket="b", endpoint_url=server.url, **options) as store:
            store.context = StoreContext(name="cold")
            yield store

    @pytest.fixture
    def large(self, server, fast):
        pointer = fast.write(self.LARGE)
        server.requests.clear()
        return pointer

    def test_parts_come_in_ranges(self, server, fast, large):
        assert fast.read(large) == self.LARGE

        starts = range(0, len(self.LARGE), self.PART)
        ranges = [f"bytes={start}-{min(start + self.PART, len(self.LARGE)) - 1}" for start in starts]
        assert sorted(server.said("range")) == sorted(ranges)

    def test_a_part_that_is_torn_is_unavailable(self, server, fast, large):
        answer = server.answer

        def torn(request):
            whole = answer(request)
            return replace(whole, hang_up_after=MIB) if "bytes=5242880-" in request.headers.get("range", "") else whole

        server.answer = torn
        with pytest.raises(StoreUnavailableError):
            fast.read(large)
        assert not [thread for thread in threading.enumerate() if thread.name.startswith("claimcheck-read")]

        server.answer = answer
        assert fast.read(large) == self.LARGE


class TestByDefault:
    """As many connections as the store found to be good."""

    LARGE = os.urandom(21 * MIB + 1000)

    @pytest.fixture(params=[1, 2, 8])
    def far(self, store, request):
        transfers = store._transfers.gets
        transfers.connections, transfers.is_fast = request.param, False
        return store

    @pytest.fixture
    def large(self, server, store):
        pointer = store.write(self.LARGE)
        server.requests.clear()
        return pointer

    def test_a_payload_is_whole_however_many_there_are(self, server, far, large):
        assert far.read(large) == self.LARGE
        assert len(server.said("range")) == {1: 1, 2: 3, 8: 6}[far._transfers.gets.connections]

        with far.open(large) as file:
            assert b"".join(iter(lambda: file.read(65536), b"")) == self.LARGE
            file.seek(5 * MIB)
            assert file.read(12 * MIB) == self.LARGE[5 * MIB : 17 * MIB]
        assert far.read_range(large, 7, 20 * MIB) == self.LARGE[7 : 7 + 20 * MIB]

    def test_reading_a_little_is_one_request(self, server, far, large):
        with far.open(large) as file:
            assert file.read(1000) == self.LARGE[:1000]
            begun = len(server.said("range"))

        assert begun <= 2

    def test_parts_of_a_replaced_object_are_never_joined(self, server, store, large):
        store._transfers.gets.connections, store._transfers.gets.is_fast = 2, False
        answer, other = server.answer, {"ETag": '"other"'}

        def replaced(request):
            whole = answer(request)
            first = request.headers.get("range", "").startswith("bytes=0-")
            return whole if first else replace(whole, headers={**whole.headers, **other})

        server.answer = replaced
        with pytest.raises(StoreUnavailableError, match="replaced"):
            store.read_range(large, 0, len(self.LARGE) - 1)
        assert store._transfers.gets.active == 0

        server.answer = answer
        assert store.read(large) == self.LARGE

    def test_memory_is_bounded_and_given_back(self, far, large):
        with far.open(large) as file:
            file.read(3 * MIB)
        assert far._transfers.gets.active == 0
