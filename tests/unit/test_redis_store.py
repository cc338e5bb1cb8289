"""The published form byte by byte, how segments come and go, and what a store in Redis must not do.

A server here answers what no real one would on demand. tests/conformance has the rest.
"""

import asyncio
import contextlib
import logging
import os
import re
import ssl
import struct
import sys
import threading
import time
import urllib.parse
import uuid
from dataclasses import replace

import pytest
import redis

import claimcheck
from claimcheck._store.contract import StoreContext
from claimcheck._texts import split_url
from claimcheck._wire.digest import digest_of
from claimcheck._wire.pointer import Pointer, decode, encode
from claimcheck.errors import (
    ClaimCheckError,
    ConfigError,
    IntegrityError,
    PayloadNotFoundError,
    PayloadTooLargeError,
    PointerRejectedError,
    StoreError,
    StoreUnavailableError,
)
from claimcheck.stores.redis import RedisStore
from claimcheck.stores.redis import _segments as redis_segments
from claimcheck.stores.redis import _server as redis_server
from claimcheck.stores.redis._server import Address, Borrowed, Replies
from claimcheck.transports.pulsar._queries import AdminClient, AdminError
from tests.unit.scripted_redis import Medium, bulk, busy_thread, scripted_redis

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
    time.sleep(0.7)
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
        assert server.asked.count([b"GET", b"claimcheck:x-%d" % i]) <= 1

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

    @pytest.mark.parametrize("value", [b"", SMALL[1], b"short", b"a longer segment"])
    def test_one_that_is_gone_or_damaged_is_an_error_of_its_own(self, each, store, server, medium, value):
        medium.values[b"claimcheck:2-0"] = value
        found = each(store, "read", POINTERS)
        assert (type(found[2]), found[2].key) == (IntegrityError if value else PayloadNotFoundError, "claimcheck:2")
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

    def test_one_that_is_cancelled_after_it_was_sent_leaves_nothing(self, pool, store, medium, monkeypatch):
        """What it stored is deleted after the reply."""
        sent, go_on, before = threading.Event(), threading.Event(), set(medium.values)

        def held(conversation, usual):
            sent.set()
            go_on.wait(10)
            return usual

        medium.answers(b"SET", b"payload 0", held)
        monkeypatch.setattr(store, "_delete", lambda pointer: medium.values.pop(f"{pointer.key}-0".encode()))

        async def main():
            tasks = [asyncio.ensure_future(store.awrite(payload)) for payload in SMALL]
            await asyncio.sleep(0)
            pool.go()
            await asyncio.to_thread(sent.wait, 10)
            tasks[3].cancel()
            await asyncio.sleep(0)
            go_on.set()
            return await asyncio.gather(*tasks, return_exceptions=True)

        found = asyncio.run(main())
        pool.submit(lambda: None).result(10)
        assert isinstance(found.pop(3), asyncio.CancelledError)
        assert medium.values.keys() - before == {f"{pointer.key}-0".encode() for pointer in found}

    @pytest.mark.parametrize("event", ["close", "fork"])
    def test_no_connection_is_kept_after(self, event, store, server, monkeypatch):
        store.read(POINTERS[0])
        if event == "close":
            store.close()
        else:
            child = os.getpid() + 1
            monkeypatch.setattr(os, "getpid", lambda: child)
        assert store.read(POINTERS[0]) == SMALL[0]
        assert server.connections == 2


# The published form, keys, errors and addresses -----------------------------------------------------------------------

UUID = uuid.UUID("6ba7b810-9dad-11d1-80b4-00c04fd430c8")
KEY_V1 = f"kafka-over-redis-orders-{UUID}"


@pytest.fixture
def fake(fake_redis_url):
    with redis.Redis.from_url(fake_redis_url) as client:
        client.flushall()
        yield client


