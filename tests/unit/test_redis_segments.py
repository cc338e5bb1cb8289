"""How segments come and go, against a server that answers what no real one would on demand."""

import asyncio
import os
import time
from dataclasses import replace

import pytest

from claimcheck._store.contract import StoreContext
from claimcheck._wire.digest import digest_of
from claimcheck._wire.pointer import Pointer
from claimcheck.errors import (
    ClaimCheckError,
    IntegrityError,
    PayloadNotFoundError,
    PayloadTooLargeError,
    PointerRejectedError,
    StoreError,
    StoreUnavailableError,
)
from claimcheck.stores.redis import RedisStore
from claimcheck.stores.redis import _segments as redis_segments
from claimcheck.stores.redis._server import Borrowed, Replies
from tests.unit.scripted_redis import Medium, bulk, busy_thread, opened, scripted_redis

PAYLOAD = bytes(range(95))  # in ten segments
POINTER = Pointer(key="claimcheck:x", store="hot", size=95, segments=10, segment_bytes=10, checksum=digest_of(PAYLOAD))
SMALL = [b"payload %d" % n for n in range(6)]
POINTERS = [
    Pointer(key=f"claimcheck:{n}", store="hot", size=len(payload), checksum=digest_of(payload))
    for n, payload in enumerate(SMALL)
]


@pytest.fixture
def medium():
    segments = {b"claimcheck:x-%d" % i: PAYLOAD[10 * i : 10 * i + 10] for i in range(10)}
    return Medium(segments | {b"claimcheck:%d-0" % n: payload for n, payload in enumerate(SMALL)})


@pytest.fixture
def server(medium):
    with scripted_redis(medium) as server:
        yield server


@pytest.fixture
def open_store(server, monkeypatch):
    monkeypatch.setattr(redis_segments, "TRUSTED_BYTES", 50)
    made = []

    def build(**options):
        made.append(RedisStore(url=server.url, **{"segment_bytes": 10, "timeout_seconds": 10, **options}))
        made[-1].context = StoreContext(name="hot")
        return made[-1]

    yield build
    for store in made:
        store.close()


@pytest.fixture
def store(open_store):
    return open_store()


@pytest.fixture
def hasty(open_store):
    return open_store(timeout_seconds=0.3)


def stream(store, pointer=POINTER):
    with store.open(pointer) as file:
        return b"".join(iter(lambda: file.read(7), b""))


@pytest.fixture(params=["whole", "stream"])
def read(request, store):
    return lambda: store.read(POINTER) if request.param == "whole" else stream(store)


def slowly(conversation, answer):
    """One byte at a time, as a network may deliver it."""
    for i in range(len(answer)):
        conversation.wfile.write(answer[i : i + 1])
        conversation.wfile.flush()
    return b""


def late(conversation, answer):
    time.sleep(1.5)
    return answer


