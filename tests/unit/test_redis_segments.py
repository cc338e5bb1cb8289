"""How segments come and go, against a server that answers what no real one would on demand."""

import itertools
import os
import threading
import time
import zlib
from dataclasses import replace

import pytest

from claimcheck._store.contract import StoreContext
from claimcheck._wire.digest import digest_of
from claimcheck._wire.pointer import Pointer
from claimcheck.errors import (
    IntegrityError,
    PayloadNotFoundError,
    StoreError,
    StoreUnavailableError,
)
from claimcheck.stores.redis import RedisStore
from claimcheck.stores.redis import _segments as redis_segments
from claimcheck.stores.redis._server import Borrowed, Replies
from tests.unit.scripted_redis import bulk, opened, scripted_redis

PAYLOAD = bytes(range(95))


POINTER = Pointer(
    key="claimcheck:x", store="hot", size=95, segments=10, segment_bytes=10, checksum=f"crc32:{zlib.crc32(PAYLOAD):08x}"
)


class Medium:
    """Answers as Redis would for the segments of PAYLOAD, unless told otherwise for one of them."""

    def __init__(self):
        self.odd = {}  # (command, segment) -> answers, in turn; then as usual

    def __call__(self, conversation, command):
        name, key = command[0].decode(), command[1]
        i = int(key.rpartition(b"-")[2])
        segment = PAYLOAD[10 * i : 10 * i + 10]
        usual = {
            "GET": lambda: bulk(segment),
            "GETRANGE": lambda: bulk(segment[int(command[2]) : int(command[3]) + 1]),
            "STRLEN": lambda: b":%d\r\n" % len(segment),
            "SET": lambda: b"+OK\r\n",
            "EXISTS": lambda: b":%d\r\n" % (len(command) - 1),
        }
        odd = next(self.odd.get((name, i), iter(())), "as usual")
        if callable(odd):
            return odd(conversation, usual[name]())
        return usual[name]() if odd == "as usual" else odd

    def answers(self, name, i, *odd):
        self.odd[name, i] = iter(odd)

    def always(self, name, i, odd):
        self.odd[name, i] = itertools.repeat(odd)


@pytest.fixture
def medium():
    return Medium()


@pytest.fixture
def server(medium):
    with scripted_redis(medium) as server:
        yield server


@pytest.fixture
def store(server, monkeypatch):
    monkeypatch.setattr(redis_segments, "TRUSTED_BYTES", 50)
    store = RedisStore(url=server.url, segment_bytes=10, timeout_seconds=0.5)
    store.context = StoreContext(name="hot")
    yield store
    store.close()


def read_stream(store, pointer=POINTER):
    with store.open(pointer) as file:
        return b"".join(iter(lambda: file.read(7), b""))


def read_into(store, pointer=POINTER):
    buffer = bytearray(100)
    return bytes(buffer[: store.read_into(pointer, buffer)])


READS = {"read": lambda store: store.read(POINTER), "stream": read_stream, "into": read_into}


@pytest.fixture(params=READS)
def read(request, store):
    return lambda: READS[request.param](store)


def slowly(conversation, answer):
    """One byte at a time, as a network may deliver it."""
    for i in range(len(answer)):
        conversation.wfile.write(answer[i : i + 1])
        conversation.wfile.flush()
    return b""


