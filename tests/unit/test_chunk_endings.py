"""Every incomplete payload ends, no writer ends another one's, and what contradicts a delivered payload is reported."""

from __future__ import annotations

import itertools

import pytest

from claimcheck._config_file import from_dict
from claimcheck._receive.resolver import Dropped, Failed, Resolver
from claimcheck._wire.envelope import encode_abort, encode_chunk
from claimcheck.config import ChunkingConfig
from claimcheck.errors import ChunkConflictError, ConfigError, IncompletePayloadError, PayloadTooLargeError
from claimcheck.hooks import DropEvent, Hooks
from tests.clocks import Clock

A = "aaaaaaaa-0000-4000-8000-000000000000"
B = "bbbbbbbb-0000-4000-8000-000000000000"
C = "cccccccc-0000-4000-8000-000000000000"


class Rig:
    """A resolver whose messages are positions in one source."""

    def __init__(self, **chunking):
        self.clock, self.looks, self.events = Clock(), 0, []
        self.resolver = Resolver(
            lambda data: b"",
            chunking=ChunkingConfig(**chunking),
            clock=self.look,
            hooks=Hooks((self.events.append,)),
        )
        self.positions = itertools.count()

    def look(self):
        self.looks += 1
        return self.clock()

    def feed(self, message, *, at=None, key=None, writer=None):
        at = next(self.positions) if at is None else at
        return self.resolver.feed("s", at, message, key=key, writer=writer, handle=at)

    def chunk(self, uuid, number, count, piece=None, **where):
        return self.feed(encode_chunk(uuid, number, count, b"%d" % number if piece is None else piece), **where)

    def abort(self, uuid, **where):
        return self.feed(encode_abort(uuid), **where)

    def expire(self):
        self.clock.now += 60
        return self.resolver.tick()

    def settle(self, outcomes, *, acked=True):
        for outcome in outcomes:
            self.resolver.settle(outcome, acked=acked)


# Time


def test_chunks_expire_with_a_message_that_cannot_be_read():
    rig = Rig(expire_after_seconds=60)
    rig.chunk(A, 0, 2)
    rig.clock.now += 60
    expired, failed = rig.feed("text")
    assert (expired.reason, type(failed)) == ("expired", Failed)


def test_the_clock_is_left_alone_while_no_chunk_can_expire():
    rig = Rig()
    rig.feed(b"plain")
    assert rig.resolver.tick() == []
    assert rig.looks == 0


# Redeliveries


def test_after_its_redeliveries_an_incomplete_payload_is_reported():
    rig = Rig(max_redeliveries=2)
    for _ in range(2):
        rig.chunk(A, 0, 2, at=0)
        [dropped] = rig.expire()
        assert (dropped.action, dropped.handles) == ("redeliver", (0,))
        rig.settle([dropped], acked=False)
    rig.chunk(A, 0, 2, at=0)
    [failed] = rig.expire()
    assert isinstance(failed, Failed)
    assert isinstance(failed.error, IncompletePayloadError)
    assert "after 2 redeliveries (chunking.max_redeliveries)" in str(failed.error)
    assert (failed.uuid, failed.positions, failed.error.seen, failed.error.total) == (A, (0,), 1, 2)
    assert rig.resolver.safe_position("s") == 0
    rig.settle([failed])
    assert rig.resolver.safe_position("s") is None
    assert [(event.reason, event.action) for event in rig.events if isinstance(event, DropEvent)] == [
        ("expired", "redeliver"),
        ("expired", "redeliver"),
        ("expired", "report"),
    ]


def test_redeliveries_are_counted_by_payload_and_beyond_a_clear():
    rig = Rig(max_redeliveries=1)
    rig.chunk(A, 0, 2, at=0, writer="one")
    rig.settle(rig.expire(), acked=False)
    rig.resolver.clear()
    rig.chunk(A, 0, 2, at=0, writer="one")
    rig.chunk(A, 0, 2, at=1, writer="two")
    assert [type(outcome) for outcome in rig.expire()] == [Failed, Dropped]


