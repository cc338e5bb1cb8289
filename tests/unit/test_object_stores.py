"""What is sent to an object store by both engines, and what becomes of its answers; tests/conformance has the rest."""

import io
import os
import socket
import subprocess
import sys
import threading
import uuid
import zlib
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

import claimcheck
from claimcheck._content.source import Source
from claimcheck._operate.sweep import Sweep
from claimcheck._threads import Interrupted, interruptible
from claimcheck._wire.pointer import Pointer
from claimcheck.errors import (
    ConfigError,
    IntegrityError,
    KeyTakenError,
    PayloadError,
    PayloadNotFoundError,
    PointerRejectedError,
    StoreError,
    StoreUnavailableError,
)
from claimcheck.stores import s3 as s3_store
from claimcheck.stores.obstore import ObstoreStore
from claimcheck.stores.s3 import S3Store
from claimcheck.stores.s3 import _client as s3_client
from claimcheck.stores.s3._client import ViewFile
from claimcheck.testing._store_kit import Breaking, Unseekable, Zeros
from tests.unit.tiny_s3 import ENGINES, Answer, TinyS3, crc32_of, opened

MIB = 1 << 20
PART = 5 * MIB
PAYLOAD = os.urandom(2 * MIB + 17)
LARGE = os.urandom(3 * PART + 1000)
BOTH = pytest.mark.parametrize("engine", ENGINES)
SIZES = pytest.mark.parametrize("payload", [PAYLOAD, LARGE], ids=["one request", "parts"])


@pytest.fixture
def engine():
    return "obstore"  # for the tests that name none


@pytest.fixture
def server():
    with TinyS3() as server:
        yield server


@pytest.fixture
def open_store(server, engine, monkeypatch):
    with opened(engine, server, monkeypatch) as build:
        yield lambda **options: build(**{"part": PART, "single": PART, **options})


@pytest.fixture
def store(open_store):
    return open_store()


def refuse(server, condition):
    answer = server.answer
    server.answer = lambda request: Answer(403, "AccessDenied") if condition(request) else answer(request)


@BOTH
class TestRequests:
    def test_of_a_payload_in_one_piece(self, server, store):
        pointer = store.write(PAYLOAD, destination="orders")
        (request,) = server.requests
        assert (request.method, request.path, request.body) == ("PUT", f"/b/{pointer.key}", PAYLOAD)
        assert request.headers["x-amz-content-sha256"] == "UNSIGNED-PAYLOAD"
        assert "/eu-west-1/s3/" in request.headers["authorization"]
        assert pointer.key.startswith("claims/orders-")
        assert pointer.checksum == f"crc32:{zlib.crc32(PAYLOAD):08x}"

    @pytest.mark.parametrize("make", [lambda: LARGE, lambda: Unseekable(Zeros(len(LARGE)))], ids=["bytes", "pipe"])
    def test_of_a_payload_store(self, server, store, make):
        pointer = store.write(make())
        assert [request.method for request in server.requests] == ["POST", *["PUT"] * 4, "POST"]
        assert sorted(len(request.body) for request in server.requests)[-4:] == [1000, PART, PART, PART]
        assert store.read(pointer) == server.objects[f"/b/{pointer.key}"]
        assert pointer.size == len(LARGE)

    @pytest.mark.parametrize("known", [True, False])
    def test_only_a_record_must_be_the_first_of_its_key_unless_the_server_knows_no_such_condition(
        self, server, store, known
    ):
        record = Pointer(key="claims/record", store=store.name, size=1)
        store._write(replace(record, created_ms=1), Source(b"y", limit=1))
        answer = server.answer
        server.answer = lambda request: (
            answer(request) if known or "if-none-match" not in request.headers else Answer(501, "NotImplemented")
        )
        if known:
            with pytest.raises(Exception, match=r"PreconditionFailed|already in use") as caught:
                store._write(record, Source(b"x", limit=1))
            assert KeyTakenError in (type(caught.value), store._translate(caught.value))
        else:
            store._write(record, Source(b"x", limit=1))
        assert server.said("if-none-match")[:2] == [None, "*"]
        assert server.objects == {"/b/claims/record": b"y" if known else b"x"}

    @SIZES
    @pytest.mark.parametrize("first", [Answer(503, "SlowDown"), Answer(500, "InternalError")])
    def test_are_repeated_after_a_refusal(self, server, store, payload, first):
        server.answers += [first, first]
        pointer = store.write(payload)
        server.answers += [first, first]
        assert store.read(pointer) == payload


