"""Servers that are killed, restarted, full, stopped or not ours, and segments that are gone, cut or changed."""

import contextlib
import os
import signal
import time

import pytest
import redis

from claimcheck.errors import IntegrityError, PayloadNotFoundError, StoreError, StoreUnavailableError
from claimcheck.stores.redis import RedisStore
from tests import servers
from tests.fault.redis_rig import PAYLOAD, SEGMENT, RedisLine, keys
from tests.fault.rig import MIB, READINGS, TriggerFile, assert_healthy, assert_read_goes_on, assert_unavailable, content

ALL_READINGS = pytest.mark.parametrize("read", [READINGS["read"], READINGS["stream"]], ids=["read", "stream"])


class Rig:
    """A store with one connection, on a server of its own."""

    options = {"timeout_seconds": 1}

    @pytest.fixture
    def url(self, own_redis):
        return servers.redis_url(own_redis)

    @pytest.fixture
    def server(self, url):
        with redis.Redis.from_url(url) as client:
            yield client

    @pytest.fixture
    def store(self, url, own_redis):
        with RedisStore(url=f"{url}?max_connections=1", **self.options) as store:
            yield store

    @pytest.fixture
    def restart(self, own_redis):
        def restart():
            own_redis.kill()
            own_redis.start()

        return restart


class TestKilled(Rig):
    @pytest.fixture(autouse=True)
    def _started_again(self, store, own_redis):
        store.write(b"so that a connection is there")
        yield
        own_redis.start()
        assert_healthy(store)

    def test_before_anything(self, store, own_redis):
        pointer = store.write(PAYLOAD)
        own_redis.kill()

        assert_unavailable(lambda: store.write(PAYLOAD))
        assert_unavailable(lambda: store.rollback(pointer))
        for read in READINGS.values():
            assert_unavailable(lambda read=read: read(store, pointer))

    def test_during_the_write(self, store, own_redis):
        assert_unavailable(lambda: store.write(TriggerFile(PAYLOAD, own_redis.kill)))

    def test_during_the_read(self, store, own_redis):
        pointer = store.write(content(40 * MIB))

        with store.open(pointer) as file:
            file.read(MIB)
            own_redis.kill()
            assert_unavailable(file.read)
            assert_unavailable(lambda: file.read(1))


class TestRestartedEmpty(Rig):
    """A Redis that keeps nothing on disk comes back without what was acknowledged before."""

    @pytest.mark.parametrize("at", [0, 3 * MIB])
    def test_a_write_that_succeeds_can_be_read(self, store, restart, at):
        try:
            pointer = store.write(TriggerFile(PAYLOAD, restart, at=at))
        except StoreUnavailableError:
            pass
        else:
            assert store.read(pointer) == PAYLOAD
        assert_healthy(store)

    def test_a_read_finds_that_the_payload_is_gone(self, store, restart):
        pointer = store.write(content(40 * MIB))

        with store.open(pointer) as file:
            got = bytearray(file.read(MIB))
            restart()
            with pytest.raises(PayloadNotFoundError):
                while piece := file.read(MIB):
                    got += piece

        assert got == content(40 * MIB)[: len(got)]
        assert_healthy(store)

    @ALL_READINGS
    def test_in_between_nobody_notices(self, store, restart, read):
        pointer = store.write(PAYLOAD)
        restart()

        with pytest.raises(PayloadNotFoundError):  # it keeps nothing on disk
            read(store, pointer)
        assert_healthy(store)


class TestRestartedWithAll(Rig):
    """A Redis that writes everything down comes back as it was, and payloads go on where they stopped."""

    @pytest.fixture
    def own_redis(self, redis_programs):
        with servers.redis_server("--appendonly", "yes", "--appendfsync", "always") as server:
            yield server

    @pytest.mark.parametrize("at", [0, 3 * MIB])
    def test_a_write_goes_on(self, store, restart, at):
        assert store.read(store.write(TriggerFile(PAYLOAD, restart, at=at))) == PAYLOAD

    def test_a_read_goes_on(self, store, restart):
        assert_read_goes_on(store, content(40 * MIB), MIB, restart)


class TestFull(Rig):
    @pytest.fixture
    def own_redis(self, redis_programs):
        with servers.redis_server("--maxmemory", "16mb", "--maxmemory-policy", "noeviction") as server:
            yield server

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
        assert_healthy(store)


class TestEvicting(Rig):
    @pytest.fixture
    def own_redis(self, redis_programs):
        with servers.redis_server("--maxmemory", "16mb", "--maxmemory-policy", "allkeys-lru") as server:
            yield server

    def test_a_payload_is_whole_or_gone(self, store, server):
        pointers = [store.write(PAYLOAD) for _ in range(6)]  # how many survive depends on the server's buffers
        gone = 0
        for pointer in pointers:
            try:
                assert store.read(pointer) == PAYLOAD
            except PayloadNotFoundError:
                gone += 1

        assert gone
        assert_healthy(store)

    def test_a_payload_larger_than_all_memory_is_gone_at_once(self, store):
        """The server says yes to every segment: only a reader can tell."""
        with pytest.raises(PayloadNotFoundError):
            store.read(store.write(content(32 * MIB)))
        assert_healthy(store)


