"""Leases of partitions: assignment, expiry and renewal."""

from __future__ import annotations

import pytest

from claimcheck.transports.local import (
    StaleDeliveryError,
)
from tests.unit.groups.rig import fill, offsets, rows, settle, take

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
    assert first.poll().lost == (("wide", 1), ("wide", 3))
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
    assert [(d.message.partition, d.message.offset) for d in take(second)] == [(1, 1), (3, 1)]


def test_a_partition_moves_as_a_whole_and_stale_acknowledgements_are_refused(broker, join, clock):
    fill(broker, 4, "wide")
    first = join("wide")
    moved = [d for d in take(first) if d.message.partition == 3]
    second = join("wide")
    settle(clock, first, second)
    with pytest.raises(StaleDeliveryError, match="leased again, or a seek") as caught:
        first.ack(moved)
    assert (caught.value.destination, caught.value.partition, caught.value.offset) == ("wide", 3, 0)
    first.nack(moved)  # skipped: it is redelivered anyway
    assert rows(broker, "redeliveries") == 0


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
