"""Spark's own Kafka source and sink, in a process of its own: jars are chosen before Java starts, and it may be killed.

    python spark_kafka_job.py CONF

CONF is JSON, for Spark. Each line of standard input is a job as JSON: ``job`` (``batch``, ``sink``, ``stream`` or
``garbage``), ``kafka`` for Spark's source and sink, the ``topic``, the ``config`` of claimcheck; and see each job. The
result of each job is printed as one line of JSON.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from claimcheck.spark import ensure_java, resolve

ensure_java()

from pyspark.sql import DataFrame, SparkSession  # noqa: E402 - a Java is needed first


class Job:
    """One job of a session."""

    def __init__(self, spark: SparkSession, given: dict[str, Any]) -> None:
        self.spark = spark
        self.given = given

    def batch(self) -> list[dict[str, Any]]:
        """All of a topic."""
        return _told(self._read(self.given["topic"]))

    def sink(self) -> list[dict[str, Any]]:
        """Payloads from one topic into another, in which they are larger than the broker takes; and that one read."""
        from claimcheck.spark import offload

        source, into = self._read(self.given["topic"]).select("payload", "key", "headers"), self.given["into"]
        made = offload("payload", destination=into, config=self.given["config"], key="key", headers="headers")
        sink = source.transform(made).write.format("kafka").options(**self.given["kafka"])
        sink.option("topic", into).option("includeHeaders", "true").save()
        return _told(self._read(into))

    def stream(self) -> None:
        """Every batch into a file of its own, named by its id; it stops for good inside of the batch ``stop_in``."""
        target = Path(self.given["target"])

        def keep(df: DataFrame, batch: int) -> None:
            text = json.dumps(_told(df))
            (target / f"attempt-{self.given['run']}-{batch}.json").write_text(text)
            if batch == self.given["stop_in"]:
                print("stopped", flush=True)
                time.sleep(600)  # until somebody kills this
            (target / f"batch-{batch}.json").write_text(text)

        source = self.spark.readStream.format("kafka").options(**self._options(self.given["topic"]))
        rows = self._resolved(source.option("maxOffsetsPerTrigger", self.given["rows_per_batch"]).load())
        query = rows.writeStream.foreachBatch(keep).option("checkpointLocation", self.given["checkpoint"])
        running = query.trigger(availableNow=True).start()
        running.awaitTermination()

    def garbage(self) -> dict[str, Any]:
        """Collect the garbage of topics."""
        from claimcheck.spark import collect_garbage

        topics = [{"format": "kafka", **self.given["kafka"], "subscribe": name} for name in self.given["topics"]]
        with collect_garbage(self.spark, config=self.given["config"], topics=topics) as report:
            return {"pointers": report.pointers, **asdict(report.delete(claim=True))}

    def _options(self, topic: str) -> dict[str, str]:
        read = {"subscribe": topic, "startingOffsets": "earliest", "includeHeaders": "true"}
        return {**self.given["kafka"], **read}

    def _read(self, topic: str) -> DataFrame:
        return self._resolved(self.spark.read.format("kafka").options(**self._options(topic)).load())

    def _resolved(self, df: DataFrame) -> DataFrame:
        return df.transform(resolve("value", config=self.given["config"], on_error="null"))


def _told(df: DataFrame) -> list[dict[str, Any]]:
    """What can be compared, in the order of the topic."""
    chosen = df.selectExpr(
        "topic", "partition", "offset", "CAST(key AS STRING) AS key",
        "transform(headers, h -> concat(h.key, '=', CAST(h.value AS STRING))) AS headers",
        "sha2(payload, 256) AS digest", "error",
    )  # fmt: skip
    rows = [row.asDict(recursive=True) for row in chosen.collect()]
    return sorted(rows, key=lambda row: (row["partition"], row["offset"]))


def session(conf: dict[str, str]) -> SparkSession:
    builder = SparkSession.builder.master("local[2]").appName("kafka")
    for name, value in conf.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    return spark


def main(conf: str) -> None:
    spark = session(json.loads(conf))
    for line in sys.stdin:
        given = json.loads(line)
        print(json.dumps(getattr(Job(spark, given), given["job"])()), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
