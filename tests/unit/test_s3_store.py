"""How the S3 store uses boto3: checksums, connections, the reader's own way to the socket, and listings.

tests/unit/test_object_stores.py has what both engines promise.
"""

from __future__ import annotations

import io
import os
import threading
import uuid
import zlib
from dataclasses import replace

import pytest

from claimcheck._operate.sweep import Sweep
from claimcheck._store.contract import StoreContext
from claimcheck._threads import Interrupted, interruptible
from claimcheck.errors import IntegrityError, StoreError, StoreUnavailableError
from claimcheck.stores import s3 as s3_store
from claimcheck.stores.s3._client import ViewFile
from claimcheck.testing._store_kit import Unseekable
from tests.unit.tiny_s3 import Answer, TinyS3, crc32_of, opened

MIB = 1 << 20
PART = 5 * MIB
PAYLOAD = os.urandom(3 * MIB + 17)
LARGE = os.urandom(21 * MIB + 1000)


@pytest.fixture
def server():
    with TinyS3() as server:
        yield server


@pytest.fixture
def open_store(server, monkeypatch):
    with opened("s3", server, monkeypatch) as build:
        yield build


@pytest.fixture
def store(open_store):
    return open_store()


@pytest.fixture
def in_parts(open_store):
    return open_store(part=PART, single=PART)


@pytest.fixture
def pointer(server, store):
    pointer = store.write(PAYLOAD)
    server.requests.clear()
    return pointer


@pytest.fixture(params=[True, False], ids=["direct", "by the SDK"])
def direct(request, monkeypatch):
    """Everything is as good, only slower, where the response is not the one that we know."""
    if not request.param:
        monkeypatch.setattr(s3_store, "_direct", lambda body: None)


# Writing -------------------------------------------------------------------------------------------------------------


class TestOneRequest:
    @pytest.mark.parametrize("shape", [bytes, memoryview, io.BytesIO])
    @pytest.mark.parametrize(("size", "asks"), [(0, None), (MIB - 1, None), (MIB, "100-continue")])
    def test_has_the_checksum_in_its_header_and_asks_before_much_is_sent(self, server, store, shape, size, asks):
        payload = os.urandom(size)

        pointer = store.write(shape(payload))

        (request,) = server.requests
        assert (request.body, request.headers["x-amz-checksum-crc32"]) == (payload, crc32_of(payload))
        assert server.said("expect") == [asks]
        assert (pointer.size, pointer.checksum) == (size, f"crc32:{zlib.crc32(payload):08x}")

    def test_has_the_callers_own_memory_as_body(self, store):
        seen, payload = [], bytearray(b"payload" * 1000)

        def look(request, **_):
            seen.append(request.body.read(10).obj)
            request.body.seek(0)

        store._s3().meta.events.register_first("before-send.s3", look)
        store.write(payload)

        assert seen[0] is payload

    def test_is_verified_by_the_server(self, server, store, monkeypatch):
        monkeypatch.setattr("claimcheck.stores.s3._client.checksum.crc32", lambda piece, before=0: 4711)

        with pytest.raises(StoreError, match="BadDigest"):
            store.write(PAYLOAD)

        assert server.objects == {}

    def test_ends_at_the_next_piece_when_it_is_interrupted_and_leaves_nothing(self, server, open_store, monkeypatch):
        stop, pieces = threading.Event(), ViewFile.pieces
        store, payload = open_store(single=64 * MIB, gets=1), bytes(20 * MIB)

        def stopping(self):
            for piece in pieces(self):
                yield piece
                stop.set()

        monkeypatch.setattr(ViewFile, "pieces", stopping)
        with pytest.raises(Interrupted):
            interruptible(stop, store.write, payload)

        monkeypatch.undo()
        assert server.objects == {}
        assert store.read(store.write(payload)) == payload
        assert server.connections == 2, "the line with half a payload on it is gone"


