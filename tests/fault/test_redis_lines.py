"""Lines to Redis that break, stall and lie at any byte: a payload is whole, or an error says why; nothing is left."""

import contextlib
import random
import threading
import time

import pytest

from claimcheck.errors import IntegrityError, StoreError
from tests.fault.rig import PAYLOAD, READINGS, SEGMENT, SIZE, RedisLine, TriggerFile, assert_unavailable, content, keys
from tests.real.process import wait_until

SEEDS = pytest.mark.parametrize("seed", range(8))


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
        self.reset = self.rng.random() < 0.5
        self.read = self.rng.choice([*READINGS.values()])

    def place(self, stop=SIZE):
        """Return any byte; often one of the words around a segment."""
        near = self.rng.randrange(6) * SEGMENT + self.rng.randrange(30)
        return min(near if self.rng.random() < 0.4 else self.rng.randrange(stop), stop - 1)

    def source(self):
        return PAYLOAD if self.rng.random() < 0.5 else TriggerFile(PAYLOAD, lambda: None)


class TestBroken(Lines):
    @SEEDS
    def test_once_is_made_again(self, store, proxy, seed):
        chance = Chance(seed)
        proxy.requests.break_after(chance.place(), reset=chance.reset)
        pointer = store.write(chance.source())
        before = proxy.connections
        proxy.answers.break_after(chance.place(), reset=chance.reset)

        assert chance.read(store, pointer) == PAYLOAD
        assert proxy.connections == before + 1

    @SEEDS
    def test_twice_in_a_segment_is_an_error_and_leaves_nothing(self, store, proxy, server, seed):
        chance = Chance(seed)
        place = chance.rng.randrange(5) * SEGMENT + SEGMENT // 2
        for more in (0, 50_000):
            proxy.requests.break_after(place + more, reset=chance.reset)
        error = assert_unavailable(lambda: store.write(chance.source()))
        assert not hasattr(error, "__notes__")
        assert keys(server, store) == []

        pointer, before = store.write(PAYLOAD), proxy.connections
        for more in (0, 50_000):
            proxy.answers.break_after(place + more, reset=chance.reset)
        assert_unavailable(lambda: chance.read(store, pointer))
        assert proxy.connections == before + 1

    def test_answers_lost_for_ever_are_an_unknown_outcome(self, store, proxy, server):
        pointer = store.write(PAYLOAD)
        proxy.lose_answers()

        error = assert_unavailable(lambda: store.write(PAYLOAD))

        assert_unavailable(lambda: store.read(pointer))
        assert any("could not be deleted" in note for note in error.__notes__)
        assert all(0 < server.pttl(key) <= 60_000 for key in keys(server, store))

    def test_between_two_calls_or_reads_is_made_again(self, store, proxy, server):
        pointer = store.write(PAYLOAD)
        proxy.cut()
        with store.open(pointer) as file:
            got = file.read(1 << 20)
            server.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
            assert got + file.read() == PAYLOAD

        proxy.answers.break_after(SEGMENT)
        assert store.read_range(pointer, SEGMENT // 2, 2 * SEGMENT) == PAYLOAD[SEGMENT // 2 :][: 2 * SEGMENT]
        assert store.read(store.write(TriggerFile(PAYLOAD, proxy.reset))) == PAYLOAD


class TestDead(Lines):
    @pytest.mark.parametrize("seed", range(5))
    def test_at_any_byte(self, store, proxy, server, seed):
        chance = Chance(seed)
        pointer = store.write(PAYLOAD)
        proxy.answers.at(chance.place(), proxy.die)
        assert_unavailable(lambda: chance.read(store, pointer))
        assert_unavailable(lambda: store.rollback(pointer))
        proxy.revive()
        store.rollback(pointer)
        assert keys(server, store) == []

        place = chance.rng.choice([0, SEGMENT // 2, 3 * SEGMENT, 5 * SEGMENT + 99])
        proxy.requests.at(place, proxy.die)
        error = assert_unavailable(lambda: store.write(chance.source()))

        left = keys(server, store)
        assert bool(left) == (place > SEGMENT), "segments were stored before, or this test shows nothing"
        assert all(0 < server.pttl(key) <= 60_000 for key in left), "what nobody could remove expires by itself"
        assert any("could not be deleted" in note for note in getattr(error, "__notes__", ())) or not left


class TestSlow(Lines):
    options = {"ttl_seconds": 60, "timeout_seconds": 0.5}

    def test_slower_than_the_timeout_in_all_but_never_silent_is_whole(self, store, proxy):
        proxy.requests.throttle(8 * SEGMENT)
        pointer = store.write(PAYLOAD)
        proxy.answers.throttle(8 * SEGMENT)

        began = time.monotonic()
        assert store.read(pointer) == PAYLOAD
        assert time.monotonic() - began > self.options["timeout_seconds"]

    @pytest.mark.parametrize("seed", range(2))
    def test_silence_is_waited_for_once(self, store, proxy, seed):
        chance = Chance(seed)
        pointer, before = store.write(PAYLOAD), proxy.connections
        proxy.answers.at(chance.place(), lambda: time.sleep(0.2))
        assert chance.read(store, pointer) == PAYLOAD  # a short silence

        held, began = proxy.answers.hold(after=chance.place()), time.monotonic()
        assert_unavailable(lambda: chance.read(store, pointer))
        assert time.monotonic() - began > 0.45
        assert proxy.connections == before, "it was not asked again"

        held.set()
        proxy.free()
        store.rollback(store.write(b"connected"))
        before = proxy.connections
        proxy.requests.hold(after=chance.place())
        assert_unavailable(lambda: store.write(PAYLOAD))
        assert proxy.connections == before + 1, "it was undone, and not tried again"


class TestLying(RedisLine):
    options = {"ttl_seconds": 60, "timeout_seconds": 0.5}

    @SEEDS
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

    def test_tls_notices_a_changed_byte(self, store, proxy):
        pointer = store.write(PAYLOAD)
        proxy.answers.flip(SIZE // 2)

        assert store.read(pointer) == PAYLOAD

    @pytest.fixture
    def url(self, request, redis_url):
        return request.getfixturevalue("redis_tls_url") if "tls" in request.node.name else redis_url


class TestBrokenPayload(Lines):
    def test_leaves_nothing_of_what_was_still_on_its_way(self, store, proxy, server):
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
