"""Reassembly: incomplete payloads end, no writer ends another one's, contradictions are reported, memory is bounded.

That nothing is lost, mixed up or kept for ever in any order of events: see `tests/property/test_reader_property.py`.
"""

from __future__ import annotations

import itertools
import tracemalloc
import weakref

import pytest

from claimcheck._receive import assembler as assembler_module
from claimcheck._receive.resolver import Dropped, Failed, Resolved, Resolver
from claimcheck._wire.digest import digest_of
from claimcheck._wire.envelope import encode_abort, encode_chunk
from claimcheck.config import ChunkingConfig
from claimcheck.errors import ChunkConflictError, IncompletePayloadError, PayloadTooLargeError
from claimcheck.hooks import DropEvent, Hooks
from tests.clocks import Clock

A, B, C = (f"{letter * 8}-0000-4000-8000-000000000000" for letter in "abc")
MIB = 1 << 20


def other(number):
    return f"{number:08}{A[8:]}"


class Rig:
    """A resolver whose messages are positions in one source, each its own handle."""

    def __init__(self, **chunking):
        self.clock, self.events = Clock(), []
        self.resolver = Resolver(
            lambda data: b"", chunking=ChunkingConfig(**chunking), clock=self.clock, hooks=Hooks((self.events.append,))
        )
        self.assembler = self.resolver._assembler
        self.positions = itertools.count()

    def feed(self, message, *, at=None, handle=None, **where):
        at = next(self.positions) if at is None else at
        return self.resolver.feed("s", at, message, handle=at if handle is None else handle, **where)

    def chunk(self, uuid, number, count, piece=None, **where):
        return self.feed(encode_chunk(uuid, number, count, b"%d" % number if piece is None else piece), **where)

    def chunks(self, uuid, numbers, count, piece=None, **where):
        return [outcome for number in numbers for outcome in self.chunk(uuid, number, count, piece, **where)]

    def abort(self, uuid, **where):
        return self.feed(encode_abort(uuid), **where)

    def expire(self):
        self.clock.now += 60
        return self.resolver.tick()

    def settle(self, outcomes, *, acked=True):
        for outcome in outcomes:
            self.resolver.settle(outcome, acked=acked)


# What is joined ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", [(3, 2, 1, 0), (0, 1, 2, 2, 0, 3)])
@pytest.mark.parametrize("declared", ["10", "9", "11", "0", "1e1", "-1", str(1 << 62)])
def test_a_wrong_declared_size_changes_nothing(order, declared):
    rig, pieces = Rig(), [b"abc", b"", b"defg", b"hij"]
    headers = {"total_chunk_msg_size": declared, "claimcheck-type": "chunk"}
    headers["claimcheck-checksum"] = digest_of(b"abcdefghij")
    [whole] = [outcome for n in order for outcome in rig.chunk(A, n, 4, pieces[n], headers=headers)]
    assert whole.payload == b"abcdefghij"
    [late] = rig.chunk(A, 2, 4, b"dxfg", headers=headers)
    assert isinstance(late, Failed)


def test_a_declared_size_allocates_nothing_that_did_not_arrive_and_chunks_are_in_memory_once():
    count, rig = 32, Rig()
    headers = {"total_chunk_msg_size": str(count * MIB)}
    rig.chunk(B, 2**31 - 2, 2**31 - 1)
    tracemalloc.start()
    try:
        rig.chunk(A, 0, count, bytes(MIB), headers=headers)
        assert tracemalloc.get_traced_memory()[1] < 3 * MIB  # one of the message itself
        [whole] = rig.chunks(A, range(1, count), count, bytes(MIB))
        assert tracemalloc.get_traced_memory()[1] < 1.6 * count * MIB
    finally:
        tracemalloc.stop()
    assert whole.payload == bytes(count * MIB)


