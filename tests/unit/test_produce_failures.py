"""How sending ends: what is kept, what is undone, and who is told."""

from __future__ import annotations

import contextlib
import gc
import io
import weakref

import pytest

import claimcheck
from claimcheck import envelope
from claimcheck.errors import (
    ConfigError,
    PartialSendError,
    PayloadError,
    PayloadTooLargeError,
)
from claimcheck.hints import TYPE
from tests.produce_rig import BIG, BrokerTimeoutError, QueueFullError, Rig


@pytest.fixture
def rig():
    return Rig()


@pytest.mark.parametrize(
    ("error", "kept"),
    [
        (QueueFullError("full"), 0),
        (ValueError("no"), 0),
        (TimeoutError("?"), 1),
        (ConnectionResetError("?"), 1),
        (BrokerTimeoutError("?"), 1),
        (KeyboardInterrupt(), 1),
    ],
)
def test_only_a_definite_failure_removes_what_was_stored_and_the_error_comes_through(rig, error, kept):
    with pytest.raises(type(error)) as caught:
        rig.publisher(error=error)("orders", BIG)
    assert caught.value is error
    assert rig.stored == kept


def broken(_):
    raise RuntimeError("the classifier itself fails")


@pytest.mark.parametrize(
    ("classify", "error", "kept"),
    [
        (lambda _: "failed", TimeoutError(), 0),
        (lambda _: "unknown", QueueFullError(), 1),
        (lambda _: "nonsense", QueueFullError(), 1),
        (broken, QueueFullError(), 1),
        (lambda _: "failed", KeyboardInterrupt(), 1),
    ],
)
def test_the_callers_classifier_decides_and_doubt_keeps(rig, classify, error, kept):
    with pytest.raises(type(error)):
        rig.publisher(error=error, classify=classify)("orders", BIG)
    assert rig.stored == kept


def test_a_rollback_that_fails_is_noted_on_the_first_error_and_never_replaces_it(rig, monkeypatch):
    def fail(_):
        raise ConnectionError("the store is down")

    monkeypatch.setattr(rig.cc.store("hot"), "_delete", fail)
    with pytest.raises(QueueFullError) as caught:
        rig.publisher(error=QueueFullError("first"))("orders", BIG)
    assert "rollback failed" in caught.value.__notes__[0]


def test_a_first_chunk_that_is_refused_definitely_gives_its_own_error_and_no_abort():
    rig = Rig("chunking")
    error = QueueFullError()
    with pytest.raises(QueueFullError) as caught:
        rig.publisher(error=error)("orders", BIG)
    assert caught.value is error
    assert rig.sent == []


@pytest.mark.parametrize(("error", "after"), [(QueueFullError("full"), 2), (TimeoutError("?"), 0)])
def test_a_send_that_breaks_off_says_what_was_sent_and_tells_the_readers(error, after):
    rig = Rig("chunking")
    with pytest.raises(PartialSendError) as caught:
        rig.publisher(error=error, after=after)("orders", BIG)
    partial = caught.value
    assert partial.__cause__ is error
    assert (partial.seen, partial.results) == (after, tuple(range(after)))
    assert envelope.decode(rig.sent[-1][1]) == envelope.Abort(partial.uuid)
    assert [outcome.action for outcome in rig.received()] == ["ack"]


def test_an_abort_that_cannot_be_sent_either_does_not_hide_the_error():
    rig = Rig("chunking")

    @rig.cc.offload(payload="value", key="key")
    def publish(value, key=None):
        if len(rig.sent) == 1:
            raise QueueFullError
        rig.sent.append(value)

    with pytest.raises(PartialSendError):
        publish(BIG)


def test_the_block_keeps_what_was_sent_even_if_something_else_fails_later(rig):
    with pytest.raises(ValueError, match="later"):  # noqa: SIM117
        with rig.cc.outbound(BIG, destination="orders") as out:
            for each in out.envelopes:
                rig.sent.append(each.data)
            raise ValueError("later")
    assert rig.cc.resolve(rig.sent[0]) == BIG


def test_the_block_undoes_what_was_never_sent(rig):
    with rig.cc.outbound(BIG, destination="orders"):
        assert rig.stored == 1
    assert rig.stored == 0
    with pytest.raises(QueueFullError):  # noqa: SIM117
        with rig.cc.outbound(BIG, destination="orders") as out:
            for _ in out.envelopes:
                raise QueueFullError
    assert rig.stored == 0


def test_the_block_has_all_results():
    rig = Rig("chunking")
    with rig.cc.outbound(BIG, destination="orders", key=b"k") as out:
        first = out.send(lambda each: each.headers["chunk_id"])
    assert first == "0"
    assert out.results == [str(n) for n in range(out.total)]


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(1)])
def test_the_end_of_the_program_stays_itself_in_the_middle_of_chunks(error):
    rig = Rig("chunking")
    with pytest.raises(type(error)) as caught:
        rig.publisher(error=error, after=2)("orders", BIG)
    assert caught.value is error
    assert rig.sent[-1][3][TYPE] == "abort"


def test_a_file_that_fails_before_the_first_chunk_needs_no_abort():
    class Failing(io.BytesIO):
        def read(self, size=-1):
            raise OSError("gone")

    rig = Rig("chunking")
    with pytest.raises(PayloadError):
        rig.publisher(classify=lambda _: "unknown")("orders", Failing(BIG))
    assert rig.sent == []


def test_nothing_of_a_failed_send_waits_for_the_garbage_collector():
    class Payload(bytearray):
        pass

    rig, payload = Rig("chunking"), Payload(BIG)
    gone = weakref.ref(payload)

    @rig.cc.offload(payload="value", key="key")
    def publish(value, key=None):
        raise QueueFullError

    gc.disable()
    try:
        with contextlib.suppress(QueueFullError):
            publish(payload)
        del payload
        assert gone() is None
    finally:
        gc.enable()


def test_a_pointer_that_became_too_long_leaves_nothing_stored():
    name = "n" * 600  # the store's name stands in the pointer
    stores = {name: {"type": "memory", "space": "long-pointer"}}
    cc = claimcheck.from_dict(
        {"strategy": "external", "threshold_bytes": 2000, "limits": {"max_pointer_bytes": 512}, "stores": stores}
    )
    with pytest.raises(PayloadTooLargeError, match="max_pointer_bytes"):
        cc.outbound(BIG, destination="orders").__enter__()
    assert cc.store(name)._payloads == {}


def test_a_file_that_fails_in_the_middle_stands_where_it_stood():
    class Flaky(io.BytesIO):
        failures = 1

        def read(self, size=-1):
            if self.tell() > 3000 and self.failures:
                self.failures -= 1
                raise OSError("flaky")
            return super().read(size)

    rig, file = Rig("chunking"), Flaky(BIG)
    with pytest.raises(PartialSendError):
        rig.publisher()("orders", file)
    rig.publisher()("orders", file)
    assert rig.received()[-1].payload == BIG


def test_our_own_refusal_is_definite_whatever_the_classifier_says(rig):
    async def send(value):
        raise AssertionError("nothing may run")

    publish = rig.cc.offload(payload="value", classify=lambda _: "unknown")(lambda value: send(value))
    with pytest.raises(ConfigError):
        publish(BIG)
    assert rig.stored == 0
