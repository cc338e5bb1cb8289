"""Lines that break, stall and lie while a payload is read from Redis: it comes whole, or an error says why not."""

import contextlib
import time

import pytest

from claimcheck.errors import IntegrityError, StoreError
from tests.fault.redis_rig import PAYLOAD, PLACES, SEGMENT, RedisLine
from tests.fault.rig import READINGS, assert_unavailable, content

ALL_READINGS = pytest.mark.parametrize("read", READINGS.values(), ids=READINGS)
ALL_PLACES = pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
ALL_ENDS = pytest.mark.parametrize("reset", [False, True], ids=["cut", "reset"])


class TestLostLine(RedisLine):
    @ALL_READINGS
    @ALL_PLACES
    @ALL_ENDS
    def test_once_in_a_segment_is_made_again(self, store, proxy, pointer, read, place, reset):
        before = proxy.connections
        proxy.answers.break_after(place, reset=reset)

        assert read(store, pointer) == PAYLOAD
        assert proxy.connections == before + 1

    @ALL_READINGS
    @ALL_PLACES
    @ALL_ENDS
    def test_twice_in_a_segment_is_an_error(self, store, proxy, pointer, read, place, reset):
        before = proxy.connections
        proxy.answers.break_after(place, reset=reset)
        proxy.answers.break_after(place + 10_000, reset=reset)

        assert_unavailable(lambda: read(store, pointer))
        assert proxy.connections == before + 1

    @ALL_READINGS
    def test_in_one_segment_after_the_other_is_made_again_every_time(self, store, proxy, pointer, read):
        """Far enough from each other to be in different segments, whether the torn one is read again or goes on."""
        before = proxy.connections
        for i in range(4):
            proxy.answers.break_after(int((1.5 * i + 0.25) * SEGMENT))

        assert read(store, pointer) == PAYLOAD
        assert proxy.connections == before + 4

    @ALL_READINGS
    def test_before_the_first_byte_is_made_again(self, store, proxy, pointer, read):
        proxy.answers.break_after(0)

        assert read(store, pointer) == PAYLOAD

    @ALL_READINGS
    @pytest.mark.parametrize("count", [1, 3, 8, 11, 15, 20])
    def test_within_the_words_around_a_segment_is_made_again(self, store, proxy, pointer, read, count):
        proxy.answers.break_after(count)
        proxy.answers.break_after(SEGMENT + 1000 + count)

        assert read(store, pointer) == PAYLOAD

    @ALL_READINGS
    def test_while_the_question_is_asked_is_made_again(self, store, proxy, pointer, read):
        proxy.requests.break_after(20)

        assert read(store, pointer) == PAYLOAD

    @ALL_READINGS
    def test_in_the_pool_is_noticed_and_made_again(self, store, proxy, pointer, read):
        proxy.cut()

        assert read(store, pointer) == PAYLOAD

    @ALL_READINGS
    def test_for_ever_is_an_error(self, store, proxy, pointer, read):
        proxy.lose_answers()

        assert_unavailable(lambda: read(store, pointer))

    @ALL_READINGS
    def test_a_payload_of_one_segment_is_no_exception(self, store, proxy, read):
        pointer = store.write(content(SEGMENT // 2))
        proxy.answers.break_after(SEGMENT // 4)

        assert read(store, pointer) == content(SEGMENT // 2)

    @ALL_READINGS
    def test_down_before_the_first_byte(self, store, proxy, pointer, read):
        proxy.die()

        assert_unavailable(lambda: read(store, pointer))

    @ALL_READINGS
    @ALL_PLACES
    def test_down_in_a_segment(self, store, proxy, pointer, read, place):
        proxy.answers.at(place, proxy.die)

        assert_unavailable(lambda: read(store, pointer))

    def test_cut_between_two_reads_of_a_file(self, store, proxy, pointer):
        with store.open(pointer) as file:
            got = file.read(1 << 20)
            proxy.cut()
            assert got + file.read() == PAYLOAD

    def test_a_range_is_made_again_too(self, store, proxy, pointer):
        proxy.answers.break_after(SEGMENT)

        assert store.read_range(pointer, SEGMENT // 2, 2 * SEGMENT) == PAYLOAD[SEGMENT // 2 :][: 2 * SEGMENT]

    def test_a_reader_that_stops_early_costs_no_connection(self, store, proxy, pointer):
        for _ in range(3):
            with store.open(pointer) as file:
                assert file.read(10) == PAYLOAD[:10]


class TestLostEncryptedLine(RedisLine):
    """The same where a lost line shows as an error of TLS."""

    @pytest.fixture
    def url(self, redis_tls_url):
        return redis_tls_url

    @ALL_READINGS
    @ALL_PLACES
    def test_once_in_a_segment_is_made_again(self, store, proxy, pointer, read, place):
        proxy.answers.break_after(place, reset=read is READINGS["read"])

        assert read(store, pointer) == PAYLOAD

    @ALL_READINGS
    def test_twice_in_a_segment_is_an_error(self, store, proxy, pointer, read):
        proxy.answers.break_after(PLACES["middle"])
        proxy.answers.break_after(PLACES["middle"] + 50_000)

        assert_unavailable(lambda: read(store, pointer))

    @ALL_READINGS
    def test_what_is_changed_on_the_way_is_noticed_by_tls(self, store, proxy, pointer, read):
        proxy.answers.flip(PLACES["middle"])

        assert read(store, pointer) == PAYLOAD


class TestSlowLine(RedisLine):
    options = {"ttl_seconds": 60, "timeout_seconds": 0.5}

    @pytest.mark.parametrize("read", [READINGS["read"], READINGS["stream"]])
    def test_slower_than_the_timeout_in_all_but_never_silent_is_whole(self, store, proxy, read):
        pointer = store.write(content(SEGMENT + 1000))
        proxy.answers.throttle(SEGMENT)

        began = time.monotonic()
        assert read(store, pointer) == content(SEGMENT + 1000)
        assert time.monotonic() - began > 2 * self.options["timeout_seconds"] * 0.9

    @ALL_READINGS
    def test_silence_is_waited_for_once(self, store, proxy, pointer, read):
        proxy.answers.hold(after=PLACES["middle"])
        before, began = proxy.connections, time.monotonic()

        assert_unavailable(lambda: read(store, pointer))

        assert time.monotonic() - began > 0.45
        assert proxy.connections == before, "it was not asked again"

    @ALL_READINGS
    def test_short_silence_is_waited_for(self, store, proxy, pointer, read):
        proxy.answers.at(PLACES["middle"], lambda: time.sleep(0.2))

        assert read(store, pointer) == PAYLOAD


class TestLyingLine(RedisLine):
    options = {"ttl_seconds": 60, "timeout_seconds": 0.5}

    @ALL_READINGS
    @ALL_PLACES
    def test_one_changed_byte_of_the_payload_is_noticed(self, store, proxy, pointer, read, place):
        proxy.answers.flip(place)

        with pytest.raises(IntegrityError):
            read(store, pointer)

        assert read(store, pointer) == PAYLOAD

    @pytest.mark.parametrize("offset", range(24))
    def test_a_changed_byte_of_the_protocol_is_no_payload(self, store, proxy, pointer, offset):
        """In the first words, and in those between two segments: an error with a name, or the truth."""
        read = list(READINGS.values())[offset % 4]
        for start in (0, SEGMENT + 10):
            proxy.answers.flip(start + offset)
            with contextlib.suppress(StoreError):
                assert read(store, pointer) == PAYLOAD
            proxy.free()
            assert read(store, pointer) == PAYLOAD