def test_a_declared_size_up_to_that_of_a_delivered_payload_is_allocated_at_once_for_one_payload_at_a_time():
    rig, headers = Rig(), {"total_chunk_msg_size": str(8 * MIB)}
    [whole] = rig.chunks(A, range(8), 8, bytes(MIB), headers=headers)
    assert whole.payload == bytes(8 * MIB)
    del whole

    def allocated(uuid, count, headers):
        before = tracemalloc.get_traced_memory()[0]
        rig.chunk(uuid, 0, count, bytes(MIB), headers=headers)
        return (tracemalloc.get_traced_memory()[0] - before) / MIB

    tracemalloc.start()
    try:
        assert allocated(B, 9, {"total_chunk_msg_size": str(9 * MIB)}) < 2
        rig.resolver.clear()
        assert 8 < allocated(C, 8, headers) < 9  # joined already
        assert allocated(B, 8, headers) < 2
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("joined", [1, 3])
def test_a_piece_that_was_joined_is_still_compared_with_a_duplicate(joined):
    rig, headers = Rig(), {"total_chunk_msg_size": "4"}
    rig.chunks(A, range(joined), 4, headers=headers)
    assert rig.chunk(A, 0, 4) == []
    rig.chunk(A, 0, 4, b"x")
    [broken] = rig.chunks(A, range(joined, 4), 4)
    assert isinstance(broken.error, ChunkConflictError)


def test_a_buffer_that_its_owner_reuses_is_copied():
    rig, buffer = Rig(), bytearray(encode_chunk(A, 0, 2, b"first"))
    rig.feed(buffer)
    buffer[-5:] = b"other"
    [whole] = rig.chunk(A, 1, 2, b"!")
    assert whole.payload == b"first!"


def test_a_redelivered_chunk_renews_its_handle_and_counts_once():
    rig = Rig()
    rig.chunk(A, 0, 2, at=7, handle="old")
    rig.chunk(A, 0, 2, at=7, handle="new")
    assert rig.resolver.pending_bytes == 1
    [whole] = rig.chunk(A, 1, 2, at=8)
    assert whole.handles == ("new", 8)


def test_headers_are_kept_of_the_lowest_place_only_and_claims_of_all():
    rig = Rig()
    claim = {"claimcheck-type": "chunk", "claimcheck-size": "7", "large": "x" * 1000}
    rig.chunk(A, 1, 2, at=9, headers=claim, key=b"k9", writer="w")
    [failed] = rig.chunk(A, 0, 2, at=3, headers={"mine": "1"}, key=b"k3", writer="w")
    kept = [(slot.position, slot.headers, slot.key) for slot in failed.slots]
    assert kept == [(9, None, None), (3, {"mine": "1"}, b"k3")]
    assert failed.error.expected == "7"


# Time and redeliveries --------------------------------------------------------------------------------------------


def test_zero_seconds_mean_that_nothing_expires():
    rig = Rig(expire_after_seconds=0)
    rig.chunk(A, 0, 2)
    rig.clock.now += 1e9
    assert rig.resolver.tick() == []
    assert rig.assembler.due is None


def test_chunks_expire_with_a_message_that_cannot_be_read():
    rig = Rig(expire_after_seconds=60)
    rig.chunk(A, 0, 2)
    rig.clock.now += 60
    expired, failed = rig.feed("text")
    assert (expired.reason, type(failed)) == ("expired", Failed)


def test_after_its_redeliveries_an_incomplete_payload_is_reported():
    rig = Rig(max_redeliveries=2)
    for _ in range(2):
        rig.chunk(A, 0, 2, at=0)
        [dropped] = rig.expire()
        assert (dropped.reason, dropped.action, dropped.handles) == ("expired", "redeliver", (0,))
        rig.settle([dropped], acked=False)
    rig.chunk(A, 0, 2, at=0)
    [failed] = rig.expire()
    assert isinstance(failed.error, IncompletePayloadError)
    assert "after 2 redeliveries (chunking.max_redeliveries)" in str(failed.error)
    assert (failed.uuid, failed.positions, failed.error.seen, failed.error.total) == (A, (0,), 1, 2)
    rig.settle([failed])
    assert rig.resolver.safe_position("s") is None
    actions = [event.action for event in rig.events if isinstance(event, DropEvent)]
    assert actions == ["redeliver", "redeliver", "report"]
    assert rig.chunk(A, 1, 2, at=1) == []  # of a new attempt


