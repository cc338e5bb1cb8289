"""The real clients in a simulated broker and store: nothing is lost, in any order of events; no server."""

import pytest
from hypothesis import settings

from tests.simulation.run import RUNS, failure

PARTS = 10
SEEDS_FAST = 300  # for each broker, in `make test`
SEEDS = 10_000  # with all examples
DEAD_PROCESSES = pytest.mark.filterwarnings(  # leave coroutines and loops behind
    "ignore::RuntimeWarning", "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)


@DEAD_PROCESSES
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("broker", RUNS)
def test_any_schedule(broker, part):
    is_fast = settings.get_current_profile_name() == "fast"
    if report := failure(broker, range(part, SEEDS_FAST if is_fast else SEEDS, PARTS)):
        pytest.fail(report, pytrace=False)
