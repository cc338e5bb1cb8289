"""Groups of the embedded broker: poll, ack, nack. Time is injected."""

from __future__ import annotations

import pytest

from claimcheck.transports.local import (
    StaleDeliveryError,
)
from claimcheck.transports.local._groups import POLL_SECONDS, Delivery, GroupMember
from tests.unit.groups.rig import fill, offsets, rows, take

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
    heir.ack(gap)  # acknowledged up to the end, although the new member has read only one
    assert (offsets(gap), take(heir)) == ([0], [])
    fill(broker, 1)
    assert offsets(take(heir)) == [6]


def test_acknowledgements_without_gaps_are_kept_as_one_number(broker, join):
    fill(broker, 4)
    member = join()
    deliveries = take(member)
    member.ack([deliveries[1], deliveries[3]])
    assert rows(broker, "acks") == 2
    member.ack([deliveries[0], deliveries[2]])
    assert rows(broker, "acks") == 0
    member.ack(deliveries)  # again: harmless
    assert rows(broker, "acks") == 0
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


# Redelivery


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
    assert take(other) == []  # once, not once from the floor and once more as a redelivery


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
    assert rows(broker, "redeliveries") == 0


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
    looked = GroupMember._mark_redelivered

    def late(member: GroupMember, again: list[Delivery]) -> None:
        """Between reading and marking the lease ends, and the next holder rejects the message."""
        monkeypatch.setattr(GroupMember, "_mark_redelivered", looked)
        clock.now += 31
        heirs.append(join())
        heirs[0].nack(take(heirs[0]))
        looked(member, again)

    heirs: list[GroupMember] = []
    monkeypatch.setattr(GroupMember, "_mark_redelivered", late)
    slow.poll()
    assert [(d.message.offset, d.redelivery_count) for d in take(heirs[0])] == [(0, 2)]