@BOTH
class TestEndpoint:
    """What has an address of its own never goes anywhere else, whatever environment and server say."""

    @pytest.fixture
    def elsewhere(self, monkeypatch):
        with TinyS3() as server:
            for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT"):
                monkeypatch.setenv(name, server.url)
            monkeypatch.setenv("AWS_VIRTUAL_HOSTED_STYLE_REQUEST", "true")
            yield server

    @SIZES
    def test_everything_goes_there(self, server, elsewhere, store, payload):
        pointer = store.write(payload)
        assert store.read(pointer) == payload
        assert store.read_range(pointer, 1, 5) == payload[1:6]
        store.rollback(pointer)
        assert server.objects == {}
        assert {request.path.split("/")[1] for request in server.requests} == {"b"}
        assert elsewhere.connections == 0

    @SIZES
    @pytest.mark.parametrize(
        "answer",
        [(301, "PermanentRedirect"), (307, "TemporaryRedirect"), (308, ""), (400, "AuthorizationHeaderMalformed")],
    )
    def test_no_redirect_takes_a_payload_elsewhere(
        self, server, elsewhere, store, engine, monkeypatch, payload, answer
    ):
        """Without an address of its own the SDK would ask each region for the bucket."""
        places, find = [], socket.getaddrinfo
        monkeypatch.setattr(
            socket, "getaddrinfo", lambda *place, **more: places.append(place[:2]) or find(*place, **more)
        )
        begun = [Answer(200, body=b"<X><UploadId>u</UploadId></X>")] if payload is LARGE else []
        headers = {"Location": f"{elsewhere.url}/b/x", "x-amz-bucket-region": "us-west-2"}
        server.answers += begun + [Answer(*answer, headers)] * 20
        with pytest.raises(StoreError):
            store.write(payload)
        with pytest.raises(StoreError):
            store.read(Pointer(key="claims/x", store="cold", size=7))
        assert not [request for request in elsewhere.requests if request.body or "authorization" in request.headers]
        assert engine == "obstore" or (elsewhere.connections == 0)
        assert {f"http://{host}:{port}" for host, port in places} <= {server.url}


@BOTH
class TestUploads:
    @pytest.mark.parametrize("method", ["PUT", "POST"])
    def test_are_aborted_when_the_server_refuses_a_part_or_the_end(self, server, store, method):
        refuse(server, lambda request: request.method == method and "uploads" not in request.query)
        with pytest.raises(StoreError, match=r"403|AccessDenied"):
            store.write(LARGE)
        assert "u" in [request.query.get("uploadId") for request in server.requests if request.method == "DELETE"]
        assert server.objects == {}

    def test_that_cannot_be_aborted_are_named(self, server, store):
        refuse(server, lambda request: request.method in ("PUT", "DELETE"))
        with pytest.raises(StoreError) as caught:
            store.write(LARGE)
        assert any("lifecycle rule" in note for note in caught.value.__cause__.__notes__)


