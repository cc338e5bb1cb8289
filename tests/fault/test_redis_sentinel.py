"""A master that changes places with its replica, or dies, and a sentinel that is not there to be asked."""

import gc
import time

import pytest
import redis

from claimcheck.errors import PayloadNotFoundError, StoreUnavailableError
from claimcheck.stores.redis import RedisStore
from tests import servers
from tests.fault.redis_rig import PAYLOAD, SEGMENT
from tests.fault.rig import MIB, READINGS, TriggerFile, assert_healthy, assert_unavailable, content


class TestFailover:
    @pytest.fixture
    def store(self, redis_sentinel):
        with RedisStore(url=redis_sentinel.url, timeout_seconds=5) as store:
            store.write(b"so that a connection is there")
            yield store
            assert_healthy(store)

    @pytest.mark.parametrize("read", [READINGS["read"], READINGS["stream"]])
    def test_between_write_and_read(self, store, redis_sentinel, read):
        pointer = store.write(PAYLOAD)
        redis_sentinel.failover()

        assert read(store, pointer) == PAYLOAD

    def test_during_the_read(self, store, redis_sentinel):
        pointer = store.write(content(20 * MIB))

        with store.open(pointer) as file:
            got = file.read(SEGMENT)
            redis_sentinel.failover()
            assert got + file.read() == content(20 * MIB)

    def test_during_the_write(self, store, redis_sentinel):
        """Whether the line was lost or the server had become a replica: whole, or an error that says perhaps later."""
        try:
            pointer = store.write(TriggerFile(PAYLOAD, redis_sentinel.failover))
        except StoreUnavailableError:
            return
        assert store.read(pointer) == PAYLOAD

    def test_before_the_rollback(self, store, redis_sentinel):
        pointer = store.write(PAYLOAD)
        redis_sentinel.failover()

        store.rollback(pointer)

        with pytest.raises(PayloadNotFoundError):
            store.read(pointer)


def test_closing_leaves_no_connection_for_the_garbage_collector(redis_sentinel):
    def lines():
        with redis.Redis(port=redis_sentinel.sentinel.port) as client:
            return {line["id"] for line in client.client_list()} - {str(client.client_id())}

    before = lines()
    store = RedisStore(url=redis_sentinel.url)
    assert store.read(store.write(PAYLOAD)) == PAYLOAD
    assert lines() - before

    gc.disable()
    try:
        store.close()
        servers.wait_until(lambda: not lines() - before, "no connection is left")
    finally:
        gc.enable()


def test_a_master_that_dies_is_replaced(redis_programs):
    with servers.redis_sentinel() as group, RedisStore(url=group.url, timeout_seconds=1) as store:
        pointer, old, new = store.write(PAYLOAD), group.master, group.replica
        group.settle()
        old.kill()

        assert_unavailable(lambda: store.read(pointer))
        assert_unavailable(lambda: store.write(PAYLOAD))

        group.wait_for(new)
        assert store.read(pointer) == PAYLOAD
        assert_healthy(store)


def test_no_sentinel_is_no_store_for_now(redis_programs):
    with servers.redis_sentinel() as group, RedisStore(url=group.url, timeout_seconds=30) as store:
        pointer = store.write(PAYLOAD)
        group.sentinel.kill()

        assert store.read(pointer) == PAYLOAD, "the connection to the master is still there"

        store.close()
        began = time.monotonic()
        assert_unavailable(lambda: store.read(pointer))
        assert_unavailable(lambda: store.write(PAYLOAD))
        assert time.monotonic() - began < 30, "a refused connection is no reason to wait"

        group.sentinel.start()
        assert store.read(pointer) == PAYLOAD
