"""What goes over the line to S3, and what comes of it when the line is bad; tests/conformance has the rest."""

from __future__ import annotations

import contextlib
import io
import sys
import threading
import uuid
from dataclasses import replace

import pytest
from botocore.awsrequest import AWSResponse
from botocore.exceptions import (
    ClientError,
    EndpointConnectionError,
    IncompleteReadError,
    NoCredentialsError,
    ReadTimeoutError,
)

from claimcheck._content.source import Source
from claimcheck._operate.sweep import Sweep
from claimcheck._store.contract import StoreContext
from claimcheck._wire.pointer import Pointer
from claimcheck.errors import (
    ConfigError,
    KeyTakenError,
    MissingDependencyError,
    PayloadNotFoundError,
    StoreError,
    StoreUnavailableError,
)
from claimcheck.stores.s3 import S3Store
from claimcheck.stores.s3 import _client as s3_client
from tests.parts import divided

PART = 5 << 20


UUID = uuid.UUID("6ba7b810-9dad-11d1-80b4-00c04fd430c8")


NOW = 1_700_000_000.0


KEY = f"orders-20231114T221320Z-never.{UUID}"


@pytest.fixture
def bucket(mocked_s3):
    mock, s3 = mocked_s3
    mock.reset()
    return s3.create_bucket(Bucket="payloads")


@pytest.fixture
def open_store(bucket):
    with contextlib.ExitStack() as stores:

        def build(**options):
            store = stores.enter_context(
                divided(S3Store, **{"bucket": "payloads", "part": PART, "single": PART, **options})
            )
            store.context = StoreContext(name="cold", new_uuid=lambda: UUID, clock=lambda: NOW)
            return store

        yield build


class Line:
    """Between client and server: counts requests, and answers some of them itself, before or instead of the server."""

    def __init__(self, client, *answers, operation="PutObject", deliver=False):
        self.answers, self.deliver, self.bodies, self.requests = list(answers), deliver, [], []
        self.client = client
        client.meta.events.register_last("before-send.s3", self)
        self.operation = operation

    def __call__(self, request, event_name, **_):
        self.requests.append(request)
        body = request.body
        self.bodies.append(bytes(body.read()) if hasattr(body, "read") else body)
        if hasattr(body, "seek"):
            body.seek(0)
        if event_name.endswith(self.operation) and self.answers:
            status, code = self.answers.pop(0)
            return answer(request, status, code)
        return None


def answer(request, status, code):
    text = f"<Error><Code>{code}</Code><Message>from the test</Message></Error>".encode()
    raw = io.BytesIO(text)
    raw.stream = lambda *_, **__: iter([text])
    return AWSResponse(request.url, status, {"content-type": "application/xml"}, raw)


class TestSinglePut:
    def test_body_is_the_callers_own_memory(self, open_store):
        seen, payload = [], bytearray(b"payload" * 1000)
        store = open_store()

        def look(request, **_):
            seen.append(request.body.read(10).obj)
            request.body.seek(0)

        store._s3().meta.events.register_first("before-send.s3", look)
        store.write(payload)

        assert seen[0] is payload

    def test_only_a_record_must_be_the_first_one(self, open_store, bucket):
        bucket.Object(KEY).put(Body=b"somebody else's")
        record = Pointer(key=KEY, size=1)

        with pytest.raises(KeyTakenError):
            open_store()._write(record, Source(b"x", limit=1))

        assert bucket.Object(KEY).get()["Body"].read() == b"somebody else's"
        open_store()._write(replace(record, created_ms=1), Source(b"y", limit=1))
        assert bucket.Object(KEY).get()["Body"].read() == b"y"

    def test_does_without_the_condition_where_the_server_knows_none(self, open_store, bucket, caplog):
        store = open_store()
        line = Line(store._s3(), (501, "NotImplemented"))

        store._write(Pointer(key=KEY, size=1), Source(b"x", limit=1))

        assert [request.headers.get("If-None-Match") for request in line.requests] == [b"*", None]
        assert bucket.Object(KEY).get()["Body"].read() == b"x"
        assert "If-None-Match" in caplog.text


