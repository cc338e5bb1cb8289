"""Deletion after acknowledgement: which payloads may go, and when. The broker is a table of confirmed positions."""

from __future__ import annotations

import logging
import uuid
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import claimcheck
from claimcheck._pointer import Pointer
from claimcheck.errors import PayloadNotFoundError, SeveralGroupsError, StoreUnavailableError, TransportError
from claimcheck.hooks import OperationEvent
from claimcheck.testing import FaultyStore
from claimcheck.transports._common import deletion as module
from claimcheck.transports._common.deletion import PayloadDeletion, may_delete
from claimcheck.transports._common.stored_payload import PointerRead
from claimcheck.transports.pulsar._cursors import Cursors
from tests.clocks import Clock

SOURCE = ("orders", 0)
KEYS = {"old": "an old secret of 16 bytes", "new": "a new secret of 16 bytes"}


class Table:
    """A broker whose groups and confirmed positions the test sets."""

    def __init__(self) -> None:
        self.names: set[str] | Exception = {"g"}
        self.positions: dict = {}
        self.error: Exception | None = None

    def topic(self, source):
        return source[0]

    destination = topic

    def groups(self, topic):
        if isinstance(self.names, Exception):
            raise self.names
        return set(self.names)

    def confirmed(self, sources):
        if self.error is not None:
            raise self.error
        return {source: position for source, position in self.positions.items() if source in sources}


class Bench:
    """A deletion without a thread, over one memory store."""

    def __init__(self, **more) -> None:
        self.events: list = []
        stores = {"m": {"type": "memory"}, "other": {"type": "memory"}}
        raw = {"strategy": "external", "store": "m", "stores": stores, "delete_after_ack": True, **more}
        self.cc = claimcheck.from_dict(raw, hooks=[self.events.append])
        self.broker, self.clock = Table(), Clock()
        self.deletion = PayloadDeletion(self.cc, self.broker, clock=self.clock, start_thread=False)

    def deliver(self, position: int, source=SOURCE, **write) -> Pointer:
        """Store a payload, and deliver a message that points at it."""
        pointer = self.cc.store("m").write(b"x" * 100, destination=source[0], **write)
        self.deletion.delivered(source, position, PointerRead(pointer, "verified"))
        return pointer

    def confirm(self, position: int, source=SOURCE) -> None:
        self.broker.positions[source] = position
        self.deletion.run()

    def stored(self, *pointers: Pointer) -> list[bool]:
        return [self._is_stored(pointer) for pointer in pointers]

    def _is_stored(self, pointer: Pointer) -> bool:
        try:
            return len(self.cc.store(pointer.store or "").read(pointer)) == 100
        except PayloadNotFoundError:
            return False


@pytest.fixture
def bench():
    return Bench()


