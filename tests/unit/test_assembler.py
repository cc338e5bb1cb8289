"""The reassembly core: any order, duplicates, bounds, expiry, and nothing let go silently."""

from __future__ import annotations

import itertools
import tracemalloc
import weakref

import pytest

from claimcheck._receive import assembler as assembler_module
from claimcheck._receive.assembler import Assembled, Assembler, Broken, Discarded
from claimcheck._receive.record import Slot
from claimcheck._wire.digest import digest_of
from claimcheck._wire.envelope import Chunk
from claimcheck.config import ChunkingConfig
from claimcheck.errors import ChunkConflictError, IncompletePayloadError, PayloadTooLargeError
from tests.clocks import Clock

A = "aaaaaaaa-0000-4000-8000-000000000000"
B = "bbbbbbbb-0000-4000-8000-000000000000"
C = "cccccccc-0000-4000-8000-000000000000"


class Rig:
    """An assembler whose messages are positions in one source, each its own handle."""

    def __init__(self, **limits):
        self.clock = Clock()
        self.assembler = Assembler(ChunkingConfig(**limits), clock=self.clock)
        self.positions = itertools.count()
        self.attempts = {}  # of the payloads that were delivered, or failed

    def acked(self, uuid=A):
        self.assembler.acked(self.attempts[uuid])

    def nacked(self, uuid=A):
        self.assembler.nacked(self.attempts[uuid])

    def feed(self, uuid, number, count, piece=None, *, at=None, handle=None, source="s", headers=None):
        at = next(self.positions) if at is None else at
        piece = memoryview(b"%d" % number if piece is None else piece)
        slot = Slot(at, at if handle is None else handle, headers)
        events = self.assembler.feed(source, slot, Chunk(uuid, number, count, piece))
        self.attempts |= {event.identity.uuid: event.attempt for event in events if not isinstance(event, Discarded)}
        return events


def handles(event):
    return [slot.handle for slot in event.slots]


def payload(event):
    assert isinstance(event, Assembled)
    return event.content.pop()


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_any_order_completes_once(order):
    rig = Rig()
    events = [event for number in order for event in rig.feed(A, number, 3)]
    assert [payload(event) for event in events] == [b"012"]
    assert handles(events[0]) == [0, 1, 2]
    assert rig.assembler.pending_bytes == 0 == rig.assembler.pending_payloads


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 2, 1, 0), (2, 0, 3, 1), (0, 1, 2, 2, 0, 3)])
@pytest.mark.parametrize("declared", ["10", "9", "11", "4", "0", "1e1", "-1", str(1 << 62)])
def test_a_wrong_declared_size_changes_nothing(order, declared):
    rig, pieces = Rig(), [b"abc", b"", b"defg", b"hij"]
    headers = [("total_chunk_msg_size", declared.encode())]
    events = [event for n in order for event in rig.feed(A, n, 4, pieces[n], headers=headers)]
    assert [payload(event) for event in events] == [b"abcdefghij"]
    assert events[0].crc32 == digest_of(b"abcdefghij")
    [late] = rig.feed(A, 2, 4, b"dxfg", headers=headers)
    assert isinstance(late, Broken)


def test_chunks_are_not_in_memory_twice_and_a_declared_size_allocates_nothing_that_did_not_arrive():
    count, piece = 32, 1 << 20
    rig, headers = Rig(), {"total_chunk_msg_size": str(count * piece)}
    tracemalloc.start()
    try:
        rig.feed(A, 0, count, bytes(piece), headers=headers)
        assert tracemalloc.get_traced_memory()[1] < 2 * piece
        for number in range(1, count - 1):
            rig.feed(A, number, count, bytes(piece))
        [event] = rig.feed(A, count - 1, count, bytes(piece))
        assert tracemalloc.get_traced_memory()[1] < 1.6 * count * piece
    finally:
        tracemalloc.stop()
    assert payload(event) == bytes(count * piece)


