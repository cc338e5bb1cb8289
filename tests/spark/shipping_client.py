"""A Spark Connect client in a process without Java; executors have only the claimcheck that the client adds.

Reads JSON from its standard input: the ``port`` of the server, the ``zip`` and the ``wheel`` to add, the ``config`` of
claimcheck, the ``messages`` and the ``chunks`` in hexadecimal, and which ``steps`` to take. Prints as JSON what came of
each, or its error.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable, Iterator
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

import claimcheck.spark


class Client:
    """One session."""

    def __init__(self, given: dict[str, Any]) -> None:
        self.spark = SparkSession.builder.remote(f"sc://127.0.0.1:{given['port']}").getOrCreate()
        self.config, self.given = given["config"], given
        self.messages = [bytes.fromhex(message) for message in given["messages"]]

    def frame(self, messages: list[bytes] | None = None) -> DataFrame:
        rows = list(enumerate(self.messages if messages is None else messages))
        return self.spark.createDataFrame(rows, "n int, value binary").repartition(2)

    def before(self) -> None:
        """Resolve before claimcheck is shipped."""
        self.resolve()

    def wheel(self) -> None:
        """Ship a wheel under its own name."""
        self.spark.addArtifacts(self.given["wheel"], pyfile=True)

    def artifact(self) -> list[str]:
        """Ship the zip; return where executors find it."""
        self.spark.addArtifacts(self.given["zip"], pyfile=True)

        def ask(batches: Iterator[Any]) -> Iterator[Any]:
            import pyarrow as pa

            import claimcheck

            for _ in batches:
                yield pa.RecordBatch.from_pydict({"file": [str(claimcheck.__file__)]})

        return sorted({row.file for row in self.frame().mapInArrow(ask, "file string").collect()})

    def resolve(self) -> list[str]:
        df = self.frame().transform(claimcheck.spark.resolve("value", config=self.config))
        return _digests(df.select("n", "payload").collect())

    def error_column(self) -> list[Any]:
        bad = self.messages[-1][:-1]  # truncated JSON
        transform = claimcheck.spark.resolve("value", config=self.config, on_error="null")
        rows = self.frame([self.messages[-1], bad]).transform(transform).orderBy("n").collect()
        return [row.error and row.error.type for row in rows]

    def map_payloads(self) -> list[str]:
        def digest(payload: bytes) -> str:
            return hashlib.sha256(payload).hexdigest()

        transform = claimcheck.spark.map_payloads(digest, "digest string", column="value", config=self.config)
        return [row.digest for row in self.frame().transform(transform).orderBy("n").collect()]

    def offload(self) -> list[str]:
        """Resolve payloads, offload them again, and resolve the messages."""
        payloads = self.frame().transform(claimcheck.spark.resolve("value", config=self.config)).drop("value")
        made = payloads.transform(claimcheck.spark.offload("payload", destination="orders", config=self.config))
        messages = [bytes(row.value) for row in sorted(made.collect(), key=lambda row: row.n)]
        assert max(map(len, messages)) < 1000
        with claimcheck.from_dict(self.config) as cc:
            return [hashlib.sha256(cc.resolve(message)).hexdigest() for message in messages]

    def repartition_by_payload(self) -> list[str]:
        spread = claimcheck.spark.repartition_by_payload("value", config=self.config, target_bytes=5000)
        rows = self.frame().transform(spread).withColumn("place", F.spark_partition_id()).collect()
        assert len({row.place for row in rows}) > 1
        rows.sort(key=lambda row: row.n)
        assert [bytes(row.value) for row in rows] == self.messages
        return [str(row.n) for row in rows]

    def reassemble(self) -> list[str]:
        verbs: Any = claimcheck.spark
        made = verbs.reassemble("value", config=self.config)
        chunks = [bytes.fromhex(chunk) for chunk in self.given["chunks"]]
        rows = self.frame(chunks).transform(made).collect()
        assert all(row.error is None for row in rows)
        return sorted(hashlib.sha256(row.payload).hexdigest() for row in rows)

    def streaming(self) -> list[str]:
        """Resolve a stream from one folder to another."""
        folder, target = self.given["folder"], self.given["target"]
        self.frame().write.parquet(folder)
        stream = self.spark.readStream.schema("n int, value binary").parquet(folder)
        done = stream.transform(claimcheck.spark.resolve("value", config=self.config)).select("n", "payload")
        query = done.writeStream.format("parquet").option("checkpointLocation", self.given["checkpoint"])
        query.trigger(availableNow=True).start(target).awaitTermination(240)
        return _digests(self.spark.read.parquet(target).collect())


def _digests(rows: list[Any]) -> list[str]:
    return [hashlib.sha256(row.payload).hexdigest() for row in sorted(rows, key=lambda row: row.n)]


def _told(act: Callable[[], Any]) -> dict[str, Any]:
    try:
        return {"result": act()}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}


def main() -> None:
    given = json.load(sys.stdin)
    client = Client(given)
    found = {step: _told(getattr(client, step)) for step in given["steps"]}
    client.spark.stop()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
