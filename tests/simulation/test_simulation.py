"""The real clients in simulated brokers and stores: nothing is lost, in any order of events; nothing needs a server."""

import pytest

from tests.simulation.planted import DEFECTS
from tests.simulation.run import Schedule, minimized, report

# A process that dies leaves coroutines and loops behind.
pytestmark = pytest.mark.filterwarnings(
    "ignore::RuntimeWarning", "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)

SEEDS = {"kafka": 800, "pulsar": 1200}
MOST = 250  # schedules until a planted defect has to be found

# Schedules that found a defect of the library when they were written.
FOUND = (
    "kafka-41-32-18.19.21",  # a committed offset stayed at chunks that were dropped before retention removed their head
    "pulsar-53-36-0.4.5",  # chunks did not expire while every receive was given up within a second
    "pulsar-45",  # a cumulative acknowledgement covered a payload that waited to be returned
)


@pytest.mark.parametrize("part", range(4))
@pytest.mark.parametrize("broker", SEEDS)
def test_any_schedule(broker, part):
    for seed in range(part, SEEDS[broker], 4):
        result = Schedule(broker, seed).run()
        assert not result.wrong, report(minimized(result))


@pytest.mark.parametrize("schedule", FOUND)
def test_schedules_that_found_a_defect(schedule):
    assert Schedule.parse(schedule).run().wrong == ""


@pytest.mark.parametrize("defect", DEFECTS, ids=lambda defect: f"{defect.broker}: {defect.name}")
def test_a_planted_defect_is_found(defect, record_property):
    count, result = defect.found(MOST)
    assert result is not None, f"not found in {MOST} schedules"
    record_property("schedules", count)


def test_a_failure_is_minimized_and_replays():
    defect = next(each for each in DEFECTS if each.name == "commit one too far")
    with defect.planted():
        _, result = defect.found(MOST)
        smaller = minimized(result)
        again = Schedule.parse(str(smaller.schedule)).run()

    assert again.wrong == smaller.wrong != ""
    assert len(smaller.faults) <= len(result.faults)
