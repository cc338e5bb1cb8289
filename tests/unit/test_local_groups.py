"""Consumer groups of the embedded broker: who holds what, and what comes again. No test waits: time is injected."""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from claimcheck.transports.local import (
    BrokerArgumentError,
    BrokerClosedError,
    LocalBroker,
    OffsetOutOfRangeError,
    StaleDeliveryError,
    UnknownPartitionError,
    UnknownTopicError,
)
from claimcheck.transports.local.groups import POLL_SECONDS, Delivery, GroupMember
from claimcheck.transports.local.leases import fair_share
from tests.clocks import Clock


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def broker(tmp_path: Path, clock: Clock):
    with LocalBroker(tmp_path / "broker.sqlite", clock=clock, sleep=clock.sleep) as broker:
        broker.create_topic("orders", partitions=1)
        broker.create_topic("wide", partitions=4)
        yield broker


@pytest.fixture
def join(broker: LocalBroker):
    def join(*topics: str, group: str = "g", lease_seconds: float = 30.0) -> GroupMember:
        return GroupMember(broker, group, topics or ["orders"], lease_seconds=lease_seconds)

    return join


def fill(broker: LocalBroker, count: int, topic: str = "orders") -> None:
    for number in range(count):
        broker.append(topic, b"%d" % number)


def take(member: GroupMember, limit: int = 100) -> list[Delivery]:
    return list(member.poll(limit=limit).deliveries)


def offsets(deliveries: list[Delivery]) -> list[int]:
    return [delivery.message.offset for delivery in deliveries]


def settle(clock: Clock, *members: GroupMember) -> None:
    """Let members poll until leases have found their places; what they are given is dropped."""
    for _ in range(3):
        clock.now += 1
        for member in members:
            member.poll()


# Reading


def test_a_new_group_begins_at_the_beginning_and_gives_each_message_once(broker, join):
    fill(broker, 3)
    member = join()
    assert offsets(take(member)) == [0, 1, 2]
    assert take(member) == []
    fill(broker, 1)
    assert offsets(take(member)) == [3]


def test_a_delivery_carries_the_message(broker, join):
    broker.append("orders", b"v", key=b"k", headers={"h": "1"})
    (delivery,) = take(join())
    assert delivery.message == broker.fetch("orders", 0, 0, 1)[0]
    assert delivery.redelivery_count == 0


def test_the_limit_bounds_all_partitions_together(broker, join):
    fill(broker, 8, "wide")
    member = join("wide")
    assert [len(take(member, limit=3)) for _ in range(4)] == [3, 3, 2, 0]


def test_a_busy_partition_does_not_keep_the_others_waiting(broker, join):
    for partition in (0, 0, 0, 0, 3):
        broker.append("wide", b"", partition=partition)
    member = join("wide")
    assert 3 in [take(member, limit=1)[0].message.partition for _ in range(4)]


def test_groups_do_not_know_each_other(broker, join):
    fill(broker, 2)
    first, second = join(group="a"), join(group="b")
    first.ack(take(first))
    assert offsets(take(second)) == [0, 1]


def test_a_poll_waits_in_short_steps_until_the_timeout(join, clock):
    member = join()
    before = clock.now
    assert member.poll(timeout=0.12).deliveries == ()
    assert clock.now - before == pytest.approx(0.12)


def test_a_poll_ends_as_soon_as_something_comes(broker, join, clock):
    member = join()

    def sleep(seconds: float) -> None:
        clock.sleep(seconds)
        broker.append("orders", b"x")

    broker.sleep = sleep
    before = clock.now
    assert len(member.poll(timeout=60).deliveries) == 1
    assert clock.now - before == pytest.approx(POLL_SECONDS)


# Acknowledging


def test_what_was_acknowledged_never_comes_again_and_the_rest_does(broker, join):
    fill(broker, 5)
    member = join()
    deliveries = take(member)
    member.ack([deliveries[0], deliveries[1], deliveries[3]])
    member.close()
    assert offsets(take(join())) == [2, 4]


