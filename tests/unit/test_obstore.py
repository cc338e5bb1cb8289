"""What the engine of obstore is asked to do; tests/conformance has the rest."""

import contextlib
import os
import socket
import subprocess
import sys
import time
import zlib
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

import claimcheck
from claimcheck._content.source import Source
from claimcheck._store.contract import StoreContext
from claimcheck._wire.pointer import Pointer
from claimcheck.errors import (
    ConfigError,
    IntegrityError,
    KeyTakenError,
    MissingDependencyError,
    PayloadError,
    PayloadNotFoundError,
    PointerRejectedError,
    StoreError,
    StoreUnavailableError,
)
from claimcheck.stores.obstore import ObstoreStore
from claimcheck.testing._store_kit import Breaking, Unseekable, Zeros
from tests.parts import divided
from tests.unit.tiny_s3 import Answer, TinyS3

MIB = 1 << 20


PART = 5 * MIB


PAYLOAD = os.urandom(2 * MIB + 17)


LARGE = os.urandom(3 * PART + 1000)


@pytest.fixture
def server():
    with TinyS3() as server:
        yield server


@pytest.fixture
def open_store(server):
    with contextlib.ExitStack() as stores:

        def build(**options):
            place = {"url": "s3://b/claims", "endpoint_url": server.url, "region_name": "eu-west-1"}
            store = stores.enter_context(divided(ObstoreStore, **{**place, "part": PART, "single": PART, **options}))
            store.context = StoreContext(name="cold")
            return store

        yield build


@pytest.fixture
def store(open_store):
    return open_store()


@pytest.mark.parametrize("key", ["claims/a//b", "claims/a/", f"claims/{chr(0x6F22) * 340}"])
def test_keys_that_no_object_can_have_are_refused_before_any_io(store, server, key):
    with pytest.raises(PointerRejectedError):
        store.read(Pointer(key=key, store="cold", size=7))

    assert server.connections == 0


class TestRequests:
    def test_single_put(self, server, store):
        pointer = store.write(PAYLOAD, destination="orders")

        (request,) = server.requests
        assert (request.method, request.path, request.body) == ("PUT", f"/b/{pointer.key}", PAYLOAD)
        assert request.headers["x-amz-content-sha256"] == "UNSIGNED-PAYLOAD"
        assert "/eu-west-1/s3/" in request.headers["authorization"]
        assert pointer.key.startswith("claims/orders-")
        assert pointer.checksum == f"crc32:{zlib.crc32(PAYLOAD):08x}"

    @pytest.mark.parametrize("payload", [LARGE, Unseekable(Zeros(len(LARGE)))], ids=["bytes", "pipe"])
    def test_parts(self, server, store, payload):
        pointer = store.write(payload)

        assert [request.method for request in server.requests] == ["POST", *["PUT"] * 4, "POST"]
        assert sorted(len(request.body) for request in server.requests)[-4:] == [1000, PART, PART, PART]
        assert store.read(pointer) == server.objects[f"/b/{pointer.key}"]
        assert pointer.size == len(LARGE)

    def test_parts_side_by_side(self, server, open_store):
        store = open_store(gets=3)
        pointer = store.write(LARGE)
        server.requests.clear()

        assert store.read(pointer) == LARGE
        assert sorted(server.said("range")) == sorted(
            f"bytes={start}-{min(start + PART, len(LARGE)) - 1}" for start in range(0, len(LARGE), PART)
        )

    def test_small_payload_is_one_request_and_a_byte_more(self, server, store):
        pointer = store.write(b"payload")

        assert store.read(pointer) == b"payload"
        assert server.requests[-1].headers["range"] == "bytes=0-7"
        server.objects[f"/b/{pointer.key}"] = b"payload and more"
        with pytest.raises(IntegrityError):
            store.read(pointer)


class TestEndpoint:
    def test_the_environment_names_another_one(self, server, open_store, monkeypatch):
        for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT"):
            monkeypatch.setenv(name, "http://127.0.0.1:1")
        monkeypatch.setenv("AWS_VIRTUAL_HOSTED_STYLE_REQUEST", "true")
        store = open_store()

        assert store.read(store.write(PAYLOAD)) == PAYLOAD
        assert {request.path.split("/")[1] for request in server.requests} == {"b"}

    @pytest.mark.parametrize("status", [301, 302, 307, 308])
    @pytest.mark.parametrize("payload", [b"payload", LARGE], ids=["single", "parts"])
    def test_payloads_are_never_sent_elsewhere(self, server, store, status, payload):
        with TinyS3() as elsewhere:
            begun = [Answer(200, body=b"<X><UploadId>u</UploadId></X>")] if payload is LARGE else []
            server.answers += begun + [Answer(status, headers={"Location": f"{elsewhere.url}/b/x"})] * 20

            with pytest.raises(StoreError):
                store.write(payload)

            assert not [request for request in elsewhere.requests if request.body]


