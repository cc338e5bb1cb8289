"""What goes over the line to S3, byte by byte; a tiny server of our own reads it."""

import base64
import io
import logging
import os
import threading
import zlib

import pytest

from claimcheck._store.contract import StoreContext
from claimcheck._threads import Interrupted, interruptible
from claimcheck.errors import KeyTakenError, StoreError, StoreUnavailableError
from claimcheck.stores.s3 import _upload as s3_body
from claimcheck.stores.s3._store import S3Store
from claimcheck.stores.s3._upload import FRAMED_FROM_BYTES, FramedFile, ViewFile
from tests.parts import divided
from tests.unit.tiny_s3 import Answer, TinyS3

MIB = 1 << 20
LARGE = os.urandom(FRAMED_FROM_BYTES + 12345)


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
    opened = []

    def build(server, **options):
        store = divided(S3Store, bucket="b", endpoint_url=server.url, **{"single": 64 * MIB, **options})
        store.context = StoreContext(name="cold")
        opened.append(store)
        return store

    yield build
    for store in opened:
        store.close()


class TestViewFile:
    def test_is_an_honest_file(self):
        file = ViewFile(memoryview(b"0123456789"))

        assert (len(file), file.readable(), file.seekable(), file.tell()) == (10, True, True, 0)
        assert [bytes(file.read(4)) for _ in range(4)] == [b"0123", b"4567", b"89", b""]
        assert (file.seek(-3, io.SEEK_END), bytes(file.read())) == (7, b"789")
        assert (file.seek(2), file.seek(1, io.SEEK_CUR), bytes(file.read(None))) == (2, 3, b"3456789")
        assert (file.seek(100), bytes(file.read(1))) == (100, b"")

    def test_copies_nothing(self):
        payload = bytes(10 * MIB)
        file = ViewFile(memoryview(payload))

        assert file.read(10).obj is payload
        assert all(piece.obj is payload for piece in file.pieces())

    def test_goes_over_the_line_in_large_pieces(self):
        sizes = [len(piece) for piece in ViewFile(memoryview(bytes(9 * MIB))).pieces()]

        assert sizes == [4 * MIB, 4 * MIB, MIB]


class TestFramedFile:
    @pytest.mark.parametrize("size", [1, 255, 256 << 10, 8 * MIB - 1, 8 * MIB, 8 * MIB + 1, 17 * MIB + 5])
    def test_frames_are_as_long_as_they_say(self, size):
        payload = os.urandom(size)
        file = ViewFile(memoryview(payload))
        framed = FramedFile(file)

        sent = b"".join(framed.pieces())

        assert len(sent) == len(framed)
        assert unframed(sent) == (payload, crc32_of(payload))
        assert file.checksum == crc32_of(payload)

    def test_copies_nothing(self):
        payload = bytes(2 * MIB)

        pieces = [piece for piece in FramedFile(ViewFile(memoryview(payload))).pieces() if len(piece) > 100]

        assert [piece.obj is payload for piece in pieces] == [True] * 8

    @pytest.mark.parametrize("step", [-1, None, 1, 7, 10_000, 10 * MIB])
    def test_can_be_read_as_a_file_and_again(self, step):
        framed = FramedFile(ViewFile(memoryview(os.urandom(300_000 if step == 1 else 9 * MIB))))
        expected = b"".join(framed.pieces())

        for _ in range(2):
            framed.seek(0)
            pieces = [framed.read(step)] if step in (-1, None) else iter(lambda: bytes(framed.read(step)), b"")
            assert b"".join(pieces) == expected

    @pytest.mark.parametrize("place", [(1,), (0, io.SEEK_END), (0, io.SEEK_CUR)])
    def test_goes_nowhere_but_to_the_start(self, place):
        with pytest.raises(io.UnsupportedOperation):
            FramedFile(ViewFile(memoryview(b"x"))).seek(*place)


def unframed(sent):
    payload = b""
    while size := int(sent[: sent.index(b"\r\n")], 16):
        begin = sent.index(b"\r\n") + 2
        payload, sent = payload + sent[begin : begin + size], sent[begin + size :]
        assert sent[:2] == b"\r\n"
        sent = sent[2:]
    assert sent[-4:] == b"\r\n\r\n"
    name, _, value = sent[3:-4].decode().partition(":")
    assert name == "x-amz-checksum-crc32"
    return payload, value


class TestChecksumInTheHeader:
    @pytest.mark.parametrize("size", [0, 1, 64 << 10, FRAMED_FROM_BYTES - 1])
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


