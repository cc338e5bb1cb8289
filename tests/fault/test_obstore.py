"""The other engine for S3, under the same fire: what is refused, torn, late or falsified is whole, or has an error."""

import contextlib
import time

import pytest

from claimcheck.errors import IntegrityError, StoreError, StoreUnavailableError
from claimcheck.stores.obstore import ObstoreStore
from tests.fault.rig import MIB, TriggerFile, assert_unavailable, content
from tests.fault.s3_rig import ALL_READINGS, LARGE, NOTHING, PART, SMALL, BareLine, DamagedReads, S3Line, left, written

REQUESTS = {"put": SMALL, "begin": LARGE, "part": LARGE, "complete": LARGE}
ALL_REQUESTS = pytest.mark.parametrize(("request_", "payload"), REQUESTS.items(), ids=REQUESTS)
WITH_BODY = pytest.mark.parametrize(("request_", "payload"), [("put", SMALL), ("part", LARGE)], ids=["put", "part"])


class Line(S3Line):
    engine = staticmethod(lambda bucket, **options: ObstoreStore(url=f"s3://{bucket}", **options))


class TestWriting(Line):
    @ALL_REQUESTS
    def test_refused_twice_is_asked_again(self, store, proxy, request_, payload):
        proxy.fail(request_, status=503, times=2)

        assert store.read(store.write(payload)) == payload

    @ALL_REQUESTS
    def test_refused_for_ever_is_an_error_and_leaves_nothing(self, store, proxy, bucket, request_, payload):
        proxy.fail(request_, status=503, times=None)

        error = assert_unavailable(lambda: store.write(payload))

        assert not hasattr(error, "__notes__")
        assert left(bucket) == NOTHING

    @ALL_REQUESTS
    def test_refused_for_want_of_rights_is_not_tried_again(self, store, proxy, bucket, request_, payload):
        proxy.fail(request_, status=403, times=None)

        with pytest.raises(StoreError) as caught:
            store.write(payload)

        assert not caught.value.retryable
        assert left(bucket) == NOTHING

    @pytest.mark.parametrize("reset", [False, True], ids=["cut", "reset"])
    def test_a_part_torn_once_is_sent_again(self, store, proxy, bucket, reset):
        proxy.fail("part", break_request=MIB, reset=reset)

        assert store.read(written(store, LARGE, bucket)) == LARGE

    @pytest.mark.parametrize("reset", [False, True], ids=["cut", "reset"])
    def test_an_object_torn_once_is_true_whatever_is_said(self, store, proxy, bucket, reset):
        """It does not repeat what has a condition."""
        proxy.fail("put", break_request=MIB, reset=reset)
        try:
            assert store.read(written(store, SMALL, bucket)) == SMALL
        except StoreUnavailableError:
            assert left(bucket) == NOTHING

    @WITH_BODY
    @pytest.mark.parametrize("reset", [False, True], ids=["cut", "reset"])
    def test_torn_for_ever_is_an_error_and_leaves_no_object(self, store, proxy, bucket, request_, payload, reset):
        """The engine aborts by itself when a part fails, and a straggling part may come after: for a lifecycle rule."""
        proxy.fail(request_, break_request=MIB, reset=reset, times=None)

        assert_unavailable(lambda: store.write(payload))

        objects, uploads = left(bucket)
        assert objects == []
        assert request_ == "part" or uploads == []

    @ALL_REQUESTS
    def test_unanswered_once_is_true_whatever_is_said(self, store, proxy, bucket, request_, payload):
        """What was done and not heard of, and is done again, may be in its own way."""
        proxy.fail(request_, lose_answer=True)
        try:
            pointer = store.write(payload)
        except StoreError:
            assert left(bucket)[0] == []
        else:
            assert store.read(pointer) == payload
            assert left(bucket)[0] == [pointer.key]

    @WITH_BODY
    def test_changed_on_the_way_is_noticed_by_readers(self, store, proxy, request_, payload):
        """It sends no checksum of ours."""
        proxy.fail(request_, flip_request=MIB)
        pointer = store.write(payload)

        with pytest.raises(IntegrityError):
            store.read(pointer)

    def test_a_payload_that_failed_leaves_nothing(self, store, bucket):
        def fail():
            raise OSError("the disk is on fire")

        with pytest.raises(Exception, match="on fire"):
            store.write(TriggerFile(LARGE, fail, at=2 * PART))

        assert left(bucket) == NOTHING

    def test_an_abort_that_fails_is_logged(self, store, proxy, caplog):
        """The engine aborts by itself, and then its error is that of the abort."""
        proxy.fail("part", status=403, after=1)
        proxy.fail("abort", status=403, times=None)

        with pytest.raises(StoreError) as caught:
            store.write(LARGE)

        assert not caught.value.retryable
        assert "could not abort" in caplog.text

    def test_a_rollback_for_ever_is_an_error(self, store, proxy, bucket):
        pointer = store.write(SMALL)
        proxy.fail("delete", status=503, times=None)

        assert_unavailable(lambda: store.rollback(pointer))

        proxy.free()
        store.rollback(pointer)
        assert left(bucket) == NOTHING


