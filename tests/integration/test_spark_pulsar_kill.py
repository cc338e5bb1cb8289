"""Spark's JVM is killed during a query, but its driver is not: the query continues in a new session."""

import json
import os
import subprocess
import sys
from pathlib import Path

from tests import servers
from tests.spark.sources_rig import batches_of, stream, written

CHILD = Path(__file__).with_name("spark_jvm_child.py")


def run_and_kill(environment, folder, told, stop):
    """Run until the JVM is killed; return the error that the driver sees."""
    done = subprocess.run(
        [sys.executable, str(CHILD), str(folder), json.dumps(told), stop],
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        timeout=120,
    )
    return done.stdout.strip()


def consumers(topic):
    """Return the consumers of the query's subscription."""
    partitions = topic.broker.request(
        "GET", f"persistent/public/default/{topic.name}/partitioned-stats?perPartition=true"
    )
    found = [part["subscriptions"].get("spark", {}) for part in partitions["partitions"].values()]
    return [consumer for each in found for consumer in each.get("consumers", ())]


def test_a_jvm_that_is_killed_loses_nothing(worker_env, spark_sources, spark_topic, tmp_path):
    spark_topic.broker.create_partitioned(spark_topic.name, 3)
    spark_topic.send(range(100))
    spark_topic.send(range(100, 150), batched=True)
    told = spark_topic.options(maxRowsPerTrigger=40)

    noticed = [run_and_kill(worker_env, tmp_path, told, "before 1")]
    servers.wait_until(lambda: not consumers(spark_topic), "nobody of the first run is left")
    planned = (tmp_path / "checkpoint" / "offsets" / "1").read_text()
    noticed.append(run_and_kill(worker_env, tmp_path, told, "after 2"))
    servers.wait_until(lambda: not consumers(spark_topic), "nobody of the second run is left")
    spark_topic.send(range(150, 170), batched=True)
    seen = batches_of(stream(spark_sources, "claimcheck_pulsar", told), tmp_path / "checkpoint")

    assert all("Error" in name for name in noticed), noticed
    attempts = written(tmp_path)
    rest = {number: sorted(bytes(row.value).decode() for row in rows) for number, rows in seen.items()}
    assert {number: len(each) for number, each in attempts.items()} == {0: 1, 1: 1, 2: 1}
    assert (tmp_path / "checkpoint" / "offsets" / "1").read_text() == planned
    assert rest.pop(2) == attempts[2][0]  # written but not committed, so written again
    rows = [row for each in attempts.values() for row in each[0]] + [row for each in rest.values() for row in each]
    assert sorted(rows) == sorted(map(str, range(170)))
