"""Limits of a trigger on topics with several ledgers: every row once, no batch over the limit, and an end."""

import pytest

from tests.spark.sources_rig import batches_of, stream, values

PULSAR = "claimcheck_pulsar"
LEDGERS = 3


def fill(topic, rows, *, of=1):
    """Send numbers to several ledgers; ``of`` numbers share an entry."""
    sent = []
    topic.keep()
    for ledger in range(LEDGERS):
        if ledger:
            topic.roll()
        for first in range(ledger * rows, (ledger + 1) * rows, of if of > 1 else rows):
            sent += topic.send(range(first, first + (of if of > 1 else rows)), batched=of > 1)
    return sorted(sent)


def run(spark, topic, folder, **limits):
    return batches_of(stream(spark, PULSAR, topic.options(**limits)), folder / "c")


def sizes(seen):
    return [len(seen[number]) for number in sorted(seen)]


def check_entries(seen):
    """Entries are read as a whole, from all ledgers; a ledger need not have a producer's batch in every partition."""
    where = [{(row.partition, row.ledger_id, row.entry_id) for row in rows} for rows in seen.values()]
    entries = set().union(*where)
    assert sum(map(len, where)) == len(entries)
    assert len({ledger for _, ledger, _ in entries}) >= LEDGERS


@pytest.mark.parametrize("of", [1, 10], ids=["unbatched", "batched"])
def test_rows_of_several_ledgers(spark_sources, spark_topic, tmp_path, of):
    spark_topic.broker.create_partitioned(spark_topic.name, 2)
    sent = fill(spark_topic, 80, of=of)

    seen = run(spark_sources, spark_topic, tmp_path, maxRowsPerTrigger=45)

    assert values(seen) == sent
    assert max(sizes(seen)) <= 45  # no entry has more than a partition's share
    assert len(seen) <= len(sent) // 20  # and no batch is needlessly small
    check_entries(seen)


@pytest.mark.parametrize("of", [1, 100], ids=["unbatched", "batched"])
def test_more_rows_than_are_looked_at(spark_sources, spark_topic, tmp_path, of):
    sent = fill(spark_topic, 1500, of=of)

    seen = run(spark_sources, spark_topic, tmp_path, maxRowsPerTrigger=2000)

    assert values(seen) == sent
    assert sizes(seen) == [2000, 2000, 500]
    check_entries(seen)


def test_an_entry_of_more_rows_than_the_limit_comes_whole(spark_sources, spark_topic, tmp_path):
    sent = fill(spark_topic, 60, of=30)

    seen = run(spark_sources, spark_topic, tmp_path, maxRowsPerTrigger=20)

    assert values(seen) == sent
    assert sizes(seen) == [30] * 6