def test_what_was_acknowledged_beyond_a_gap_stays_so_when_the_gap_closes_under_a_new_member(broker, join):
    fill(broker, 6)
    member = join()
    deliveries = take(member)
    member.ack(deliveries[1:])
    member.nack(deliveries[:1])
    member.close()
    heir = join()
    gap = take(heir, limit=1)
    heir.ack(gap)  # acknowledged up to the end, though the new member has read but one
    assert (offsets(gap), take(heir)) == ([0], [])
    fill(broker, 1)
    assert offsets(take(heir)) == [6]


def test_acknowledgements_without_gaps_are_kept_as_one_number(broker, join):
    fill(broker, 4)
    member = join()
    deliveries = take(member)
    member.ack([deliveries[1], deliveries[3]])
    assert _rows(broker, "acks") == 2
    member.ack([deliveries[0], deliveries[2]])
    assert _rows(broker, "acks") == 0
    member.ack(deliveries)  # again: harmless
    assert _rows(broker, "acks") == 0
    member.close()
    assert take(join()) == []


def test_acknowledging_several_partitions_is_one_change(broker, join):
    fill(broker, 4, "wide")
    member = join("wide")
    deliveries = take(member)
    member.seek("wide", deliveries[-1].message.partition, 0)
    with pytest.raises(StaleDeliveryError):
        member.ack(deliveries)
    member.close()
    assert len(take(join("wide"))) == 4


def _rows(broker: LocalBroker, table: str) -> int:
    with broker.database.read() as connection:
        count: int = connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
        return count


# Giving back


def test_a_message_given_back_comes_again_and_is_counted(broker, join):
    fill(broker, 3)
    member = join()
    deliveries = take(member)
    for count in (1, 2):
        member.nack([deliveries[1]])
        (again,) = take(member)
        assert (again.message.offset, again.redelivery_count) == (1, count)
    assert take(member) == []


def test_a_message_given_back_with_a_delay_stays_away_so_long(broker, join, clock):
    fill(broker, 2)
    member = join()
    deliveries = take(member)
    member.nack(deliveries, delay_seconds=2.0)
    clock.now += 1.9
    assert take(member) == []
    clock.now += 0.1
    assert offsets(take(member)) == [0, 1]


def test_a_poll_that_waits_sees_the_delay_end(broker, join, clock):
    fill(broker, 1)
    member = join()
    member.nack(take(member), delay_seconds=2.0)
    assert len(member.poll(timeout=5).deliveries) == 1


def test_the_count_survives_a_change_of_members(broker, join, clock):
    fill(broker, 1)
    member = join()
    member.nack(take(member), delay_seconds=5)
    member.close()
    other = join()
    (again,) = take(other)
    assert again.redelivery_count == 1
    clock.now += 5
    assert take(other) == []  # once, not once from the floor and once more as given back


def test_what_is_acknowledged_cannot_be_given_back(broker, join):
    fill(broker, 3)
    member = join()
    deliveries = take(member)
    member.ack([deliveries[0], deliveries[2]])  # one below the floor, one beyond a gap
    member.nack(deliveries)
    assert offsets(take(member)) == [1]


def test_a_message_given_back_can_be_acknowledged_later(broker, join):
    fill(broker, 1)
    member = join()
    deliveries = take(member)
    member.nack(deliveries)
    member.ack(deliveries)
    assert take(member) == []
    assert _rows(broker, "redeliveries") == 0


def test_acknowledged_beyond_a_gap_and_given_back_does_not_come_again(broker, join):
    fill(broker, 2)
    member = join()
    deliveries = take(member)
    member.nack([deliveries[1]])
    member.ack([deliveries[1]])
    assert take(member) == []


