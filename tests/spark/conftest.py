"""One small Spark for all tests of this folder. There is no skipping: a Java comes by pip where there is none."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

import claimcheck
from claimcheck.spark import ensure_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark(worker_env) -> Iterator[SparkSession]:
    """Two cores, no pages, no network but the loopback."""
    ensure_java()
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2]").appName("claimcheck-tests")
    options = {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.shuffle.partitions": "2",
    }
    options |= {f"spark.executorEnv.{name}": value for name, value in worker_env.items()}
    for name, value in options.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")  # tasks that fail on purpose would fill pages
    yield session
    session.stop()


@pytest.fixture(scope="session")
def sc(spark):
    return spark.sparkContext


@pytest.fixture
def config(tmp_path) -> dict[str, object]:
    """Payloads above 1,000 bytes rest in a folder: the memory store does not cross processes."""
    return {
        "strategy": "external",
        "threshold_bytes": 1000,
        "stores": {"disk": {"type": "filesystem", "path": str(tmp_path / "claims")}},
    }


@pytest.fixture
def send(config):
    """From a payload to its messages."""
    writer = claimcheck.from_dict(config)

    def messages(payload: bytes, **overrides: object) -> list[bytes]:
        cc = claimcheck.from_dict(config | overrides) if overrides else writer
        with cc.outbound(payload, destination="orders", key=b"k") as out:
            return [envelope.data for envelope in out.envelopes]

    return messages