class TestTries:
    @pytest.mark.parametrize("first", [Answer(503, "SlowDown"), Answer(500, "InternalError")])
    def test_again_after_a_refusal(self, server, store, first):
        server.answers += [first, first]

        pointer = store.write(PAYLOAD)

        assert [request.body == PAYLOAD for request in server.requests] == [True] * 3
        server.answers += [first, first]
        assert store.read(pointer) == PAYLOAD

    def test_only_a_record_must_be_the_first_one(self, server, store):
        server.answers += [Answer(412, "PreconditionFailed")]
        record = Pointer(key="claims/record", store=store.name, size=1)

        with pytest.raises(Exception, match="PreconditionFailed") as caught:
            store._write(record, Source(b"x", limit=1))
        store._write(replace(record, created_ms=1), Source(b"y", limit=1))

        assert store._translate(caught.value) is KeyTakenError
        assert server.said("if-none-match") == ["*", None]

    def test_does_without_the_condition_where_the_server_knows_none(self, server, store):
        server.answers += [Answer(501, "NotImplemented")] * 3

        store._write(Pointer(key="claims/record", store=store.name, size=1), Source(b"x", limit=1))

        assert server.said("if-none-match") == ["*", "*", "*", None]

    @pytest.mark.parametrize("after", [0, 1, MIB, len(PAYLOAD) - 1])
    def test_a_torn_download_is_whole_or_unavailable(self, server, store, after):
        pointer = store.write(PAYLOAD)
        headers = {"ETag": '"e"', "Last-Modified": "Wed, 01 Jan 2025 00:00:00 GMT"}
        server.answers += [Answer(200, headers=headers, body=PAYLOAD, hang_up_after=after)]
        try:
            assert store.read(pointer) == PAYLOAD
        except StoreUnavailableError:
            assert store.read(pointer) == PAYLOAD


class TestUploads:
    @pytest.mark.parametrize("error", [OSError("the disk is on fire"), KeyboardInterrupt(), None])
    def test_are_completed_and_removed_when_the_payload_fails(self, server, store, error):
        """An abort would overtake the parts that are on their way, and a real server would keep them."""
        with pytest.raises(KeyboardInterrupt if isinstance(error, KeyboardInterrupt) else PayloadError):
            store.write(Breaking(5 * PART, error))

        assert [request.method for request in server.requests][-2:] == ["POST", "DELETE"]
        assert server.objects == {}

    @pytest.mark.parametrize("method", ["PUT", "POST"])
    def test_are_aborted_when_the_server_refuses(self, server, store, method):
        """A part, or to put them together."""
        refuse(server, lambda request: request.method == method and "uploads" not in request.query)

        with pytest.raises(StoreError, match=f"{method}.* 403 "):
            store.write(LARGE)

        assert "u" in [request.query.get("uploadId") for request in server.requests if request.method == "DELETE"]

    def test_say_so_when_they_cannot_be_aborted(self, server, store):
        refuse(server, lambda request: request.method in ("PUT", "DELETE"))

        with pytest.raises(StoreError) as caught:
            store.write(LARGE)

        assert any("lifecycle rule" in note for note in caught.value.__cause__.__notes__)


def refuse(server, condition):
    answer = server.answer
    server.answer = lambda request: Answer(403, "AccessDenied") if condition(request) else answer(request)


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


class TestProcesses:
    @pytest.mark.parametrize(
        ("before", "expected"),
        [("used", "use the store in the new processes only"), ("", "b'of the child'")],
    )
    def test_a_forked_one_does_not_wait_for_ever(self, before, expected):
        root = str(Path(claimcheck.__path__[0]).parent)
        done = subprocess.run(
            [sys.executable, "-P", "-c", FORKING, root, before],
            env={**os.environ, "PYTHONPATH": root}, capture_output=True, text=True, check=True, timeout=30,
        )  # fmt: skip

        first, second = done.stdout.splitlines()
        assert expected in first
        assert second == "b'of the parent'"


