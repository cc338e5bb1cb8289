"""Lines that break, stall and lie while a payload is written to Redis: it rests there whole, or nothing is left."""

import contextlib
import threading
import time

import pytest

from claimcheck.errors import IntegrityError, StoreError
from tests.fault.redis_rig import PAYLOAD, PLACES, SEGMENT, RedisLine, keys
from tests.fault.rig import TriggerFile, assert_unavailable, content
from tests.real.process import wait_until

SOURCES = {"bytes": lambda: PAYLOAD, "file": lambda: TriggerFile(PAYLOAD, lambda: None)}
ALL_SOURCES = pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
ALL_PLACES = pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
ALL_ENDS = pytest.mark.parametrize("reset", [False, True], ids=["cut", "reset"])
OK = len(b"+OK\r\n")


class Writing(RedisLine):
    @pytest.fixture(autouse=True)
    def connected(self, store):
        """So that counting begins with the payload."""
        store.rollback(store.write(b"first"))


class TestLostLine(Writing):
    @ALL_SOURCES
    @ALL_PLACES
    @ALL_ENDS
    def test_once_in_a_segment_is_made_again(self, store, proxy, source, place, reset):
        before = proxy.connections
        proxy.requests.break_after(place, reset=reset)

        assert store.read(store.write(source())) == PAYLOAD
        assert proxy.connections == before + 1

    @ALL_SOURCES
    @ALL_PLACES
    @ALL_ENDS
    def test_twice_in_a_segment_is_an_error_and_leaves_nothing(self, store, proxy, server, source, place, reset):
        proxy.requests.break_after(place, reset=reset)
        proxy.requests.break_after(place + 10_000, reset=reset)

        error = assert_unavailable(lambda: store.write(source()))

        assert not hasattr(error, "__notes__")
        assert keys(server, store) == []

    @ALL_SOURCES
    def test_once_in_every_segment_or_so_is_made_again_every_time(self, store, proxy, source):
        before = proxy.connections
        for i in range(3):
            proxy.requests.break_after(int((2.5 * i + 0.5) * SEGMENT))

        assert store.read(store.write(source())) == PAYLOAD
        assert proxy.connections == before + 3

    @ALL_SOURCES
    @pytest.mark.parametrize("heard", [0, 1, 2, 5])
    @pytest.mark.parametrize("more", [0, 3])
    def test_an_answer_that_is_lost_is_asked_for_again(self, store, proxy, source, heard, more):
        proxy.answers.break_after(heard * OK + more)

        assert store.read(store.write(source())) == PAYLOAD

    @ALL_SOURCES
    def test_answers_lost_for_ever_are_an_unknown_outcome(self, store, proxy, server, source):
        proxy.lose_answers()

        error = assert_unavailable(lambda: store.write(source()))

        assert any("could not be deleted" in note for note in error.__notes__)
        assert all(0 < server.pttl(key) <= 60_000 for key in keys(server, store))

    @ALL_SOURCES
    def test_in_the_pool_is_noticed_and_made_again(self, store, proxy, source):
        proxy.cut()

        assert store.read(store.write(source())) == PAYLOAD

    @pytest.mark.parametrize("reset", [False, True], ids=["cut", "reset"])
    def test_while_the_payload_is_being_read_is_made_again(self, store, proxy, reset):
        file = TriggerFile(PAYLOAD, proxy.reset if reset else proxy.cut)

        assert store.read(store.write(file)) == PAYLOAD

    def test_connection_killed_by_the_server(self, store, server):
        def kill():
            killed.append(server.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"))

        killed = []
        assert store.read(store.write(TriggerFile(PAYLOAD, kill))) == PAYLOAD
        assert killed[0] >= 1

    def test_a_payload_of_one_segment_is_no_exception(self, store, proxy):
        proxy.requests.break_after(SEGMENT // 4)

        assert store.read(store.write(content(SEGMENT // 2))) == content(SEGMENT // 2)


class TestLostEncryptedLine(Writing):
    """The same where a lost line shows as an error of TLS."""

    @pytest.fixture
    def url(self, redis_tls_url):
        return redis_tls_url

    @ALL_PLACES
    @ALL_ENDS
    def test_once_in_a_segment_is_made_again(self, store, proxy, place, reset):
        proxy.requests.break_after(place, reset=reset)

        assert store.read(store.write(PAYLOAD)) == PAYLOAD

    @ALL_PLACES
    def test_twice_in_a_segment_is_an_error_and_leaves_nothing(self, store, proxy, server, place):
        proxy.requests.break_after(place)
        proxy.requests.break_after(place + 50_000)

        assert_unavailable(lambda: store.write(PAYLOAD))

        assert keys(server, store) == []

    def test_what_is_changed_on_the_way_is_noticed_by_tls(self, store, proxy):
        proxy.requests.flip(PLACES["middle"])

        assert store.read(store.write(PAYLOAD)) == PAYLOAD


class TestDeadLine(Writing):
    def test_before_the_write(self, store, proxy, server):
        proxy.die()

        assert_unavailable(lambda: store.write(PAYLOAD))

        assert keys(server, store) == []

    @ALL_SOURCES
    @ALL_PLACES
    def test_during_the_write(self, store, proxy, server, source, place):
        proxy.requests.at(place, proxy.die)

        error = assert_unavailable(lambda: store.write(source()))

        left = keys(server, store)
        assert bool(left) == (place > SEGMENT), "segments were stored before, or this test shows nothing"
        assert all(0 < server.pttl(key) <= 60_000 for key in left), "what nobody could remove expires by itself"
        assert any("could not be deleted" in note for note in error.__notes__)

    def test_before_the_rollback(self, store, proxy, server):
        pointer = store.write(PAYLOAD)
        proxy.die()

        assert_unavailable(lambda: store.rollback(pointer))
        assert keys(server, store)

        proxy.revive()
        store.rollback(pointer)
        assert keys(server, store) == []

    def test_answer_to_a_rollback_lost_is_asked_for_again(self, store, proxy, server):
        pointer = store.write(PAYLOAD)
        proxy.answers.break_after(0)

        store.rollback(pointer)

        assert keys(server, store) == []


class TestSlowLine(Writing):
    options = {"ttl_seconds": 60, "timeout_seconds": 0.5}

    def test_slower_than_the_timeout_in_all_is_whole(self, store, proxy):
        proxy.requests.throttle(8 * SEGMENT)

        assert store.read(store.write(PAYLOAD)) == PAYLOAD

    @ALL_PLACES
    def test_silence_is_waited_for_once(self, store, proxy, place):
        proxy.requests.hold(after=place)
        before, began = proxy.connections, time.monotonic()

        assert_unavailable(lambda: store.write(PAYLOAD))

        assert time.monotonic() - began > 0.45
        assert proxy.connections == before + 1, "it was undone, and not tried again"


class TestLyingLine(Writing):
    options = {"ttl_seconds": 60, "timeout_seconds": 0.5}

    @ALL_PLACES
    def test_one_changed_byte_is_noticed_by_readers(self, store, proxy, place):
        """Redis knows no checksums; the pointer has one."""
        proxy.requests.flip(place)
        pointer = store.write(PAYLOAD)

        with pytest.raises(IntegrityError):
            store.read(pointer)

    @pytest.mark.parametrize("offset", range(0, 120, 5))
    def test_a_changed_byte_of_the_protocol_is_an_error_or_the_truth(self, store, proxy, offset):
        proxy.requests.flip(offset)

        with contextlib.suppress(StoreError):
            assert store.read(store.write(content(5000))) == content(5000)


class TestBrokenPayload(Writing):
    """The payload's own fault: a definite failure, after which nothing may be left, not even a moment later."""

    @pytest.mark.parametrize("at", [SEGMENT // 2, SEGMENT, 3 * SEGMENT, 5 * SEGMENT + 1])
    def test_leaves_nothing(self, store, server, at):
        def fail():
            raise OSError("the disk is on fire")

        with pytest.raises(Exception, match="on fire"):
            store.write(TriggerFile(PAYLOAD, fail, at=at))

        assert keys(server, store) == []

    def test_leaves_nothing_of_what_was_still_on_its_way(self, store, proxy, server):
        """The last segments travel slower than the request to remove them, which has another connection."""

        def fail():
            threading.Timer(0.2, go.set).start()
            raise OSError("the disk is on fire")

        go = proxy.requests.hold(after=3 * SEGMENT)
        with pytest.raises(Exception, match="on fire"):
            store.write(TriggerFile(PAYLOAD, fail, at=3 * SEGMENT))
        wait_until(lambda: proxy.live == 1, "all that was on its way has arrived")

        assert keys(server, store) == []