class TestWhen:
    def test_only_what_is_acknowledged_and_confirmed(self, bench):
        first, second, third = (bench.deliver(position) for position in (1, 2, 3))

        bench.deletion.acknowledged_up_to(SOURCE, 2)
        bench.deletion.run()
        assert bench.stored(first, second, third) == [True] * 3  # not confirmed
        bench.confirm(2)
        assert bench.stored(first, second, third) == [False, True, True]
        bench.confirm(4)
        assert bench.stored(first, second, third) == [False, False, True]  # the third was never acknowledged

    def test_a_single_acknowledgement_does_not_include_its_neighbors(self, bench):
        first, second = bench.deliver(1), bench.deliver(2)

        bench.deletion.acknowledged(SOURCE, 2)
        bench.confirm(9)

        assert bench.stored(first, second) == [True, False]

    def test_a_redelivery_takes_the_acknowledgement_back(self, bench):
        pointer = bench.deliver(1)
        bench.deletion.acknowledged_up_to(SOURCE, 5)

        bench.deletion.delivered(SOURCE, 1, PointerRead(pointer, "verified"))
        bench.confirm(9)

        assert bench.stored(pointer) == [True]

    @pytest.mark.parametrize(
        ("forget", "left"),
        [
            (lambda deletion: deletion.keep(SOURCE, 1), [True, False, True]),
            (lambda deletion: deletion.forget(SOURCE, since=2), [False, True, True]),
            (lambda deletion: deletion.forget(SOURCE), [True, True, True]),
            (lambda deletion: deletion.forget_delivered(), [False, False, True]),
            (lambda deletion: deletion.forget_all(), [True, True, True]),
            (lambda deletion: deletion.end(SOURCE), [False, False, True]),
        ],
    )
    def test_what_is_forgotten_stays(self, bench, forget, left):
        pointers = [bench.deliver(position) for position in (1, 2, 3)]
        bench.deletion.acknowledged_up_to(SOURCE, 2)

        forget(bench.deletion)
        bench.deletion.acknowledged_up_to(SOURCE, 9)
        if left[2]:
            bench.deletion.keep(SOURCE, 3)
        bench.confirm(9)

        assert bench.stored(*pointers) == left

    def test_after_a_revocation_there_are_two_more_rounds(self, bench):
        pointer, late = bench.deliver(1), bench.deliver(2)
        bench.deletion.acknowledged_up_to(SOURCE, 2)
        bench.deletion.end(SOURCE)

        bench.confirm(2)
        bench.confirm(2)
        bench.confirm(9)  # somebody else's commit

        assert bench.stored(pointer, late) == [False, True]

    def test_nothing_is_deleted_while_the_broker_does_not_answer(self, bench, caplog):
        pointer = bench.deliver(1)
        bench.deletion.acknowledged(SOURCE, 1)
        bench.broker.error = TimeoutError("no answer")
        bench.confirm(9)
        bench.confirm(9)
        assert (bench.stored(pointer), len(caplog.records)) == ([True], 1)

        bench.broker.error = None
        bench.confirm(9)

        assert bench.stored(pointer) == [False]

    def test_closing_asks_once_more(self, bench):
        pointer, unread = bench.deliver(1), bench.deliver(2)
        bench.deletion.acknowledged(SOURCE, 1)
        bench.broker.positions[SOURCE] = 9

        bench.deletion.close()

        assert bench.stored(pointer, unread) == [False, True]

    def test_the_oldest_are_forgotten(self, bench, monkeypatch):
        monkeypatch.setattr(module, "_REMEMBERED", 2)
        pointers = [bench.deliver(position) for position in range(4)]

        bench.deletion.acknowledged_up_to(SOURCE, 9)
        bench.confirm(9)

        assert bench.stored(*pointers) == [True, True, False, False]


class TestGroups:
    def test_several_groups_are_refused_at_first_use(self, bench):
        bench.broker.names = {"b", "a"}

        with pytest.raises(SeveralGroupsError, match="2 groups or subscriptions read orders: a, b") as caught:
            bench.deletion.check(SOURCE)

        assert (caught.value.groups, caught.value.destination) == (("a", "b"), "orders")
        bench.deletion.check(SOURCE)  # once for each topic

    def test_a_second_group_stops_it_and_is_named_once(self, bench, caplog):
        before, during, after = bench.deliver(1), bench.deliver(2), bench.deliver(3)
        bench.deletion.acknowledged(SOURCE, 1)
        bench.confirm(2)

        bench.broker.names = {"g", "late"}
        bench.clock.now += 61
        bench.deletion.acknowledged(SOURCE, 2)
        bench.confirm(3)
        bench.confirm(3)
        assert bench.stored(before, during) == [False, True]
        assert [record.levelno for record in caplog.records] == [logging.WARNING]
        assert "g, late" in caplog.text

        bench.broker.names = {"g"}
        bench.clock.now += 61
        bench.deletion.acknowledged(SOURCE, 3)
        bench.confirm(4)
        assert bench.stored(during, after) == [True, False]

    def test_unknown_groups_delay_it(self, bench, caplog):
        pointer = bench.deliver(1)
        bench.deletion.acknowledged(SOURCE, 1)
        bench.broker.names = PermissionError("no")
        bench.deletion.check(SOURCE)
        bench.confirm(9)
        assert (bench.stored(pointer), len(caplog.records)) == ([True], 1)

        bench.broker.names = {"g"}
        bench.confirm(9)

        assert bench.stored(pointer) == [False]