def test_taking_what_was_given_back_does_not_undo_what_the_next_holder_gives_back(broker, join, clock, monkeypatch):
    fill(broker, 1)
    slow = join()
    slow.nack(take(slow))
    looked = GroupMember._take

    def late(member: GroupMember, again: list[Delivery]) -> None:
        """Between looking and taking the lease ends, and the next holder gives the message back."""
        monkeypatch.setattr(GroupMember, "_take", looked)
        clock.now += 31
        heirs.append(join())
        heirs[0].nack(take(heirs[0]))
        looked(member, again)

    heirs: list[GroupMember] = []
    monkeypatch.setattr(GroupMember, "_take", late)
    slow.poll()
    assert [(d.message.offset, d.redelivery_count) for d in take(heirs[0])] == [(0, 2)]


# Sharing


def test_two_members_share_and_nothing_is_held_twice(broker, join, clock):
    first = join("wide")
    assert len(first.assignment()) == 0
    first.poll()
    assert len(first.assignment()) == 4
    second = join("wide")
    settle(clock, first, second)
    assert len(first.assignment()) == len(second.assignment()) == 2
    assert sorted(first.assignment() + second.assignment()) == [("wide", number) for number in range(4)]


def test_a_member_hears_which_partitions_it_gave_up(broker, join, clock):
    first = join("wide")
    first.poll()
    join("wide")
    clock.now += 1
    assert first.poll().lost == (("wide", 2), ("wide", 3))
    assert first.poll().lost == ()


def test_what_a_member_had_not_acknowledged_goes_to_the_next_holder(broker, join, clock):
    fill(broker, 8, "wide")
    first = join("wide")
    deliveries = take(first)
    first.ack([d for d in deliveries if d.message.offset == 0])
    second = join("wide")
    clock.now += 1
    first.poll()
    clock.now += 1
    assert [(d.message.partition, d.message.offset) for d in take(second)] == [(2, 1), (3, 1)]


def test_a_partition_moves_as_a_whole_and_stale_acknowledgements_are_refused(broker, join, clock):
    fill(broker, 4, "wide")
    first = join("wide")
    moved = [d for d in take(first) if d.message.partition == 3]
    second = join("wide")
    settle(clock, first, second)
    with pytest.raises(StaleDeliveryError, match="leased anew or sought") as caught:
        first.ack(moved)
    assert (caught.value.destination, caught.value.partition, caught.value.offset) == ("wide", 3, 0)
    first.nack(moved)  # passed over: it comes again anyhow
    assert _rows(broker, "redeliveries") == 0


def test_a_third_member_gets_its_share_and_more_members_than_partitions_wait(broker, join, clock):
    members = [join("wide") for _ in range(3)]
    settle(clock, *members)
    assert [len(member.assignment()) for member in members] == [2, 1, 1]
    members += [join("wide"), join("wide")]
    settle(clock, *members)
    assert [len(member.assignment()) for member in members] == [1, 1, 1, 1, 0]
    members[0].close()
    settle(clock, *members[1:])
    assert [len(member.assignment()) for member in members[1:]] == [1, 1, 1, 1]


def test_single_partitions_of_many_topics_are_shared_too(broker, join, clock):
    topics = [f"t{number}" for number in range(6)]
    for topic in topics:
        broker.create_topic(topic)
    members = [join(*topics), join(*topics)]
    settle(clock, *members)
    assert [len(member.assignment()) for member in members] == [3, 3]


def test_only_members_that_joined_for_a_topic_count(broker, join, clock):
    both, one = join("orders", "wide"), join("orders")
    settle(clock, both, one)
    assert len([where for where in both.assignment() if where[0] == "wide"]) == 4


@given(
    topics=st.lists(st.integers(1, 20), min_size=1, max_size=5),
    members=st.integers(1, 12),
)
def test_shares_are_complete_and_fair(topics, members):
    totals = [0] * members
    for number, partitions in enumerate(topics):
        shares = [fair_share(partitions, members, rank, dealt_before=sum(topics[:number])) for rank in range(members)]
        assert sum(shares) == partitions
        assert max(shares) - min(shares) <= 1
        totals = [total + share for total, share in zip(totals, shares, strict=True)]
    assert max(totals) - min(totals) <= 1


# Leases that end


