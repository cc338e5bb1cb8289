"""What the tests of both brokers share. Each broker has a file, because a worker of pytest runs whole files."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import settings

from tests.simulation.run import failure

PARTS = 10
SEEDS_FAST = 300  # for each broker, in `make test`
SEEDS = 10_000  # with all examples
DEAD_PROCESSES = pytest.mark.filterwarnings(  # leave coroutines and loops behind
    "ignore::RuntimeWarning", "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)


def any_schedule(broker: str) -> Callable[[int], None]:
    """Return the test that no schedule of a broker fails, in parts."""

    @DEAD_PROCESSES
    @pytest.mark.parametrize("part", range(PARTS))
    def test_any_schedule(part: int) -> None:
        is_fast = settings.get_current_profile_name() == "fast"
        if report := failure(broker, range(part, SEEDS_FAST if is_fast else SEEDS, PARTS)):
            pytest.fail(report, pytrace=False)

    return test_any_schedule