@BOTH
class TestErrors:
    @pytest.mark.parametrize(
        ("answer", "expected"),
        [
            *((Answer(404, code), PayloadNotFoundError) for code in ("NoSuchKey", "")),
            *((Answer(404, code), StoreError) for code in ("NoSuchBucket", "XAdminUserNotFound")),
            *((Answer(status, "Whatever"), StoreError) for status in (400, 401, 403)),
            (Answer(409, "ConditionalRequestConflict"), StoreUnavailableError),
            (Answer(429, "TooManyRequests"), StoreUnavailableError),
            *((Answer(*status), StoreUnavailableError) for status in ((500,), (503, "SlowDown"), (503, "Whatever"))),
            *((Answer(reset=reset), StoreUnavailableError) for reset in (False, True)),
        ],
    )
    def test_of_reading(self, server, store, answer, expected):
        for payload in (b"small", PAYLOAD):
            pointer = store.write(payload)
            server.answers += [answer] * 5
            with pytest.raises(StoreError) as caught:
                store.read(pointer)
            assert (type(caught.value), caught.value.key) == (expected, pointer.key)
            server.answers.clear()

    @pytest.mark.parametrize(
        ("answer", "expected", "undone"),
        [
            (Answer(403, "AccessDenied"), StoreError, 0),
            (Answer(404, "NoSuchBucket"), StoreError, 0),
            (Answer(400, "Whatever"), StoreError, 1),
            (Answer(503, "SlowDown"), StoreUnavailableError, 1),
            (Answer(409, "ConditionalRequestConflict"), StoreUnavailableError, 1),
            (Answer(), StoreUnavailableError, 1),
        ],
    )
    def test_of_writing_and_what_is_undone(self, server, store, answer, expected, undone):
        """Nothing is, where nothing was admitted."""
        keep, refused = server.answer, answer
        server.answer = lambda request: refused if request.method == "PUT" else keep(request)
        with pytest.raises(StoreError) as caught:
            store.write(b"payload")
        assert type(caught.value) is expected
        assert [request.method for request in server.requests].count("DELETE") == undone
        assert not hasattr(caught.value, "__notes__")

    def test_server_that_says_nothing(self, open_store):
        with socket.create_server(("127.0.0.1", 0)) as listener:
            place = f"http://127.0.0.1:{listener.getsockname()[1]}"
            store = open_store(endpoint_url=place, timeout_seconds=0.2)
            with pytest.raises(StoreUnavailableError):
                store.write(b"payload")

    def test_server_that_is_not_there_is_not_waited_for_and_nothing_is_undone(self, open_store, monkeypatch):
        pauses = []
        monkeypatch.setattr("claimcheck.stores.obstore.time", SimpleNamespace(sleep=pauses.append))
        store = open_store(endpoint_url="http://me:hunter2@127.0.0.1:1")
        with pytest.raises(StoreUnavailableError) as caught:
            store.write(b"payload")
        assert pauses == getattr(caught.value, "__notes__", []) == []
        assert "hunter2" not in str(caught.value) + repr(store)


# The engine of obstore -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["claims/a//b", "claims/a/", f"claims/{chr(0x6F22) * 340}"])
def test_keys_that_no_object_can_have_are_refused_before_any_io(store, server, key):
    with pytest.raises(PointerRejectedError):
        store.read(Pointer(key=key, store="cold", size=7))
    assert server.connections == 0


def test_a_small_payload_is_one_request_for_it_and_a_byte_more(server, store):
    pointer = store.write(b"payload")
    assert store.read(pointer) == b"payload"
    assert server.requests[-1].headers["range"] == "bytes=0-7"
    server.objects[f"/b/{pointer.key}"] = b"payload and more"
    with pytest.raises(IntegrityError):
        store.read(pointer)


def test_an_upload_whose_payload_fails_is_completed_and_removed(server, store):
    """An abort would overtake the parts that are on their way, and a real server would keep them."""
    with pytest.raises(PayloadError):
        store.write(Breaking(5 * PART, None))
    assert [request.method for request in server.requests][-2:] == ["POST", "DELETE"]


def test_what_was_heard_is_undone_though_the_line_was_reset(server, store, monkeypatch):
    """A line that breaks has been a line; the server is given time to come to an end with what it brought."""
    answer, pauses = server.answer, []
    monkeypatch.setattr("claimcheck.stores.obstore.time", SimpleNamespace(sleep=pauses.append))

    def reset(request):
        answered = answer(request)
        return Answer(reset=True) if request.method == "PUT" else answered

    server.answer = reset
    with pytest.raises(StoreUnavailableError):
        store.write(PAYLOAD)
    assert server.requests[-1].method == "DELETE"
    assert server.objects == {}
    assert len(pauses) == 1


def test_removing_what_is_not_there_is_fine_but_not_in_the_wrong_bucket(server, store):
    pointer = store.write(b"payload")
    server.answers += [Answer(404, "NoSuchKey"), Answer(404, "NoSuchBucket")]
    store.rollback(pointer)
    with pytest.raises(StoreError, match="NoSuchBucket"):
        store.rollback(pointer)


