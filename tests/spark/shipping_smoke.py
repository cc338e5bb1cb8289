"""Runs each Spark feature once on a few rows, for `tests/spark_versions.py` and the table of versions in the docs.

python shipping_smoke.py        # with the pyspark that is installed; prints JSON, from feature to "yes" or the reason
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import re
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import claimcheck
import claimcheck.spark as verbs
from claimcheck.errors import ClaimCheckError

sys.path.append(str(Path(__file__).resolve().parents[2]))  # at the end: claimcheck is that of the environment

from tests.spark.drivers import Driver, session

YES = "yes"
_TELLING = re.compile(r"(Caused by: )?[\w.]+(Error|Exception): \S")
PAYLOADS = [b"small", *(bytes([n]) * 3000 for n in range(1, 6))]
CONNECT = {
    "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
    "spark.connect.grpc.binding.address": "127.0.0.1",
    "spark.connect.grpc.binding.port": "0",
    "spark.sql.artifact.isolation.enabled": "true",  # as in Spark's own server
    "spark.sql.artifact.isolation.alwaysApplyClassloader": "true",
    "spark.task.maxFailures": "1",  # fail without retries
}
"""The settings of a Spark Connect server."""


@dataclass(frozen=True)
class Lab:
    """A session, and a folder for payloads and other files."""

    spark: Any
    folder: Path

    @property
    def config(self) -> dict[str, Any]:
        stores = {
            "disk": {"type": "filesystem", "path": str(self.folder / "claims"), "create": True, "ttl_seconds": 604_800}
        }
        return {"strategy": "external", "threshold_bytes": 1000, "stores": stores}

    def messages(self, **more: Any) -> list[bytes]:
        found = []
        with claimcheck.from_dict(self.config | more) as cc:
            for payload in PAYLOADS:
                with cc.outbound(payload, destination="orders", key=b"k") as out:
                    found += [bytes(envelope.data) for envelope in out.envelopes]
        return found

    def frame(self, messages: list[bytes]) -> Any:
        """Return two partitions, which needs neither an RDD nor Arrow."""
        rows = [(n, bytearray(message)) for n, message in enumerate(messages)]
        return self.spark.createDataFrame(rows, "n int, value binary").repartition(2)

    def stream(self, messages: list[bytes]) -> Any:
        folder = str(self.folder / "incoming")
        self.frame(messages).write.mode("overwrite").parquet(folder)
        return self.spark.readStream.schema("n int, value binary").parquet(folder)

    def finished(self, df: Any) -> list[str]:
        """Run a stream to its end; return the digests of its payloads."""
        target, checkpoint = (str(self.folder / f"{name}-{os.urandom(4).hex()}") for name in ("out", "checkpoint"))
        query = df.select("payload").writeStream.format("parquet").option("checkpointLocation", checkpoint)
        query.trigger(availableNow=True).start(target).awaitTermination(240)
        return digests(row.payload for row in self.spark.read.parquet(target).collect())


def digests(payloads: Any) -> list[str]:
    return sorted(hashlib.sha256(payload).hexdigest() for payload in payloads)


WANTED = digests(PAYLOADS)


def resolve(lab: Lab) -> None:
    """A damaged message becomes a row with an error."""
    messages = lab.messages()
    made = verbs.resolve("value", config=lab.config, on_error="null")
    rows = lab.frame([*messages, messages[-1][:-1]]).transform(made).collect()
    assert digests(row.payload for row in rows if row.error is None) == WANTED
    assert [row.error.type for row in rows if row.error is not None] == ["EnvelopeError"]


def resolve_stream(lab: Lab) -> None:
    assert lab.finished(lab.stream(lab.messages()).transform(verbs.resolve("value", config=lab.config))) == WANTED


def resolver(lab: Lab) -> None:
    rdd = lab.spark.sparkContext.parallelize(lab.messages(), 2).mapPartitions(verbs.resolver(lab.config))
    assert digests(rdd.collect()) == WANTED


def map_payloads(lab: Lab) -> None:
    def digest(payload: bytes) -> str:  # not in a module that workers would have to import
        return hashlib.sha256(payload).hexdigest()

    made = verbs.map_payloads(digest, "digest string", column="value", config=lab.config)
    assert sorted(row.digest for row in lab.frame(lab.messages()).transform(made).collect()) == WANTED


def offload(lab: Lab) -> None:
    made = verbs.offload("value", destination="orders", config=lab.config)
    messages = [bytes(row.value) for row in lab.frame(PAYLOADS).transform(made).collect()]
    assert max(map(len, messages)) < 1000
    with claimcheck.from_dict(lab.config) as cc:
        assert digests(map(cc.resolve, messages)) == WANTED


def repartition(lab: Lab) -> None:
    from pyspark.sql.functions import spark_partition_id

    messages = lab.messages()
    made = verbs.repartition_by_payload("value", config=lab.config, target_bytes=5000)
    rows = lab.frame(messages).transform(made).withColumn("place", spark_partition_id()).collect()
    assert sorted(bytes(row.value) for row in rows) == sorted(messages)
    assert len({row.place for row in rows}) > 1


def reassemble(lab: Lab) -> None:
    df = lab.frame(lab.messages(strategy="chunking")).transform(verbs.reassemble("value", config=lab.config))
    assert digests(row.payload for row in df.collect()) == WANTED


def reassemble_stream(lab: Lab) -> None:
    made = verbs.reassemble("value", config=lab.config, expire_by="data")
    assert lab.finished(lab.stream(lab.messages(strategy="chunking")).transform(made)) == WANTED


def source(lab: Lab) -> None:
    """Read a stream from the source that needs no server."""
    from claimcheck.spark.sources import register
    from claimcheck.transports.local import LocalBroker, LocalProducer

    path = str(lab.folder / "broker.sqlite")
    with LocalBroker(path, max_message_bytes=2000) as broker, claimcheck.from_dict(lab.config) as cc:
        broker.create_topic("orders", partitions=2)
        producer = LocalProducer(broker, cc)
        for payload in PAYLOADS:
            producer.send("orders", payload)
    register(lab.spark)
    rows = lab.spark.readStream.format("claimcheck_local").option("path", path).option("topic", "orders").load()
    assert lab.finished(rows.transform(verbs.resolve("value", config=lab.config))) == WANTED


def connect(lab: Lab) -> None:
    """Use separate processes: a process has one kind of session."""
    if importlib.util.find_spec("pyspark.sql.connect") is None or importlib.util.find_spec("grpc") is None:
        raise RuntimeError("grpcio is not installed: pyspark[connect] brings it")
    with Driver(CONNECT, lab.folder) as server:
        address = f"sc://127.0.0.1:{server.run('connect_port')}"
        with Driver({"spark.remote": address}, lab.folder) as client:
            client.run("feature", name="`resolve`", folder=str(lab.folder))


FEATURES: dict[str, Callable[[Lab], None]] = {
    "`resolve`": resolve,
    "`resolve` of a stream": resolve_stream,
    "`resolver`, for RDDs": resolver,
    "`map_payloads`": map_payloads,
    "`offload`": offload,
    "`repartition_by_payload`": repartition,
    "`reassemble` of a batch": reassemble,
    "`reassemble` of a stream": reassemble_stream,
    "sources": source,
    "Spark Connect": connect,
}
"""The function that tries each feature, by its name in the docs."""


def attempt(name: str, lab: Lab) -> str:
    """Try a feature; return `YES` or the reason why it fails."""
    try:
        FEATURES[name](lab)
    except Exception as error:
        return f"no: {_reason(error)}"
    return YES


def _reason(error: Exception) -> str:
    """Return the most useful line of an error from a worker, Java or another process."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    if isinstance(error, ClaimCheckError):
        return lines[0]
    telling = [line for line in lines if _TELLING.match(line)]
    return (telling or lines)[0][:200]


def main() -> None:
    spark = session({})
    with tempfile.TemporaryDirectory() as folder:
        found = {name: attempt(name, Lab(spark, Path(folder))) for name in FEATURES}
    spark.stop()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
