"""Lines to Redis that break, stall and lie at any byte, and servers that are full or not ours.

A payload is whole, or an error says why; nothing is left.

`tests/unit/test_redis_store.py` tells what happens to each segment; here any byte of a real answer may be the one.
"""

import contextlib
import random
import threading
import time

import pytest
import redis

from claimcheck.errors import IntegrityError, StoreError, StoreUnavailableError
from claimcheck.stores.redis import RedisStore
from tests import servers
from tests.fault.rig import MIB, PAYLOAD, READINGS, SEGMENT, SIZE, RedisLine, TriggerFile, assert_healthy, content, keys
from tests.real.process import wait_until


class Lines(RedisLine):
    @pytest.fixture(params=["redis_url", "redis_tls_url"], ids=["plain", "TLS"])
    def url(self, request):
        return request.getfixturevalue(request.param)

    @pytest.fixture(autouse=True)
    def connected(self, store):
        """So that counting begins with the payload."""
        store.rollback(store.write(b"first"))


class Chance:
    """What a seed decides: places, ends, and ways to write and to read."""

    def __init__(self, seed):
        self.rng = random.Random(seed)
        self.read = self.rng.choice([*READINGS.values()])

    def place(self):
        """Return any byte; often one of the words around a segment."""
        near = self.rng.randrange(6) * SEGMENT + self.rng.randrange(30)
        return min(near if self.rng.random() < 0.4 else self.rng.randrange(SIZE), SIZE - 1)

    def source(self):
        return PAYLOAD if self.rng.random() < 0.5 else TriggerFile(PAYLOAD, lambda: None)

    def disturb(self, proxy, lane):
        """Let one thing happen, or two of them close to each other; returns what."""
        kind = self.rng.choice(["break", "break", "break twice", "break for ever", "die", "hold", "be slow"])
        place, reset = self.place(), self.rng.random() < 0.5
        if kind.startswith("break"):
            lane.break_after(place, reset=reset, times=None if "ever" in kind else 1)
            if "twice" in kind:
                lane.break_after(place + 50_000, reset=reset)
        elif kind == "die":
            lane.at(place, proxy.die)
        elif kind == "hold":
            lane.hold(after=place)
        else:
            lane.at(place, lambda: time.sleep(0.2))
        return kind


