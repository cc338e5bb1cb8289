"""How sending ends: what is kept, what is undone, and who is told."""

from __future__ import annotations

import pytest

from claimcheck import envelope
from claimcheck.errors import (
    PartialSendError,
)
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
