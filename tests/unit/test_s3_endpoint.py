"""What has an address of its own never goes anywhere else, whatever a server says."""

import socket

import pytest

from claimcheck._wire.pointer import Pointer
from claimcheck.errors import StoreError
from claimcheck.stores.s3 import S3Store
from tests.parts import divided
from tests.unit.tiny_s3 import Answer, TinyS3

PART = 5 << 20


@pytest.fixture
def elsewhere(monkeypatch):
    """Where nothing may arrive; the environment names it, too."""
    with TinyS3() as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL", server.url)
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", server.url)
        yield server
        assert server.connections == 0


@pytest.fixture
def seen(monkeypatch):
    """Every address that is looked up."""
    places, find = [], socket.getaddrinfo
    monkeypatch.setattr(socket, "getaddrinfo", lambda *place, **more: places.append(place[:2]) or find(*place, **more))
    monkeypatch.setattr("botocore.endpoint.time.sleep", lambda seconds: None)
    return places


@pytest.fixture
def server(elsewhere, seen):
    with TinyS3() as server:
        yield server
    assert {f"http://{host}:{port}" for host, port in seen} == {server.url}


@pytest.fixture
def store(server):
    sizes = {"part": PART, "single": PART}
    with divided(S3Store, bucket="payloads", endpoint_url=server.url, region_name="eu-west-1", **sizes) as store:
        yield store


@pytest.mark.parametrize("size", [7, PART, 3 * PART])
def test_everything_goes_there(store, server, size):
    pointer = store.write(bytes(size))

    assert store.read(pointer) == bytes(size)
    assert store.read_range(pointer, 1, 5) == bytes(5)
    store.rollback(pointer)
    assert server.objects == {}
    assert {request.path.split("/")[1] for request in server.requests} == {"payloads"}


@pytest.mark.parametrize("status", [301, 302, 307, 308, 400])
@pytest.mark.parametrize("code", ["PermanentRedirect", "TemporaryRedirect", "AuthorizationHeaderMalformed"])
@pytest.mark.parametrize("size", [7, PART, 3 * PART])
def test_no_redirect_is_followed(store, server, elsewhere, status, code, size):
    headers = {"Location": f"{elsewhere.url}/payloads/x", "x-amz-bucket-region": "us-west-2"}
    server.answers += [Answer(status, code, headers)] * 20

    with pytest.raises(StoreError):
        store.write(bytes(size))
    with pytest.raises(StoreError):
        store.read(Pointer(key="x", store=store.name, size=7))


def test_nor_is_a_bucket_looked_for_elsewhere(store, server):
    """Without an address of its own the SDK would ask each region for it."""
    server.answers += [Answer(404, "NoSuchBucket", {"x-amz-bucket-region": "us-west-2"})] * 20

    with pytest.raises(StoreError):
        store.write(b"payload")
    with pytest.raises(StoreError):
        store.read(Pointer(key="x", store=store.name, size=7))
