"""What an S3 store lists, on a mocked server."""

from __future__ import annotations

import uuid

import pytest

from claimcheck._operate.sweep import Sweep
from claimcheck._store.contract import StoreContext
from claimcheck.stores.s3 import S3Store

UUID = uuid.UUID("6ba7b810-9dad-11d1-80b4-00c04fd430c8")
DAY = 86_400


@pytest.fixture
def bucket(mocked_s3):
    mock, s3 = mocked_s3
    mock.reset()
    return s3.create_bucket(Bucket="payloads")


@pytest.fixture
def open_store(bucket):
    opened = []

    def build(name="cold", **options):
        store = S3Store(**{"bucket": bucket.name, "prefix": "claims", "ttl_seconds": DAY, **options})
        store.context = StoreContext(name=name)
        opened.append(store)
        return store

    yield build
    for store in opened:
        store.close()


def requests_of(store, names):
    """The requests of a store with these names, with their headers."""
    seen = []
    for name in names:
        store._s3().meta.events.register_last(f"before-call.s3.{name}", lambda params, **_: seen.append(params))
    return seen


class TestListing:
    def test_has_only_the_stores_own_objects(self, open_store, bucket):
        pointer = open_store().write(b"payload", destination="orders")
        for key in ("claims/notes.txt", f"claims/team/orders-{UUID}", f"orders-{UUID}", "claims/"):
            bucket.put_object(Key=key, Body=b"of others")

        assert [entry.key for entry in open_store().scan()] == [pointer.key]

    def test_parts_divide_days_into_hours_and_keys_without_a_time_by_uuids(self, open_store, bucket):
        store = open_store()
        for hour in range(48):
            store.context = StoreContext(clock=lambda hour=hour: 1_700_006_400 + 3600 * hour)  # midnight
            store.write(b"payload", destination="orders")
            bucket.put_object(Key=f"claims/orders-60s_{uuid.uuid4()}", Body=b"of an earlier release")
        bucket.put_object(Key="claims/zz-of-others", Body=b"")

        parts = [[entry.key for entry in store.scan(partition=part)] for part in store.partitions(24)]

        assert sorted(key for part in parts for key in part) == sorted(entry.key for entry in store.scan())
        assert len(parts) == 24
        assert max(map(len, parts)) <= 24, "no part has a quarter of all"

    def test_of_a_store_without_a_prefix_has_nothing_else_of_the_bucket(self, open_store, bucket):
        open_store().write(b"of the other store")
        bucket.put_object(Key="data.csv", Body=b"of others")
        pointer = open_store(prefix="").write(b"payload", destination="orders")

        assert [entry.key for entry in open_store(prefix="").scan()] == [pointer.key]

    def test_goes_on_after_a_thousand_objects(self, open_store, bucket):
        store = open_store(ttl_seconds=0)
        keys = [store._key("orders", uuid.uuid4(), created_ms=0, expires_ms=DAY * 1000) for _ in range(1001)]
        for key in keys:
            bucket.put_object(Key=key, Body=b"")

        assert Sweep(dry_run=False).run(store).deleted == 1001
        assert list(bucket.objects.all()) == []