@BOTH
def test_no_credentials_anywhere(open_store, monkeypatch):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", "http://127.0.0.1:1")
    s3_client.session.cache_clear()
    with pytest.raises(StoreError):
        open_store(timeout_seconds=1).write(b"payload")


FORKING = """
import os, sys
from claimcheck.errors import StoreError
from claimcheck.stores.obstore import ObstoreStore
used = ObstoreStore(url="memory:///")
if sys.argv[2] == "used":
    pointer = used.write(b"payload")
child = os.fork()
if not child:
    try:
        print(used.read(used.write(b"of the child")), flush=True)
    except StoreError as error:
        print(error, flush=True)
    os._exit(0)
os.waitpid(child, 0)
print(used.read(used.write(b"of the parent")))
"""


@pytest.mark.parametrize(
    ("before", "expected"), [("used", "use the store in the new processes only"), ("", "b'of the child'")]
)
def test_a_forked_process_does_not_wait_for_ever(before, expected):
    root = str(Path(claimcheck.__path__[0]).parent)
    done = subprocess.run(
        [sys.executable, "-P", "-c", FORKING, root, before],
        env={**os.environ, "PYTHONPATH": root}, capture_output=True, text=True, check=True, timeout=30,
    )  # fmt: skip
    first, second = done.stdout.splitlines()
    assert expected in first
    assert second == "b'of the parent'"


def test_the_engine_takes_every_kind_of_place(monkeypatch):
    """As far as that goes without the vendors."""
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "account")
    prefixes = {"s3://b": "", "s3://b/a/b/": "a/b/", "gs://b/a": "a/", "az://container/a": "a/", "memory:///a": "a/"}
    for url, prefix in prefixes.items():
        store = ObstoreStore(url=url)
        assert (store.prefix, store._objects()) == (prefix, store._objects())


@pytest.mark.parametrize(
    "options",
    [
        *({"url": url} for url in ("bucket", "http://host/bucket", "s3://", "s3:///prefix", "file:///tmp/claims")),
        *({"url": url} for url in ("memory://space", "s3://me:hunter2@b/x", "s3://b/a/../b", "s3://b/a//b")),
        *({"url": url} for url in ("s3://b/a?x=hunter2", "s3://[x")),
        {"url": "memory:///", "endpoint_url": "http://localhost:7070"},  # it has no server
        *({"endpoint_url": url} for url in ("localhost:7070", "me:hunter2@host", "ftp://host", "http://", "http://[x")),
        {"endpoint_url": "http://h:x"},
    ],
)
def test_what_is_no_place_is_refused(options):
    with pytest.raises(ConfigError, match=rf"{[*options][-1]}: found") as caught:
        ObstoreStore(**options) if "url" in options else S3Store(bucket="b", **options)
    assert "hunter2" not in str(caught.value)


# The engine of boto3: checksums, connections, the reader's own way to the socket, and listings ------------------------

FAR = os.urandom(21 * MIB + 1000)
DAY = 86_400


class Boto:
    @pytest.fixture
    def engine(self):
        return "s3"

    @pytest.fixture
    def store(self, open_store):
        return open_store(part=None, single=None)

    @pytest.fixture
    def pointer(self, server, store):
        pointer = store.write(PAYLOAD)
        server.requests.clear()
        return pointer

    @pytest.fixture(params=[True, False], ids=["direct", "by the SDK"])
    def direct(self, request, monkeypatch):
        """Everything is as good, only slower, where the response is not the one that we know."""
        if not request.param:
            monkeypatch.setattr(s3_store, "_direct", lambda body: None)


class TestOneRequest(Boto):
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

    def test_ends_at_the_next_piece_when_it_is_interrupted_and_leaves_nothing(self, server, open_store, monkeypatch):
        stop, pieces = threading.Event(), ViewFile.pieces
        store, payload = open_store(part=None, single=64 * MIB, gets=1), bytes(20 * MIB)

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

    def test_the_client_is_made_anew_in_a_forked_process(self, store, monkeypatch):
        first = store._s3()
        assert store._s3() is first
        monkeypatch.setattr("claimcheck.stores.s3.os.getpid", lambda: 1)
        assert store._s3() is not first