def test_the_partitions_of_a_dead_member_are_taken_after_its_lease(broker, join, clock):
    fill(broker, 2)
    dead = join(lease_seconds=30)
    dead.ack(take(dead)[:1])
    other = join()
    clock.now += 29.9
    assert take(other) == []
    clock.now += 1
    assert offsets(take(other)) == [1]


def test_a_member_that_polls_keeps_its_lease(broker, join, clock):
    fill(broker, 1)
    member, other = join(), join()
    deliveries = take(member)
    for _ in range(100):
        clock.now += 10
        assert member.poll().lost == other.poll().lost == ()
    member.ack(deliveries)


def test_a_member_that_was_thought_dead_hears_of_it_and_comes_back(broker, join, clock):
    fill(broker, 1)
    slow = join()
    deliveries = take(slow)
    other = join()
    clock.now += 31
    assert offsets(take(other)) == [0]
    with pytest.raises(StaleDeliveryError):
        slow.ack(deliveries)
    assert slow.poll().lost == (("orders", 0),)
    other.close()
    clock.now += 1
    assert offsets(take(slow)) == [0]


def test_a_silent_member_that_nobody_missed_goes_on(broker, join, clock):
    fill(broker, 2)
    member = join()
    deliveries = take(member)
    clock.now += 1000
    member.ack(deliveries)
    polled = member.poll()
    assert polled.deliveries == polled.lost == ()


def test_a_partition_lost_and_won_again_between_two_polls_is_said_to_be_lost(broker, join, clock):
    fill(broker, 2)
    slow = join()
    take(slow)
    other = join()
    clock.now += 31
    other.poll()
    other.close()
    polled = slow.poll(limit=9)
    assert polled.lost == (("orders", 0),)
    assert offsets(list(polled.deliveries)) == [0, 1]


def test_short_leases_are_renewed_in_time(broker, join, clock):
    member, other = join(lease_seconds=0.5), join(lease_seconds=0.5)
    member.poll()
    for _ in range(20):
        clock.now += 0.1
        member.poll()
        other.poll()
    assert (len(member.assignment()), len(other.assignment())) == (1, 0)


# Seeking


def test_seeking_back_gives_everything_from_there_again(broker, join):
    fill(broker, 4)
    member = join()
    member.ack(take(member))
    member.seek("orders", 0, 1)
    polled = member.poll(limit=9)
    assert offsets(list(polled.deliveries)) == [1, 2, 3]
    assert polled.lost == ()  # it was the member's own doing


def test_seeking_forward_counts_what_is_passed_over_as_done(broker, join):
    fill(broker, 4)
    member = join()
    member.nack(take(member))
    member.seek("orders", 0, 3)
    assert [(d.message.offset, d.redelivery_count) for d in take(member)] == [(3, 0)]
    member.close()
    assert offsets(take(join())) == [3]


def test_seeking_before_the_first_poll_and_to_the_end(broker, join):
    fill(broker, 4)
    member = join()
    member.seek("orders", 0, broker.end_offset("orders", 0))
    assert take(member) == []
    fill(broker, 1)
    assert offsets(take(member)) == [4]


def test_deliveries_from_before_a_seek_are_stale(broker, join):
    fill(broker, 2)
    member = join()
    deliveries = take(member)
    member.seek("orders", 0, 0)
    with pytest.raises(StaleDeliveryError):
        member.ack(deliveries)
    member.nack(deliveries)
    assert [(d.message.offset, d.redelivery_count) for d in take(member)] == [(0, 0), (1, 0)]


def test_a_seek_reaches_the_member_that_holds_the_partition(broker, join):
    fill(broker, 2)
    holder, other = join(), join()
    holder.ack(take(holder))
    other.seek("orders", 0, 0)
    polled = holder.poll(limit=9)
    assert polled.lost == (("orders", 0),)
    assert offsets(list(polled.deliveries)) == [0, 1]


@pytest.mark.parametrize("offset", [-1, 3])
def test_offsets_that_are_not_there_cannot_be_sought(broker, join, offset):
    fill(broker, 2)
    member = join()
    with pytest.raises(OffsetOutOfRangeError, match="only 0 to 2") as caught:
        member.seek("orders", 0, offset)
    assert (caught.value.offset, caught.value.end) == (offset, 2)
    assert offsets(take(member)) == [0, 1]


