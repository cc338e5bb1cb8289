"""Sweeps on real servers: what only they have, such as incomplete uploads and segments."""

from __future__ import annotations

import time
import uuid

import boto3
import pytest
import redis
import redis.cluster

from claimcheck._operate.sweep import Sweep
from claimcheck.errors import PayloadNotFoundError, ScanNotSupportedError
from claimcheck.stores.redis import RedisStore
from claimcheck.stores.s3 import S3Store

HOUR = 3600


def later(seconds: float):
    """A clock that is ahead."""
    return lambda: time.time() + seconds


class TestIncompleteUploads:
    @pytest.fixture
    def store(self, s3_server, s3_bucket):
        with S3Store(bucket=s3_bucket, prefix="claims", endpoint_url=s3_server.endpoint_url, ttl_seconds=HOUR) as store:
            yield store

    @pytest.fixture
    def begin(self, s3_server, s3_bucket):
        client = boto3.client("s3", endpoint_url=s3_server.endpoint_url)

        def begin(key, *, parts):
            upload = {"Bucket": s3_bucket, "Key": key}
            upload["UploadId"] = client.create_multipart_upload(**upload)["UploadId"]
            for number in range(1, parts + 1):
                client.upload_part(**upload, PartNumber=number, Body=bytes(5 << 20))

        return begin

    def left(self, s3_server, s3_bucket):
        bucket = boto3.resource("s3", endpoint_url=s3_server.endpoint_url).Bucket(s3_bucket)
        return sorted(upload.object_key for upload in bucket.multipart_uploads.all())

    def test_go_after_the_grace_and_those_of_others_stay(self, store, begin, s3_server, s3_bucket):
        store._server_time = lambda: None  # it is not later there
        now = int(time.time() * 1000)
        new_key = store._key("orders", uuid.uuid4(), created_ms=now, expires_ms=now + 1000)
        begin(new_key, parts=2)
        begin(f"claims/orders-{uuid.uuid4()}", parts=0)
        begin("claims/of-others", parts=1)
        pointer = store.write(b"payload")

        early = Sweep(dry_run=False, clock=later(HOUR / 2)).run(store)
        late = Sweep(dry_run=False, clock=later(1.5 * HOUR)).run(store)

        assert (early.kept, early.deleted) == ({"alive": 1, "recent": 2}, 0)
        assert (late.leftovers, late.deleted, late.kept) == (2, 2, {"alive": 1})
        assert self.left(s3_server, s3_bucket) == ["claims/of-others"]
        assert store.read(pointer) == b"payload"


class RedisSweep:
    """Payloads whose keys say that they have expired, on a server that does not delete them."""

    @pytest.fixture
    def store(self, url):
        with RedisStore(
            url=url, key_prefix=f"sweep-{uuid.uuid4().hex}:", ttl_seconds=HOUR, segment_bytes=1000
        ) as store:
            yield store

    def test_all_segments_go_and_what_is_alive_stays(self, store, client):
        lost = [store.write(bytes(size), destination="orders") for size in (0, 10, 250_000)]
        names = [f"{pointer.key}-{i}" for pointer in lost for i in range(pointer.segments)]
        for name in names:
            client.persist(name)
        client.delete(f"{lost[2].key}-7")  # evicted
        alive = store.write(bytes(3000), destination="orders")
        other = f"{store.prefix}of-others-0"
        client.set(other, b"kept", px=60_000)

        store._server_time = lambda: None  # it is not later there
        early = Sweep(dry_run=False, clock=later(1.5 * HOUR)).run(store)
        late = Sweep(dry_run=False, clock=later(2.5 * HOUR)).run(store)

        assert (early.kept, early.deleted) == ({"alive": 4}, 0)
        assert (late.expired, late.failed) == (4, 0), "alive is expired by that clock, too"
        assert not any(client.exists(name) for name in names)
        with pytest.raises(PayloadNotFoundError):
            store.read(alive)
        assert client.get(other) == b"kept"


class TestRedis(RedisSweep):
    @pytest.fixture
    def url(self, redis_url):
        return redis_url

    @pytest.fixture
    def client(self, url):
        with redis.Redis.from_url(url) as client:
            yield client

    def test_keys_of_version_1_are_not_listed(self, url):
        with RedisStore(url=url, pointer_version=1) as store, pytest.raises(ScanNotSupportedError):
            list(store.scan())


class TestCluster(RedisSweep):
    @pytest.fixture
    def url(self, redis_cluster_url):
        return redis_cluster_url

    @pytest.fixture
    def client(self, redis_cluster):
        client = redis.cluster.RedisCluster("127.0.0.1", redis_cluster.nodes[0].port)
        yield client
        client.close()
