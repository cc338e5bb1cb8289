"""`as_file`: references that other engines read."""

from __future__ import annotations

import os
import zlib

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