def test_evictions_count_as_redeliveries():
    rig = Rig(max_redeliveries=1, max_pending_payloads=1)
    for expected in (Dropped, Failed):
        rig.chunk(A, 0, 2, at=0)
        [evicted] = rig.chunk(B, 0, 2, at=1)
        assert type(evicted) is expected
        rig.settle([evicted, *rig.expire()], acked=False)


@pytest.mark.parametrize("action", ["ack", "dead_letter"])
def test_other_actions_are_not_counted(action):
    rig = Rig(max_redeliveries=0, on_expire=action)
    rig.chunk(A, 0, 2)
    [dropped] = rig.expire()
    assert dropped.action == action


def test_they_end_however_many_there_are(monkeypatch):
    monkeypatch.setattr("claimcheck._receive.assembler._REMEMBERED", 10)
    rig, reported = Rig(max_redeliveries=2), set()
    uuids = [f"{n:08d}-0000-4000-8000-000000000000" for n in range(25)]
    for _ in range(4):
        for at, each in enumerate(uuids):
            if at not in reported:
                rig.chunk(each, 0, 2, at=at)
        for outcome in rig.expire():
            rig.settle([outcome], acked=isinstance(outcome, Failed))
            reported.update(outcome.positions if isinstance(outcome, Failed) else ())
    assert reported == set(range(25))
    assert rig.resolver.safe_position("s") is None


def test_those_that_have_ended_take_no_redelivery_from_others(monkeypatch):
    monkeypatch.setattr("claimcheck._receive.assembler._REMEMBERED", 10)
    rig = Rig(max_redeliveries=1)
    for n in range(20):
        each = f"{n:08d}-0000-4000-8000-000000000000"
        for expected in (Dropped, Failed):
            rig.chunk(each, 0, 2, at=n)
            (outcome,) = rig.expire()
            assert type(outcome) is expected
            rig.settle([outcome], acked=expected is Failed)


def test_a_report_that_is_given_back_comes_again_as_a_report():
    rig = Rig(max_redeliveries=0)
    for _ in range(3):
        rig.chunk(A, 0, 2, at=0)
        [failed] = rig.expire()
        rig.settle([failed], acked=False)


def test_a_payload_that_completes_after_redeliveries_begins_to_count_anew():
    rig = Rig(max_redeliveries=1)
    for _ in range(3):
        rig.chunk(A, 0, 2, at=0)
        [dropped] = rig.expire()
        assert dropped.action == "redeliver"
        rig.chunk(A, 0, 2, at=0)
        [whole] = rig.chunk(A, 1, 2, at=1)
        rig.settle([whole], acked=False)


def test_a_dropped_outcome_can_be_reported_by_the_transport():
    rig = Rig()
    rig.chunk(A, 0, 2)
    [dropped] = rig.expire()
    failed = dropped.as_failed()
    assert (failed.error, failed.handles, failed.uuid) == (dropped.error, dropped.handles, A)
    rig.settle([failed])
    assert rig.resolver.safe_position("s") is None


# Bounds


@pytest.mark.parametrize(
    ("bound", "value", "more"),
    [
        ("max_pending_payloads", 2, {}),
        ("max_pending_messages", 3, {}),
        ("max_pending_bytes", 3, {"max_payload_bytes": 2}),
    ],
)
def test_an_eviction_names_the_bound_that_was_exceeded(bound, value, more):
    rig = Rig(**{bound: value}, **more)
    fed = [(A, 0), (A, 1), (B, 0), (C, 0)] if bound != "max_pending_payloads" else [(A, 0), (B, 0), (C, 0)]
    [evicted] = [outcome for uuid, number in fed for outcome in rig.chunk(uuid, number, 4)]
    assert (evicted.reason, evicted.uuid) == ("evicted", A)
    assert f"(chunking.{bound} is {value})" in str(evicted.error)


@pytest.mark.parametrize(
    ("bound", "pieces"), [("max_pending_messages", [b""] * 4), ("max_payload_bytes", [b"xxxx"]), ("max_chunks", [b""])]
)
def test_a_payload_too_large_alone_names_the_bound(bound, pieces):
    rig = Rig(**{bound: 3}, max_redeliveries=0)
    for piece in pieces:
        outcomes = rig.chunk(A, 0, 9, piece)
    [failed] = outcomes or rig.expire()
    assert isinstance(failed.error, PayloadTooLargeError)
    assert str(failed.error).endswith(f"(chunking.{bound}), but the limit is 3")


