"""Fixtures of this folder: a configuration, a function that sends payloads, and what stateful streams need."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import claimcheck
from tests.spark.drivers import PROVIDER, ROCKSDB
from tests.spark.rig import TopicFiles


@pytest.fixture
def config(tmp_path) -> dict[str, Any]:
    """Stores payloads above 1,000 bytes in a folder: processes cannot share the memory store."""
    disk = {"type": "filesystem", "path": str(tmp_path / "claims"), "create": True, "ttl_seconds": 604_800}
    return {"strategy": "external", "threshold_bytes": 1000, "store": "disk", "stores": {"disk": disk}}


@pytest.fixture
def send(config):
    """Returns the messages of a payload."""
    writer = claimcheck.from_dict(config)

    def messages(payload: bytes, **overrides: object) -> list[bytes]:
        cc = claimcheck.from_dict(config | overrides) if overrides else writer
        with cc.outbound(payload, destination="orders", key=b"k") as out:
            return [envelope.data for envelope in out.envelopes]

    return messages


@pytest.fixture
def stateful(spark) -> Iterator[Any]:
    """The session with the state store that stateful operators need."""
    before = spark.conf.get(PROVIDER)
    spark.conf.set(PROVIDER, ROCKSDB)
    yield spark
    spark.conf.set(PROVIDER, before)


@pytest.fixture
def topic(tmp_path) -> TopicFiles:
    """A topic as files; hides the name of a topic of a broker."""
    return TopicFiles(tmp_path / "topic")