def test_the_chunks_that_are_missing_are_named_in_eight_ranges_at_most():
    rig = Rig(on_expire="ack")
    rig.chunks(A, (4, 1, 3), 9)
    rig.chunks(B, range(1, 2000, 4), 2001)
    few, many = rig.expire()
    assert "0, 2, 5-8" in str(few.error)
    assert "0, 2-4, 6-8, 10-12, 14-16, 18-20, 22-24, 26-28 and 1479 more" in str(many.error)


def test_redeliveries_are_counted_by_payload_and_beyond_a_clear():
    rig = Rig(max_redeliveries=1)
    rig.chunk(A, 0, 2, at=0, writer="one")
    rig.settle(rig.expire(), acked=False)
    rig.resolver.clear()
    rig.chunk(A, 0, 2, at=0, writer="one")
    rig.chunk(A, 0, 2, at=1, writer="two")
    assert [type(outcome) for outcome in rig.expire()] == [Failed, Dropped]


def test_redeliveries_end_however_many_payloads_there_are(monkeypatch):
    monkeypatch.setattr(assembler_module, "_REMEMBERED", 10)
    rig, reported = Rig(max_redeliveries=2), set()
    for _ in range(4):
        for at in range(25):
            if at not in reported:
                rig.chunk(other(at), 0, 2, at=at)
        for outcome in rig.expire():
            rig.settle([outcome], acked=isinstance(outcome, Failed))
            reported.update(outcome.positions if isinstance(outcome, Failed) else ())
    assert reported == set(range(25))


# Bounds -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bound", "pieces"), [("max_pending_messages", [b""] * 4), ("max_payload_bytes", [b"xxxx"]), ("max_chunks", [b""])]
)
def test_a_payload_too_large_alone_names_the_bound(bound, pieces):
    rig = Rig(**{bound: 3}, max_redeliveries=0)
    [whole] = rig.chunk(B, 0, 1, b"xxx")
    assert whole.payload == b"xxx", "as much as allowed"
    for piece in pieces:
        outcomes = rig.chunk(A, 0, 9, piece)
    [failed] = outcomes or rig.expire()
    assert isinstance(failed.error, PayloadTooLargeError)
    assert str(failed.error).endswith(f"(chunking.{bound}), but the limit is 3")
    assert failed.error.size == (9 if bound == "max_chunks" else 4)


@pytest.mark.parametrize(
    ("bound", "more"),
    [("max_pending_payloads", {}), ("max_pending_messages", {}), ("max_pending_bytes", {"max_payload_bytes": 2})],
)
def test_the_oldest_payload_is_evicted_when_a_bound_is_exceeded(bound, more):
    rig = Rig(**{bound: 3}, **more)
    [evicted] = [outcome for uuid in (A, B, C, other(1)) for outcome in rig.chunk(uuid, 0, 4)]
    assert (evicted.reason, evicted.uuid) == ("evicted", A)
    assert f"(chunking.{bound} is 3)" in str(evicted.error)
    assert evicted.as_failed().error is evicted.error


def test_room_for_bytes_is_made_by_a_payload_that_has_some():
    rig = Rig(max_pending_bytes=3, max_payload_bytes=3)
    rig.chunk(A, 0, 4, b"")
    rig.chunk(B, 0, 4, b"xx")
    [evicted] = rig.chunk(C, 0, 4, b"xx")
    assert evicted.uuid == B