class TestErrors:
    @pytest.mark.parametrize(
        ("answer", "expected"),
        [
            (Answer(404, "NoSuchKey"), PayloadNotFoundError),
            (Answer(404), PayloadNotFoundError),
            (Answer(404, "NoSuchBucket"), StoreError),
            (Answer(404, "XAdminUserNotFound"), StoreError),
            (Answer(403, "AccessDenied"), StoreError),
            (Answer(401, "Unauthorized"), StoreError),
            (Answer(400, "Whatever"), StoreError),
            (Answer(503, "SlowDown"), StoreUnavailableError),
            (Answer(500), StoreUnavailableError),
            (Answer(429, "TooManyRequests"), StoreUnavailableError),
            (Answer(), StoreUnavailableError),
        ],
    )
    @pytest.mark.parametrize("payload", [b"small", PAYLOAD], ids=["small", "large"])
    def test_reading(self, server, store, answer, expected, payload):
        pointer = store.write(payload)
        server.answers += [answer] * 5

        with pytest.raises(StoreError) as caught:
            store.read(pointer)

        assert type(caught.value) is expected
        assert caught.value.key == pointer.key

    @pytest.mark.parametrize(
        ("answer", "expected", "undone"),
        [
            (Answer(403, "AccessDenied"), StoreError, 0),
            (Answer(404, "NoSuchBucket"), StoreError, 0),
            (Answer(400, "Whatever"), StoreError, 1),
            (Answer(503, "SlowDown"), StoreUnavailableError, 1),
            (Answer(), StoreUnavailableError, 1),
        ],
    )
    def test_writing(self, server, store, answer, expected, undone):
        server.answers += [answer] * 3

        with pytest.raises(StoreError) as caught:
            store.write(b"payload")

        assert type(caught.value) is expected
        assert [request.method for request in server.requests].count("DELETE") == undone

    def test_what_was_heard_is_undone_though_the_line_was_reset(self, server, store, monkeypatch):
        """A line that breaks has been a line; the server is given time to come to an end with what it brought."""
        answer, pauses = server.answer, []
        monkeypatch.setattr("claimcheck.stores.obstore.time", SimpleNamespace(sleep=pauses.append))

        def reset(request):
            if request.method == "PUT":
                answer(request)
                return Answer(reset=True)
            return answer(request)

        server.answer = reset
        with pytest.raises(StoreUnavailableError):
            store.write(PAYLOAD)

        assert [request.method for request in server.requests][-1] == "DELETE"
        assert server.objects == {}
        assert len(pauses) == 1

    def test_nobody_waits_for_a_server_that_is_not_there(self, open_store, monkeypatch):
        pauses = []
        monkeypatch.setattr("claimcheck.stores.obstore.time", SimpleNamespace(sleep=pauses.append))

        with pytest.raises(StoreUnavailableError):
            open_store(endpoint_url="http://127.0.0.1:1").write(b"payload")

        assert pauses == []

    def test_removing_what_is_not_there_is_fine_but_not_in_the_wrong_bucket(self, server, store):
        pointer = store.write(b"payload")
        server.answers += [Answer(404, "NoSuchKey"), Answer(404, "NoSuchBucket")]

        store.rollback(pointer)
        with pytest.raises(StoreError, match="NoSuchBucket"):
            store.rollback(pointer)

    def test_server_that_says_nothing(self, open_store):
        with socket.create_server(("127.0.0.1", 0)) as listener:
            place = f"http://127.0.0.1:{listener.getsockname()[1]}"
            store = open_store(endpoint_url=place, timeout_seconds=0.3)
            begin = time.monotonic()

            with pytest.raises(StoreUnavailableError):
                store.write(b"payload")

        assert time.monotonic() - begin < 25

    def test_no_credentials_anywhere(self, open_store, monkeypatch):
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            monkeypatch.delenv(name)
        monkeypatch.setenv("AWS_METADATA_ENDPOINT", "http://127.0.0.1:1")

        with pytest.raises(StoreError):
            open_store(timeout_seconds=1).write(b"payload")

    def test_missing_driver_is_not_undone(self, monkeypatch):
        for name in ("obstore", "obstore.store"):
            monkeypatch.setitem(sys.modules, name, None)

        with pytest.raises(MissingDependencyError, match=r"claimcheck-messaging\[obstore\]") as caught:
            ObstoreStore(url="s3://b").write(b"payload")

        assert not hasattr(caught.value, "__notes__")


class TestOptions:
    @pytest.mark.parametrize(
        ("url", "prefix", "text"),
        [
            ("s3://b", "", "s3://b/"),
            ("s3://b/", "", "s3://b/"),
            ("s3://b/a/b/", "a/b/", "s3://b/a/b/"),
            ("gs://b/a", "a/", "gs://b/a/"),
            ("az://container/a", "a/", "az://container/a/"),
            ("memory:///", "", "memory:///"),
            ("memory:///space", "space/", "memory:///space/"),
        ],
    )
    def test_places(self, url, prefix, text):
        store = ObstoreStore(url=url)

        assert store.prefix == prefix
        assert repr(store) == f"<ObstoreStore 'store' at {text}>"

    @pytest.mark.parametrize(
        "url",
        [
            "bucket",
            "http://host/bucket",
            "s3://",
            "s3:///prefix",
            "file:///tmp/claims",
            "memory://space",
            "s3://me:hunter2@b/x",
            "s3://b/a/../b",
            "s3://b/a//b",
            "s3://b/a?x=hunter2",
            "s3://[x",
        ],
    )
    def test_what_is_no_place_is_refused(self, url):
        with pytest.raises(ConfigError, match="url: found text") as caught:
            ObstoreStore(url=url)

        assert "hunter2" not in str(caught.value)

    @pytest.mark.parametrize("url", ["gs://b/p", "az://c/p"])
    def test_other_vendors_are_made(self, url, monkeypatch):
        """As far as that goes without them: the engine takes what it is given."""
        monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "account")
        store = ObstoreStore(url=url, endpoint_url="http://127.0.0.1:1")

        assert store._objects() is store._objects()

    def test_an_endpoint_needs_a_server(self):
        with pytest.raises(ConfigError, match="endpoint_url"):
            ObstoreStore(url="memory:///", endpoint_url="http://localhost:7070")