def test_other_places_that_cannot_be_sought(join):
    member = join()
    with pytest.raises(UnknownPartitionError):
        member.seek("orders", 1, 0)
    with pytest.raises(BrokerArgumentError, match="joined for orders"):
        member.seek("wide", 0, 0)


# Joining and leaving


def test_leaving_frees_the_partitions_within_a_second(broker, join, clock):
    fill(broker, 1)
    with join() as member:
        take(member)
        other = join()
        assert take(other) == []
    clock.now += 1
    assert offsets(take(other)) == [0]


def test_a_closed_member_refuses_everything_but_closing(broker, join):
    fill(broker, 1)
    member = join()
    deliveries = take(member)
    member.close()
    member.close()
    for call in (
        member.poll,
        lambda: member.ack(deliveries),
        lambda: member.nack(deliveries),
        lambda: member.seek("orders", 0, 0),
    ):
        with pytest.raises(BrokerClosedError, match="group g was closed"):
            call()
    assert repr(member) == "<GroupMember of g on orders: closed>"


def test_closing_after_the_broker_is_harmless(broker, join):
    member = join()
    broker.close()
    member.close()


def test_an_unknown_topic_cannot_be_joined_and_leaves_no_trace(broker, join):
    with pytest.raises(UnknownTopicError):
        join("orders", "missing")
    assert _rows(broker, "members") == _rows(broker, "leases") == 0


@pytest.mark.parametrize(
    ("group", "topics", "lease_seconds"),
    [
        ("", ["orders"], 30),
        ("a b", ["orders"], 30),
        ("g", [], 30),
        ("g", "orders", 30),
        ("g", ["a\0"], 30),
        ("g", ["orders"], 0),
        ("g", ["orders"], float("nan")),
    ],
)
def test_what_cannot_be_joined(broker, group, topics, lease_seconds):
    with pytest.raises(BrokerArgumentError):
        GroupMember(broker, group, topics, lease_seconds=lease_seconds)


def test_a_poll_for_nothing_is_refused(join):
    with pytest.raises(BrokerArgumentError, match="at least 1"):
        join().poll(limit=0)


def test_repr_says_what_is_held(join):
    member = join("wide", "orders")
    member.poll()
    assert repr(member) == "<GroupMember of g on wide, orders: 5 partitions>"


# Against a model


_ROUND = st.tuples(st.integers(1, 6), st.lists(st.booleans(), min_size=6, max_size=6), st.booleans())


@given(rounds=st.lists(_ROUND, max_size=12))
@hypothesis_settings(max_examples=200, deadline=None)
def test_acknowledged_never_comes_again_whoever_reads_on(rounds):
    """One member after the other; each reads a little, acknowledges some of it, gives back the rest, and may leave."""
    with tempfile.TemporaryDirectory() as folder, LocalBroker(Path(folder) / "b", clock=Clock()) as broker:
        broker.create_topic("t")
        fill(broker, 6, "t")
        member, done = GroupMember(broker, "g", ["t"]), set[int]()
        for limit, verdicts, leave in rounds:
            deliveries = take(member, limit)
            assert done.isdisjoint(offsets(deliveries))
            member.nack(d for d in deliveries if not verdicts[d.message.offset])
            acked = [d for d in deliveries if verdicts[d.message.offset]]
            member.ack(acked)
            done |= set(offsets(acked))
            if leave:
                member.close()
                member = GroupMember(broker, "g", ["t"])


_VERDICTS = st.just(["ack"] * 9) | st.lists(st.sampled_from(["ack", "ack", "nack", "keep"]), min_size=9, max_size=9)


