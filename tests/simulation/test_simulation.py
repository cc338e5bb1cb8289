"""The simulation finds each defect that is planted, minimizes failures and replays them."""

import pytest

from tests.simulation.planted import DEFECTS
from tests.simulation.run import Schedule, minimized, report
from tests.simulation.schedules import DEAD_PROCESSES

pytestmark = DEAD_PROCESSES

MOST = 400  # schedules until a planted defect has to be found


@pytest.mark.parametrize("schedule", ["pulsar-4786", "pulsar-16472", "kafka-3897", "kafka-10912", "kafka-65917"])
def test_a_schedule_that_failed_once(schedule):
    result = Schedule.parse(schedule).run()
    assert not result.wrong, report(result)


@pytest.mark.slow
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