def half(conversation, answer):
    conversation.wfile.write(answer[: len(answer) // 2])
    return


class TestReading:
    def test_asks_for_the_last_one_first_and_for_each_once(self, store, server):
        assert store.read(POINTER) == PAYLOAD

        assert [command[0] for command in server.asked] == [b"STRLEN", *[b"GET"] * 10]
        assert server.connections == 1

    def test_has_two_in_flight(self, store, server, medium):
        """The next is asked for when one has begun to come, so that the server never waits for a question."""
        seen = []

        def wait(conversation, answer):
            conversation.wfile.write(answer[:7])
            seen.append(conversation.rfile.peek()[:3])  # waits for what comes next: nothing would mean a deadlock
            return answer[7:]

        for i in range(9):
            medium.answers("GET", i, wait)
        assert store.read(POINTER) == PAYLOAD
        assert seen == [b"*2\r"] * 9

    def test_of_a_small_payload_asks_for_nothing_first(self, store, server, monkeypatch):
        monkeypatch.setattr(redis_segments, "TRUSTED_BYTES", 95)

        assert store.read(POINTER) == PAYLOAD
        assert [command[0] for command in server.asked] == [b"GET"] * 10

    def test_byte_by_byte(self, read, medium):
        for i in range(10):
            medium.always("GET", i, slowly)
        assert read() == PAYLOAD

    def test_left_early_keeps_no_half_answer(self, store, server):
        with store.open(POINTER) as file:
            file.raw.readinto(bytearray(3))

        assert store.read(POINTER) == PAYLOAD
        assert server.connections == 2

    @pytest.mark.parametrize("i", [0, 1, 4, 9])
    @pytest.mark.parametrize("odd", [None, half])
    def test_goes_on_where_a_connection_was_lost(self, read, server, medium, i, odd):
        medium.answers("GET", i, odd)

        assert read() == PAYLOAD
        assert server.connections == 2

    @pytest.mark.parametrize("i", [0, 4, 9])
    def test_gives_up_when_the_same_one_is_lost_again(self, read, medium, i):
        medium.always("GET", i, half)
        medium.always("GETRANGE", i, None)

        with pytest.raises(StoreUnavailableError):
            read()

    def test_asks_only_for_the_rest_of_one(self, store, server, medium):
        medium.answers("GET", 0, lambda conversation, answer: conversation.wfile.write(answer[:9]) and None)
        pointer = replace(POINTER, size=10, segments=1, segment_bytes=None, checksum=digest_of(PAYLOAD[:10]))

        with store.open(pointer) as file:
            first = bytearray(4)
            file.raw.readinto(first)
            assert bytes(first) + file.read() == PAYLOAD[:10]

        assert server.asked[-1][0] == b"GETRANGE"

    def test_does_not_wait_for_ever(self, read, medium, server):
        medium.always("GET", 4, lambda conversation, answer: time.sleep(2) or answer)

        with pytest.raises(StoreUnavailableError):
            read()
        asked = [command for command in server.asked if command[1].endswith(b"-4")]
        assert len(asked) == 1, "one time-out, not one for every try"

    @pytest.mark.parametrize("i", [0, 5, 9])
    @pytest.mark.parametrize("gone", [b"$-1\r\n", b"_\r\n"])
    def test_gone(self, read, medium, i, gone):
        medium.always("GET", i, gone)
        medium.always("STRLEN", 9, b":0\r\n" if i == 9 else b":5\r\n")
        medium.always("EXISTS", i, b":0\r\n")
        if gone.startswith(b"_"):
            medium.answers("GET", i, gone, b"$-1\r\n")  # RESP3's way, then as redis-py asks with RESP2

        with pytest.raises(PayloadNotFoundError, match=f"segment {i} of 10"):
            read()

    @pytest.mark.parametrize("i", [0, 5, 9])
    @pytest.mark.parametrize("wrong", [b"", b"short", b"a longer segment", b"x" * 1000])
    def test_of_another_size(self, read, medium, i, wrong):
        medium.always("GET", i, bulk(wrong))
        if i == 9:
            medium.always("STRLEN", 9, b":%d\r\n" % len(wrong))

        with pytest.raises(IntegrityError) as caught:
            read()
        assert caught.value.key == POINTER.key

    @pytest.mark.parametrize("i", [0, 5])
    def test_that_is_larger_than_declared_is_not_transferred(self, read, server, medium, i):
        medium.always("GET", i, bulk(b"x" * 1000))
        medium.always("STRLEN", i, b":1000\r\n")

        with pytest.raises(IntegrityError, match="1000 bytes, not 10"):
            read()
        assert server.asked.count([b"GET", f"claimcheck:x-{i}".encode()]) == 1, "whose answer was not read"

    @pytest.mark.parametrize(
        ("refusal", "expected"),
        [
            (b"-LOADING Redis is loading the dataset in memory\r\n", StoreUnavailableError),
            (b"-READONLY You can't write against a read only replica.\r\n", StoreUnavailableError),
            (b"-NOAUTH Authentication required.\r\n", StoreError),
            (b"-WRONGTYPE Operation against a key\r\n", IntegrityError),
        ],
    )
    def test_refused(self, read, medium, refusal, expected):
        medium.always("GET", 3, refusal)

        with pytest.raises(StoreError) as caught:
            read()
        assert type(caught.value) is expected

    @pytest.mark.parametrize("i", [0, 4, 9])
    @pytest.mark.parametrize("noise", [b">2\r\n+a\r\n+b\r\n", b"+OK\r\n", b":7\r\n", b"\r\n", b"\0" * 50])
    def test_what_nobody_expects_never_becomes_payload(self, read, server, medium, i, noise):
        medium.answers("GET", i, noise)

        assert read() == PAYLOAD  # redis-py asked again
        assert server.connections > 1

    def test_without_a_socket_is_left_to_redis_py(self, read, server, monkeypatch):
        monkeypatch.setattr(Borrowed, "socket", None)

        assert read() == PAYLOAD
        asked = [command[0] for command in server.asked]
        assert asked == [b"STRLEN", *[b"STRLEN", b"GET"] * 10]

    def test_of_a_range_asks_for_no_more(self, store, server):
        assert store.read_range(POINTER, 17, 20) == PAYLOAD[17:37]

        asked = [[part.decode() for part in command] for command in server.asked]
        assert asked == [
            ["GETRANGE", "claimcheck:x-1", "7", "9"],
            ["GET", "claimcheck:x-2"],
            ["GETRANGE", "claimcheck:x-3", "0", "6"],
        ]


class TestOfOneSmallSegment:
    """It is read with one request and one system call, and as any other segment if that does not work."""

    POINTER = replace(POINTER, size=10, segments=1, segment_bytes=None, checksum=digest_of(PAYLOAD[:10]))

    @pytest.mark.parametrize("odd", [None, half, b">2\r\n+a\r\n+b\r\n", b"+OK\r\n", b"\0" * 50, bulk(PAYLOAD[:9])])
    def test_an_unexpected_reply_never_becomes_payload(self, store, server, medium, odd):
        medium.answers("GETRANGE", 0, odd)

        assert store.read(self.POINTER) == PAYLOAD[:10]
        assert server.connections == 2

    def test_that_is_gone_costs_one_request_and_no_connection(self, store, server, medium):
        medium.answers("GETRANGE", 0, bulk(b""))

        with pytest.raises(PayloadNotFoundError, match="segment 0 of 1"):
            store.read(self.POINTER)
        assert store.read(self.POINTER) == PAYLOAD[:10]
        assert (server.connections, len(server.asked)) == (1, 2)

    @pytest.mark.parametrize("wrong", [b"short", b"a longer segment"])
    def test_of_another_size(self, store, medium, wrong):
        medium.always("GETRANGE", 0, bulk(wrong))
        medium.always("STRLEN", 0, b":%d\r\n" % len(wrong))

        with pytest.raises(IntegrityError):
            store.read(self.POINTER)

    def test_that_is_much_larger_is_never_transferred(self, store, server, medium):
        """Whoever can write to the server could otherwise have readers fetch a large entry with a small pointer."""
        sent = []

        def ranged(conversation, command):
            medium.answers("STRLEN", 0, b":%d\r\n" % (8 << 20))
            entry = bytes(8 << 20)
            reply = bulk(entry[int(command[2]) : int(command[3]) + 1] if command[0] == b"GETRANGE" else entry)
            reply = medium(conversation, command) if command[0] == b"STRLEN" else reply
            sent.append(len(reply))
            return reply

        server.script = ranged
        with pytest.raises(IntegrityError, match=str(8 << 20)):
            store.read(self.POINTER)
        assert sum(sent) < 200

    def test_does_not_wait_twice(self, store, server, medium):
        medium.always("GETRANGE", 0, lambda conversation, answer: time.sleep(2) or answer)

        with pytest.raises(StoreUnavailableError):
            store.read(self.POINTER)
        assert len(server.asked) == 1

    def test_is_written_again_after_a_lost_connection(self, store, server, medium):
        medium.answers("SET", 0, None)

        pointer = store.write(PAYLOAD[:10])

        assert [command[1] for command in server.asked] == [f"{pointer.key}-0".encode()] * 2
        assert server.connections == 2

    def test_an_interrupted_wait_ends_before_the_deletion(self, store, monkeypatch):
        """Otherwise the server could store it afterwards."""
        calls, expect = [], Replies.expect

        def interrupted(replies, line):
            calls.append("receive")
            if len(calls) == 1:
                raise KeyboardInterrupt
            expect(replies, line)

        monkeypatch.setattr(Replies, "expect", interrupted)
        monkeypatch.setattr(store, "_delete", lambda pointer: calls.append("delete"))

        with pytest.raises(KeyboardInterrupt):
            store.write(PAYLOAD[:10])
        assert calls == ["receive", "receive", "delete"]

    def test_whose_connection_is_lost_each_time_is_deleted(self, store, medium, monkeypatch):
        """It may have arrived, unlike one for which there never was a connection."""
        deleted = []
        monkeypatch.setattr(store, "_delete", deleted.append)
        medium.always("SET", 0, None)

        with pytest.raises(StoreUnavailableError):
            store.write(PAYLOAD[:10])
        assert len(deleted) == 1


class TestWriting:
    @pytest.mark.parametrize("i", [0, 1, 4, 9])
    def test_sends_again_what_had_no_answer(self, store, server, medium, i):
        medium.answers("SET", i, None)

        store.write(PAYLOAD)

        sent = [int(command[1].rpartition(b"-")[2]) for command in server.asked if command[0] == b"SET"]
        assert sorted(set(sent)) == list(range(10))
        assert sent.count(i) == 2
        assert server.connections == 2

    @pytest.mark.parametrize("i", [0, 4, 9])
    def test_gives_up_when_the_same_one_is_lost_again(self, store, medium, i):
        medium.always("SET", i, None)

        with pytest.raises(StoreUnavailableError):
            store.write(PAYLOAD)

    def test_of_a_server_that_came_back_empty_is_no_success(self, store, medium):
        medium.answers("SET", 4, None)
        medium.answers("EXISTS", 9, b":6\r\n")
        medium.answers("EXISTS", 0, b":6\r\n")

        with pytest.raises(StoreUnavailableError, match="lost segments"):
            store.write(PAYLOAD)

    def test_that_fails_has_its_large_segments_checksummed_all_the_same(self, server, medium):
        """Sending breaks off in the middle of one; what is sent again has the checksum of the whole."""
        payload = bytes(range(256)) * 20_000
        medium.answers("SET", 1, None)
        with RedisStore(url=server.url, segment_bytes=1_000_000) as store:
            assert store.write(payload).checksum == digest_of(payload)

    @pytest.mark.parametrize("i", [0, 4, 9])
    def test_a_refusal_ends_it(self, store, server, medium, i):
        medium.answers("SET", i, b"-OOM command not allowed when used memory > 'maxmemory'.\r\n")

        with pytest.raises(StoreError, match="maxmemory"):
            store.write(PAYLOAD)

        assert store.write(PAYLOAD).size == 95

    def test_old_server_is_named(self, store, medium):
        medium.answers("SET", 0, b"-ERR syntax error\r\n")

        with pytest.raises(StoreError, match=r"6\.2 or newer"):
            store.write(PAYLOAD)

    def test_never_quotes_the_payload(self, store, medium):
        medium.always("SET", 0, b"-OOM command not allowed when used memory > 'maxmemory'.\r\n")

        with pytest.raises(StoreError) as caught:
            store.write(b"top secret")

        assert "top secret" not in f"{caught.value}{caught.value.__cause__}"


SMALL = b"small"


class Entries:
    """A Redis with SET and GET. It closes the connection in place of the answers numbered in ``closes``, from 0."""

    def __init__(self):
        self.values, self.answered, self.closes = {}, 0, set()

    def __call__(self, conversation, command):
        number, self.answered = self.answered, self.answered + 1
        if number in self.closes:
            return None
        if command[0] == b"SET":
            self.values[command[1]] = command[2]
            return b"+OK\r\n"
        return bulk(self.values[command[1]])


@pytest.fixture
def entries():
    return Entries()


@pytest.fixture
def entries_server(entries):
    with scripted_redis(entries) as entries_server:
        yield entries_server


@pytest.fixture
def kept_store(entries_server):
    with opened(entries_server.url) as kept_store:
        yield kept_store


def test_small_payloads_share_one_connection(kept_store, entries_server):
    for pointer in [kept_store.write(SMALL) for _ in range(3)]:
        assert kept_store.read(pointer) == SMALL

    assert entries_server.connections == 1


@pytest.mark.parametrize("closes", [{1}, {2}], ids=["write", "read"])
def test_a_command_on_a_lost_connection_is_repeated(kept_store, entries_server, entries, closes):
    entries.closes = closes
    kept_store.write(SMALL)

    assert kept_store.read(kept_store.write(SMALL)) == SMALL
    assert entries_server.connections == 2


def test_after_a_lost_connection_the_others_are_not_trusted(kept_store, entries):
    """All of them are lost if the server was restarted: each command is repeated once, and would meet the next one."""
    pointer, together = kept_store.write(SMALL), threading.Barrier(3)

    def at_the_same_time():
        borrowed = kept_store._server.borrow_kept()
        together.wait(10)
        borrowed.give_back()

    threads = [threading.Thread(target=at_the_same_time) for _ in range(3)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert len(kept_store._server._kept) == 3
    entries.closes = {entries.answered}

    assert kept_store.read(pointer) == SMALL
    assert not kept_store._server._kept


@pytest.mark.parametrize("event", ["close", "fork"])
def test_nothing_is_kept_after(event, kept_store, entries_server, monkeypatch):
    pointer = kept_store.write(SMALL)
    if event == "close":
        kept_store.close()
    else:
        child = os.getpid() + 1
        monkeypatch.setattr(os, "getpid", lambda: child)

    assert kept_store.read(pointer) == SMALL
    assert entries_server.connections == 2


def test_a_small_pool_is_not_used_up(entries_server):
    with opened(f"{entries_server.url}&max_connections=1") as kept_store:
        kept_store.write(SMALL)

        kept_store._server.borrow("").give_back()
        assert not kept_store._server._kept
