"""The real clients of Pulsar in a simulated broker and store: nothing is lost, in any order of events.

Nothing needs a server. Each broker has a file, because a worker of pytest runs whole files.
"""

import pytest
from hypothesis import settings

from tests.simulation.run import PARTS, failure, seeds_of

# A process that dies leaves coroutines and loops behind.
pytestmark = pytest.mark.filterwarnings(
    "ignore::RuntimeWarning", "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)


@pytest.mark.parametrize("part", range(PARTS))
def test_any_schedule(part):
    assert not failure("pulsar", seeds_of(part, settings.get_current_profile_name()))
