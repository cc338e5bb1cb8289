"""The real clients of Pulsar in a simulated broker and store: nothing is lost, in any order of events; no server."""

from tests.simulation.schedules import any_schedule

test_any_schedule = any_schedule("pulsar")