def test_a_declared_size_up_to_that_of_a_delivered_payload_is_allocated_at_once_for_one_payload_at_a_time():
    count, piece = 8, 1 << 20
    rig, headers = Rig(), {"total_chunk_msg_size": str(count * piece)}
    for number in range(count):
        events = rig.feed(A, number, count, bytes(piece), headers=headers)
    assert payload(events[0]) == bytes(count * piece)
    del events
    larger = {"total_chunk_msg_size": str((count + 1) * piece)}
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        rig.feed(B, 0, count + 1, bytes(piece), headers=larger)
        assert tracemalloc.get_traced_memory()[0] - before < 2 * piece
        rig.assembler.clear()
        before = tracemalloc.get_traced_memory()[0]
        rig.feed(C, 0, count, bytes(piece), headers=headers)
        assert count * piece < tracemalloc.get_traced_memory()[0] - before < (count + 1) * piece  # joined already
        rig.feed(B, 0, count, bytes(piece), headers=headers)
        assert tracemalloc.get_traced_memory()[0] - before < (count + 2) * piece
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("joined", [1, 3])
def test_a_piece_that_was_joined_is_still_compared_with_a_duplicate(joined):
    rig, headers = Rig(), {"total_chunk_msg_size": "8"}
    for number in range(joined):
        rig.feed(A, number, 4, b"%02d" % number, headers=headers)
    assert rig.feed(A, 0, 4, b"00") == []
    rig.feed(A, 0, 4, b"xx")
    for number in range(joined, 3):
        rig.feed(A, number, 4, b"%02d" % number)
    [broken] = rig.feed(A, 3, 4, b"03")
    assert isinstance(broken, Broken)
    assert isinstance(broken.error, ChunkConflictError)


def test_a_redelivered_chunk_renews_its_handle_and_counts_once():
    rig = Rig()
    rig.feed(A, 0, 2, at=7, handle="old")
    rig.feed(A, 0, 2, at=7, handle="new")
    assert rig.assembler.pending_bytes == 1
    (event,) = rig.feed(A, 1, 2, at=8)
    assert handles(event) == ["new", 8]


@pytest.mark.parametrize("action", ["redeliver", "dead_letter", "ack"])
def test_expiry_hands_back_all_messages_with_the_configured_action(action):
    rig = Rig(expire_after_seconds=60, on_expire=action)
    rig.feed(A, 0, 3)
    rig.clock.now += 59
    rig.feed(A, 1, 3)
    assert rig.assembler.tick() == []
    rig.clock.now += 1
    (event,) = rig.assembler.tick()
    assert isinstance(event, Discarded)
    assert (event.reason, event.action, handles(event)) == ("expired", action, [0, 1])
    assert isinstance(event.error, IncompletePayloadError)
    assert (event.error.seen, event.error.total) == (2, 3)
    assert rig.assembler.pending_bytes == 0


def test_acknowledged_while_it_comes_again_nothing_of_the_new_attempt_stays():
    rig = Rig()
    for number in range(3):
        rig.feed(A, number, 3, at=number)
    rig.nacked()  # given back
    rig.feed(A, 0, 3, at=0)
    rig.feed(A, 1, 3, b"other", at=1)
    rig.feed(A, 1, 3, b"doomed", at=1)

    rig.acked()  # the first delivery, after all

    assert rig.assembler.pending_payloads == 0 == rig.assembler.pending_bytes == rig.assembler._held
    [late] = rig.feed(A, 2, 3, at=2)
    assert (late.reason, late.action) == ("duplicate", "ack")


def test_zero_seconds_mean_that_nothing_expires():
    rig = Rig(expire_after_seconds=0)
    rig.feed(A, 0, 2)
    rig.clock.now += 1e9
    assert rig.assembler.due is None
    assert rig.assembler.tick() == []


def test_a_payload_too_large_and_never_complete_fails_at_its_expiry():
    rig = Rig(max_payload_bytes=1, expire_after_seconds=5)
    assert rig.feed(A, 0, 9) == [] == rig.feed(A, 1, 9)
    rig.clock.now += 5
    (event,) = rig.assembler.tick()
    assert isinstance(event.error, PayloadTooLargeError)
    assert handles(event) == [0, 1]


def test_a_count_that_changes_is_a_conflict():
    rig = Rig()
    rig.feed(A, 0, 2)
    (broken,) = rig.feed(A, 1, 3)
    assert isinstance(broken.error, ChunkConflictError)


def test_a_declared_count_reserves_nothing():
    rig = Rig()
    rig.feed(A, 2**31 - 2, 2**31 - 1)
    assert rig.assembler.pending_bytes <= 10


