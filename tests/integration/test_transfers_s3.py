"""Large payloads over several connections at a real S3 server, through both engines, as they are and encrypted."""

import base64
import os
import threading

import pytest

import claimcheck

pytest.importorskip("cryptography")

MIB = 1 << 20
PAYLOAD = os.urandom(24 * MIB + 1234)
KEYS = {"k1": base64.b64encode(b"k" * 32).decode()}


@pytest.fixture(params=["s3", "obstore"])
def place(request, s3_server, s3_bucket):
    where = {"bucket": s3_bucket} if request.param == "s3" else {"url": f"s3://{s3_bucket}/claims"}
    return {"type": request.param, "endpoint_url": s3_server.endpoint_url, **where}


@pytest.fixture(params=[{}, {"encryption": {"key_id": "k1", "keys": KEYS}}], ids=["plain", "encrypted"])
def opened(request, place):
    with claimcheck.from_dict({"stores": {"hot": place}, **request.param}) as cc:
        yield cc


def connections(store, count):
    """Let a store use so many connections."""
    for transfers in (store._transfers.gets, store._transfers.puts):
        transfers.connections, transfers.is_fast = count, False


@pytest.mark.parametrize("count", [1, 3, 16])
def test_payloads_are_whole_however_many_connections_there_are(opened, count):
    store = opened.store("hot")
    connections(store, count)
    pointer = store.write(PAYLOAD)

    assert store.read(pointer) == PAYLOAD
    with store.open(pointer) as file:
        assert b"".join(iter(lambda: file.read(65536), b"")) == PAYLOAD
        file.seek(9 * MIB + 7)
        assert file.read(10 * MIB) == PAYLOAD[9 * MIB + 7 : 19 * MIB + 7]
    store.rollback(pointer)


def test_files_are_written_in_parts_while_the_number_is_not_known(opened, tmp_path):
    (tmp_path / "payload").write_bytes(PAYLOAD)
    store = opened.store("hot")
    with (tmp_path / "payload").open("rb") as file:
        pointer = store.write(file)

    assert store.read(pointer) == PAYLOAD
    for transfers in (store._transfers.gets, store._transfers.puts):
        assert transfers.active == 0


def test_a_read_that_stops_early_leaves_no_thread_and_no_memory(opened):
    store = opened.store("hot")
    connections(store, 4)
    pointer = store.write(PAYLOAD)
    with store.open(pointer) as file:
        assert file.read(3 * MIB) == PAYLOAD[: 3 * MIB]

    assert not [thread for thread in threading.enumerate() if thread.name.startswith("claimcheck-read")]
    assert store._transfers.gets.active == 0
