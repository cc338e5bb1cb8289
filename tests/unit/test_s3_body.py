"""What goes over the line to S3, byte by byte; a tiny server of our own reads it."""

import base64
import contextlib
import io
import os
import threading
import zlib

import pytest

from claimcheck._store.contract import StoreContext
from claimcheck._threads import Interrupted, interruptible
from claimcheck.errors import StoreError
from claimcheck.stores.s3 import S3Store
from claimcheck.stores.s3._client import ViewFile
from tests.parts import divided
from tests.unit.tiny_s3 import Answer, TinyS3

MIB = 1 << 20
LARGE = os.urandom((4 << 20) + 12345)


def crc32_of(payload):
    return base64.b64encode(zlib.crc32(payload).to_bytes(4, "big")).decode()


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch):
    monkeypatch.setattr("botocore.endpoint.time.sleep", lambda seconds: None)


@pytest.fixture
def server():
    with TinyS3() as server:
        yield server


@pytest.fixture
def open_store():
    with contextlib.ExitStack() as stores:

        def build(server, **options):
            store = stores.enter_context(
                divided(S3Store, bucket="b", endpoint_url=server.url, **{"single": 64 * MIB, **options})
            )
            store.context = StoreContext(name="cold")
            return store

        yield build


class TestViewFile:
    def test_goes_over_the_line_in_large_pieces(self):
        sizes = [len(piece) for piece in ViewFile(memoryview(bytes(9 * MIB))).pieces()]

        assert sizes == [4 * MIB, 4 * MIB, MIB]


class TestChecksumInTheHeader:
    @pytest.mark.parametrize("size", [0, 1, 64 << 10, 4 * MIB - 1])
    def test_of_small_payloads(self, server, open_store, size):
        payload = os.urandom(size)

        pointer = open_store(server).write(payload)

        (request,) = server.requests
        assert (request.body, request.headers["x-amz-checksum-crc32"]) == (payload, crc32_of(payload))
        assert request.headers["x-amz-content-sha256"] == "UNSIGNED-PAYLOAD"
        assert pointer.checksum == f"crc32:{zlib.crc32(payload):08x}"

    @pytest.mark.parametrize(("size", "asks"), [(0, None), (MIB - 1, None), (MIB, "100-continue")])
    def test_the_server_is_asked_before_much_is_sent(self, server, open_store, size, asks):
        open_store(server).write(bytes(size))

        assert server.said("expect") == [asks]

    @pytest.mark.parametrize("shape", [bytes, bytearray, memoryview, io.BytesIO])
    def test_of_large_payloads(self, server, open_store, shape):
        store = open_store(server)

        pointer = store.write(shape(LARGE))

        (request,) = server.requests
        assert (request.body, request.headers["x-amz-checksum-crc32"]) == (LARGE, crc32_of(LARGE))
        assert request.headers["x-amz-content-sha256"] == "UNSIGNED-PAYLOAD"
        assert (pointer.size, pointer.checksum) == (len(LARGE), f"crc32:{zlib.crc32(LARGE):08x}")
        assert store.read(pointer) == LARGE

    @pytest.mark.parametrize("first", [Answer(503, "SlowDown"), Answer(500, "InternalError"), Answer()])
    @pytest.mark.parametrize("payload", [LARGE, b"small"], ids=["large", "small"])
    def test_survives_the_sdks_own_retries(self, server, open_store, first, payload):
        server.answers += [first, first]
        store = open_store(server)

        pointer = store.write(payload)

        assert [request.method for request in server.requests] == ["PUT"] * 3
        assert len({request.body for request in server.requests}) == 1
        assert store.read(pointer) == payload

    def test_is_verified_by_the_server(self, server, open_store, monkeypatch):
        store = open_store(server)
        store.write(LARGE)
        monkeypatch.setattr("claimcheck.stores.s3._client.checksum.crc32", lambda piece, before=0: 4711)

        with pytest.raises(StoreError, match="BadDigest"):
            store.write(LARGE)

        assert len(server.objects) == 1


class TestInterrupted:
    def test_a_write_ends_at_the_next_piece_and_leaves_nothing(self, server, open_store, monkeypatch):
        stop, pieces = threading.Event(), ViewFile.pieces
        store, payload = open_store(server, gets=1), bytes(20 * MIB)

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
    def test_have_their_checksums_in_the_header(self, server, open_store):
        payload = os.urandom(12 * MIB)

        pointer = open_store(server, single=0, part=5 * MIB).write(payload)

        puts = sorted((r for r in server.requests if r.method == "PUT"), key=lambda r: r.query["partNumber"])
        assert [len(put.body) for put in puts] == [5 * MIB, 5 * MIB, 2 * MIB]
        assert [put.headers["x-amz-checksum-crc32"] for put in puts] == [crc32_of(put.body) for put in puts]
        assert {put.headers.get("expect") for put in puts} == {None}, "it agreed to the upload already"
        assert pointer.checksum == f"crc32:{zlib.crc32(payload):08x}"
        assert list(server.objects.values()) == [payload]

    def test_survive_the_sdks_own_retries(self, server, open_store):
        store, payload = open_store(server, single=0, part=5 * MIB), os.urandom(12 * MIB)
        server.answers += [
            Answer(200, body=b"<InitiateMultipartUploadResult><UploadId>u</UploadId></InitiateMultipartUploadResult>"),
            Answer(503, "SlowDown"),
            Answer(),
        ]

        assert store.read(store.write(payload)) == payload