class TestWhich:
    def test_a_key_that_several_writes_may_share_stays(self, bench):
        pointer = bench.deliver(1, identity=uuid.uuid4())

        bench.deletion.acknowledged(SOURCE, 1)
        bench.confirm(9)

        assert bench.stored(pointer) == [True]

    @pytest.mark.parametrize(
        ("change", "state"),
        [
            ({}, "unread"),
            ({}, "failed"),
            ({"version": 1}, "verified"),
            ({"store": "other"}, "verified"),
            ({"store": None}, "verified"),
            ({"mac": "00"}, "unread"),  # no keys are configured: nobody has checked it
        ],
    )
    def test_other_payloads_stay(self, bench, change, state):
        pointer = bench.cc.store("m").write(b"x", destination="orders")

        assert may_delete(bench.cc, PointerRead(pointer, "verified"), "orders")
        assert not may_delete(bench.cc, PointerRead(replace(pointer, **change), state), "orders")

    @pytest.mark.parametrize("topic", ["orders-eu", "orders-20261122T113004Z-60s", "eu.orders", "order", ""])
    def test_a_payload_of_another_topic_stays(self, bench, topic):
        """A pointer that was forwarded, mirrored or forged: the message of the other topic needs the payload."""
        pointer = bench.cc.store("m").write(b"x", destination=topic)

        assert not may_delete(bench.cc, PointerRead(pointer, "verified"), "orders")

    @pytest.mark.parametrize("store", [{"type": "filesystem", "path": "p"}, {"type": "redis", "url": "redis://h"}])
    def test_the_topic_is_found_in_the_keys_of_each_store(self, tmp_path, monkeypatch, store):
        monkeypatch.chdir(tmp_path)
        cc = claimcheck.from_dict({"store": "m", "stores": {"m": store}})
        store = cc.store("m")
        key = store._key("persistent://public/default/orders", uuid.uuid4(), created_ms=0, expires_ms=None, fresh=True)
        pointer = Pointer(key=key, store="m")

        assert may_delete(cc, PointerRead(pointer, "verified"), "persistent://public/default/orders")
        assert not may_delete(cc, PointerRead(pointer, "verified"), "orders")

    def test_a_signed_pointer_need_not_be_read(self):
        bench = Bench(signing={"key_id": "new", "keys": KEYS})
        pointer = bench.cc.pointer(
            bench.cc.seal(bench.cc.store("m").write(b"x", destination="orders")), destination="orders"
        )

        assert may_delete(bench.cc, PointerRead(pointer), "orders")
        assert not may_delete(bench.cc, PointerRead(pointer, "failed"), "orders")

    def test_only_destinations_that_have_it_on(self):
        bench = Bench(delete_after_ack=False, destinations={"or*": {"delete_after_ack": True}})
        other = ("invoices", 0)
        kept, gone = bench.deliver(1, other), bench.deliver(1)

        for source in (SOURCE, other):
            bench.deletion.acknowledged(source, 1)
            bench.confirm(9, source)

        assert bench.stored(kept, gone) == [True, False]


