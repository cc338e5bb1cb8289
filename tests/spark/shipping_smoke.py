"""Runs each Spark feature once on a few rows, for `tests/spark_versions.py` and the README's table of versions.

python shipping_smoke.py        # with the pyspark that is installed; prints JSON, from feature to "yes" or the reason
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import claimcheck
import claimcheck.spark
from claimcheck.errors import ClaimCheckError

YES = "yes"
MISSING = "not in claimcheck yet"
_TELLING = re.compile(r"(Caused by: )?[\w.]+(Error|Exception): \S")
PAYLOADS = [b"small", *(bytes([n]) * 3000 for n in range(1, 6))]


class MissingFeatureError(Exception):
    """The library does not have the feature."""


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
        with claimcheck.from_dict(self.config | more) as cc:
            return [bytes(e.data) for payload in PAYLOADS for e in _envelopes(cc, payload)]

    def frame(self, messages: list[bytes]) -> Any:
        """Return two partitions, read from files, which needs neither an RDD nor Arrow."""
        rows = [(n, bytearray(message)) for n, message in enumerate(messages)]
        return self.spark.createDataFrame(rows, "n int, value binary").repartition(2)

    def stream(self, messages: list[bytes]) -> Any:
        folder = str(self.folder / "incoming")
        self.frame(messages).write.mode("overwrite").parquet(folder)
        return self.spark.readStream.schema("n int, value binary").parquet(folder)

    def finished(self, df: Any, column: str = "payload") -> list[str]:
        """Run a stream to its end; return the digests of its payloads."""
        target, checkpoint = (str(self.folder / f"{name}-{os.urandom(4).hex()}") for name in ("out", "checkpoint"))
        query = df.select(column).writeStream.format("parquet").option("checkpointLocation", checkpoint)
        query.trigger(availableNow=True).start(target).awaitTermination(240)
        return digests(self.spark.read.parquet(target).collect(), column)


def _digest(payload: bytes) -> str:
    return hashlib.sha256(payload).hexdigest()


def digests(rows: list[Any], column: str = "payload") -> list[str]:
    """Return the digests, sorted."""
    return sorted(_digest(row[column]) for row in rows)


WANTED = sorted(_digest(payload) for payload in PAYLOADS)


def feature(name: str) -> Any:
    """Return a function of `claimcheck.spark`, which may be missing."""
    if not hasattr(claimcheck.spark, name):
        raise MissingFeatureError(name)
    return getattr(claimcheck.spark, name)


def resolve(lab: Lab) -> None:
    df = lab.frame(lab.messages()).transform(claimcheck.spark.resolve("value", config=lab.config))
    assert digests(df.collect()) == WANTED


def resolve_stream(lab: Lab) -> None:
    df = lab.stream(lab.messages()).transform(claimcheck.spark.resolve("value", config=lab.config))
    assert lab.finished(df) == WANTED


def resolver(lab: Lab) -> None:
    rdd = lab.spark.sparkContext.parallelize(lab.messages(), 2).mapPartitions(claimcheck.spark.resolver(lab.config))
    assert sorted(_digest(payload) for payload in rdd.collect()) == WANTED


def map_payloads(lab: Lab) -> None:
    def digest(payload: bytes) -> str:  # not in a module that workers would have to import
        return hashlib.sha256(payload).hexdigest()

    made = feature("map_payloads")(digest, "digest string", column="value", config=lab.config)
    assert sorted(row.digest for row in lab.frame(lab.messages()).transform(made).collect()) == WANTED


def offload(lab: Lab) -> None:
    made = feature("offload")("value", destination="orders", config=lab.config)
    messages = [bytes(row.value) for row in lab.frame(PAYLOADS).transform(made).collect()]
    assert max(map(len, messages)) < 1000
    with claimcheck.from_dict(lab.config) as cc:
        assert sorted(_digest(cc.resolve(message)) for message in messages) == WANTED


def repartition(lab: Lab) -> None:
    from pyspark.sql.functions import spark_partition_id

    made = feature("repartition_by_payload")("value", config=lab.config, target_bytes=5000)
    messages = lab.messages()
    rows = lab.frame(messages).transform(made).withColumn("place", spark_partition_id()).collect()
    assert sorted(bytes(row.value) for row in rows) == sorted(messages)
    assert len({row.place for row in rows}) > 1


def reassemble(lab: Lab) -> None:
    df = lab.frame(lab.messages(strategy="chunking")).transform(feature("reassemble")("value", config=lab.config))
    assert digests(df.collect()) == WANTED


def reassemble_stream(lab: Lab) -> None:
    made = feature("reassemble")("value", config=lab.config, expire_by="data")
    provider = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    lab.spark.conf.set("spark.sql.streaming.stateStore.providerClass", provider)
    try:
        assert lab.finished(lab.stream(lab.messages(strategy="chunking")).transform(made)) == WANTED
    finally:
        lab.spark.conf.unset("spark.sql.streaming.stateStore.providerClass")


def source(lab: Lab) -> None:
    """Read a stream from the source that needs no server."""
    try:
        sources: Any = importlib.import_module("claimcheck.spark.sources")
    except ImportError as error:
        raise MissingFeatureError from error
    from claimcheck.transports.local import LocalBroker, LocalProducer

    path = str(lab.folder / "broker.sqlite")
    with LocalBroker(path, max_message_bytes=2000) as broker, claimcheck.from_dict(lab.config) as cc:
        broker.create_topic("orders", partitions=2)
        producer = LocalProducer(broker, cc)
        for payload in PAYLOADS:
            producer.send("orders", payload)
    sources.register(lab.spark)
    rows = lab.spark.readStream.format("claimcheck_local").option("path", path).option("topic", "orders").load()
    assert lab.finished(rows.transform(claimcheck.spark.resolve("value", config=lab.config))) == WANTED


def connect(lab: Lab) -> None:
    """Use separate processes: a process has one kind of session."""
    if importlib.util.find_spec("pyspark.sql.connect") is None or importlib.util.find_spec("grpc") is None:
        raise RuntimeError("grpcio is not installed: pyspark[connect] brings it")
    folder = Path(__file__).parent
    log = lab.folder / "server.log"
    with log.open("w") as said:
        command = [sys.executable, str(folder / "shipping_server.py"), "local[2]", "installed"]
        server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=said, text=True)
    try:
        assert server.stdout is not None
        port = server.stdout.readline().strip()
        if not port:
            raise RuntimeError(log.read_text())
        given = {"port": port, "folder": str(lab.folder), "steps": ["`resolve`"]}
        done = subprocess.run(
            [sys.executable, folder / "shipping_client.py"],
            input=json.dumps(given),
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(done.stderr)
        found = json.loads(done.stdout.splitlines()[-1])["`resolve`"]
        if "error" in found:
            raise RuntimeError(found["error"])
    finally:
        server.communicate(timeout=60)


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
"""The function that tries each feature, by its name in the README."""


def attempt(name: str, lab: Lab) -> str:
    """Try a feature; return `YES` or the reason why it fails."""
    try:
        FEATURES[name](lab)
    except MissingFeatureError:
        return MISSING
    except Exception as error:
        return f"no: {_reason(error)}"
    return YES


def _envelopes(cc: claimcheck.ClaimCheck, payload: bytes) -> Any:
    with cc.outbound(payload, destination="orders", key=b"k") as out:
        yield from out.envelopes


def _reason(error: Exception) -> str:
    """Return the most useful line of an error from a worker, Java or another process."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    if isinstance(error, ClaimCheckError):
        return lines[0]
    telling = [line for line in lines if _TELLING.match(line)]
    return (telling or lines)[0][:200]


def main() -> None:
    claimcheck.spark.ensure_java()
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2]").appName("smoke").config("spark.ui.enabled", "false")
    for name in ("host", "bindAddress"):
        builder = builder.config(f"spark.driver.{name}", "127.0.0.1")
    spark = builder.config("spark.sql.shuffle.partitions", "2").getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    with tempfile.TemporaryDirectory() as folder:
        found = {name: attempt(name, Lab(spark, Path(folder))) for name in FEATURES}
        spark.stop()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
