"""Requests that are refused, torn or unanswered while a payload is written to S3: whole, or nothing is left."""

import pytest

from claimcheck.errors import StoreError, StoreUnavailableError
from claimcheck.stores.s3 import S3Store
from tests.fault.rig import MIB, TriggerFile, assert_unavailable, content
from tests.fault.s3_rig import LARGE, NOTHING, PART, SMALL, BareLine, S3Line, left, written

REQUESTS = {"put": SMALL, "begin": LARGE, "part": LARGE, "complete": LARGE}
ALL_REQUESTS = pytest.mark.parametrize(("request_", "payload"), REQUESTS.items(), ids=REQUESTS)
WITH_BODY = pytest.mark.parametrize(("request_", "payload"), [("put", SMALL), ("part", LARGE)], ids=["put", "part"])
ALL_PLACES = pytest.mark.parametrize("place", [0, MIB, 2 * MIB - 1], ids=["first", "middle", "last"])
ALL_ENDS = pytest.mark.parametrize("reset", [False, True], ids=["cut", "reset"])


class TestRefused(S3Line):
    @ALL_REQUESTS
    @pytest.mark.parametrize("status", [500, 503])
    def test_twice_is_asked_again(self, store, proxy, request_, payload, status):
        proxy.fail(request_, status=status, times=2)

        assert store.read(store.write(payload)) == payload

    @ALL_REQUESTS
    def test_for_ever_is_an_error_and_leaves_nothing(self, store, proxy, bucket, request_, payload):
        proxy.fail(request_, status=503, times=None)

        error = assert_unavailable(lambda: store.write(payload))

        assert not hasattr(error, "__notes__")
        assert left(bucket) == NOTHING

    @pytest.mark.parametrize("after", [1, 2])
    def test_a_later_part_leaves_nothing_of_the_earlier_ones(self, store, proxy, bucket, after):
        proxy.fail("part", status=503, times=None, after=after)

        assert_unavailable(lambda: store.write(LARGE))

        assert left(bucket) == NOTHING

    @ALL_REQUESTS
    def test_for_want_of_rights_is_not_tried_again(self, store, proxy, bucket, request_, payload):
        proxy.fail(request_, status=403, times=None)

        with pytest.raises(StoreError) as caught:
            store.write(payload)

        assert not caught.value.retryable
        assert left(bucket) == NOTHING

    def test_a_rollback_twice_is_asked_again(self, store, proxy, bucket):
        pointer = store.write(SMALL)
        proxy.fail("delete", status=503, times=2)

        store.rollback(pointer)

        assert left(bucket) == NOTHING

    def test_a_rollback_for_ever_is_an_error(self, store, proxy, bucket):
        pointer = store.write(SMALL)
        proxy.fail("delete", status=503, times=None)

        assert_unavailable(lambda: store.rollback(pointer))

        assert left(bucket) == ([pointer.key], [])


class TestTorn(S3Line):
    @WITH_BODY
    @ALL_PLACES
    @ALL_ENDS
    def test_once_is_sent_again(self, store, proxy, request_, payload, place, reset):
        proxy.fail(request_, break_request=place, reset=reset)

        assert store.read(store.write(payload)) == payload

    @WITH_BODY
    @ALL_PLACES
    @ALL_ENDS
    def test_for_ever_is_an_error_and_leaves_nothing(self, store, proxy, bucket, request_, payload, place, reset):
        proxy.fail(request_, break_request=place, reset=reset, times=None)

        assert_unavailable(lambda: store.write(payload))

        assert left(bucket) == NOTHING

    @pytest.mark.parametrize("request_", ["begin", "complete"])
    def test_a_request_without_a_payload_is_sent_again(self, store, proxy, request_):
        proxy.fail(request_, break_request=0)

        assert store.read(store.write(LARGE)) == LARGE

    @WITH_BODY
    def test_changed_on_the_way_is_refused_and_leaves_nothing(self, store, proxy, bucket, request_, payload):
        """The server knows the checksum that was meant."""
        proxy.fail(request_, flip_request=MIB, times=None)

        with pytest.raises(StoreError):
            store.write(payload)

        assert left(bucket) == NOTHING


