"""A Redis store at the far end of a line that can break; after each test it must be found in good health."""

from __future__ import annotations

import uuid
from typing import Any, ClassVar
from urllib.parse import urlsplit

import pytest
import redis

from claimcheck._store.contract import StoreContext
from claimcheck.stores.redis import RedisStore
from tests.fault.proxy import Proxy
from tests.fault.rig import assert_healthy, content, through
from tests.real.process import wait_until

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

    @pytest.fixture
    def pointer(self, store):
        return store.write(PAYLOAD)


def lines(server, name):
    """How many connections a client has, by the name that it gave itself.

    With TLS, Redis sometimes keeps a connection that was reset in the middle of an answer; it has no peer any more.
    """
    return sum(client["name"] == name and client["addr"] != "?:0" for client in server.client_list())


def keys(server, store):
    """What rests there below the store's prefix."""
    return list(server.scan_iter(f"{store.prefix}*", count=10_000))
