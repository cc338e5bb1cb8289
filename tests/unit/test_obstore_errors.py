"""What the errors of obstore become, and which options it is made with."""

import os
import socket
import sys
import time
from types import SimpleNamespace

import pytest

from claimcheck._registry import STORES, load_class
from claimcheck._store.contract import StoreContext
from claimcheck.errors import (
    ConfigError,
    MissingDependencyError,
    PayloadNotFoundError,
    StoreError,
    StoreUnavailableError,
)
from claimcheck.stores.obstore import ObstoreStore
from tests.unit.tiny_s3 import Answer, TinyS3

PAYLOAD = os.urandom((2 << 20) + 17)


@pytest.fixture
def server():
    with TinyS3() as server:
        yield server


@pytest.fixture
def open_store(server):
    opened = []

    def build(**options):
        place = {"url": "s3://b/claims", "endpoint_url": server.url, "region_name": "eu-west-1"}
        store = ObstoreStore(**{**place, **options})
        store.context = StoreContext(name="cold")
        opened.append(store)
        return store

    yield build
    for store in opened:
        store.close()


@pytest.fixture
def store(open_store):
    return open_store()


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

    def test_server_that_is_not_there(self, open_store):
        store = open_store(endpoint_url="http://me:hunter2@127.0.0.1:1")
        begin = time.monotonic()

        with pytest.raises(StoreUnavailableError) as caught:
            store.write(b"payload")

        assert time.monotonic() - begin < 25
        assert "hunter2" not in str(caught.value) + repr(store)
        assert not hasattr(caught.value, "__notes__")

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

    def test_an_endpoint_needs_a_server(self):
        with pytest.raises(ConfigError, match="endpoint_url"):
            ObstoreStore(url="memory:///", endpoint_url="http://localhost:7070")

    def test_endpoint_needs_a_scheme_and_a_host(self):
        with pytest.raises(ConfigError, match="endpoint_url: found text"):
            ObstoreStore(url="s3://b", endpoint_url="localhost:7070")

    def test_is_known_by_its_name(self):
        assert load_class("obstore", STORES, group="claimcheck.stores", path="type") is ObstoreStore

    @pytest.mark.parametrize("url", ["gs://b/p", "az://c/p"])
    def test_other_vendors_are_made(self, url, monkeypatch):
        """As far as that goes without them: the engine takes what it is given."""
        monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "account")
        store = ObstoreStore(url=url, endpoint_url="http://127.0.0.1:1")

        assert store._objects() is store._objects()
