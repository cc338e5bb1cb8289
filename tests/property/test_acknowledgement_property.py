"""A cumulative acknowledgement beside holes, against a log that knows what it must cover."""

from hypothesis import given
from hypothesis import strategies as st

from claimcheck.transports.pulsar import _message
from claimcheck.transports.pulsar._message import AckPlan, CumulativeAcks

# Of each message of a log: whether it is a payload of its own, belongs to one that is settled now, or must stay.
LOGS = st.lists(st.sampled_from(["own", "settled", "held"]), min_size=1, max_size=40)


def applied(plan: AckPlan, target: int) -> set[int]:
    """What a broker has acknowledged then; an individual acknowledgement must be needed."""
    end = target if plan.before is None else plan.before - 1
    assert list(plan.individually) == sorted(set(plan.individually))
    assert all(handle > end for handle in plan.individually)
    return {*range(end + 1), *plan.individually}


class TestCumulativeAcks:
    @given(LOGS, st.data())
    def test_covers_everything_up_to_the_target_but_what_is_held(self, log, data):
        target = data.draw(st.integers(0, len(log) - 1))
        hole = next((i for i, kind in enumerate(log) if kind == "held"), None)
        acks = CumulativeAcks()
        for i, kind in enumerate(log):
            if kind == "own" and hole is not None and hole < i:
                acks.received(i, i)

        settled = [(i, i) for i, kind in enumerate(log) if kind == "settled" and i <= target]
        plan = acks.up_to(target, hole=hole, settled=settled)

        assert applied(plan, target) == {i for i in range(target + 1) if log[i] != "held"}
        again = acks.up_to(target, hole=hole)
        assert again.individually == ()

    @given(LOGS, st.lists(st.integers(0, 40)), st.lists(st.integers(0, 40)))
    def test_in_steps_with_redeliveries_and_messages_acknowledged_on_their_own(self, log, again, alone):
        """A target that goes up step by step covers the same; what was acknowledged alone is not named again."""
        acks, acknowledged, named = CumulativeAcks(), set(), []
        for i in [*range(len(log)), *(i for i in again if i < len(log))]:
            if log[i] == "own":
                acks.received(i, i)
        for i in alone:
            acks.pop(i, None)
        hole = next((i for i, kind in enumerate(log) if kind == "held"), None)
        for target in range(len(log)):
            plan = acks.up_to(target, hole=hole)
            named += plan.individually
            acknowledged |= applied(plan, target)

        expected = {i for i, kind in enumerate(log) if hole is None or i < hole or (kind == "own" and i not in alone)}
        assert acknowledged == expected
        assert len(named) == len(set(named))

    def test_a_late_message_of_a_settled_payload_is_named_although_it_lies_behind_the_target(self):
        plan = CumulativeAcks().up_to(5, hole=None, settled=[(3, "3"), (9, "9")])
        assert plan == AckPlan(before=None, individually=("9",))

    def test_the_oldest_are_forgotten_when_there_are_too_many(self, monkeypatch):
        monkeypatch.setattr(_message, "_MOST_HANDLES", 3)
        acks = CumulativeAcks()
        for i in (5, 6, 9, 7, 8):
            acks.received(i, i)
        assert acks.up_to(99, hole=1).individually == (7, 8, 9)
