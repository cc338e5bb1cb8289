"""A Spark Connect client in a process without Java; executors have only the claimcheck that the client adds.

Reads JSON from its standard input: the ``port`` of the server, the ``zip`` and the ``wheel`` to add, the ``folder`` for
payloads, and which ``steps`` to take: methods of `Client`, or features of shipping_smoke.py. Prints as JSON what came
of each, or its error.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

import claimcheck.spark

sys.path.append(str(Path(__file__).resolve().parents[2]))  # at the end: the package is that of the environment

from tests.spark import shipping_smoke


class Client:
    """One session."""

    def __init__(self, given: dict[str, Any]) -> None:
        spark = SparkSession.builder.remote(f"sc://127.0.0.1:{given['port']}").getOrCreate()
        self.lab, self.given = shipping_smoke.Lab(spark, Path(given["folder"])), given

    def before(self) -> None:
        """Resolve before anything is shipped."""
        shipping_smoke.resolve(self.lab)

    def wheel(self) -> None:
        """Ship a wheel under its own name."""
        self.lab.spark.addArtifacts(self.given["wheel"], pyfile=True)

    def artifact(self) -> list[str]:
        """Ship the zip; return where executors find it."""
        self.lab.spark.addArtifacts(self.given["zip"], pyfile=True)

        def ask(batches: Iterator[Any]) -> Iterator[Any]:
            import pyarrow as pa

            import claimcheck

            for _ in batches:
                yield pa.RecordBatch.from_pydict({"file": [str(claimcheck.__file__)]})

        return sorted(
            {row.file for row in self.lab.frame(self.lab.messages()).mapInArrow(ask, "file string").collect()}
        )

    def error_column(self) -> list[Any]:
        good = self.lab.messages()[-1]
        transform = claimcheck.spark.resolve("value", config=self.lab.config, on_error="null")
        rows = self.lab.frame([good, good[:-1]]).transform(transform).orderBy("n").collect()  # truncated JSON
        return [row.error and row.error.type for row in rows]

    def step(self, name: str) -> Any:
        """Take a step by its name."""
        if hasattr(self, name):
            return getattr(self, name)()
        return shipping_smoke.FEATURES[name](self.lab)


def _told(act: Callable[[], Any]) -> dict[str, Any]:
    try:
        return {"result": act()}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}


def main() -> None:
    given = json.load(sys.stdin)
    client = Client(given)
    found = {step: _told(partial(client.step, step)) for step in given["steps"]}
    client.lab.spark.stop()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