def test_an_abort_of_what_never_came_is_remembered():
    rig = Rig()
    rig.assembler.abort("s", Slot(0, 0), A)
    (event,) = rig.feed(A, 0, 1, at=1)
    assert (event.reason, event.action) == ("aborted", "ack")


def test_pieces_of_a_buffer_that_its_owner_reuses_are_copied():
    rig, buffer = Rig(), bytearray(b"first")
    rig.feed(A, 0, 2, buffer)
    buffer[:] = b"other"
    (event,) = rig.feed(A, 1, 2, b"!")
    assert payload(event) == b"first!"


def test_the_tail_of_a_broken_payload_is_said_again_and_never_acknowledged_silently():
    rig = Rig(max_chunks=2)
    (broken,) = [event for number in range(2) for event in rig.feed(A, number, 4)]
    rig.acked()
    tail = [event for number in (2, 3) for event in rig.feed(A, number, 4)]
    assert [(type(event), event.error, handles(event)) for event in tail] == [
        (Broken, broken.error, [2]),
        (Broken, broken.error, [3]),
    ]


def test_for_bytes_only_a_payload_that_holds_some_makes_room():
    rig = Rig(max_pending_bytes=10, max_payload_bytes=5)
    rig.feed(A, 0, 9, b"x" * 6)
    rig.feed(B, 0, 2, b"x" * 5)
    (event,) = rig.feed(C, 0, 3, b"x" * 5) + rig.feed(C, 1, 3, b"") + rig.feed("d" + C[1:], 0, 2, b"x")
    assert (event.identity.uuid, type(event)) == (B, Discarded)


def test_what_was_let_go_keeps_no_handle_alive():
    class Native:
        pass

    rig, native = Rig(max_pending_payloads=1), Native()
    gone = weakref.ref(native)
    rig.feed(A, 0, 2, at=0, handle=native)
    events = rig.feed(B, 0, 2, at=1)
    assert [event.identity.uuid for event in events] == [A]
    del events, native
    assert gone() is None
    (tail,) = rig.feed(A, 1, 2, at=2)
    assert tail.reason == "evicted"


def test_an_acknowledged_payload_keeps_no_handle_alive():
    class Native:
        pass

    rig, native = Rig(), Native()
    gone = weakref.ref(native)
    events = rig.feed(A, 0, 1, handle=native)
    rig.acked()
    del events, native
    assert gone() is None


def test_messages_are_bounded_even_when_their_pieces_weigh_nothing():
    rig = Rig(max_chunks=5, max_pending_messages=10)
    events = [event for _ in range(50) for event in rig.feed(A, 0, 2, b"")]
    assert isinstance(events[0], Broken)
    assert len(handles(events[0])) >= 10
    assert rig.assembler._held <= 11
    for number in range(8):
        events += rig.feed(f"{number}" + B[1:], 0, 5, b"") + rig.feed(f"{number}" + B[1:], 1, 5, b"")
    assert rig.assembler._held <= 10


def test_finished_payloads_are_forgotten_in_the_end(monkeypatch):
    monkeypatch.setattr(assembler_module, "_REMEMBERED", 3)
    monkeypatch.setattr(assembler_module, "_REMEMBERED_POSITIONS", 4)
    rig = Rig()
    for number in range(9):
        rig.feed(f"{number}" + A[1:], 0, 1)
    assert len(rig.assembler._closed) == 3
    for number in range(3):
        for at in range(3):
            rig.feed(f"{number}" + B[1:], 0, 1, at=100 + 10 * number + at)
    assert rig.assembler._remembered_positions <= 6


def test_headers_are_kept_of_the_lowest_place_only_and_claims_of_all():
    rig = Rig()
    claim = {"claimcheck-type": "chunk", "claimcheck-size": "2", "large": "x" * 1000}
    rig.assembler.feed("s", Slot(9, 9, headers=claim, key=b"k9"), Chunk(A, 1, 2, memoryview(b"b")))
    (event,) = rig.assembler.feed("s", Slot(3, 3, headers={"mine": "1"}, key=b"k3"), Chunk(A, 0, 2, memoryview(b"a")))
    kept = [(slot.position, slot.headers, slot.key) for slot in event.slots]
    assert kept == [(9, None, None), (3, {"mine": "1"}, b"k3")]
    assert event.declared == {("claimcheck-size", "2")}