class TestParts:
    def test_have_their_checksums_in_the_header(self, server, in_parts):
        server.answers += [
            Answer(200, body=b"<InitiateMultipartUploadResult><UploadId>u</UploadId></InitiateMultipartUploadResult>"),
            Answer(503, "SlowDown"),
            Answer(),
        ]
        before = threading.active_count()

        pointer = in_parts.write(LARGE[: 12 * MIB])

        puts = {r.query["partNumber"]: r for r in server.requests if r.method == "PUT"}  # the last of each
        assert [len(puts[number].body) for number in "123"] == [PART, PART, 2 * MIB]
        assert all(put.headers["x-amz-checksum-crc32"] == crc32_of(put.body) for put in puts.values())
        assert {put.headers.get("expect") for put in puts.values()} == {None}, "it agreed to the upload already"
        assert pointer.checksum == f"crc32:{zlib.crc32(LARGE[: 12 * MIB]):08x}"
        assert list(server.objects.values()) == [LARGE[: 12 * MIB]]
        assert threading.active_count() <= before + server.connections, "only the server's threads are new"

    def test_are_aborted_again_when_one_of_them_was_lost(self, server, in_parts):
        """The server may have gone on with it, and so may have stored it after the first abort."""
        answer = server.answer

        def torn(request):
            return Answer() if "partNumber" in request.query else answer(request)

        server.answer = torn
        with pytest.raises(StoreError) as caught:
            in_parts.write(LARGE)

        assert [request.query.get("uploadId") for request in server.requests if request.method == "DELETE"].count(
            "u"
        ) > 2
        assert not hasattr(caught.value.__cause__, "__notes__")

    def test_are_not_used_for_a_short_file_of_unknown_size(self, server, in_parts):
        for data in (b"", b"short"):
            assert in_parts.read(in_parts.write(Unseekable(io.BytesIO(data)))) == data

        assert [request.method for request in server.requests] == ["PUT", "GET"] * 2


def test_the_client_is_made_anew_in_a_forked_process(store, monkeypatch):
    first = store._s3()
    assert store._s3() is first

    monkeypatch.setattr("claimcheck.stores.s3.os.getpid", lambda: 1)

    assert store._s3() is not first


# Reading -------------------------------------------------------------------------------------------------------------


class TestReading:
    def test_is_one_request_without_a_range_and_one_connection(self, server, store, pointer, direct):
        for _ in range(3):
            assert store.read(pointer) == PAYLOAD
            with store.open(pointer) as file:
                assert file.read() == PAYLOAD
        store.read(store.write(b""))

        assert server.said("range") == [None] * 8
        assert server.connections == 1

    def test_a_reader_that_stops_early_closes_its_connection(self, server, store, pointer, direct):
        with store.open(pointer) as file:
            file.read(1000)
        assert store.read(pointer) == PAYLOAD

        assert server.connections == 2, "what was left over is on no line that is used again"

    def test_a_payload_that_is_not_the_right_one_closes_it_too(self, server, store, pointer, direct):
        server.objects = dict.fromkeys(server.objects, PAYLOAD[:-1])

        for _ in range(3):
            with pytest.raises(IntegrityError):
                store.read(pointer)

        assert server.connections == 3, "the writer's, which the first one takes, and a new one each time"

    @pytest.mark.parametrize(
        ("start", "length", "asked"),
        [
            (0, 1, ["bytes=0-0"]),
            (2 * MIB, 5 * MIB, [f"bytes={2 * MIB}-{len(PAYLOAD) - 1}"]),
            (0, 10 * MIB, [None]),
            (5, 0, []),
        ],
    )
    def test_only_what_is_wanted_is_asked_for(self, server, store, pointer, direct, start, length, asked):
        assert store.read_range(pointer, start, length) == PAYLOAD[start : start + length]
        assert server.said("range") == asked

    @pytest.mark.parametrize(
        "answer",
        [
            Answer(200, body=PAYLOAD),
            Answer(206, headers={"Content-Range": f"bytes 2-11/{len(PAYLOAD)}"}, body=PAYLOAD[2:12]),
            Answer(206, headers={"Content-Range": f"bytes 1-9/{len(PAYLOAD)}"}, body=PAYLOAD[1:10]),
        ],
        ids=["the whole", "from elsewhere", "too little"],
    )
    def test_a_server_that_sends_something_else_is_no_server_for_ranges(self, server, store, pointer, answer):
        server.answers += [answer]

        with pytest.raises(StoreError, match="a different part"):
            store.read_range(pointer, 1, 10)