class TestChecksumBehindTheBody:
    @pytest.mark.parametrize("shape", [bytes, bytearray, memoryview, io.BytesIO])
    def test_of_large_payloads(self, server, open_store, shape):
        store = open_store(server)

        pointer = store.write(shape(LARGE))

        (request,) = server.requests
        assert unframed(request.body) == (LARGE, crc32_of(LARGE))
        assert request.headers["x-amz-content-sha256"] == "STREAMING-UNSIGNED-PAYLOAD-TRAILER"
        assert request.headers["x-amz-decoded-content-length"] == str(len(LARGE))
        assert request.headers["x-amz-trailer"] == "x-amz-checksum-crc32"
        assert request.headers["if-none-match"] == "*"
        assert (pointer.size, pointer.checksum) == (len(LARGE), f"crc32:{zlib.crc32(LARGE):08x}")
        assert store.read(pointer) == LARGE

    @pytest.mark.parametrize("first", [Answer(503, "SlowDown"), Answer(500, "InternalError"), Answer()])
    @pytest.mark.parametrize("payload", [LARGE, b"small"], ids=["framed", "plain"])
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
        monkeypatch.setattr("claimcheck.stores.s3._upload.checksum.crc32", lambda piece, before=0: 4711)

        with pytest.raises(StoreError, match="BadDigest"):
            store.write(LARGE)

        assert len(server.objects) == 1

    def test_of_a_lost_answer_is_known_all_the_same(self, server, open_store):
        """The first try was stored; the second one is refused before its body was asked for."""
        store = open_store(server)
        store.write(LARGE)
        server.answers += [Answer(), Answer(412, "PreconditionFailed")]

        pointer = store.write(LARGE)

        assert pointer.checksum == f"crc32:{zlib.crc32(LARGE):08x}"

    def test_leaves_somebody_elses_object_alone(self, server, open_store):
        server.answers += [Answer(412, "PreconditionFailed")]

        with pytest.raises(KeyTakenError):
            open_store(server).write(LARGE)

        assert [request.method for request in server.requests] == ["PUT"]

    @pytest.mark.parametrize("frames", ["nothing", "store", "refuse"])
    def test_gives_way_where_the_server_does_not_confirm_it(self, open_store, caplog, frames):
        caplog.set_level(logging.INFO)
        with TinyS3(frames=frames) as server:
            store = open_store(server)

            pointers = [store.write(LARGE) for _ in range(2)]

            assert [store.read(pointer) for pointer in pointers] == [LARGE] * 2
            assert [request.body == LARGE for request in server.requests if request.method == "PUT"][-2:] == [
                True,
                True,
            ]
            assert len([request for request in server.requests if request.body != LARGE and request.body]) <= 2
            assert server.said("x-amz-checksum-crc32").count(crc32_of(LARGE)) == 2
            assert "sending it in a header from now on" in caplog.text

    def test_gives_way_only_where_that_helps(self, server, open_store):
        """A client without write permission has none without frames either, so nothing is learned."""
        store = open_store(server)
        server.answers += [Answer(403, "AccessDenied"), Answer(403, "AccessDenied")]

        with pytest.raises(StoreError, match="AccessDenied"):
            store.write(LARGE)
        store.write(LARGE)

        assert server.said("x-amz-trailer") == ["x-amz-checksum-crc32", None, "x-amz-checksum-crc32"]

    def test_is_believed_once_it_was_confirmed(self, server, open_store):
        """From then on an error is an error."""
        store = open_store(server)
        store.write(LARGE)
        server.answers += [Answer(400, "BadDigest")]

        with pytest.raises(StoreError, match="BadDigest"):
            store.write(LARGE)

        assert len(server.requests) == 3, "the second is not sent again, but undone"

    def test_unavailable_is_no_sign(self, server, open_store):
        server.answers += [Answer(503, "SlowDown")] * 3
        store = open_store(server)

        with pytest.raises(StoreUnavailableError):
            store.write(LARGE)

        assert set(server.said("x-amz-trailer")[:3]) == {"x-amz-checksum-crc32"}

    def test_is_not_sent_by_an_sdk_that_signs_it_otherwise(self, server, open_store, monkeypatch):
        monkeypatch.setattr(s3_body, "_FRAMED", "ANOTHER-NAME")
        store = open_store(server)

        pointer = store.write(LARGE)

        assert server.said("x-amz-trailer") == [None]
        assert store.read(pointer) == LARGE


class TestInterrupted:
    @pytest.mark.parametrize("cls", [ViewFile, FramedFile])
    def test_a_write_ends_at_the_next_piece_and_leaves_nothing(self, server, open_store, monkeypatch, cls):
        stop, pieces = threading.Event(), cls.pieces
        store, payload = open_store(server, gets=1), bytes(20 * MIB)
        store._creator._takes_frames = cls is FramedFile

        def stopping(self):
            for piece in pieces(self):
                yield piece
                stop.set()

        monkeypatch.setattr(cls, "pieces", stopping)
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