class TestMultipart:
    def test_is_aborted_when_a_part_fails(self, open_store, bucket):
        store = open_store()
        Line(store._s3(), (403, "AccessDenied"), operation="UploadPart")

        with pytest.raises(StoreError, match="AccessDenied"):
            store.write(bytes(3 * PART))

        assert list(bucket.multipart_uploads.all()) == []
        assert list(bucket.objects.all()) == []

    def test_is_aborted_when_it_cannot_be_completed(self, open_store, bucket):
        store = open_store()
        Line(store._s3(), (400, "InvalidPart"), operation="CompleteMultipartUpload")

        with pytest.raises(StoreError, match="InvalidPart"):
            store.write(bytes(2 * PART))

        assert list(bucket.multipart_uploads.all()) == []

    def test_says_so_when_it_cannot_be_aborted(self, open_store, bucket):
        store = open_store()
        Line(store._s3(), (403, "AccessDenied"), operation="UploadPart")
        Line(store._s3(), *[(403, "AccessDenied")] * 3, operation="AbortMultipartUpload")

        with pytest.raises(StoreError) as caught:
            store.write(bytes(3 * PART))

        assert any("lifecycle rule" in note for note in caught.value.__cause__.__notes__)

    def test_is_aborted_again_when_a_part_was_lost(self, open_store, bucket):
        """The server may have gone on with it, and so may have stored it after the first abort."""
        store = open_store()
        Line(store._s3(), (403, "AccessDenied"), operation="UploadPart")
        line = Line(store._s3(), (500, "InternalError"), operation="AbortMultipartUpload")

        with pytest.raises(StoreError) as caught:
            store.write(bytes(3 * PART))

        assert [request.method for request in line.requests].count("DELETE") > 2
        assert not hasattr(caught.value.__cause__, "__notes__")
        assert list(bucket.multipart_uploads.all()) == []

    def test_is_not_used_for_a_short_file_of_unknown_size(self, open_store):
        class Pipe(io.BytesIO):
            def seekable(self):
                return False

        store = open_store()
        line = Line(store._s3())

        for data in (b"", b"short"):
            store.context = replace(store.context, new_uuid=uuid.uuid4)
            assert store.read(store.write(Pipe(data))) == data
        assert [request.method for request in line.requests] == ["PUT", "GET"] * 2

    def test_leaves_no_thread_behind(self, open_store):
        before = threading.active_count()
        open_store(puts=3).write(bytes(4 * PART))

        assert threading.active_count() == before


class TestErrors:
    @pytest.mark.parametrize(
        ("code", "expected"),
        [
            ("NoSuchKey", PayloadNotFoundError),
            ("404", PayloadNotFoundError),
            ("NoSuchBucket", StoreError),
            ("AccessDenied", StoreError),
            ("InvalidAccessKeyId", StoreError),
            ("SlowDown", StoreUnavailableError),
            ("InternalError", StoreUnavailableError),
            ("503", StoreUnavailableError),
            ("ConditionalRequestConflict", StoreUnavailableError),
        ],
    )
    def test_codes(self, open_store, code, expected):
        error = ClientError({"Error": {"Code": code}}, "GetObject")

        assert raised_by_read(open_store(), error) is expected

    @pytest.mark.parametrize(
        "error",
        [
            EndpointConnectionError(endpoint_url="http://host"),
            ReadTimeoutError(endpoint_url="http://host"),
            IncompleteReadError(actual_bytes=1, expected_bytes=2),
            ConnectionResetError(),
        ],
    )
    def test_lines(self, open_store, error):
        assert raised_by_read(open_store(), error) is StoreUnavailableError

    @pytest.mark.parametrize(
        ("error", "undone"),
        [
            (EndpointConnectionError(endpoint_url="http://host"), 0),
            (NoCredentialsError(), 0),
            (ClientError({"Error": {"Code": "InvalidAccessKeyId"}}, "PutObject"), 0),
            (ClientError({"Error": {"Code": "InternalError"}}, "PutObject"), 1),
            (ReadTimeoutError(endpoint_url="http://host"), 1),
        ],
    )
    def test_nothing_is_undone_where_nothing_was_admitted(self, open_store, monkeypatch, error, undone):
        store, deleted = open_store(), []
        monkeypatch.setattr(S3Store, "_delete", lambda _, pointer: deleted.append(pointer))

        def fail(**_):
            raise error

        store._s3().put_object = fail
        with pytest.raises(StoreError) as caught:
            store.write(b"payload")

        assert len(deleted) == undone
        assert not hasattr(caught.value, "__notes__")

    def test_missing_driver_is_not_undone(self, monkeypatch):
        for name in ("boto3", "botocore.exceptions", "botocore.config"):
            monkeypatch.setitem(sys.modules, name, None)
        s3_client.session.cache_clear()

        with pytest.raises(MissingDependencyError) as caught:
            S3Store(bucket="b").write(b"payload")

        assert not hasattr(caught.value, "__notes__")

    def test_unreachable_server(self):
        store = S3Store(bucket="b", endpoint_url="http://me:hunter2@127.0.0.1:1")

        with pytest.raises(StoreUnavailableError) as caught:
            store.write(b"payload")
        store.close()

        assert "hunter2" not in str(caught.value) + repr(store)
        assert not hasattr(caught.value, "__notes__")