@pytest.fixture
def open_fake(fake_redis_url, fake):
    with contextlib.ExitStack() as stores:

        def build(**options):
            store = stores.enter_context(RedisStore(**{"url": fake_redis_url, "segment_bytes": 10, **options}))
            store.context = StoreContext(name="hot", new_uuid=lambda: UUID)
            return store

        yield build


class TestPublishedForm:
    def test_is_written_as_published(self, open_fake, fake):
        pointer = open_fake(pointer_version=1).write(b"0123456789" * 2 + b"abc", destination="orders")
        assert encode(pointer) == b"\x01" + struct.pack(">i", 3) + KEY_V1.encode()
        assert sorted(fake.keys()) == [f"{KEY_V1}-{i}".encode() for i in range(3)]
        assert [fake.get(f"{KEY_V1}-{i}") for i in range(3)] == [b"0123456789", b"0123456789", b"abc"]

    def test_is_read_as_published_whatever_the_segments_size_and_never_short(self, open_fake, fake):
        for i, segment in enumerate([b"some", b"body", b" elses ", b"segments"]):
            fake.set(f"{KEY_V1}-{i}", segment, ex=60)
        store, pointer = open_fake(), decode(b"\x01\x00\x00\x00\x04" + KEY_V1.encode())
        assert store.read(pointer) == b"somebody elses segments"
        fake.set(f"{KEY_V1}-2", b"")
        with pytest.raises(IntegrityError, match="0 bytes"):
            store.read(pointer)
        fake.delete(f"{KEY_V1}-2")
        with pytest.raises(PayloadNotFoundError, match="segment 2 of 4"):
            store.read(pointer)

    @pytest.mark.parametrize("now", [10, 5, 100])
    def test_is_deleted_whole_whatever_the_segments_size_is_now(self, open_fake, fake, now):
        open_fake().write(b"0123456789" * 30)
        store = open_fake(segment_bytes=now)
        assert [each.outcome for each in store.delete(list(store.scan()))] == ["deleted"]
        assert fake.keys() == []

    def test_of_too_many_segments_is_refused_before_any_io(self, open_fake, monkeypatch):
        pointer = decode(b"\x01" + struct.pack(">i", 100_001) + KEY_V1.encode())
        monkeypatch.setattr(redis_server.RedisServer, "client", property(lambda _: pytest.fail("it was asked")))
        with pytest.raises(PointerRejectedError, match="100001 segments"):
            open_fake().read(pointer)

    def test_of_more_segments_than_readers_follow_is_not_written(self, open_fake, fake):
        store = open_fake(pointer_version=1, segment_bytes=1)
        with pytest.raises(PayloadTooLargeError, match="100000 segments"):
            store.write(bytes(100_001))
        assert fake.keys() == []


def test_keys_lie_below_the_prefix_in_one_cluster_slot_and_expire_at_one_moment(open_fake, fake):
    store = open_fake(key_prefix="mine:", ttl_seconds=600)
    store.context = replace(store.context, clock=lambda: 4_000_000_000)
    pointer = store.write(bytes(25), destination="orders")
    assert pointer.key == f"mine:orders-20961002T070640Z-600s.{{{UUID}}}"
    assert sorted(fake.keys()) == [f"{pointer.key}-{i}".encode() for i in range(3)]
    assert len({redis.cluster.key_slot(key) for key in fake.scan_iter()}) == 1
    assert {fake.execute_command("PEXPIRETIME", key) for key in fake.scan_iter()} == {pointer.expires_ms}


def test_commands_carry_big_values_by_reference():
    value = memoryview(bytes(1 << 20))
    assert any(part is value for part in redis_server._packer()("SET", "key", value))