def test_a_chunk_that_declares_another_count_contradicts_its_payload():
    rig = Rig(max_redeliveries=0)
    [failed] = rig.chunk(A, 0, 2) + rig.chunk(A, 1, 3) + rig.expire()
    assert isinstance(failed.error, ChunkConflictError)
    assert "declares 3 chunks, but an earlier one 2" in str(failed.error)


def test_a_contradicted_payload_is_reported_when_it_holds_too_many_messages():
    rig = Rig(max_pending_messages=3)
    assert rig.chunk(A, 0, 9, b"x") + rig.chunk(A, 0, 9, b"y") + rig.chunk(A, 1, 9) == []
    [failed] = rig.chunk(A, 2, 9)
    assert isinstance(failed.error, ChunkConflictError)
    assert failed.positions == (0, 1, 2, 3)


def test_what_was_acknowledged_keeps_no_handle_alive():
    class Native:
        pass

    rig, native = Rig(), Native()
    gone = weakref.ref(native)
    rig.settle(rig.chunk(A, 0, 1, at=0, handle=native))
    del native
    assert gone() is None
    [late] = rig.chunk(A, 0, 1, at=2)
    assert (late.reason, late.action) == ("duplicate", "ack")


@pytest.mark.parametrize(("name", "count"), [("claimcheck-checksum", 1), ("claimcheck-size", 2)])
def test_what_was_acknowledged_keeps_neither_headers_nor_keys(name, count):
    rig = Rig()

    def held():
        for _ in range(100):
            number = next(rig.positions)
            headers = {"claimcheck-type": "chunk", name: f"{number}{'A' * 10_000}"}
            where = {"headers": headers, "key": b"%d" % number + b"K" * 10_000}
            rig.settle(rig.chunk(other(number), 0, count, **where))
            rig.settle(rig.abort(other(number), **where) if count > 1 else [])
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        assert held() > held() - 500_000
    finally:
        tracemalloc.stop()


def test_finished_payloads_are_forgotten_in_the_end(monkeypatch):
    monkeypatch.setattr(assembler_module, "_REMEMBERED", 3)
    monkeypatch.setattr(assembler_module, "_REMEMBERED_POSITIONS", 4)
    rig = Rig()
    for number in range(9):
        rig.chunk(other(number), 0, 1)
    assert len(rig.assembler._closed) == 3
    for number, at in itertools.product(range(3), range(3)):
        rig.chunk(other(50 + number), 0, 1, at=100 + 10 * number + at)
    assert rig.assembler._remembered_positions <= 6
    assert rig.assembler._remembered_positions == sum(each.weight for each in rig.assembler._closed.values())


# Writers ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "names", [({"key": b"k"}, {"key": b"other"}), ({"writer": "p1", "key": b"k"}, {"writer": "p2", "key": b"k"})]
)
def test_an_abort_envelope_counts_for_its_own_writer_only_and_is_remembered(names, caplog):
    own, foreign = names
    rig = Rig()
    rig.chunk(A, 0, 2, **own)
    [dropped] = rig.abort(A, **foreign)
    assert (dropped.reason, dropped.action, dropped.handles) == ("aborted", "ack", (1,))
    [whole] = rig.chunk(A, 1, 2, **own)
    assert (whole.payload, whole.handles) == (b"01", (0, 2))
    [late] = rig.chunk(A, 0, 1, **foreign)
    assert (late.reason, late.action) == ("aborted", "ack")
    [record] = caplog.records
    assert record.levelname == "WARNING"
    text = f"abort envelope at position 1 of s for payload {A}; messages dropped: 1 (ack); not logged: 0"
    assert record.getMessage() == text


def test_many_abort_envelopes_are_one_warning_in_a_minute(caplog):
    rig = Rig()
    for number in range(100):
        rig.abort(other(number))
    rig.clock.now += 60
    rig.abort(A)
    found = [record.getMessage().rpartition("; ")[2] for record in caplog.records]
    assert found == ["not logged: 0", "not logged: 99"]


