"""An S3 store behind a proxy that knows requests; after each test it must be found in good health."""

from __future__ import annotations

import gc
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, ClassVar
from urllib.parse import urlsplit

import pytest

from claimcheck._store import Store, StoreContext
from claimcheck.stores.s3._store import S3Store
from tests.fault.http_proxy import HttpProxy
from tests.fault.rig import MIB, assert_healthy, content
from tests.real.process import wait_until

PART = 5 * MIB
SMALL = content(3 * MIB)  # goes in one request
LARGE = content(2 * PART + 2 * MIB)  # goes in three parts


class S3Line:
    """Fixtures; whatever the tests leave in the bucket that no test speaks of fails them.

    Attributes:
        engine: What makes a store, of a bucket's name and options.
        options: Of the store.
    """

    engine: ClassVar[Callable[..., Store]] = staticmethod(lambda bucket, **options: S3Store(bucket=bucket, **options))
    options: ClassVar[dict[str, Any]] = {"part_bytes": PART, "single_put_bytes": PART, "timeout_seconds": 5}

    @pytest.fixture
    def bucket(self, s3_resource, s3_bucket):
        """The back door."""
        return s3_resource.Bucket(s3_bucket)

    @pytest.fixture
    def proxy(self, s3_server):
        place = urlsplit(s3_server.endpoint_url)
        with HttpProxy(place.hostname, place.port) as proxy:
            yield proxy

    @pytest.fixture
    def store(self, proxy, s3_bucket, monkeypatch):
        monkeypatch.setattr("botocore.endpoint.time", SimpleNamespace(sleep=lambda seconds: None))  # between tries
        store = self.engine(s3_bucket, endpoint_url=proxy.url, **self.options)
        store.context = StoreContext(name="cold")
        yield store
        proxy.free()
        assert_healthy(store)
        assert proxy.live <= 8, "one, and a few for parts that were sent side by side"
        store.close()
        # If a client leaves in the middle of a part, the proxy may notice only after its timeout of a minute.
        wait_until(lambda: hung_up(proxy), "closing leaves no connection", within=150)


def hung_up(proxy):
    """Whether nobody is on the line: a vendor's pool leaves when it is known no more, even to an error's traceback."""
    if proxy.live:
        gc.collect()
    return proxy.live == 0


def left(bucket):
    """What is in a bucket: keys of objects, and uploads that were never finished."""
    return [found.key for found in bucket.objects.all()], [upload.id for upload in bucket.multipart_uploads.all()]


NOTHING: tuple[list[str], list[str]] = ([], [])