class TestUnanswered(S3Line):
    @pytest.mark.parametrize(("request_", "payload"), [("put", SMALL), ("part", LARGE)])
    def test_once_is_sent_again(self, store, proxy, bucket, request_, payload):
        """The first one was done: that its key is taken is our own doing."""
        proxy.fail(request_, lose_answer=True)

        pointer = store.write(payload)

        assert store.read(pointer) == payload
        assert left(bucket) == ([pointer.key], [])

    def test_completed_all_the_same(self, store, proxy, bucket):
        """Sent again, it meets an upload that is no more; whatever is said then must be true."""
        proxy.fail("complete", lose_answer=True)
        try:
            pointer = store.write(LARGE)
        except StoreError:
            assert left(bucket) == NOTHING
        else:
            assert store.read(pointer) == LARGE
            assert left(bucket) == ([pointer.key], [])

    def test_begun_twice(self, store, proxy, bucket):
        """Nobody knows the name of the first upload; it has no parts, and a lifecycle rule removes it."""
        proxy.fail("begin", lose_answer=True)

        assert store.read(store.write(LARGE)) == LARGE
        (upload,) = bucket.multipart_uploads.all()
        assert list(upload.parts.all()) == []

    @ALL_REQUESTS
    def test_for_ever_is_an_error(self, store, proxy, bucket, request_, payload):
        proxy.fail(request_, lose_answer=True, times=None)

        with pytest.raises(StoreError):
            store.write(payload)

        objects, uploads = left(bucket)
        assert objects == []
        assert request_ == "begin" or uploads == []

    def test_late_is_an_error_too(self, proxy, bucket, s3_bucket, store):
        late = proxy.fail("put", hold_answer=0, times=None)
        with S3Store(bucket=s3_bucket, endpoint_url=proxy.url, timeout_seconds=0.3) as hasty:
            assert_unavailable(lambda: hasty.write(b"payload"))

        late.go.set()
        assert left(bucket) == NOTHING


class TestAbort(S3Line):
    """What undoes a failed upload may fail as well; it is the first error that people want to see."""

    def test_refused_twice_is_asked_again(self, store, proxy, bucket):
        proxy.fail("part", status=403, after=1)
        proxy.fail("abort", status=503, times=2)

        with pytest.raises(StoreError, match="AccessDenied"):
            store.write(LARGE)

        assert left(bucket) == NOTHING

    @pytest.mark.parametrize("how", [{"status": 503}, {"status": 403}, {"lose_answer": True}, {"break_request": 0}])
    def test_failed_for_ever_is_a_note_on_the_first_error(self, store, proxy, caplog, how):
        proxy.fail("part", status=403, after=1)
        proxy.fail("abort", times=None, **how)

        with pytest.raises(StoreError, match="AccessDenied") as caught:
            store.write(LARGE)

        assert "lifecycle rule" in notes(caught.value)
        assert "could not abort" in caplog.text

    def test_after_a_payload_that_failed(self, store, proxy, bucket):
        def fail():
            raise OSError("the disk is on fire")

        with pytest.raises(Exception, match="on fire"):
            store.write(TriggerFile(LARGE, fail, at=2 * PART))

        assert proxy.seen[-2:].count("abort") == 1
        assert left(bucket) == NOTHING


class TestBareLine(BareLine):
    """A line that is cut in the middle of several requests."""

    @pytest.mark.parametrize("end", ["cut", "reset"])
    def test_once_during_the_write_is_made_again(self, far, line, end):
        payload = content(40 * MIB)

        assert far.read(far.write(TriggerFile(payload, getattr(line, end)))) == payload

    @pytest.mark.parametrize("place", [1000, 2 * MIB, 7 * MIB, 11 * MIB])
    def test_at_any_byte_is_made_again(self, far, line, bucket, place):
        line.requests.break_after(place)

        assert far.read(written(far, LARGE, bucket)) == LARGE
        assert line.connections > 1

    def test_dead_before_the_write(self, far, line, bucket):
        line.die()

        assert_unavailable(lambda: far.write(SMALL))
        assert left(bucket) == NOTHING

    def test_dead_during_the_write(self, far, line, bucket):
        error = assert_unavailable(lambda: far.write(TriggerFile(content(40 * MIB), line.die)))

        assert "lifecycle rule" in notes(error)

        line.revive()
        assert far.read(written(far, LARGE, bucket)) == LARGE

    def test_dead_before_the_rollback(self, far, line, bucket):
        pointer = far.write(SMALL)
        line.die()
        assert_unavailable(lambda: far.rollback(pointer))
        assert left(bucket) == ([pointer.key], [])

        line.revive()
        far.rollback(pointer)
        assert left(bucket) == NOTHING


def test_no_bucket_is_no_reason_to_try_again(s3_server):
    with S3Store(bucket="nobody-made-this-one", endpoint_url=s3_server.endpoint_url) as store:
        for payload in (SMALL, TriggerFile(SMALL, lambda: None)):
            with pytest.raises(StoreError) as caught:
                store.write(payload)
            assert not isinstance(caught.value, StoreUnavailableError)


def notes(error):
    """Of an error and of all that caused it."""
    found = ""
    while error is not None:
        found += " ".join(getattr(error, "__notes__", []))
        error = error.__cause__
    return found
