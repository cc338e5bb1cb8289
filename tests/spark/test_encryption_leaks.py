"""Encrypted payloads on Spark: nothing that Spark writes or prints has a key or a plaintext."""

from __future__ import annotations

import base64
import hashlib
import os
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.spark.drivers import Driver

pytest.importorskip("cryptography")

KEY, OTHER = os.urandom(32), os.urandom(32)
MARKER = os.urandom(16).hex().encode()  # in every payload
PAYLOADS = [MARKER + os.urandom(size) + MARKER for size in (10, 3_000, 40_000)]
WRITTEN = ("events", "external", "chunking", "checkpoint", "claims", "resolved", "reassembled", "streamed")


def test_nothing_that_spark_writes_has_a_key_or_a_plaintext(tmp_path: Path, worker_env: dict[str, str]) -> None:
    """Events, logs, plans, errors, messages, checkpoints and state: of batches and of a stream."""
    rows = {"n": [*range(len(PAYLOADS))], "key": ["k"] * len(PAYLOADS), "payload": PAYLOADS}
    for name in ("input", "events"):
        (tmp_path / name).mkdir()
    pq.write_table(pa.table(rows), tmp_path / "input" / "part-0.parquet")
    secrets = {"CLAIMCHECK_SECRET": base64.b64encode(KEY).decode(), "OTHER_SECRET": base64.b64encode(OTHER).decode()}

    with Driver(conf(tmp_path), tmp_path, os.environ | worker_env | secrets) as driver:
        given = {"config": encrypted(tmp_path, "CLAIMCHECK_SECRET"), "other_key": encrypted(tmp_path, "OTHER_SECRET")}
        plans, error = driver.run("encrypted", folder=str(tmp_path), **given)

    expected = {n: hashlib.sha256(payload).hexdigest() for n, payload in enumerate(PAYLOADS)}
    for name in ("resolved", "reassembled", "streamed"):
        found = pq.read_table(tmp_path / name, columns=["n", "digest"]).to_pylist()
        assert {row["n"]: row["digest"] for row in found} == expected
        assert len(found) == len(expected)
    assert "IntegrityError" in error
    assert "MapInArrow" in plans
    written = {name: list(contents(tmp_path / name)) for name in WRITTEN}
    assert all(written.values())
    assert b"SparkListenerTaskEnd" in b"".join(written["events"])
    assert any(MARKER in text for text in contents(tmp_path / "input"))
    written["output"] = [plans.encode(), error.encode(), driver.log.read_bytes()]
    assert b"INFO" in written["output"][2]
    hidden = [MARKER, KEY, OTHER, *(text.encode() for text in secrets.values()), KEY.hex().encode()]
    leaks = [(place, secret) for place in written for text in written[place] for secret in hidden if secret in text]
    assert leaks == []


def conf(folder: Path) -> dict[str, str]:
    return {
        "spark.log.level": "INFO",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": (folder / "events").as_uri(),
        "spark.eventLog.compress": "false",
        "spark.sql.parquet.compression.codec": "uncompressed",
    }


def encrypted(folder: Path, variable: str) -> dict[str, object]:
    disk = {"type": "filesystem", "path": str(folder / "claims"), "create": True, "ttl_seconds": 604_800}
    return {
        "strategy": "external",
        "threshold_bytes": 5000,
        "store": "disk",
        "stores": {"disk": disk},
        "encryption": {"key_id": "k1", "keys": {"k1": f"${{{variable}}}"}, "inline": True},
    }


def contents(folder: Path) -> Iterator[bytes]:
    """Yield the files of a folder, unpacked."""
    for path in folder.rglob("*"):
        if path.is_file():
            yield path.read_bytes()
        if path.is_file() and zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as packed:
                yield from (packed.read(name) for name in packed.namelist())