def raised_by_read(store, error):
    pointer = store.write(b"payload")

    def fail(**_):
        raise error

    store._s3().get_object = fail
    with pytest.raises(StoreError) as caught:
        store.read(pointer)
    return type(caught.value)


class TestOptions:
    @pytest.mark.parametrize(
        "url", ["localhost:7070", "me:hunter2@host", "ftp://host", "http://", "http://[x", "http://h:x"]
    )
    def test_endpoint_needs_a_scheme_and_a_host(self, url):
        with pytest.raises(ConfigError, match="endpoint_url: found text") as caught:
            S3Store(bucket="b", endpoint_url=url)

        assert "hunter2" not in str(caught.value)

    def test_empty_endpoint_from_the_environment_is_none(self):
        assert S3Store(bucket="b", endpoint_url="")._place["endpoint_url"] is None


class TestClient:
    def test_is_made_anew_in_a_forked_process(self, open_store, monkeypatch):
        store = open_store()
        first = store._s3()
        assert store._s3() is first

        monkeypatch.setattr("claimcheck.stores.s3.os.getpid", lambda: 1)

        assert store._s3() is not first


DAY = 86_400


OTHER = {"ID": "logs", "Status": "Enabled", "Filter": {"Prefix": "logs/"}, "Expiration": {"Days": 3}}


@pytest.fixture
def open_listed(bucket):
    with contextlib.ExitStack() as stores:

        def build(name="cold", **options):
            store = stores.enter_context(
                S3Store(**{"bucket": bucket.name, "prefix": "claims", "ttl_seconds": DAY, **options})
            )
            store.context = StoreContext(name=name)
            return store

        yield build


class TestListing:
    def test_has_only_the_stores_own_objects(self, open_listed, bucket):
        pointer = open_listed().write(b"payload", destination="orders")
        for key in ("claims/notes.txt", f"claims/team/orders-{UUID}", f"orders-{UUID}", "claims/"):
            bucket.put_object(Key=key, Body=b"of others")

        assert [entry.key for entry in open_listed().scan()] == [pointer.key]

    def test_parts_divide_days_into_hours_and_keys_without_a_time_by_uuids(self, open_listed, bucket):
        store = open_listed()
        for hour in range(48):
            store.context = StoreContext(clock=lambda hour=hour: 1_700_006_400 + 3600 * hour)  # midnight
            store.write(b"payload", destination="orders")
            bucket.put_object(Key=f"claims/orders-60s_{uuid.uuid4()}", Body=b"of an earlier release")
        bucket.put_object(Key="claims/zz-of-others", Body=b"")

        parts = [[entry.key for entry in store.scan(partition=part)] for part in store.partitions(24)]

        assert sorted(key for part in parts for key in part) == sorted(entry.key for entry in store.scan())
        assert len(parts) == 24
        assert max(map(len, parts)) <= 24, "no part has a quarter of all"

    def test_of_a_store_without_a_prefix_has_nothing_else_of_the_bucket(self, open_listed, bucket):
        open_listed().write(b"of the other store")
        bucket.put_object(Key="data.csv", Body=b"of others")
        pointer = open_listed(prefix="").write(b"payload", destination="orders")

        assert [entry.key for entry in open_listed(prefix="").scan()] == [pointer.key]

    def test_goes_on_after_a_thousand_objects(self, open_listed, bucket):
        store = open_listed(ttl_seconds=0)
        keys = [store._key("orders", uuid.uuid4(), created_ms=0, expires_ms=DAY * 1000) for _ in range(1001)]
        for key in keys:
            bucket.put_object(Key=key, Body=b"")

        assert Sweep(dry_run=False).run(store).deleted == 1001
        assert list(bucket.objects.all()) == []
