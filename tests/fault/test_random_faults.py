"""A few runs with random faults on servers of their own; ``make faults RUNS=500`` makes more."""

import pytest

from tests.fault.random_faults import lab, table

KINDS = {
    "kafka": ["the sender is killed", "the broker is killed", "the store evicts payloads"],
    "pulsar": ["the reader is killed", "a line to the broker is cut", "the store's disk is full"],
    "spark": ["the reader is killed"],
}


@pytest.mark.parametrize("name", [pytest.param(name, marks=getattr(pytest.mark, name)) for name in KINDS])
def test_everything_that_was_reported_sent_is_received_whole(request, name):
    request.getfixturevalue("own_pulsar_jars" if name == "pulsar" else "own_kafka_jars")
    request.getfixturevalue("s3_programs" if name == "pulsar" else "redis_programs")
    if name == "spark":
        request.getfixturevalue("spark_kafka_jars")
    with lab(name) as opened:
        kinds = [kind for kind in KINDS[name] if kind in opened.kinds]  # without root, no disk is full
        tallies = {kind: opened.run(seed, kind)[1] for seed, kind in enumerate(kinds)}
    print(table(tallies))
    assert all(tally.sent > 0 for tally in tallies.values())
    assert not [seed for tally in tallies.values() for seed in tally.failed]
