"""The simulation finds each defect that is planted, minimizes failures and replays them."""

import pytest

from tests.simulation.planted import DEFECTS
from tests.simulation.run import Schedule, minimized
from tests.simulation.test_schedules import DEAD_PROCESSES

pytestmark = DEAD_PROCESSES

MOST = 2000  # schedules until a planted defect has to be found


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
    assert len(smaller.kept) <= len(result.kept)
