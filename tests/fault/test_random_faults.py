"""A few runs with random faults on servers of their own; ``make faults RUNS=500`` makes more."""

import os

import pytest

from tests import servers
from tests.fault.random_faults import lab, table

RUNS = {"kafka": 5, "pulsar": 5, "spark": 2}


@pytest.mark.parametrize("name", [pytest.param(name, marks=getattr(pytest.mark, name)) for name in RUNS])
def test_everything_that_was_reported_sent_is_received_whole(request, name):
    request.getfixturevalue("pulsar_jars" if name == "pulsar" else "kafka_jars")
    request.getfixturevalue("s3_program" if name == "pulsar" else "redis_programs")
    if name == "spark":
        request.getfixturevalue("spark_kafka_jars")
    if (servers.PULSAR_JARS if name == "pulsar" else servers.KAFKA_JARS) not in os.environ:
        pytest.skip("no jars to start a broker of one's own")
    tallies = {}
    with lab(name) as opened:
        kinds = list(opened.kinds)
        for seed in range(RUNS[name]):
            kind, tally = opened.run(seed, kinds[(seed * 3 + 1) % len(kinds)])
            tallies[kind] = tally
            assert tally.sent > 0
    print(table(tallies))
    assert not [seed for tally in tallies.values() for seed in tally.failed]
