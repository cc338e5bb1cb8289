"""`as_file`: references that other engines read; and workers without an activated environment."""

from __future__ import annotations

import os
import subprocess
import sys
import zlib

import pytest

from claimcheck._wire.pointer import Pointer
from claimcheck.spark import as_file
from claimcheck.stores.obstore import ObstoreStore
from claimcheck.stores.s3 import S3Store
from tests.spark.rig import frame


def test_another_reader_finds_the_bytes_that_a_reference_names(spark, config, send, tmp_path):
    """With PyArrow, from a Parquet file that has the fields of Parquet's logical type FILE."""
    import pyarrow.fs as fs
    import pyarrow.parquet as pq

    payload = os.urandom(50_000)
    small = frame(spark, [*send(payload), b"plain", None])

    small.transform(as_file("value", config=config)).coalesce(1).write.parquet(str(tmp_path / "table"))

    stored, inline, nothing = pq.read_table(tmp_path / "table").sort_by("n").column("file").to_pylist()
    assert list(stored) == ["uri", "offset", "size", "content_type", "checksum", "inline"]
    disk, path = fs.FileSystem.from_uri(stored["uri"])
    with disk.open_input_file(path) as file:
        assert file.read() == payload
    assert (stored["offset"], stored["size"], stored["inline"]) == (None, 50_000, None)
    assert stored["checksum"] == f"CRC32:{zlib.crc32(payload):08x}"
    assert (inline["uri"], inline["size"], inline["inline"]) == (None, 5, b"plain")
    assert nothing is None


def test_a_payload_that_no_uri_leads_to_is_an_error_of_its_row(spark, config, send):
    messages = [*send(b"x" * 50_000, compression={"codec": "zstd"}), *send(b"y" * 5000), b"plain"]

    rows = frame(spark, messages).transform(as_file("value", config=config, on_error="null")).sort("n").collect()

    assert [row.error and row.error.type for row in rows] == ["PayloadTypeError", None, None]
    assert "compressed or encrypted" in rows[0].error.message
    assert rows[1].file.uri.startswith("file:///")


def test_the_uris_of_buckets():
    pointer = Pointer(key="claims/a.b")
    assert S3Store(bucket="payloads").uri(pointer) == "s3://payloads/claims/a.b"
    assert ObstoreStore(url="az://payloads/claims").uri(pointer) == "az://payloads/claims/a.b"
    assert ObstoreStore(url="memory:///").uri(pointer) is None


# Workers -----------------------------------------------------------------------------------------------------------

JOB = """
import sys
from pyspark.sql import SparkSession
from claimcheck.spark import register, resolve
builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
builder = builder.config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1")
if len(sys.argv) > 1:
    builder = builder.config("spark.pyspark.python", sys.argv[1])
spark = builder.getOrCreate()
config = {"strategy": "inline"}
df = spark.range(1).selectExpr("CAST('x' AS BINARY) AS value")
print([bytes(row.payload) for row in df.transform(resolve("value", config=config)).collect()])
"""


@pytest.mark.parametrize("named", [False, True], ids=["this one", "the one that is named"])
def test_workers_run_the_python_that_has_the_packages(worker_env, tmp_path, named):
    """Without an activated environment the first `python3` on the path is another one, here one that always fails."""
    for name in ("python3", "named"):
        (tmp_path / name).write_text(
            "#!/bin/sh\nexit 1\n" if name == "python3" else f'#!/bin/sh\nexec {sys.executable} "$@"\n'
        )
        (tmp_path / name).chmod(0o755)
    path = os.pathsep.join([str(tmp_path), os.environ["PATH"]])
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PYSPARK_", "SPARK_"))}
    command = [sys.executable, "-c", JOB, *([str(tmp_path / "named")] if named else [])]

    done = subprocess.run(command, env=env | worker_env | {"PATH": path}, capture_output=True, text=True, timeout=200)

    assert "[b'x']" in done.stdout, done.stderr[-3000:]