class TestSideBySide:
    """As many connections as the store found to be good."""

    @pytest.fixture(params=[1, 2, 8])
    def far(self, store, request):
        transfers = store._transfers.gets
        transfers.connections, transfers.is_fast = request.param, False
        yield store
        assert transfers.active == 0, "memory is bounded and given back"

    @pytest.fixture
    def large(self, server, store):
        pointer = store.write(LARGE)
        server.requests.clear()
        return pointer

    def test_a_payload_is_whole_however_many_there_are(self, server, far, large):
        assert far.read(large) == LARGE
        assert len(server.said("range")) == {1: 1, 2: 3, 8: 6}[far._transfers.gets.connections]

        with far.open(large) as file:
            assert b"".join(iter(lambda: file.read(65536), b"")) == LARGE
            file.seek(5 * MIB)
            assert file.read(12 * MIB) == LARGE[5 * MIB : 17 * MIB]
        assert far.read_range(large, 7, 20 * MIB) == LARGE[7 : 7 + 20 * MIB]

    def test_reading_a_little_is_one_request(self, server, far, large):
        with far.open(large) as file:
            assert file.read(1000) == LARGE[:1000]
            begun = len(server.said("range"))

        assert begun <= 2

    @pytest.mark.parametrize("how", ["replaced", "torn"])
    def test_parts_are_never_joined_with_what_is_not_theirs(self, server, store, large, how):
        store._transfers.gets.connections, store._transfers.gets.is_fast = 2, False
        answer = server.answer

        def other(request):
            whole = answer(request)
            if request.headers.get("range", "").startswith("bytes=0-"):
                return whole
            changed = {"headers": {**whole.headers, "ETag": '"other"'}} if how == "replaced" else {"hang_up_after": MIB}
            return replace(whole, **changed)

        server.answer = other
        with pytest.raises(StoreUnavailableError, match="replaced" if how == "replaced" else "failed"):
            store.read_range(large, 0, len(LARGE) - 1)
        assert store._transfers.gets.active == 0
        assert not [thread for thread in threading.enumerate() if thread.name.startswith("claimcheck-read")]

        server.answer = answer
        assert store.read(large) == LARGE


# Listing -------------------------------------------------------------------------------------------------------------


DAY = 86_400


class TestListing:
    @pytest.fixture
    def listed(self, open_store):
        return open_store(ttl_seconds=DAY)

    def test_has_only_the_stores_own_objects(self, server, listed):
        key = f"orders-{uuid.uuid4()}"
        for other in ("claims/notes.txt", f"claims/team/{key}", key, "claims/", "data.csv"):
            server.objects[f"/b/{other}"] = b"of others"
        pointer = listed.write(b"payload", destination="orders")
        listed.prefix = ""
        other = listed.write(b"of a store without a prefix", destination="orders")

        assert sorted(entry.key for entry in listed.scan()) == sorted([other.key, key])
        listed.prefix = "claims/"
        assert [entry.key for entry in listed.scan()] == [pointer.key]

    def test_parts_divide_days_into_hours_and_keys_without_a_time_by_uuids(self, server, listed):
        for hour in range(48):
            listed.context = StoreContext(clock=lambda hour=hour: 1_700_006_400 + 3600 * hour)  # midnight
            listed.write(b"payload", destination="orders")
            server.objects[f"/b/claims/orders-60s_{uuid.uuid4()}"] = b"of an earlier release"
        server.objects["/b/claims/zz-of-others"] = b""

        parts = [[entry.key for entry in listed.scan(partition=part)] for part in listed.partitions(24)]

        assert sorted(key for part in parts for key in part) == sorted(entry.key for entry in listed.scan())
        assert len(parts) == 24
        assert max(map(len, parts)) <= 24, "no part has a quarter of all"

    def test_goes_on_after_a_page_and_deletes_a_thousand_in_a_request(self, server, open_store):
        store, server.page_keys = open_store(ttl_seconds=0), 400
        for _ in range(1001):
            key = store._key("orders", uuid.uuid4(), created_ms=0, expires_ms=DAY * 1000)
            server.objects[f"/b/{key}"] = b""

        assert Sweep(dry_run=False).run(store).deleted == 1001
        assert server.objects == {}
        deletions = [request.body.count(b"<Key>") for request in server.requests if "delete" in request.query]
        assert deletions == [1000, 1]
