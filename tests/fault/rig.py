"""What the tests of faults share: payloads that show where they were torn, ways to read, and proof of good health."""

from __future__ import annotations

import functools
import uuid
from collections.abc import Callable
from typing import Any, ClassVar
from urllib.parse import urlencode, urlsplit, urlunsplit

import pytest
import redis

from claimcheck._store.contract import StoreContext
from claimcheck.errors import IntegrityError, StoreUnavailableError
from claimcheck.stores.redis import RedisStore
from claimcheck.testing._store_kit import content as _content
from tests.fault.proxy import Proxy
from tests.real.process import wait_until

MIB = 1 << 20

content = functools.cache(_content)  # bytes that repeat nowhere: a hole or a repetition in them shows


class TriggerFile:
    """A payload that does something when a part of it was read; by default half of it."""

    def __init__(self, payload: bytes, action: Callable[[], object], at: int | None = None) -> None:
        self._payload = memoryview(payload)
        self._action: Callable[[], object] | None = action
        self._at = len(payload) // 2 if at is None else at
        self._position = 0

    def read(self, size: int) -> bytes:
        if self._action is not None and self._position >= self._at:
            action, self._action = self._action, None
            action()
        piece = bytes(self._payload[self._position : self._position + size])
        self._position += len(piece)
        return piece


def _read(store, pointer):
    return store.read(pointer)


def _read_into(store, pointer):
    buffer = bytearray(pointer.size + 10)
    count = store.read_into(pointer, buffer)
    assert count == pointer.size
    return bytes(buffer[:count])


def _stream(store, pointer):
    got = bytearray()
    with store.open(pointer) as file:
        try:
            while piece := file.read(100_000):
                got += piece
        except Exception as error:
            _check_torn(file, error, bytes(got), pointer)
            raise
    return bytes(got)


def _check_torn(file, error, got, pointer):
    """What was handed out must be the payload's beginning, and the error must come again.

    Of a payload that was changed, all but the end may have been handed out as it was found.
    """
    assert len(got) < pointer.size
    assert isinstance(error, IntegrityError) or got == content(pointer.size)[: len(got)]
    with pytest.raises(type(error)):
        file.read(1)


def _open_and_read_all(store, pointer):
    with store.open(pointer) as file:
        return file.read()


READINGS = {"read": _read, "read_into": _read_into, "stream": _stream, "open": _open_and_read_all}
"""Every way to read a whole payload that was made by `content`."""


def assert_healthy(store):
    """The store works as if nothing had happened, in every way."""
    for size in (10, MIB + 1):
        pointer = store.write(content(size))
        assert all(read(store, pointer) == content(size) for read in READINGS.values())
        store.rollback(pointer)


def assert_unavailable(work: Callable[[], object]) -> StoreUnavailableError:
    """It fails with the error that says: perhaps later."""
    with pytest.raises(StoreUnavailableError) as caught:
        work()
    assert caught.value.retryable
    return caught.value


def through(url: str, port: int, **query: object) -> str:
    """The same address, but by way of a proxy at this port; with more in its query."""
    parts = urlsplit(url)
    login, at, _ = parts.netloc.rpartition("@")
    more = "&".join(filter(None, [parts.query, urlencode(query)]))
    return urlunsplit(parts._replace(netloc=f"{login}{at}127.0.0.1:{port}", query=more))


def assert_read_goes_on(store, payload, first, disturb):
    """Read the first bytes of a payload, let something happen, and read the rest."""
    pointer = store.write(payload)

    with store.open(pointer) as file:
        got = file.read(first)
        disturb()
        assert got + file.read() == payload


# Redis ----------------------------------------------------------------------------------------------------------------


SEGMENT = (1 << 20) - 64  # as the store cuts by default
SIZE = 5 * SEGMENT + SEGMENT // 2
PAYLOAD = content(SIZE)


class RedisLine:
    """Fixtures for a store that has one connection, and not a single one more, so that a leaked one is missed.

    Attributes:
        options: Of the store.
    """

    options: ClassVar[dict[str, Any]] = {"ttl_seconds": 60, "timeout_seconds": 10}

    @pytest.fixture
    def url(self, redis_url):
        return redis_url

    @pytest.fixture
    def server(self, url):
        """The back door."""
        with redis.Redis.from_url(url) as client:
            yield client

    @pytest.fixture
    def proxy(self, url):
        place = urlsplit(url)
        with Proxy(place.hostname, place.port) as proxy:
            yield proxy

    @pytest.fixture
    def store(self, url, proxy, server):
        name = f"test-{uuid.uuid4().hex}"
        address = through(url, proxy.port, client_name=name, max_connections=1)
        store = RedisStore(url=address, key_prefix=f"claimcheck:{name}:", **self.options)
        store.context = StoreContext(name="hot")
        yield store
        if not proxy.alive:
            proxy.revive()
        proxy.free()
        assert_healthy(store)
        wait_until(lambda: lines(server, name) <= 1, "no connection is left but the one in the pool")
        store.close()
        wait_until(lambda: lines(server, name) == 0, "closing leaves no connection")
        for key in keys(server, store):
            server.delete(key)


def lines(server, name):
    """How many connections a client has, by the name that it gave itself.

    With TLS, Redis sometimes keeps a connection that was reset in the middle of an answer; it has no peer any more.
    """
    return sum(client["name"] == name and client["addr"] != "?:0" for client in server.client_list())


def keys(server, store):
    """What rests there below the store's prefix."""
    return list(server.scan_iter(f"{store.prefix}*", count=10_000))