def half(conversation, answer):
    conversation.wfile.write(answer[: len(answer) // 2])


def names(server):
    return [command[0] for command in server.asked]


NOISE = [b">2\r\n+a\r\n+b\r\n", b"+OK\r\n", b":7\r\n", b"\r\n", b"\0" * 50]


class TestReading:
    @pytest.mark.parametrize(("trusted", "first"), [(50, [b"STRLEN"]), (95, [])])
    def test_each_segment_is_requested_once_and_the_last_one_checked_first_if_there_are_many(
        self, store, server, monkeypatch, trusted, first
    ):
        monkeypatch.setattr(redis_segments, "TRUSTED_BYTES", trusted)

        assert store.read(POINTER) == PAYLOAD
        assert names(server) == [*first, *[b"GET"] * 10]
        assert server.connections == 1

    def test_a_reader_that_stops_early_keeps_no_half_answer(self, store, server):
        with store.open(POINTER) as file:
            file.raw.readinto(bytearray(3))

        assert store.read(POINTER) == PAYLOAD
        assert server.connections == 2

    @pytest.mark.parametrize("i", [0, 9])
    @pytest.mark.parametrize(
        ("odd", "connections"), [(slowly, 1), (None, 2), (half, 2), *((each, 2) for each in NOISE)]
    )
    def test_an_answer_that_is_lost_or_not_expected_never_becomes_payload(
        self, read, server, medium, i, odd, connections
    ):
        medium.answers(b"GET", b"-%d" % i, odd)

        assert read() == PAYLOAD
        assert server.connections >= connections

    @pytest.mark.parametrize("i", [0, 9])
    def test_the_same_one_lost_again_is_unavailable(self, read, store, medium, i):
        medium.always(b"GET", b"-%d" % i, half)
        medium.always(b"GETRANGE", b"-%d" % i, None)
        medium.always(b"SET", b"-%d" % i, None)

        for use in (read, lambda: store.write(PAYLOAD)):
            with pytest.raises(StoreUnavailableError):
                use()

    def test_a_late_answer_is_waited_for_once(self, hasty, server, medium):
        medium.always(b"GET", b"-4", late)

        with pytest.raises(StoreUnavailableError):
            hasty.read(POINTER)
        assert [command[1] for command in server.asked].count(b"claimcheck:x-4") == 1

    @pytest.mark.parametrize("i", [0, 9])
    @pytest.mark.parametrize("gone", [b"$-1\r\n", b"_\r\n"])
    def test_one_that_is_gone_is_named(self, read, medium, i, gone):
        del medium.values[b"claimcheck:x-%d" % i]
        medium.answers(b"GET", b"-%d" % i, gone)  # RESP3's way may be the second

        with pytest.raises(PayloadNotFoundError, match=f"segment {i} of 10"):
            read()

    @pytest.mark.parametrize("i", [0, 9])
    @pytest.mark.parametrize("wrong", [b"", b"bad", b"x" * 1000])
    def test_another_size_is_an_error_before_more_is_transferred(self, read, server, medium, i, wrong):
        medium.values[b"claimcheck:x-%d" % i] = wrong

        with pytest.raises(IntegrityError, match=f"{len(wrong)} bytes, not") as caught:
            read()
        assert caught.value.key == POINTER.key
        assert [command for command in server.asked if command[0] == b"GET"].count(
            [b"GET", b"claimcheck:x-%d" % i]
        ) <= 1

    @pytest.mark.parametrize(
        ("refusal", "expected"),
        [
            (b"-LOADING Redis is loading the dataset in memory\r\n", StoreUnavailableError),
            (b"-READONLY You can't write against a read only replica.\r\n", StoreUnavailableError),
            (b"-NOAUTH Authentication required.\r\n", StoreError),
            (b"-WRONGTYPE Operation against a key\r\n", IntegrityError),
        ],
    )
    def test_a_refusal_has_its_type(self, read, medium, refusal, expected):
        medium.always(b"GET", b"-3", refusal)

        with pytest.raises(StoreError) as caught:
            read()
        assert type(caught.value) is expected

    def test_without_a_socket_all_is_left_to_redis_py(self, read, server, monkeypatch):
        monkeypatch.setattr(Borrowed, "socket", None)

        assert read() == PAYLOAD
        assert names(server) == [b"STRLEN", *[b"STRLEN", b"GET"] * 10]

    @pytest.mark.parametrize("sizes", [[11], [4, 4, 4], [4] * 1500])
    def test_a_published_one_over_the_limit_is_not_transferred(self, store, server, medium, sizes):
        """Its pointer has no size."""
        medium.values = {b"kafka-over-redis-o-%d" % i: b"x" * size for i, size in enumerate(sizes)}
        store.context = StoreContext(name="hot", max_payload_bytes=10)

        with pytest.raises(PayloadTooLargeError) as caught:
            store.read(Pointer(key="kafka-over-redis-o", version=1, segments=len(sizes)))
        assert caught.value.limit == 10
        assert set(names(server)) == {b"STRLEN"}

    def test_no_more_than_a_range_is_requested(self, store, server):
        assert store.read_range(POINTER, 17, 20) == PAYLOAD[17:37]

        assert [b" ".join(command) for command in server.asked] == [
            b"GETRANGE claimcheck:x-1 7 9",
            b"GET claimcheck:x-2",
            b"GETRANGE claimcheck:x-3 0 6",
        ]


class TestWriting:
    @pytest.mark.parametrize("i", [0, 4, 9])
    def test_what_had_no_answer_is_sent_again(self, store, server, medium, i):
        medium.answers(b"SET", b"-%d" % i, None)

        pointer = store.write(PAYLOAD)

        sent = [int(command[1].rpartition(b"-")[2]) for command in server.asked if command[0] == b"SET"]
        assert (sorted(set(sent)), sent.count(i)) == ([*range(10)], 2)
        assert server.connections == 2
        assert b"".join(medium.values[f"{pointer.key}-{n}".encode()] for n in range(10)) == PAYLOAD

    def test_a_server_that_came_back_empty_is_no_success(self, store, medium):
        medium.answers(b"SET", b"-4", lambda *_: [medium.values.pop(key) for key in [*medium.values][-2:]] and None)

        with pytest.raises(StoreUnavailableError, match="lost segments"):
            store.write(PAYLOAD)

    def test_a_large_segment_that_broke_off_has_the_checksum_of_the_whole(self, open_store, medium):
        payload = bytes(range(256)) * 20_000
        medium.answers(b"SET", b"-1", None)

        assert open_store(segment_bytes=1_000_000).write(payload).checksum == digest_of(payload)

    @pytest.mark.parametrize("i", [0, 9])
    @pytest.mark.parametrize(
        ("refusal", "text"),
        [
            (b"-OOM command not allowed when used memory > 'maxmemory'.\r\n", "maxmemory"),
            (b"-ERR syntax error\r\n", r"6\.2 or newer"),
        ],
    )
    def test_a_refusal_ends_it_and_never_quotes_the_payload(self, store, medium, i, refusal, text):
        medium.answers(b"SET", b"-%d" % i, refusal)

        with pytest.raises(StoreError, match=text) as caught:
            store.write(b"top secret" * 10)

        assert "secret" not in f"{caught.value}{caught.value.__cause__}"
        assert store.write(PAYLOAD).size == 95


# Small payloads ------------------------------------------------------------------------------------------------------


@pytest.fixture
def pool(monkeypatch):
    with busy_thread(monkeypatch) as pool:
        yield pool


def together(pool, *coroutines):
    """Run coroutines whose calls wait at the same time; returns their results and errors."""

    async def main():
        tasks = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
        await asyncio.sleep(0)
        pool.go()
        return await asyncio.gather(*tasks, return_exceptions=True)

    results = asyncio.run(main())
    pool.submit(lambda: None).result(10)  # the connection was given back
    return results


def outcome(call, argument):
    try:
        return call(argument)
    except ClaimCheckError as error:
        return error


class Small:
    """Payloads of one segment, each with one request and one system call, or several with one of both."""

    @pytest.fixture
    def store(self, open_store):
        return open_store(segment_bytes=1 << 20)

    @pytest.fixture
    def hasty(self, open_store):
        return open_store(segment_bytes=1 << 20, timeout_seconds=0.3)

    @pytest.fixture(params=["alone", "together"])
    def each(self, request):
        """A function that calls a method of a store with each of many arguments; returns results and errors."""
        if request.param == "alone":
            return lambda store, name, arguments: [outcome(getattr(store, name), each) for each in arguments]
        pool = request.getfixturevalue("pool")
        return lambda store, name, arguments: together(pool, *map(getattr(store, f"a{name}"), arguments))


class TestReadingSmall(Small):
    def test_is_one_request_each_and_one_connection(self, each, store, server):
        """A byte more than there should be would show that one is larger."""
        assert each(store, "read", POINTERS) == SMALL
        assert store.read(POINTERS[0]) == SMALL[0]
        assert server.connections == 1
        assert [b" ".join(command) for command in server.asked] == [
            b"GETRANGE claimcheck:%d-0 0 9" % n for n in (*range(6), 0)
        ]

    @pytest.mark.parametrize("odd", [None, half, *NOISE, b"-LOADING\r\n", bulk(b"short"), b"$9\r\npay" * 4])
    def test_an_unexpected_reply_never_becomes_payload(self, each, store, medium, odd):
        medium.answers(b"GETRANGE", b":2-0", odd)

        assert each(store, "read", POINTERS) == SMALL

    @pytest.mark.parametrize(
        ("value", "expected"),
        [
            (b"", PayloadNotFoundError),
            (SMALL[1], IntegrityError),
            (b"short", IntegrityError),
            (b"a longer segment", IntegrityError),
        ],
    )
    def test_one_that_is_gone_or_damaged_is_an_error_of_its_own(self, each, store, server, medium, value, expected):
        medium.values[b"claimcheck:2-0"] = value
        found = each(store, "read", POINTERS)

        assert (type(found[2]), found[2].key) == (expected, "claimcheck:2")
        assert found[:2] + found[3:] == SMALL[:2] + SMALL[3:]
        assert value or (server.connections, len(server.asked)) == (1, 6)

    def test_one_that_is_much_larger_is_never_transferred(self, store, server, medium):
        """Whoever can write to the server could otherwise have readers fetch a large entry with a small pointer."""
        sent = []

        def measured(conversation, command):
            sent.append(len(reply := medium(conversation, command)))
            return reply

        medium.values[b"claimcheck:0-0"] = bytes(8 << 20)
        server.script = measured
        with pytest.raises(IntegrityError, match=str(8 << 20)):
            store.read(POINTERS[0])
        assert sum(sent) < 200

    def test_a_server_that_is_too_slow_is_waited_for_once(self, each, hasty, server, medium):
        medium.always(b"GETRANGE", b":0-0", late)
        found = each(hasty, "read", [POINTERS[0]] * 2)

        assert {type(each) for each in found} == {StoreUnavailableError}
        assert len(server.asked) <= 2, "nothing was repeated"

    def test_nothing_is_requested_for_a_rejected_pointer(self, each, store, server):
        found = each(store, "read", [replace(POINTERS[0], key="elsewhere:0"), POINTERS[1], POINTERS[1]])

        assert isinstance(found[0], PointerRejectedError)
        assert found[1:] == [SMALL[1]] * 2
        assert {command[1] for command in server.asked} == {b"claimcheck:1-0"}


class TestWritingSmall(Small):
    def stored(self, medium, pointers):
        return [medium.values[f"{pointer.key}-0".encode()] for pointer in pointers]

    def test_is_one_request_each_and_one_connection(self, each, store, server, medium):
        pointers = each(store, "write", SMALL)

        assert [pointer.checksum for pointer in pointers] == [pointer.checksum for pointer in POINTERS]
        assert self.stored(medium, pointers) == SMALL
        assert (server.connections, len(server.asked)) == (1, 6)
        assert [command[3:] for command in server.asked] == [
            [b"PXAT", b"%d" % pointer.expires_ms] for pointer in pointers
        ]

    @pytest.mark.parametrize("odd", [None, b"-LOADING\r\n", b"$9\r\npay"])
    def test_after_an_unexpected_reply_the_rest_is_sent_again(self, each, store, medium, odd):
        medium.answers(b"SET", b"payload 2", odd)

        assert self.stored(medium, each(store, "write", SMALL)) == SMALL

    @pytest.mark.parametrize("odd", [late, None])
    def test_one_whose_outcome_is_unknown_is_deleted(self, each, hasty, medium, monkeypatch, odd):
        """It may have arrived, unlike one for which there never was a connection."""
        deleted = []
        monkeypatch.setattr(hasty, "_delete", deleted.append)
        medium.always(b"SET", b"payload 1", odd)

        found = each(hasty, "write", SMALL[:3])

        failed = [error for error in found if isinstance(error, StoreUnavailableError)]
        assert found[1] in failed
        assert sorted(pointer.key for pointer in deleted) == sorted(error.key for error in failed)

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
            store.write(SMALL[0])
        assert calls == ["receive", "receive", "delete"]


class TestKeptConnections(Small):
    @pytest.mark.parametrize("event", ["close", "fork"])
    def test_none_is_kept_after(self, event, store, server, monkeypatch):
        store.read(POINTERS[0])
        if event == "close":
            store.close()
        else:
            child = os.getpid() + 1
            monkeypatch.setattr(os, "getpid", lambda: child)

        assert store.read(POINTERS[0]) == SMALL[0]
        assert server.connections == 2

    def test_a_small_pool_is_not_used_up(self, server):
        with opened(f"{server.url}&max_connections=1") as store:
            store.write(SMALL[0])

            store._server.borrow("").give_back()
            assert not store._server._kept
