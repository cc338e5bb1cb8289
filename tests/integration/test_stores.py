"""Stores on real servers: transfers over many connections, and payloads that other libraries read as files."""

import base64
import io
import os
import threading
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


@pytest.fixture(params=[{}, {"encryption": {"key_id": "k1", "keys": KEYS}}], ids=["plain", "encrypted"])
def transferring(request, place):
    with claimcheck.from_dict({"stores": {"hot": place}, **request.param}) as cc:
        yield cc


def connections(store, count):
    """Let a store use so many connections."""
    for transfers in (store._transfers.gets, store._transfers.puts):
        transfers.connections, transfers.is_fast = count, False


@pytest.mark.parametrize("count", [1, 3, 16])
def test_payloads_are_whole_however_many_connections_there_are(transferring, count):
    store = transferring.store("hot")
    connections(store, count)
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


def test_a_read_that_stops_early_leaves_no_thread_and_no_memory(transferring):
    store = transferring.store("hot")
    connections(store, 4)
    pointer = store.write(PAYLOAD)
    with store.open(pointer) as file:
        assert file.read(3 * MIB) == PAYLOAD[: 3 * MIB]

    assert not [thread for thread in threading.enumerate() if thread.name.startswith("claimcheck-read")]
    assert store._transfers.gets.active == 0


# Other people's libraries read a payload in Redis as a file --------------------------------------------------------


@pytest.fixture
def redis_store(redis_url):
    options = {"type": "redis", "url": redis_url, "ttl_seconds": 600, "segment_bytes": 100_000}
    with claimcheck.from_dict({"strategy": "external", "stores": {"hot": options}}) as cc:
        yield cc.store("hot")


@pytest.fixture
def frame():
    return pandas.DataFrame({"number": range(50_000), "text": [str(uuid.UUID(int=i)) for i in range(50_000)]})


@pytest.fixture
def opened(redis_store):
    """A payload as a file, removed when the test is over."""
    pointers, files = [], []

    def write_and_open(payload):
        pointers.append(redis_store.write(payload))
        files.append(redis_store.open(pointers[-1]))
        return files[-1]

    yield write_and_open
    for file, pointer in zip(files, pointers, strict=True):
        file.close()
        redis_store.rollback(pointer)


def test_pandas_reads_csv(frame, opened):
    assert pandas.read_csv(opened(frame.to_csv(index=False).encode())).equals(frame)


def test_pandas_reads_some_columns_of_parquet(frame, opened):
    payload = frame.to_parquet()

    assert pandas.read_parquet(opened(payload), columns=["number"]).equals(frame[["number"]])


def test_pandas_reads_pickle(frame, opened):
    file = io.BytesIO()
    frame.to_pickle(file)

    assert pandas.read_pickle(opened(file.getvalue())).equals(frame)


def test_zipfile_reads_one_entry(opened):
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as entries:
        for i in range(10):
            entries.writestr(f"{i}.txt", str(i) * 100_000)

    with zipfile.ZipFile(opened(archive.getvalue())) as entries:
        assert entries.namelist() == [f"{i}.txt" for i in range(10)]
        assert entries.read("7.txt") == b"7" * 100_000


def test_text_is_decoded_line_by_line(opened):
    lines = [f"Zeile {i} mit Übergröße\n" for i in range(20_000)]

    with io.TextIOWrapper(opened("".join(lines).encode()), encoding="utf-8") as text:
        assert list(text) == lines