class TestRefusing(Rig):
    @pytest.mark.parametrize(
        ("refuse", "stop"),
        [
            (lambda server: server.replicaof("127.0.0.1", 1), lambda server: server.replicaof("NO", "ONE")),
            (lambda server: server.config_set("maxclients", 1), lambda server: server.config_set("maxclients", 100)),
        ],
        ids=["a replica", "too many clients"],
    )
    def test_for_now(self, server, store, refuse, stop):
        refuse(server)

        assert_unavailable(lambda: store.write(PAYLOAD))

        stop(server)
        assert_healthy(store)

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

    def test_a_pause_is_waited_for(self, server, store):
        server.client_pause(200)

        assert store.read(store.write(PAYLOAD)) == PAYLOAD


class TestStopped(Rig):
    def test_is_waited_for_once_by_a_writer(self, store, own_redis, server, caplog):
        with new_connections(server, 1), stopped(own_redis.pid), waited():
            error = assert_unavailable(lambda: store.write(bytes(100)))

        assert not hasattr(error, "__notes__")
        assert caplog.text == ""
        assert server.dbsize() == 0
        assert_healthy(store)

    def test_leaves_what_it_may_have_heard_to_its_expiry(self, store, own_redis, server):
        """On a connection that was there already, it may be on its way: undoing it is tried, and waits, too."""
        store.write(b"so that a connection is there")
        with stopped(own_redis.pid):
            error = assert_unavailable(lambda: store.write(bytes(100)))

        assert ["could not be deleted" in note for note in error.__notes__] == [True]
        assert all(server.pttl(key) > 0 for key in server.scan_iter())
        assert_healthy(store)

    @ALL_READINGS
    def test_is_waited_for_once_by_a_reader(self, store, own_redis, server, read):
        pointer = store.write(content(2 * SEGMENT))
        with new_connections(server, 0), stopped(own_redis.pid), waited():
            assert_unavailable(lambda: read(store, pointer))

        assert read(store, pointer) == content(2 * SEGMENT)

    def test_encrypted_line_to_a_plain_redis_is_waited_for_once(self, url, server, caplog):
        encrypted = RedisStore(url=url.replace("redis://", "rediss://"), **self.options)
        with encrypted as store, new_connections(server, 1), waited(), pytest.raises(StoreError) as caught:
            store.write(bytes(100))

        assert not hasattr(caught.value, "__notes__")
        assert caplog.text == ""


@contextlib.contextmanager
def stopped(process):
    os.kill(process, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(process, signal.SIGCONT)


@contextlib.contextmanager
def waited():
    """It takes at least one time-out of a second."""
    began = time.monotonic()
    yield
    assert time.monotonic() - began > 0.9


@contextlib.contextmanager
def new_connections(server, count):
    """So many are opened, which would be more if anything were tried again."""
    before = connections(server)
    yield
    assert connections(server) - before == count


def connections(server):
    server.ping()  # those that waited while it was stopped are taken before this is answered, or right after
    return server.info("stats")["total_connections_received"]


# Damaged segments --------------------------------------------------------------------------------------------------


class TestDamaged(RedisLine):
    """Of a payload in six segments; tests/conformance damages others, and tests/unit each segment."""

    @pytest.mark.parametrize("segment", [3, 5])
    def test_gone_while_the_payload_is_being_read(self, store, server, pointer, segment):
        with store.open(pointer) as file:
            got = file.read(10)
            server.delete(f"{pointer.key}-{segment}")
            with pytest.raises(PayloadNotFoundError, match=f"segment {segment} of 6"):
                while piece := file.read(100_000):
                    got += piece

        assert got == PAYLOAD[: len(got)]
        assert len(got) <= segment * SEGMENT
        assert store.read_range(pointer, 5, 1000) == PAYLOAD[5:1005], "a range needs its own segments only"
        store.rollback(pointer)
        assert keys(server, store) == []

    @ALL_READINGS
    def test_out_of_order(self, store, server, pointer, read):
        first, second = f"{pointer.key}-1", f"{pointer.key}-2"
        one, two = server.mget(first, second)
        server.mset({first: two, second: one})

        with pytest.raises(IntegrityError, match="checksum"):
            read(store, pointer)

    @ALL_READINGS
    @pytest.mark.parametrize("segment", [0, 5])
    def test_of_another_kind(self, store, server, pointer, read, segment):
        """No number of retries turns a list into a payload."""
        name = f"{pointer.key}-{segment}"
        server.delete(name)
        server.rpush(name, "a", "b")

        with pytest.raises(IntegrityError):
            read(store, pointer)