class TestAnyByte(Lines):
    options = {"ttl_seconds": 60, "timeout_seconds": 2}

    @pytest.mark.parametrize("seed", range(20))
    def test_a_write_and_a_read_are_made_again_once_or_an_error_and_leave_nothing_for_ever(
        self, store, proxy, server, seed
    ):
        """What breaks off once in a segment is made again; no silence is waited for twice."""
        chance = Chance(seed)
        what = chance.disturb(proxy, proxy.requests)
        try:
            pointer = store.write(chance.source())
        except StoreUnavailableError as error:
            assert what not in ("break", "be slow")
            left, notes = keys(server, store), getattr(error, "__notes__", ())
            assert what != "break twice" or not (left or notes)
            assert all(0 < server.pttl(key) <= 60_000 for key in left), "what nobody could remove expires by itself"
            assert not left or any("could not be deleted" in note for note in notes)
        else:
            self.recover(proxy)
            assert store.read(pointer) == PAYLOAD
        self.recover(proxy)
        pointer, before, began = store.write(PAYLOAD), proxy.connections, time.monotonic()
        what = chance.disturb(proxy, proxy.answers)
        try:
            assert chance.read(store, pointer) == PAYLOAD
            assert what not in ("die", "hold")
        except StoreUnavailableError:
            assert what not in ("break", "be slow")
            assert what != "hold" or (time.monotonic() - began > 1.9 and proxy.connections == before)
        assert what != "break" or proxy.connections == before + 1
        self.recover(proxy)
        store.rollback(pointer)
        assert not any(key.decode().startswith(pointer.key) for key in keys(server, store))

    def recover(self, proxy):
        proxy.free()
        if not proxy.alive:
            proxy.revive()

    def test_between_two_calls_or_reads_is_made_again(self, store, proxy, server, url):
        """And where TLS notices a changed byte, which ends the connection."""
        pointer = store.write(PAYLOAD)
        proxy.cut()
        with store.open(pointer) as file:
            got = file.read(1 << 20)
            server.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
            assert got + file.read() == PAYLOAD
        proxy.answers.break_after(SEGMENT)
        assert store.read_range(pointer, SEGMENT // 2, 2 * SEGMENT) == PAYLOAD[SEGMENT // 2 :][: 2 * SEGMENT]
        assert store.read(store.write(TriggerFile(PAYLOAD, proxy.reset))) == PAYLOAD
        if url.startswith("rediss"):
            proxy.answers.flip(SIZE // 2)
            assert store.read(pointer) == PAYLOAD

    def test_a_payload_that_breaks_leaves_nothing_of_what_was_still_on_its_way(self, store, proxy, server):
        """A definite failure, after which nothing may be left, not even a moment later.

        The last segments travel slower than the request to remove them, which has another connection.
        """

        def fail():
            threading.Timer(0.2, go.set).start()
            raise OSError("the disk is on fire")

        go = proxy.requests.hold(after=3 * SEGMENT)
        with pytest.raises(Exception, match="on fire"):
            store.write(TriggerFile(PAYLOAD, fail, at=3 * SEGMENT))
        wait_until(lambda: proxy.live == 1, "all that was on its way has arrived")
        assert keys(server, store) == []


class TestImpatient(RedisLine):
    options = {"ttl_seconds": 60, "timeout_seconds": 1}

    def test_slower_than_the_timeout_in_all_but_never_silent_is_whole(self, store, proxy):
        proxy.requests.throttle(5 * SEGMENT)
        pointer = store.write(PAYLOAD)
        proxy.answers.throttle(5 * SEGMENT)
        began = time.monotonic()
        assert store.read(pointer) == PAYLOAD
        assert time.monotonic() - began > self.options["timeout_seconds"]

    @pytest.mark.parametrize("seed", range(8))
    def test_a_changed_byte_is_an_error_or_the_truth(self, store, proxy, seed):
        """Redis knows no checksums; the pointer has one."""
        chance = Chance(seed)
        pointer = store.write(PAYLOAD)
        proxy.answers.flip(chance.place())
        with contextlib.suppress(StoreError):
            assert chance.read(store, pointer) == PAYLOAD
        proxy.free()
        assert chance.read(store, pointer) == PAYLOAD
        proxy.requests.flip(seed * 5)
        with contextlib.suppress(StoreError):
            assert store.read(store.write(content(5000))) == content(5000)
        proxy.free()
        proxy.requests.flip(chance.rng.randrange(5) * SEGMENT + SEGMENT // 2)
        pointer = store.write(PAYLOAD)
        with pytest.raises(IntegrityError):
            chance.read(store, pointer)


# Servers that are full or not ours -------------------------------------------------------------------------------


@pytest.mark.parametrize("source", [bytes, lambda size: TriggerFile(bytes(size), lambda: None)])
def test_a_server_that_is_full_in_the_middle_of_a_payload_keeps_nothing_but_what_was_there(redis_programs, source):
    full = servers.redis("--maxmemory", "16mb", "--maxmemory-policy", "noeviction")
    with full as url, redis.Redis.from_url(url) as server, RedisStore(url=f"{url}?max_connections=1") as store:
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


@pytest.mark.parametrize(("password", "text"), [("hunter2", "invalid username-password"), ("right", "no permissions")])
def test_a_user_with_another_password_or_who_may_not_write_is_refused_for_good(own_redis, password, text):
    url = servers.redis_url(own_redis)
    with redis.Redis.from_url(url) as server, RedisStore(url=url.replace("//", f"//limited:{password}@")) as store:
        server.acl_setuser("limited", enabled=True, passwords=["+right"], keys=["*"], commands=["+@all", "-set"])
        with pytest.raises(StoreError, match=text) as caught:
            store.write(PAYLOAD)
        assert server.dbsize() == 0
    assert not caught.value.retryable
    assert "hunter2" not in str(caught.value)
