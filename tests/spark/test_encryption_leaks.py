"""Encrypted payloads on Spark: nothing that Spark writes or prints has a key or a plaintext."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("cryptography")

CHILD = Path(__file__).parent / "encryption_child.py"
KEY, OTHER = os.urandom(32), os.urandom(32)
MARKER = os.urandom(16).hex().encode()  # in every payload
PAYLOADS = [MARKER + os.urandom(size) + MARKER for size in (10, 3_000, 40_000)]
WRITTEN = ("events", "external", "chunking", "checkpoint", "claims", "resolved", "reassembled", "streamed")


def test_nothing_that_spark_writes_has_a_key_or_a_plaintext(tmp_path: Path, worker_env: dict[str, str]) -> None:
    rows = {"n": [*range(len(PAYLOADS))], "key": ["k"] * len(PAYLOADS), "payload": PAYLOADS}
    for name in ("input", "events"):
        (tmp_path / name).mkdir()
    pq.write_table(pa.table(rows), tmp_path / "input" / "part-0.parquet")
    (tmp_path / "job.json").write_text(json.dumps(configurations(tmp_path)))
    secrets = {"CLAIMCHECK_SECRET": base64.b64encode(KEY).decode(), "OTHER_SECRET": base64.b64encode(OTHER).decode()}

    child = subprocess.run(
        [sys.executable, str(CHILD), str(tmp_path)],
        env=os.environ | worker_env | secrets,
        capture_output=True,
        timeout=600,
    )

    assert child.returncode == 0, child.stderr[-3000:]
    expected = {n: hashlib.sha256(payload).hexdigest() for n, payload in enumerate(PAYLOADS)}
    for name in ("resolved", "reassembled", "streamed"):
        found = pq.read_table(tmp_path / name, columns=["n", "digest"]).to_pylist()
        assert {row["n"]: row["digest"] for row in found} == expected
        assert len(found) == len(expected)
    assert b"IntegrityError" in child.stdout  # the last step, with another key
    assert b"MapInArrow" in child.stdout  # plans
    written = {f"{tmp_path / name}": list(contents(tmp_path / name)) for name in WRITTEN}
    assert all(written.values())
    assert b"SparkListenerTaskEnd" in b"".join(written[str(tmp_path / "events")])
    assert any(MARKER in text for text in contents(tmp_path / "input"))
    hidden = [MARKER, KEY, OTHER, *(text.encode() for text in secrets.values()), KEY.hex().encode()]
    leaks = [
        (place, secret)
        for place, texts in {**written, "output": [child.stdout, child.stderr]}.items()
        for text in texts
        for secret in hidden
        if secret in text
    ]
    assert leaks == []


def configurations(folder: Path) -> dict[str, object]:
    def encrypted(strategy: str, variable: str) -> dict[str, object]:
        return {
            "strategy": strategy,
            "threshold_bytes": 5000,
            "store": "disk",
            "stores": {
                "disk": {"type": "filesystem", "path": str(folder / "claims"), "create": True, "ttl_seconds": 604_800}
            },
            "encryption": {"key_id": "k1", "keys": {"k1": f"${{{variable}}}"}, "inline": True},
        }

    configured = {strategy: encrypted(strategy, "CLAIMCHECK_SECRET") for strategy in ("external", "chunking")}
    return {**configured, "other_key": encrypted("external", "OTHER_SECRET")}


def contents(folder: Path) -> Iterator[bytes]:
    """Yield the files of a folder, unpacked."""
    for path in folder.rglob("*"):
        if path.is_file():
            yield path.read_bytes()
        if path.is_file() and zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as packed:
                yield from (packed.read(name) for name in packed.namelist())