class TestErrors:
    def test_a_payload_that_cannot_be_deleted_stays_and_is_warned_of_once(self, bench, caplog):
        store = bench.cc.store("m")
        pointers = [bench.deliver(position) for position in (1, 2, 3)]
        faulty = bench.cc._open.stores["m"] = FaultyStore(store=store)
        faulty.context, faulty.prefix = store.context, store.prefix
        faulty.fail("rollback", error=StoreUnavailableError("down"))

        for position in (1, 2):
            bench.deletion.acknowledged(SOURCE, position)
            bench.confirm(position + 1)
        bench.cc._open.stores["m"] = store
        bench.deletion.acknowledged(SOURCE, 3)
        bench.confirm(9)

        assert bench.stored(*pointers) == [True, True, False]
        assert [record.levelno for record in caplog.records] == [logging.WARNING]
        phases = [e.phase for e in bench.events if isinstance(e, OperationEvent) and e.operation == "delete"]
        assert phases == ["started", "failed", "started", "failed", "started", "completed"]


class Web:
    """The web service of a broker with one topic."""

    def __init__(self, mark: str, *others: str) -> None:
        self.mark, self.others = mark, others

    def get(self, path):
        cursors = {"s": {"markDeletePosition": self.mark}} | {name: {} for name in self.others}
        return {"cursors": cursors} if path.endswith("/t/internalStats") else None


class TestCursors:
    def test_a_position_counts_once_it_must_be_on_disk_and_not_after_a_crash(self):
        web, clock = Web("7:4"), Clock()
        cursors = Cursors(web, "s", clock=clock)

        assert cursors.confirmed(["t"]) == {}
        clock.now, web.mark = clock.now + 40, "7:9"
        assert cursors.confirmed(["t"]) == {}
        clock.now += 26
        assert cursors.confirmed(["t"]) == {"t": (7, 5)}
        web.mark = "7:6"  # the broker has forgotten what it had not written
        assert cursors.confirmed(["t"]) == {}
        clock.now, web.mark = clock.now + 66, "8:-1"  # a new ledger
        assert cursors.confirmed(["t"]) == {"t": (7, 7)}
        assert (7, 6, 1 << 31) < (7, 7) <= (7, 7, 0)  # whole entries and messages of batches

    def test_replicators_and_readers_count_and_deduplication_does_not(self):
        web = Web("7:4", "pulsar.dedup", "pulsar.repl.west", "reader-1")

        assert Cursors(web, "s").groups("t") == {"s", "pulsar.repl.west", "reader-1"}
        with pytest.raises(TransportError, match="there is no subscription other"):
            Cursors(web, "other").groups("t")


POSITIONS = st.integers(0, 8)
STEPS = st.one_of(
    st.tuples(st.just("deliver"), POSITIONS),
    st.tuples(st.just("ack"), POSITIONS),
    st.tuples(st.just("ack up to"), POSITIONS),
    st.tuples(st.just("keep"), POSITIONS),
    st.tuples(st.just("seek"), POSITIONS),
    st.tuples(st.just("confirm"), POSITIONS),
)


@given(st.lists(STEPS, max_size=40))
def test_deletes_exactly_what_is_acknowledged_below_the_confirmed_position_and_once(steps):
    bench = Bench()
    pointers = [bench.cc.store("m").write(b"x" * 100, destination="orders") for _ in range(9)]
    delivered, acknowledged, deleted = set(), set(), set()
    for step, at in steps:
        if step == "deliver":
            bench.deletion.delivered(SOURCE, at, PointerRead(pointers[at], "verified"))
            delivered.add(at)
            acknowledged.discard(at)
        elif step in ("ack", "ack up to"):
            now = {each for each in delivered if each == at or (each < at and step == "ack up to")}
            delivered, acknowledged = delivered - now, acknowledged | now
            (bench.deletion.acknowledged if step == "ack" else bench.deletion.acknowledged_up_to)(SOURCE, at)
        elif step in ("keep", "seek"):
            gone = {at} if step == "keep" else set(range(at, 9))
            delivered, acknowledged = delivered - gone, acknowledged - gone
            bench.deletion.keep(SOURCE, at) if step == "keep" else bench.deletion.forget(SOURCE, since=at)
        else:
            bench.confirm(at)
            due = {each for each in acknowledged if each < at}
            acknowledged, deleted = acknowledged - due, deleted | due

        assert bench.stored(*pointers) == [each not in deleted for each in range(9)]