@pytest.mark.parametrize("long", [b"k" * 10_000, "k" * 10_000, bytearray(b"k" * 10_000)])
def test_a_long_key_is_not_kept(long):
    rig = Rig()
    [whole] = rig.chunk(A, 0, 1, key=long)
    assert len(whole.identity.writer) < 64
    assert whole.identity == rig.resolver.identity("s", A, key=long)
    assert rig.resolver.knows(whole.identity)


# Late chunks ------------------------------------------------------------------------------------------------------


def test_the_tail_of_a_broken_payload_is_reported_again_and_never_acknowledged_silently():
    rig = Rig(max_chunks=2)
    [broken] = rig.chunks(A, (0, 1), 4)
    rig.settle([broken])
    tail = rig.chunks(A, (2, 3), 4)
    assert [(each.error, each.handles, each.late) for each in tail] == [(broken.error, (n,), True) for n in (2, 3)]


@pytest.mark.parametrize("piece", [b"EVIL", b"1"])
def test_a_payload_acknowledged_after_all_is_compared_with_what_came_of_a_second_attempt(piece):
    rig = Rig()
    for number in (0, 1):
        rig.chunk(A, number, 3, at=number)
    [whole] = rig.chunk(A, 2, 3, at=2)
    assert isinstance(whole, Resolved)
    rig.settle([whole], acked=False)
    rig.chunk(A, 0, 3, at=0)
    rig.chunk(A, 1, 3, piece, at=3)
    rig.settle([whole])
    assert rig.resolver.pending_payloads == 0 == rig.resolver.pending_bytes == rig.assembler._held
    [late] = rig.resolver.tick()
    assert late.positions == (3,)
    assert isinstance(late, Dropped) if piece == b"1" else late.late and isinstance(late.error, ChunkConflictError)
    [again] = rig.chunk(A, 0, 3, b"EVIL", at=4)
    assert (type(again.error), again.late) == (ChunkConflictError, True)


def test_a_late_chunk_of_an_evicted_payload_begins_a_new_attempt_when_it_comes_again():
    rig = Rig(max_pending_payloads=1)
    [evicted] = rig.chunk(A, 0, 3) + rig.chunk(B, 0, 3)
    [late] = rig.chunk(A, 1, 3, at=9)
    assert (late.uuid, late.reason, late.action) == (A, "evicted", evicted.action)
    [evicted] = rig.chunk(A, 1, 3, at=9)
    assert (evicted.uuid, evicted.reason) == (B, "evicted")


@pytest.mark.parametrize(("source", "count"), [(None, 0), ("s", 0), ("other", 1)])
def test_a_seek_forgets_what_was_to_be_reported(source, count):
    rig = Rig()
    whole = rig.chunks(A, range(2), 2)
    rig.settle(whole, acked=False)
    rig.chunk(A, 0, 2)
    rig.settle(whole)
    rig.resolver.clear(source)
    assert len(rig.resolver.tick()) == count


def test_what_was_acknowledged_stays_so_whatever_comes_later():
    rig = Rig()
    whole = rig.chunks(A, range(2), 2)
    rig.settle(whole)
    rig.settle(whole, acked=False)
    rig.abort(A)
    [late] = rig.chunk(A, 1, 2)
    assert isinstance(late, Dropped)
    assert (late.action, rig.events[-1].reason) == ("ack", "duplicate")
    rig.resolver.clear()
    rig.settle(whole, acked=False)  # changes nothing


def test_the_next_tick_is_due_when_the_oldest_payload_expires():
    rig = Rig(expire_after_seconds=60)
    begin = rig.clock.now
    rig.chunk(A, 0, 2)
    assert rig.assembler.due == begin + 60
    rig.clock.now += 10
    rig.chunk(B, 0, 2)
    rig.assembler.due = rig.clock.now
    assert (rig.resolver.tick(), rig.assembler.due) == ([], begin + 60)
