"""Stores on real servers: transfers over many connections, and payloads that other libraries read as files."""

import base64
import io
import os
import uuid
import zipfile

import pandas
import pytest

import claimcheck

# Transfers over several connections to S3 --------------------------------------------------------------------------


pytest.importorskip("cryptography")

MIB = 1 << 20
PAYLOAD = os.urandom(24 * MIB + 1234)
KEYS = {"k1": base64.b64encode(b"k" * 32).decode()}


@pytest.fixture(params=["s3", "obstore"])
def place(request, s3_server, s3_bucket):
    where = {"bucket": s3_bucket} if request.param == "s3" else {"url": f"s3://{s3_bucket}/claims"}
    return {"type": request.param, "endpoint_url": s3_server.endpoint_url, **where}


@pytest.fixture
def transferring(place):
    with claimcheck.from_dict({"stores": {"hot": place}, "encryption": {"key_id": "k1", "keys": KEYS}}) as cc:
        yield cc


@pytest.mark.parametrize("count", [1, 16])
def test_payloads_are_whole_however_many_connections_there_are(transferring, count):
    store = transferring.store("hot")
    for transfers in (store._transfers.gets, store._transfers.puts):
        transfers.connections, transfers.is_fast = count, False
    pointer = store.write(PAYLOAD)

    assert store.read(pointer) == PAYLOAD
    with store.open(pointer) as file:
        assert b"".join(iter(lambda: file.read(65536), b"")) == PAYLOAD
        file.seek(9 * MIB + 7)
        assert file.read(10 * MIB) == PAYLOAD[9 * MIB + 7 : 19 * MIB + 7]
    store.rollback(pointer)


def test_files_are_written_in_parts_while_the_number_is_not_known(transferring, tmp_path):
    (tmp_path / "payload").write_bytes(PAYLOAD)
    store = transferring.store("hot")
    with (tmp_path / "payload").open("rb") as file:
        pointer = store.write(file)

    assert store.read(pointer) == PAYLOAD
    for transfers in (store._transfers.gets, store._transfers.puts):
        assert transfers.active == 0


# Other people's libraries read a payload in Redis as a file --------------------------------------------------------


def test_other_libraries_read_a_payload_in_redis_as_a_file(redis_url):
    frame = pandas.DataFrame({"number": range(50_000), "text": [str(uuid.UUID(int=i)) for i in range(50_000)]})
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as entries:
        for i in range(10):
            entries.writestr(f"{i}.txt", str(i) * 100_000)
    options = {"type": "redis", "url": redis_url, "ttl_seconds": 600, "segment_bytes": 100_000}
    with claimcheck.from_dict({"strategy": "external", "stores": {"hot": options}}) as cc:
        store = cc.store("hot")
        pointers = [store.write(payload) for payload in (frame.to_parquet(), archive.getvalue())]

        with store.open(pointers[0]) as file:
            assert pandas.read_parquet(file, columns=["number"]).equals(frame[["number"]])
        with store.open(pointers[1]) as file, zipfile.ZipFile(file) as entries:
            assert entries.namelist() == [f"{i}.txt" for i in range(10)]
            assert entries.read("7.txt") == b"7" * 100_000
        for pointer in pointers:
            store.rollback(pointer)
