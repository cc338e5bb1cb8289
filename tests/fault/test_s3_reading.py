"""Requests that are refused, torn, late or falsified while a payload is read from S3: whole, or an error says why."""

import contextlib
import threading
import time

import pytest

from claimcheck.errors import IntegrityError, PayloadNotFoundError, StoreError, StoreUnavailableError
from claimcheck.stores.s3 import S3Store
from tests.fault.rig import MIB, assert_unavailable, content
from tests.fault.s3_rig import ALL_READINGS, LARGE, BareLine, DamagedReads, Reads

PAYLOAD = content(6 * MIB)
ALL_PLACES = pytest.mark.parametrize(
    "place", [0, 1000, 3 * MIB, len(PAYLOAD) - 1], ids=["nothing", "first", "middle", "last"]
)
ALL_ENDS = pytest.mark.parametrize("reset", [False, True], ids=["cut", "reset"])


class Reading(Reads):
    payload = PAYLOAD


class TestRefused(Reading):
    @ALL_READINGS
    @pytest.mark.parametrize("status", [500, 503])
    def test_twice_is_asked_again(self, store, proxy, pointer, read, status):
        proxy.fail("get", status=status, times=2)

        assert read(store, pointer) == PAYLOAD

    @ALL_READINGS
    def test_for_want_of_rights_is_not_tried_again(self, store, proxy, pointer, read):
        proxy.fail("get", status=403, times=None)

        with pytest.raises(StoreError) as caught:
            read(store, pointer)

        assert not caught.value.retryable
        assert not isinstance(caught.value, PayloadNotFoundError)


class TestTorn(Reading):
    @ALL_READINGS
    @ALL_PLACES
    @ALL_ENDS
    def test_once_is_whole_or_an_error_that_says_perhaps_later(self, store, proxy, pointer, read, place, reset):
        proxy.fail("get", break_answer=place, reset=reset)
        try:
            assert read(store, pointer) == PAYLOAD
        except StoreUnavailableError:
            assert read(store, pointer) == PAYLOAD

    @ALL_READINGS
    @pytest.mark.parametrize("place", [0, 1000])
    def test_for_ever_is_an_error(self, store, proxy, pointer, read, place):
        proxy.fail("get", break_answer=place, times=None)

        assert_unavailable(lambda: read(store, pointer))

    @ALL_READINGS
    def test_unanswered_is_asked_again(self, store, proxy, pointer, read):
        proxy.fail("get", lose_answer=True)

        assert read(store, pointer) == PAYLOAD

    def test_a_reader_that_stops_early_costs_no_connection(self, store, proxy, pointer):
        for _ in range(10):
            with store.open(pointer) as file:
                assert file.read(10) == PAYLOAD[:10]


class TestSideBySide(Reading):
    """Several parts are fetched at once; whichever fails, the payload is whole or it is none."""

    options = {**Reading.options, "gets": 3}
    payload = LARGE

    @ALL_READINGS
    def test_goes_well(self, store, proxy, pointer, read):
        assert read(store, pointer) == LARGE
        assert proxy.seen.count("get") == 3

    @ALL_READINGS
    @pytest.mark.parametrize("after", [0, 1, 2])
    def test_refused_for_ever_is_an_error(self, store, proxy, pointer, read, after):
        proxy.fail("get", status=503, after=after, times=None)

        assert_unavailable(lambda: read(store, pointer))

    @ALL_READINGS
    @pytest.mark.parametrize("after", [0, 1, 2])
    @ALL_ENDS
    def test_torn_is_whole_or_an_error_that_says_perhaps_later(self, store, proxy, pointer, read, after, reset):
        proxy.fail("get", break_answer=MIB, reset=reset, after=after)
        try:
            assert read(store, pointer) == LARGE
        except StoreUnavailableError:
            assert read(store, pointer) == LARGE

    @ALL_READINGS
    @pytest.mark.parametrize("after", [0, 1, 2])
    def test_changed_on_the_way_is_noticed(self, store, proxy, pointer, read, after):
        proxy.fail("get", flip_answer=MIB, after=after)

        with pytest.raises(IntegrityError):
            read(store, pointer)

    def test_gone_while_it_is_read(self, store, bucket, pointer):
        with store.open(pointer) as file:
            got = file.read(MIB)
            bucket.Object(pointer.key).delete()
            with contextlib.suppress(PayloadNotFoundError):
                assert got + file.read() == LARGE

    def test_a_reader_that_stops_early_costs_no_thread(self, store, pointer):
        before = set(threading.enumerate())
        for _ in range(5):
            with store.open(pointer) as file:
                assert file.read(10) == LARGE[:10]

        assert not [thread.name for thread in set(threading.enumerate()) - before if "claimcheck" in thread.name]


class TestLate(Reading):
    options = {**Reading.options, "timeout_seconds": 0.6}

    @ALL_READINGS
    def test_silence_is_waited_for_and_no_longer(self, store, proxy, pointer, read):
        late = proxy.fail("get", hold_answer=2 * MIB, times=None)

        assert_unavailable(lambda: read(store, pointer))

        assert proxy.seen.count("get") <= 4, "four tries at most"
        late.go.set()


class TestDamaged(Reading, DamagedReads):
    def test_no_bucket(self, s3_server, pointer):
        with S3Store(bucket="nobody-made-this-one", endpoint_url=s3_server.endpoint_url) as store:
            store.context = type(store.context)(name="cold")
            with pytest.raises(StoreError) as caught:
                store.read(pointer)
        assert not isinstance(caught.value, StoreUnavailableError)


class TestBareLine(Reading, BareLine):
    far_options = {"timeout_seconds": 1}

    @ALL_READINGS
    def test_dead_before_the_read(self, far, line, pointer, read):
        line.die()

        assert_unavailable(lambda: read(far, pointer))

        line.revive()
        assert read(far, pointer) == PAYLOAD

    @ALL_READINGS
    def test_dead_during_the_read(self, far, line, pointer, read):
        line.answers.at(3 * MIB, line.die)

        assert_unavailable(lambda: read(far, pointer))

        line.revive()
        assert read(far, pointer) == PAYLOAD

    @ALL_READINGS
    @pytest.mark.parametrize("place", [100, 2 * MIB, 6 * MIB - 1000])
    @ALL_ENDS
    def test_torn_at_any_byte(self, far, line, pointer, read, place, reset):
        line.answers.break_after(place, reset=reset)
        try:
            assert read(far, pointer) == PAYLOAD
        except StoreUnavailableError:
            assert read(far, pointer) == PAYLOAD

    def test_slower_than_the_timeout_in_all_but_never_silent_is_whole(self, far, line):
        pointer = far.write(content(3 * MIB))
        line.answers.throttle(2 * MIB)
        began = time.monotonic()

        assert far.read(pointer) == content(3 * MIB)
        assert time.monotonic() - began > 1.2

    @ALL_READINGS
    def test_changed_words_are_an_error_or_the_truth(self, far, line, pointer, read):
        """Some bytes of the answer's head."""
        for offset in range(0, 330, 30):
            line.answers.flip(offset)
            with contextlib.suppress(StoreError):
                assert read(far, pointer) == PAYLOAD
            line.free()
        assert read(far, pointer) == PAYLOAD
