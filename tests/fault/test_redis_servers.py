"""Servers that are restarted, full or not ours."""

import pytest
import redis

from claimcheck.errors import StoreError
from claimcheck.stores.redis import RedisStore
from tests import servers
from tests.fault.rig import (
    MIB,
    PAYLOAD,
    TriggerFile,
    assert_healthy,
    assert_read_goes_on,
    content,
)


class Rig:
    """A store with one connection, on a server of its own, which must be found in good health after each test.

    Attributes:
        arguments: Of the server.
    """

    arguments: tuple[str, ...] = ()

    @pytest.fixture
    def own_redis(self, redis_programs):
        with servers.redis_server(*self.arguments) as server:
            yield server

    @pytest.fixture
    def url(self, own_redis):
        return servers.redis_url(own_redis)

    @pytest.fixture
    def server(self, url):
        with redis.Redis.from_url(url) as client:
            yield client

    @pytest.fixture
    def store(self, url, own_redis):
        with RedisStore(url=f"{url}?max_connections=1", timeout_seconds=1) as store:
            yield store
            assert_healthy(store)

    @pytest.fixture
    def restart(self, own_redis):
        def restart():
            own_redis.kill()
            own_redis.start()

        return restart


class TestRestartedWithAll(Rig):
    """A Redis that writes everything down comes back as it was, and payloads go on where they stopped."""

    arguments = ("--appendonly", "yes", "--appendfsync", "always")

    def test_a_write_and_a_read_go_on(self, store, restart):
        for at in (0, 3 * MIB):
            assert store.read(store.write(TriggerFile(PAYLOAD, restart, at=at))) == PAYLOAD
        assert_read_goes_on(store, content(40 * MIB), MIB, restart)


class TestFull(Rig):
    arguments = ("--maxmemory", "16mb", "--maxmemory-policy", "noeviction")

    @pytest.mark.parametrize("source", [bytes, lambda size: TriggerFile(bytes(size), lambda: None)])
    def test_in_the_middle_of_a_payload_leaves_nothing_but_what_was_there(self, store, server, source):
        pointer = store.write(PAYLOAD)
        before = server.dbsize()
        for _ in range(3):
            with pytest.raises(StoreError, match="maxmemory") as caught:
                store.write(source(32 * MIB))

            assert type(caught.value) is StoreError
            assert not hasattr(caught.value, "__notes__")
            assert server.dbsize() == before
        assert store.read(pointer) == PAYLOAD


class TestRefusing(Rig):
    @pytest.mark.parametrize("password", ["", "right"])
    def test_for_good_a_user_who_may_not_write_or_has_another_password(self, server, url, password):
        commands = {"categories": ["+@all"], "commands": ["-set"]}
        server.acl_setuser("limited", enabled=True, passwords=["+right"], keys=["*"], **commands)
        url = url.replace("//", f"//limited:{password or 'hunter2'}@")

        text = "no permissions" if password else "invalid username-password"
        with RedisStore(url=url) as store, pytest.raises(StoreError, match=text) as caught:
            store.write(PAYLOAD)

        assert not caught.value.retryable
        assert not password or server.dbsize() == 0
        assert "hunter2" not in str(caught.value)