class TestReading(Line, DamagedReads):
    @ALL_READINGS
    def test_refused_twice_is_asked_again(self, store, proxy, pointer, read):
        proxy.fail("get", status=503, times=2)

        assert read(store, pointer) == LARGE

    @ALL_READINGS
    @pytest.mark.parametrize("place", [0, 1000, 5 * MIB, len(LARGE) - 1])
    @pytest.mark.parametrize("reset", [False, True], ids=["cut", "reset"])
    def test_torn_once_goes_on(self, store, proxy, pointer, read, place, reset):
        proxy.fail("get", break_answer=place, reset=reset)

        assert read(store, pointer) == LARGE

    @ALL_READINGS
    def test_torn_for_ever_is_an_error(self, store, proxy, pointer, read):
        proxy.fail("get", break_answer=0, times=None)

        assert_unavailable(lambda: read(store, pointer))

    def test_replaced_while_a_torn_line_is_made_again(self, store, proxy, bucket, pointer):
        """What is fetched to go on with must not be of another object without anybody noticing."""
        proxy.fail("get", break_answer=5 * MIB)
        with store.open(pointer) as file:
            got = file.read(MIB)
            bucket.Object(pointer.key).put(Body=LARGE[::-1])
            with contextlib.suppress(StoreError):  # or all of the old one was on its way already
                assert got + file.read() == LARGE


class TestLate(TestReading):
    """All of the above side by side, and with little patience."""

    options = {**TestReading.options, "gets": 3, "timeout_seconds": 1}

    @ALL_READINGS
    def test_silence_is_waited_for_and_no_longer(self, store, proxy, pointer, read):
        late = proxy.fail("get", hold_answer=2 * MIB, times=None)

        assert_unavailable(lambda: read(store, pointer))

        assert proxy.seen.count("get") <= 3 * 3, "three tries at most of each part"
        late.go.set()


class TestBareLine(Line, BareLine):
    far_options = {"timeout_seconds": 2}

    def test_dead_before_the_write(self, far, line, bucket):
        line.die()

        assert_unavailable(lambda: far.write(SMALL))
        assert left(bucket) == NOTHING

    def test_dead_during_the_write(self, far, line, bucket):
        assert_unavailable(lambda: far.write(TriggerFile(content(40 * MIB), line.die)))

        line.revive()
        assert far.read(written(far, LARGE, bucket)) == LARGE

    @ALL_READINGS
    def test_dead_before_and_during_the_read(self, far, line, read):
        pointer = far.write(LARGE)
        for when in (0, 5 * MIB):
            line.answers.at(when, line.die)
            assert_unavailable(lambda: read(far, pointer))

            line.revive()
            assert read(far, pointer) == LARGE

    @pytest.mark.parametrize("place", [1000, 2 * MIB, 7 * MIB, 11 * MIB])
    def test_cut_at_any_byte_of_a_write_is_made_again(self, far, line, bucket, place):
        line.requests.break_after(place)

        assert far.read(written(far, LARGE, bucket)) == LARGE

    def test_slower_than_the_timeout_in_all_but_never_silent_is_whole(self, far, line):
        pointer = far.write(content(6 * MIB))
        line.answers.throttle(2 * MIB)
        began = time.monotonic()

        assert far.read(pointer) == content(6 * MIB)
        assert time.monotonic() - began > 2.5
