"""The published form, byte by byte, and what a store in Redis must not do; tests/conformance has the rest."""

import contextlib
import logging
import re
import ssl
import struct
import sys
import urllib.parse
import uuid
from dataclasses import replace

import pytest
import redis

import claimcheck
from claimcheck._store.contract import StoreContext
from claimcheck._texts import split_url
from claimcheck._wire.pointer import decode, encode
from claimcheck.errors import (
    ConfigError,
    IntegrityError,
    PayloadNotFoundError,
    PayloadTooLargeError,
    PointerRejectedError,
    StoreError,
    StoreUnavailableError,
)
from claimcheck.stores.redis import RedisStore
from claimcheck.stores.redis import _server as redis_server
from claimcheck.stores.redis._server import Address
from claimcheck.transports.pulsar._queries import AdminClient, AdminError

UUID = uuid.UUID("6ba7b810-9dad-11d1-80b4-00c04fd430c8")


KEY_V1 = f"kafka-over-redis-orders-{UUID}"


@pytest.fixture(scope="module")
def url(fake_redis_url):
    return fake_redis_url


@pytest.fixture
def server(url):
    with redis.Redis.from_url(url) as client:
        client.flushall()
        yield client


@pytest.fixture
def open_store(url, server):
    with contextlib.ExitStack() as stores:

        def build(**options):
            store = stores.enter_context(RedisStore(**{"url": url, "segment_bytes": 10, **options}))
            store.context = StoreContext(name="hot", new_uuid=lambda: UUID)
            return store

        yield build


class TestPublishedForm:
    def test_is_written_as_published(self, open_store, server):
        pointer = open_store(pointer_version=1).write(b"0123456789" * 2 + b"abc", destination="orders")

        assert encode(pointer) == b"\x01" + struct.pack(">i", 3) + KEY_V1.encode()
        assert sorted(server.keys()) == [f"{KEY_V1}-{i}".encode() for i in range(3)]
        assert [server.get(f"{KEY_V1}-{i}") for i in range(3)] == [b"0123456789", b"0123456789", b"abc"]

    def test_is_read_as_published_whatever_the_segments_size_and_never_short(self, open_store, server):
        for i, segment in enumerate([b"some", b"body", b" elses ", b"segments"]):
            server.set(f"{KEY_V1}-{i}", segment, ex=60)
        store, pointer = open_store(), decode(b"\x01\x00\x00\x00\x04" + KEY_V1.encode())

        assert store.read(pointer) == b"somebody elses segments"
        server.set(f"{KEY_V1}-2", b"")
        with pytest.raises(IntegrityError, match="0 bytes"):
            store.read(pointer)
        server.delete(f"{KEY_V1}-2")
        with pytest.raises(PayloadNotFoundError, match="segment 2 of 4"):
            store.read(pointer)

    def test_of_too_many_segments_is_refused_before_any_io(self, open_store, monkeypatch):
        pointer = decode(b"\x01" + struct.pack(">i", 100_001) + KEY_V1.encode())
        monkeypatch.setattr(redis_server.RedisServer, "client", property(lambda _: pytest.fail("it was asked")))

        with pytest.raises(PointerRejectedError, match="100001 segments"):
            open_store().read(pointer)

    def test_of_more_segments_than_readers_follow_is_not_written(self, open_store, server):
        store = open_store(pointer_version=1, segment_bytes=1)

        with pytest.raises(PayloadTooLargeError, match="100000 segments"):
            store.write(bytes(100_001))
        assert server.keys() == []


def test_keys_lie_below_the_prefix_in_one_cluster_slot_and_expire_at_one_moment(open_store, server):
    store = open_store(key_prefix="mine:", ttl_seconds=600)
    store.context = replace(store.context, clock=lambda: 4_000_000_000)
    pointer = store.write(bytes(25), destination="orders")

    assert pointer.key == f"mine:orders-20961002T070640Z-600s.{{{UUID}}}"
    assert sorted(server.keys()) == [f"{pointer.key}-{i}".encode() for i in range(3)]
    assert len({redis.cluster.key_slot(key) for key in server.scan_iter()}) == 1
    assert {server.execute_command("PEXPIRETIME", key) for key in server.scan_iter()} == {pointer.expires_ms}


def test_commands_carry_big_values_by_reference():
    value = memoryview(bytes(1 << 20))
    assert any(part is value for part in redis_server._packer()("SET", "key", value))


class TestErrors:
    @pytest.mark.parametrize(
        ("raised", "expected"),
        [
            (redis.exceptions.ConnectionError("x"), StoreUnavailableError),
            (redis.exceptions.TimeoutError("x"), StoreUnavailableError),
            (redis.exceptions.ClusterDownError("x"), StoreUnavailableError),
            (redis.exceptions.RedisClusterException("x"), StoreUnavailableError),
            (redis.exceptions.OutOfMemoryError("x"), StoreError),
            (ConnectionResetError("x"), StoreUnavailableError),
            (ssl.SSLEOFError("x"), StoreUnavailableError),
        ],
    )
    def test_table(self, open_store, monkeypatch, raised, expected):
        def fail(*_):
            raise raised

        store = open_store()
        pointer = store.write(b"payload")
        monkeypatch.setattr(redis_server.RedisServer, "borrow", fail)

        with pytest.raises(StoreError) as caught:
            store.read(pointer)

        assert type(caught.value) is expected

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


class TestUndo:
    """What was never begun is not undone: that would only wait once more, and say what is not so."""

    @pytest.fixture
    def deleted(self, monkeypatch):
        deleted = []
        monkeypatch.setattr(RedisStore, "_delete", lambda store, pointer: deleted.append(pointer))
        return deleted

    @pytest.mark.parametrize("size", [0, 5, 500])
    def test_is_left_out_where_the_server_is_not_there(self, deleted, size):
        with pytest.raises(StoreUnavailableError) as caught:
            RedisStore(url="redis://127.0.0.1:1/0").write(bytes(size))

        assert deleted == getattr(caught.value, "__notes__", []) == []

    def test_is_done_where_the_first_segment_failed(self, open_store, deleted, monkeypatch):
        def refuse(*_):
            raise redis.exceptions.OutOfMemoryError("maxmemory")

        monkeypatch.setattr(redis_server.Borrowed, "socket", None)  # redis-py's own parser returns the error
        monkeypatch.setattr(redis_server.Borrowed, "receive", refuse)

        with pytest.raises(StoreError):
            open_store().write(b"payload")

        assert len(deleted) == 1


def test_more_threads_may_read_than_the_client_has_connections_by_default(open_store):
    """Recent releases of redis-py raise an error for the 101st connection."""
    server = open_store()._server
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
    assert split_url(url) == _urlsplit(url)


def test_an_address_of_the_web_service_that_is_no_url_is_a_typed_error(newer_rule):
    with pytest.raises(AdminError, match="admin_url"):
        AdminClient("http://one,[::1]:8080")
