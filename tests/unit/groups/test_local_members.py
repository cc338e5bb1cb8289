"""Members of a group of the embedded broker: they join, seek and leave."""

from __future__ import annotations

import pytest

from claimcheck.errors import ConfigError
from claimcheck.transports.local import (
    BrokerClosedError,
    OffsetOutOfRangeError,
    StaleDeliveryError,
    UnknownPartitionError,
    UnknownTopicError,
)
from claimcheck.transports.local._groups import GroupMember
from tests.unit.groups.rig import fill, offsets, rows, take

# Seeking


def test_seeking_back_gives_everything_from_there_again(broker, join):
    fill(broker, 4)
    member = join()
    member.ack(take(member))
    member.seek("orders", 0, 1)
    polled = member.poll(limit=9)
    assert offsets(list(polled.deliveries)) == [1, 2, 3]
    assert polled.lost == ()  # the member's own seek


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
    with pytest.raises(ConfigError, match="joined for: orders"):
        member.seek("wide", 0, 0)


# Joining and leaving


def test_leaving_frees_the_partitions_within_a_second(broker, join, clock):
    fill(broker, 1)
    member, other = join(), join()
    take(member)
    assert take(other) == []
    member.close()
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
    assert rows(broker, "members") == rows(broker, "leases") == 0


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
    with pytest.raises(ConfigError):
        GroupMember(broker, group, topics, lease_seconds=lease_seconds)


def test_a_poll_for_nothing_is_refused(join):
    with pytest.raises(ConfigError, match="at least 1"):
        join().poll(limit=0)


def test_repr_says_what_is_held(join):
    member = join("wide", "orders")
    member.poll()
    assert repr(member) == "<GroupMember of g on wide, orders: 5 partitions>"