class TestErrors:
    def test_of_the_driver_are_retryable_if_another_try_may_succeed(self, open_fake):
        vendor = redis.exceptions
        lost = [vendor.ConnectionError, vendor.TimeoutError, vendor.ClusterDownError, vendor.RedisClusterException]
        translate = open_fake()._translate
        for kind in (*lost, ConnectionResetError, ssl.SSLEOFError):
            assert translate(kind("x")) is StoreUnavailableError
        assert translate(vendor.OutOfMemoryError("x")) is not StoreUnavailableError

    def test_unreachable_server_without_its_password(self, caplog):
        store = RedisStore(url="redis://me:hunter2@127.0.0.1:1/0")
        with caplog.at_level(logging.DEBUG), pytest.raises(StoreUnavailableError) as caught:
            store.write(b"payload")
        assert "hunter2" not in f"{caught.value!r}{caught.value.__cause__!r}{caplog.text}"

    @pytest.mark.parametrize(
        "url",
        [
            *("", "redis:6379", "unix://", "http://:hunter2@host/", "redis+other://host", "redis://host:99999"),
            *("redis://:hunt#er2@host:1/0", "redis://:hun/er2@host/0", "redis://:47/11@host/0", "redis://[hunter2"),
            *("redis://host:hunter2", "redis://:hunter2@host/x", "redis+cluster://:hunter2@host:x"),
            *("redis+cluster://host/name", "redis+cluster://host,,other", "redis+sentinel://:hunter2@host"),
            "redis+sentinel://:hunter2@host/mymaster/x",
        ],
    )
    def test_unreadable_url_without_its_password(self, url):
        with pytest.raises(ConfigError) as caught:
            RedisStore(url=url)
        assert caught.value.path == "url"
        assert not {"hunt", "hun", "er2", "hunter2", "47", "11"} & set(str(caught.value).replace(":", " ").split())
        assert (caught.value.__cause__, caught.value.__context__) == (None, None)

    @pytest.mark.parametrize("query", ["socket_timeout=hunter2", "bogus=hunter2"])
    def test_url_that_only_the_vendor_can_judge(self, query):
        store = RedisStore(url=f"redis://:hunter2@host/?{query}")
        store.context = StoreContext(name="hot")
        with pytest.raises(ConfigError, match="stores.hot.url") as caught:
            store.write(b"payload")
        assert "hunter2" not in str(caught.value)
        assert (caught.value.__cause__, caught.value.__context__) == (None, None)


@pytest.mark.parametrize("size", [0, 5, 500])
def test_nothing_is_undone_where_the_server_is_not_there(monkeypatch, size):
    """That would only wait once more, and say what is not so."""
    deleted: list[Pointer] = []
    monkeypatch.setattr(RedisStore, "_delete", lambda store, pointer: deleted.append(pointer))
    with pytest.raises(StoreUnavailableError) as caught:
        RedisStore(url="redis://127.0.0.1:1/0").write(bytes(size))
    assert deleted == getattr(caught.value, "__notes__", []) == []


def test_more_threads_may_read_than_the_client_has_connections_by_default(open_fake):
    """Recent releases of redis-py raise an error for the 101st connection."""
    server = open_fake()._server
    borrowed = [server.borrow("") for _ in range(101)]
    for each in borrowed:
        each.give_back()


LOGIN, SINGLE = "me:hunter2@", "redis://me:se%2Fhunter2@host:6380/3?socket_keepalive=yes"
LISTED = (("one", 7000), ("two", 6379), ("::1", 7002))


