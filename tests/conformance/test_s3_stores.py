"""The store kit on object stores, by boto3 and by obstore; and each engine on what the other wrote."""

import functools
import os
import uuid
from typing import ClassVar

import boto3
import obstore
import pytest
from botocore.exceptions import ClientError
from obstore.store import AzureStore

from claimcheck.errors import PayloadNotFoundError
from claimcheck.stores import obstore as obstore_client
from claimcheck.stores._parts import TransferPolicy
from claimcheck.stores.obstore import ObstoreStore
from claimcheck.stores.s3 import S3Store
from claimcheck.testing import StoreConformance
from claimcheck.testing._store_kit import Breaking
from tests.conformance.subsets import REACH_THE_SERVER, FewerPayloads, only
from tests.parts import divided
from tests.real.object_stores import CONTAINER
from tests.unit.tiny_s3 import TinyS3

PART_BYTES = 5 << 20


@functools.cache
def resource(endpoint_url):
    """One session for all tests: boto3 reads its service description for each, which takes 0.1 s."""
    return boto3.resource("s3", endpoint_url=endpoint_url)


class InParts(StoreConformance):
    """A store that needs several parts for `several MiB`."""

    memory_bytes = 48 << 20  # those for parts, one being read, one being filled
    place: ClassVar = {"ttl_seconds": 600, "transfer_bytes": 16 << 20}

    @pytest.fixture(autouse=True)
    def _several_parts(self, monkeypatch):
        monkeypatch.setattr(TransferPolicy, "_part", PART_BYTES)
        monkeypatch.setattr(TransferPolicy, "_single", PART_BYTES)


class TestS3Store(InParts):
    @pytest.fixture
    def options(self, s3_server, s3_bucket):
        self.bucket = resource(s3_server.endpoint_url).Bucket(s3_bucket)
        yield {**self.place, **self.of_bucket(s3_bucket), "endpoint_url": s3_server.endpoint_url}
        assert [upload.id for upload in self.bucket.multipart_uploads.all()] == []

    def of_bucket(self, name):
        return {"type": "s3", "bucket": name, "prefix": "claims"}

    def peek(self, pointer):
        try:
            return self.bucket.Object(pointer.key).get()["Body"].read()
        except ClientError:
            return None

    def damage(self, pointer, payload):
        target = self.bucket.Object(pointer.key)
        target.delete() if payload is None else target.put(Body=payload)


class TestObstoreOnS3(TestS3Store):
    def of_bucket(self, name):
        return {"type": "obstore", "url": f"s3://{name}/claims"}


@only(*REACH_THE_SERVER)
class TestS3StoreOnTinyServer(FewerPayloads, InParts):
    skip: ClassVar = {"test_large_payload_in_bounded_memory": "the server keeps its payloads in this process"}

    @pytest.fixture
    def options(self):
        with TinyS3() as self.server:
            yield {**self.place, "type": "s3", "bucket": "b", "endpoint_url": self.server.url}

    def peek(self, pointer):
        return self.server.objects.get(f"/b/{pointer.key}")

    def damage(self, pointer, payload):
        self.server.objects.pop(f"/b/{pointer.key}")
        if payload is not None:
            self.server.objects[f"/b/{pointer.key}"] = payload


class TestObstoreInMemory(StoreConformance):
    skip: ClassVar = {"test_large_payload_in_bounded_memory": "it keeps its payloads in memory"}

    @pytest.fixture
    def options(self):
        self.objects = obstore_client._memory()
        return {"type": "obstore", "url": f"memory:///{uuid.uuid4()}", "ttl_seconds": 600}

    def peek(self, pointer):
        try:
            return bytes(obstore.get(self.objects, pointer.key).bytes())
        except FileNotFoundError:
            return None

    def damage(self, pointer, payload):
        if payload is None:
            obstore.delete(self.objects, pointer.key)
        else:
            obstore.put(self.objects, pointer.key, payload)


class TestAzure(InParts, TestObstoreInMemory):
    """As far as its emulator goes."""

    skip: ClassVar = {}

    @pytest.fixture
    def options(self, azure_emulator, monkeypatch):
        url, environment = azure_emulator
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        self.objects = AzureStore(CONTAINER, config={"endpoint": url}, client_options={"allow_http": True})
        return {**self.place, "type": "obstore", "url": f"az://{CONTAINER}/{uuid.uuid4()}", "endpoint_url": url}


# Two engines -------------------------------------------------------------------------------------------------------


@pytest.fixture(params=["", "claims/of a/team"], ids=["", "prefix"])
def stores(request, s3_server, s3_bucket):
    sizes = {"part": PART_BYTES, "single": PART_BYTES, "endpoint_url": s3_server.endpoint_url}
    boto = divided(S3Store, bucket=s3_bucket, prefix=request.param, **sizes)
    rust = divided(ObstoreStore, url=f"s3://{s3_bucket}/{request.param}", **sizes)
    with boto, rust:
        yield {"boto3": boto, "obstore": rust}


@pytest.mark.parametrize("size", [0, 1000, PART_BYTES, 3 * PART_BYTES + 17])
@pytest.mark.parametrize(("writer", "reader"), [("boto3", "obstore"), ("obstore", "boto3")])
def test_one_reads_what_the_other_wrote(stores, writer, reader, size):
    payload = os.urandom(size)
    pointer = stores[writer].write(payload, destination="orders")
    assert stores[reader].read(pointer) == payload
    assert stores[reader].read_range(pointer, size // 2, 100) == payload[size // 2 : size // 2 + 100]
    stores[reader].rollback(pointer)
    with pytest.raises(PayloadNotFoundError):
        stores[writer].read(pointer)


@pytest.mark.parametrize("engine", ["boto3", "obstore"])
def test_failed_uploads_leave_no_part_behind(stores, s3_server, s3_bucket, engine):
    """A part in flight when the payload fails would arrive after the abort."""
    for _ in range(10):
        with pytest.raises(Exception, match="on fire"):
            stores[engine].write(Breaking(8 * PART_BYTES, OSError("the disk is on fire")))
    bucket = resource(s3_server.endpoint_url).Bucket(s3_bucket)
    assert list(bucket.multipart_uploads.all()) == []
    assert list(bucket.objects.all()) == []