def test_the_bound_on_messages_admits_the_largest_payload():
    with pytest.raises(
        ConfigError, match=r"max_pending_messages: found 9, expected at least chunking\.max_chunks \(10\)"
    ):
        from_dict({"strategy": "chunking", "chunking": {"max_chunks": 10, "max_pending_messages": 9}})


# Writers


@pytest.mark.parametrize(
    "names", [({"key": b"k"}, {"key": b"other"}), ({"writer": "p1", "key": b"k"}, {"writer": "p2", "key": b"k"})]
)
def test_an_abort_envelope_counts_for_its_own_writer_only(names, caplog):
    own, foreign = names
    rig = Rig()
    rig.chunk(A, 0, 2, **own)
    [dropped] = rig.abort(A, **foreign)
    assert (dropped.reason, dropped.action, dropped.handles) == ("aborted", "ack", (1,))
    [whole] = rig.chunk(A, 1, 2, **own)
    assert (whole.payload, whole.handles) == (b"01", (0, 2))
    [record] = caplog.records
    assert record.levelname == "WARNING"
    [text] = [record.getMessage() for record in caplog.records]
    assert text == f"abort envelope at position 1 of s for payload {A}; messages dropped: 1 (ack); not logged: 0"


def test_many_abort_envelopes_are_one_warning_in_a_minute(caplog):
    rig = Rig()
    for number in range(100):
        rig.abort(f"{number:08}{A[8:]}")
    rig.clock.now += 61
    rig.abort(A)
    assert [record.getMessage().rpartition("; ")[2] for record in caplog.records] == [
        "not logged: 0",
        "not logged: 99",
    ]


@pytest.mark.parametrize("long", [b"k" * 10_000, "k" * 10_000, bytearray(b"k" * 10_000)])
def test_a_long_key_is_not_kept(long):
    rig = Rig()
    [whole] = rig.chunk(A, 0, 1, key=long)
    assert len(whole.identity.writer) < 64
    assert whole.identity == rig.resolver.identity("s", A, key=long)
    assert rig.resolver.knows(whole.identity)


# Late chunks


@pytest.mark.parametrize("acked", [False, True])
@pytest.mark.parametrize(
    ("number", "count", "piece"), [(0, 2, b"EVIL"), (1, 2, b""), (1, 2, b"0"), (0, 1, b"01"), (2, 3, b"2")]
)
def test_a_late_chunk_that_contradicts_the_delivered_payload_is_reported(acked, number, count, piece):
    rig = Rig()
    rig.chunk(A, 0, 2)
    [whole] = rig.chunk(A, 1, 2)
    if acked:
        rig.settle([whole])
    [failed] = rig.chunk(A, number, count, piece)
    assert isinstance(failed.error, ChunkConflictError)
    assert (failed.positions, failed.late, whole.positions) == ((2,), True, (0, 1))
    rig.settle([failed])
    assert rig.resolver.safe_position("s") == (None if acked else 0)
    assert [type(outcome) for outcome in rig.chunk(A, 1, 2)] == ([Dropped] if acked else [])  # still a true duplicate
    rig.settle([whole])
    if not acked:
        assert rig.resolver.safe_position("s") is None


def test_a_payload_acknowledged_after_all_is_compared_with_what_came_of_a_second_attempt():
    rig = Rig()
    for number in (0, 1):
        rig.chunk(A, number, 3, at=number)
    [whole] = rig.chunk(A, 2, 3, at=2)
    rig.settle([whole], acked=False)
    rig.chunk(A, 0, 3, at=0)
    rig.chunk(A, 1, 3, b"EVIL", at=3)
    rig.settle([whole])
    [failed] = rig.resolver.tick()
    assert isinstance(failed.error, ChunkConflictError)
    assert failed.positions == (3,)
    [late] = rig.chunk(A, 0, 3, b"EVIL", at=4)
    assert isinstance(late.error, ChunkConflictError)