class GroupMachine(RuleBasedStateMachine):
    """Members come, go, die, poll, ack, nack and seek at random.

    Nothing is ever lost, and what was acknowledged never comes again, to anyone, unless somebody seeks.
    """

    @initialize(partitions=st.integers(1, 2))
    def start(self, partitions: int) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.clock = Clock()
        self.broker = LocalBroker(Path(self.folder.name) / "b.sqlite", clock=self.clock, sleep=self.clock.sleep)
        self.broker.create_topic("t", partitions=partitions)
        fill(self.broker, 6, "t")
        self.members = [(GroupMember(self.broker, "g", ["t"]), list[Delivery]())]
        self.done: set[tuple[int, int]] = set()

    @rule(count=st.integers(1, 5))
    def append(self, count: int) -> None:
        fill(self.broker, count, "t")

    @rule()
    def join(self) -> None:
        if len(self.members) < 3:
            self.members.append((GroupMember(self.broker, "g", ["t"]), []))

    @rule(index=st.integers(0, 2), die=st.booleans(), back=st.booleans())
    def leave(self, index: int, die: bool, back: bool) -> None:
        member, _ = self.members.pop(index % len(self.members))
        if die:
            self.clock.now += 31
        else:
            member.close()
        if back or not self.members:
            self.join()

    @rule(index=st.integers(0, 2), limit=st.integers(1, 6), verdicts=_VERDICTS)
    def poll(self, index: int, limit: int, verdicts: list[str]) -> None:
        member, held = self.members[index % len(self.members)]
        polled = member.poll(limit=limit)
        held[:] = [d for d in held if ("t", d.message.partition) not in polled.lost]
        for delivery in polled.deliveries:
            assert _place(delivery) not in self.done
            assert _place(delivery) not in map(_place, held)
            held.append(delivery)
        self.settle(index, verdicts)

    @rule(index=st.integers(0, 2), verdicts=_VERDICTS)
    def settle(self, index: int, verdicts: list[str]) -> None:
        """Deal with what is held, oldest first."""
        member, held = self.members[index % len(self.members)]
        judged = list(zip(held, verdicts, strict=False))
        held[:] = [d for d in held if (d, "ack") not in judged and (d, "nack") not in judged]
        member.nack(d for d, verdict in judged if verdict == "nack")
        acked = [d for d, verdict in judged if verdict == "ack"]
        with contextlib.suppress(StaleDeliveryError):
            member.ack(acked)
            self.done |= set(map(_place, acked))

    @rule(index=st.integers(0, 2), partition=st.integers(0, 1), back=st.integers(0, 8))
    def seek(self, index: int, partition: int, back: int) -> None:
        member, held = self.members[index % len(self.members)]
        partition %= self.broker.partitions("t")
        offset = max(self.broker.end_offset("t", partition) - back, 0)
        member.seek("t", partition, offset)
        held[:] = [d for d in held if d.message.partition != partition]
        others = {place for place in self.done if place[0] != partition}
        self.done = others | {(partition, before) for before in range(offset)}

    @rule(seconds=st.sampled_from([0.5, 1, 20, 40]))
    def wait(self, seconds: float) -> None:
        self.clock.now += seconds

    @invariant()
    def no_partition_is_held_twice(self) -> None:
        if hasattr(self, "broker"):
            with self.broker.database.read() as connection:
                rows = connection.execute("SELECT count(*), count(DISTINCT partition) FROM leases").fetchone()
            assert rows[0] == rows[1]

    def teardown(self) -> None:
        appended = sum(self.broker.end_offset("t", partition) for partition in range(self.broker.partitions("t")))
        for member, _ in self.members:
            member.close()
        self.clock.now += 100
        last = GroupMember(self.broker, "g", ["t"])
        rest = set(map(_place, take(last, 10_000)))
        assert rest.isdisjoint(self.done)
        assert len(rest) + len(self.done) == appended
        self.broker.close()
        self.folder.cleanup()


def _place(delivery: Delivery) -> tuple[int, int]:
    return delivery.message.partition, delivery.message.offset


TestGroupMachine = GroupMachine.TestCase
TestGroupMachine.settings = hypothesis_settings(max_examples=100, stateful_step_count=50, deadline=None)
