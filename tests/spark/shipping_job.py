"""A job on executors in separate processes, which have only the claimcheck that was shipped.

Reads JSON from its standard input: ``conf`` for Spark, the ``config`` of claimcheck, the ``messages`` in hexadecimal,
and which ``steps`` to take. Prints as JSON what came of each.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

from claimcheck.spark import ensure_java, resolve, resolver

ensure_java()
for name in ("PYTHONPATH", "SHIPPING_DRIVER_ONLY"):  # the executors' Java inherits the environment
    os.environ.pop(name, None)

from pyspark import cloudpickle  # noqa: E402 - a Java is needed first
from pyspark.sql import SparkSession  # noqa: E402


def whereabouts() -> dict[str, Any]:
    """Describe this process and where its claimcheck came from."""
    import claimcheck

    return {
        "file": claimcheck.__file__,
        "python": sys.executable,
        "path": os.environ.get("PYTHONPATH", ""),
        "pid": os.getpid(),
    }


class Job:
    """One session, and the steps that a test can run."""

    def __init__(self, given: dict[str, Any]) -> None:
        builder = SparkSession.builder.master(given.get("master", "local-cluster[2,1,1024]")).appName("shipping")
        for name, value in given["conf"].items():
            builder = builder.config(name, value)
        self.spark = builder.getOrCreate()
        self.spark.sparkContext.setLogLevel("OFF")
        self.config, self.given = given["config"], given
        self.messages = [bytes.fromhex(message) for message in given["messages"]]

    def frame(self, messages: list[bytes]) -> Any:
        rows = [(n, bytearray(message)) for n, message in enumerate(messages)]
        return self.spark.createDataFrame(rows, "n int, value binary").repartition(2)

    def rdd(self) -> dict[str, Any]:
        """Run `resolver`, and in the same process find where it came from."""
        source = self.spark.sparkContext.parallelize(self.messages, 2).mapPartitions(
            resolver(self.config, destination="orders")
        )
        pairs = source.map(lambda payload: (hashlib.sha256(payload).hexdigest(), whereabouts())).collect()
        return {"digests": [digest for digest, _ in pairs], "workers": [told for _, told in pairs]}

    def dataframe(self) -> dict[str, Any]:
        """Run `resolve`, and in another process of the same executor find where it came from."""

        def ask(batches: Iterator[Any]) -> Iterator[Any]:
            import pyarrow as pa

            for batch in batches:
                payloads = batch.column(batch.schema.get_field_index("payload")).to_pylist()
                found = [hashlib.sha256(payload).hexdigest() for payload in payloads]
                told = [json.dumps(whereabouts())] * batch.num_rows
                yield pa.RecordBatch.from_pydict({"n": batch.column(0), "digest": found, "told": told})

        resolved = self.frame(self.messages).transform(resolve("value", config=self.config, destination="orders"))
        rows = sorted(resolved.mapInArrow(ask, "n int, digest string, told string").collect())
        return {"digests": [row.digest for row in rows], "workers": [json.loads(row.told) for row in rows]}

    def plan(self) -> str:
        """Return the output of ``explain``."""
        said = io.StringIO()
        resolved = self.frame(self.messages).transform(resolve("value", config=self.config, destination="orders"))
        with contextlib.redirect_stdout(said):
            for mode in ("extended", "formatted"):
                resolved.explain(mode)
        return said.getvalue()

    def closure(self) -> str:
        """Return what is sent to the executors, in hexadecimal."""
        made = (resolve("value", config=self.config, destination="orders"), resolver(self.config, destination="orders"))
        return bytes(cloudpickle.dumps(made)).hex()

    def failing(self) -> list[str]:
        """Return the errors of failing tasks: a store that is down, a wrong signature."""
        bad = [bytes.fromhex(message) for message in self.given["bad"]]
        frames = [
            self.frame([message]).transform(resolve("value", config=self.config, destination="orders"))
            for message in bad
        ]
        rdds = [
            self.spark.sparkContext.parallelize([m], 1).mapPartitions(resolver(self.config, destination="orders"))
            for m in bad
        ]
        return [_error(each.collect) for each in [*frames, *rdds]]


def _error(act: Callable[[], Any]) -> str:
    try:
        act()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def main() -> None:
    given = json.load(sys.stdin)
    job = Job(given)
    found = {step: getattr(job, step)() for step in given["steps"]}
    job.spark.stop()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
