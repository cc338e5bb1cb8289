"""Rebalances, commits, seeks, pauses and closes inside every call of a Kafka consumer; nothing needs a broker."""

import dataclasses
import itertools
import random

import pytest

from claimcheck.transports.kafka._receiver import Receiver
from tests.harness.kafka_callbacks import EVENTS, LAYOUTS, ON_REVOKE, Scenario, scripted

OPTIONS = list(itertools.product((True, False), repeat=2))  # auto_offset_store and enable.auto.commit
POINTS = range(1, 14)


@pytest.fixture
def run():
    with scripted() as run:
        yield run


def everywhere(auto_offset_store, auto_commit, receive):
    """Each event at each of the first calls of the client."""
    for point, event in itertools.product(POINTS, EVENTS):
        yield Scenario(auto_offset_store, auto_commit, receive=receive, events={point: event})


def anything(seed, count):
    """Several events, of any kind, anywhere."""
    chance = random.Random(seed)
    for _ in range(count):
        yield Scenario(
            auto_offset_store=chance.random() < 0.5,
            auto_commit=chance.random() < 0.5,
            layout=chance.choice(list(LAYOUTS)),
            receive=chance.choice((1, 2, 3, 50)),
            burst=chance.choice((1, 2, 4, 50)),
            events={chance.randint(1, 40): chance.choice(EVENTS) for _ in range(chance.randint(1, 4))},
            on_revoke=chance.choice(ON_REVOKE),
            manual=chance.random() < 0.2,
            prefetch_bytes=chance.choice((None, None, 0, 1000)),
        )


def faults(run, scenarios):
    """Return what went wrong, with the scenario in which it did."""
    return [(found[0], scenario) for scenario in scenarios if (found := run(scenario))]


@pytest.mark.parametrize(
    ("auto_offset_store", "auto_commit", "receive"), [*((*options, 50) for options in OPTIONS), (True, True, 1)]
)
def test_a_commit_covers_only_what_an_earlier_call_returned(run, auto_offset_store, auto_commit, receive):
    assert faults(run, everywhere(auto_offset_store, auto_commit, receive)) == []


@pytest.mark.parametrize("reaction", ON_REVOKE)
def test_whatever_a_callback_does_when_partitions_are_revoked(run, reaction):
    scenarios = [
        Scenario(*options, receive=50, events={point: "revoke"}, on_revoke=reaction)
        for options, point in itertools.product(OPTIONS, POINTS)
    ]

    assert faults(run, scenarios) == []


def test_any_order_of_any_events(run):
    assert faults(run, anything(seed=1, count=400)) == []


def test_a_payload_that_is_reported_while_its_chunks_are_read_again_is_not_reported_twice(run):
    """Its partition is paused meanwhile, and nothing is delivered after it."""
    events = {17: "commit", 22: "pause", 24: "pause"}

    assert run(Scenario(True, True, burst=4, events={10: "unsubscribe", **events}, manual=True, prefetch_bytes=0)) == []


class TestTheHarness:
    """It reports faults that are planted in the library; others are planted in `tests/simulation/planted.py`."""

    @pytest.fixture
    def finds(self, run, monkeypatch):
        """Plants a fault; returns whether one with this beginning is reported."""

        def finds(begin, name, replacement, **changes):
            monkeypatch.setattr(Receiver, name, replacement)
            scenarios = [*everywhere(True, True, 50), *everywhere(True, True, 1)]
            return any(
                fault.startswith(begin) for each in scenarios for fault in run(dataclasses.replace(each, **changes))
            )

        return finds

    def test_records_count_as_delivered_when_they_arrive(self, finds):
        add = Receiver._add

        def add_as_delivered(self, ready):
            add(self, ready)
            if ready.partition is not None:
                ready.partition.offsets.delivered(ready.first, ready.last)

        assert finds("a commit", "_add", add_as_delivered)

    def test_it_looks_ahead_after_messages_count_as_delivered(self, finds):
        hand_out = Receiver.hand_out

        def hand_out_first(self, count, *, look_ahead=False):
            messages = hand_out(self, count)
            self._look_ahead()
            return messages

        assert finds("a commit", "hand_out", hand_out_first, prefetch_bytes=1000, layout="pointers")