@pytest.mark.parametrize("engine", ["s3"])
class TestParts:
    def test_have_their_checksums_in_the_header(self, server, store):
        server.answers += [
            Answer(200, body=b"<InitiateMultipartUploadResult><UploadId>u</UploadId></InitiateMultipartUploadResult>"),
            Answer(503, "SlowDown"),
            Answer(),
        ]
        before = threading.active_count()
        pointer = store.write(LARGE[: 12 * MIB])
        puts = {r.query["partNumber"]: r for r in server.requests if r.method == "PUT"}  # the last of each
        assert [len(puts[number].body) for number in "123"] == [PART, PART, 2 * MIB]
        assert all(put.headers["x-amz-checksum-crc32"] == crc32_of(put.body) for put in puts.values())
        assert {put.headers.get("expect") for put in puts.values()} == {None}, "it agreed to the upload already"
        assert pointer.checksum == f"crc32:{zlib.crc32(LARGE[: 12 * MIB]):08x}"
        assert list(server.objects.values()) == [LARGE[: 12 * MIB]]
        assert threading.active_count() <= before + server.connections, "only the server's threads are new"

    def test_are_aborted_again_when_one_of_them_was_lost(self, server, store):
        """The server may have gone on with it, and so may have stored it after the first abort."""
        answer = server.answer

        def torn(request):
            return Answer() if "partNumber" in request.query else answer(request)

        server.answer = torn
        with pytest.raises(StoreError) as caught:
            store.write(LARGE)
        aborted = [request.query.get("uploadId") for request in server.requests if request.method == "DELETE"]
        assert aborted.count("u") > 2
        assert not hasattr(caught.value.__cause__, "__notes__")

    def test_are_not_used_for_a_short_file_of_unknown_size(self, server, store):
        for data in (b"", b"short"):
            assert store.read(store.write(Unseekable(io.BytesIO(data)))) == data
        assert [request.method for request in server.requests] == ["PUT", "GET"] * 2


class TestReading(Boto):
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


class TestSideBySide(Boto):
    """As many connections as the store found to be good."""

    @pytest.fixture(params=[1, 2, 8])
    def far(self, store, request):
        transfers = store._transfers.gets
        transfers.connections, transfers.is_fast = request.param, False
        yield store
        assert transfers.active == 0, "memory is bounded and given back"

    @pytest.fixture
    def large(self, server, store):
        pointer = store.write(FAR)
        server.requests.clear()
        return pointer

    def test_a_payload_is_whole_however_many_there_are(self, server, far, large):
        assert far.read(large) == FAR
        assert len(server.said("range")) == {1: 1, 2: 3, 8: 6}[far._transfers.gets.connections]
        with far.open(large) as file:
            assert b"".join(iter(lambda: file.read(65536), b"")) == FAR
            file.seek(5 * MIB)
            assert file.read(12 * MIB) == FAR[5 * MIB : 17 * MIB]
        assert far.read_range(large, 7, 20 * MIB) == FAR[7 : 7 + 20 * MIB]

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
            store.read_range(large, 0, len(FAR) - 1)
        assert store._transfers.gets.active == 0
        assert not [thread for thread in threading.enumerate() if thread.name.startswith("claimcheck-read")]
        server.answer = answer
        assert store.read(large) == FAR


class TestListing(Boto):
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

    def test_goes_on_after_a_page_and_deletes_a_thousand_in_a_request(self, server, open_store):
        store, server.page_keys = open_store(ttl_seconds=0), 400
        for _ in range(1001):
            key = store._key("orders", uuid.uuid4(), created_ms=0, expires_ms=DAY * 1000)
            server.objects[f"/b/{key}"] = b""
        assert Sweep(dry_run=False).run(store).deleted == 1001
        assert server.objects == {}
        deletions = [request.body.count(b"<Key>") for request in server.requests if "delete" in request.query]
        assert deletions == [1000, 1]