@pytest.mark.parametrize(
    ("text", "url", "hosts", "location"),
    [
        (SINGLE, SINGLE, (("host", 6380),), "host:6380/3"),
        ("redis://host?password=hunter2", None, (("host", 6379),), "host"),
        ("unix:///run/redis.sock?db=1", None, (), "/run/redis.sock"),
        ("unix:///run/redis.sock?password=hunt@er2", None, (), "(unreadable url)"),
        (
            f"redis+cluster://{LOGIN}one:7000,two,[::1]:7002/?protocol=3",
            f"redis://{LOGIN}one:7000/?protocol=3",
            LISTED,
            "one:7000,two,[::1]:7002/",
        ),
        (
            f"rediss+sentinel://{LOGIN}one,two:26380/my%20master/3?socket_keepalive=yes",
            f"rediss://{LOGIN}one:26379/3?socket_keepalive=yes",
            (("one", 26379), ("two", 26380)),
            "one,two:26380/my%20master/3",
        ),
    ],
)
def test_an_address_has_its_hosts_and_shows_no_password(text, url, hosts, location):
    address = Address.parse(text)
    assert (address.url, address.location) == (url or text, location)
    assert not hosts or address.hosts == hosts
    assert address.kind == (text.partition("+")[2].partition(":")[0] or "single")
    assert address.service == ("my master" if address.kind == "sentinel" else "")
    assert address.tls is text.startswith("rediss")
    assert repr(RedisStore(url=text)) == f"<RedisStore 'store' at {location}>"
    assert "er2" not in f"{address!r} {address}"


# Every URL that the library takes, by the rule of newer Pythons: brackets enclose a whole host ------------------------

HOSTS = ("[::1]:7000", "one:7001", "two", "[2001:db8::1]")
LISTS = [",".join(HOSTS[i:] + HOSTS[:i]) for i in range(4)]
URLS = [
    *(("redis", "url", f"redis+cluster://{login}{hosts}/") for login in ("", "me:secret@") for hosts in LISTS),
    *(("redis", "url", f"rediss+sentinel://me:secret@{hosts}/main/1") for hosts in LISTS),
    *(("redis", "url", f"redis://{host}/0") for host in HOSTS),
    *(("s3", "endpoint_url", f"http://{host}") for host in HOSTS),
    *(("pulsar-topic", "url", f"pulsar://{hosts}") for hosts in LISTS),
    *(("obstore", "url", url) for url in ("s3://bucket/prefix", "az://claims/srv")),
]
MORE = {"s3": {"bucket": "b"}, "pulsar-topic": {"topic": "claims"}}
_urlsplit = urllib.parse.urlsplit


def strict(url, *arguments, **options):
    """As of the fix of CVE-2025-0938, which interpreters older than it lack."""
    parts = _urlsplit(url, *arguments, **options)
    host = str(parts.netloc).rpartition("@")[2]
    if ("[" in host or "]" in host) and not re.fullmatch(r"\[[^\[\]]*\](:.*)?", host):
        raise ValueError("Invalid IPv6 URL")
    return parts


@pytest.fixture
def newer_rule(monkeypatch):
    for module in [
        each for name, each in sys.modules.items() if name.split(".")[0] in ("claimcheck", "urllib", "redis")
    ]:
        for name in [name for name, member in vars(module).items() if member is _urlsplit]:
            monkeypatch.setattr(module, name, strict)


@pytest.mark.parametrize(("kind", "option", "url"), URLS)
def test_a_store_takes_every_url_and_the_check_can_judge_it(newer_rule, kind, option, url):
    raw = {"stores": {"hot": {"type": kind, option: url, **MORE.get(kind, {})}}}
    with claimcheck.from_dict(raw) as cc:
        findings = cc.check().findings
    assert not [finding for finding in findings if finding.severity == "error"]
    ids = {finding.id for finding in findings}
    plain = url.startswith(("redis:", "redis+cluster:", "http:", "pulsar:"))
    assert ("connection-plain" in ids) == (plain and any(host in url for host in ("one", "two", "db8")))
    assert ("secret-in-file" in ids) == ("secret" in url)
    round_brackets = str.maketrans("[]", "()")  # every Python splits a URL with these
    assert [part.translate(round_brackets) for part in split_url(url)] == [*_urlsplit(url.translate(round_brackets))]


def test_an_address_of_the_web_service_that_is_no_url_is_a_typed_error(newer_rule):
    with pytest.raises(AdminError, match="admin_url"):
        AdminClient("http://one,[::1]:8080")
