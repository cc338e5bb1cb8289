"""An S3 store behind a proxy that knows requests; after each test it must be found in good health."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any, ClassVar
from urllib.parse import urlsplit

import pytest

from claimcheck._store.contract import StoreContext
from claimcheck._store.store import Store
from claimcheck.errors import IntegrityError, PayloadNotFoundError
from claimcheck.stores.s3 import S3Store
from tests.fault.http_proxy import HttpProxy
from tests.fault.proxy import Proxy
from tests.fault.rig import MIB, READINGS, assert_healthy, assert_unavailable, content
from tests.parts import divided
from tests.real.process import ServerError, wait_until

PART = 5 * MIB
SMALL = content(3 * MIB)  # goes in one request
LARGE = content(2 * PART + 2 * MIB)  # goes in three parts

ALL_READINGS = pytest.mark.parametrize("read", READINGS.values(), ids=READINGS)


class S3Line:
    """Fixtures; whatever the tests leave in the bucket that no test speaks of fails them.

    Attributes:
        engine: What makes a store, of a bucket's name and options.
        options: Of the store.
    """

    engine: ClassVar[Callable[..., Store]] = staticmethod(lambda bucket, **options: S3Store(bucket=bucket, **options))
    options: ClassVar[dict[str, Any]] = {"part": PART, "single": PART, "timeout_seconds": 5}

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
        store = divided(partial(self.engine, s3_bucket), endpoint_url=proxy.url, **self.options)
        store.context = StoreContext(name="cold")
        yield store
        proxy.free()
        assert_healthy(store)
        assert proxy.live <= 8, "one, and a few for parts that were sent side by side"
        store.close()
        if not hung_up(proxy, within=0.05):
            gc.collect()  # a vendor's pool leaves when it is known no more, even to an error's traceback
        # If a client leaves in the middle of a part, the proxy may notice only after its timeout of a minute.
        assert hung_up(proxy, within=150), "closing leaves no connection"


class BareLine(S3Line):
    """Fixtures for a store behind a proxy that knows nothing of requests; ``far_options`` are added to its options.

    The server's side of a broken line is reset: versitygw 1.8.0 takes a part that ends early without a reset for
    complete, and may store it, with zeros at its end, in place of the one that was sent again.
    """

    far_options: ClassVar[dict[str, Any]] = {}

    @pytest.fixture
    def line(self, s3_server):
        place = urlsplit(s3_server.endpoint_url)
        with Proxy(place.hostname, place.port, resets_server=True) as line:
            yield line

    @pytest.fixture
    def far(self, line, s3_bucket, store):
        options = {**self.options, **self.far_options}
        place = f"http://127.0.0.1:{line.port}"
        with divided(partial(self.engine, s3_bucket), endpoint_url=place, **options) as far:
            far.context = store.context
            yield far


class Reads(S3Line):
    """A payload that was written in one request is written sooner; it is read in no other way."""

    options: ClassVar[dict[str, Any]] = {**S3Line.options, "single": 64 * MIB}
    payload: ClassVar[bytes] = LARGE

    @pytest.fixture
    def pointer(self, store):
        return store.write(self.payload)


class DamagedReads(Reads):
    """Tests of what every reader notices."""

    @ALL_READINGS
    def test_refused_for_ever_is_an_error(self, store, proxy, pointer, read):
        proxy.fail("get", status=503, times=None)

        assert_unavailable(lambda: read(store, pointer))

    @ALL_READINGS
    def test_changed_on_the_way_is_noticed(self, store, proxy, pointer, read):
        proxy.fail("get", flip_answer=MIB)

        with pytest.raises(IntegrityError):
            read(store, pointer)

        assert read(store, pointer) == self.payload

    def test_gone_while_it_is_read_is_whole_or_gone(self, store, bucket, pointer):
        with store.open(pointer) as file:
            got = file.read(MIB)
            bucket.Object(pointer.key).delete()
            with contextlib.suppress(PayloadNotFoundError):
                assert got + file.read() == self.payload


def hung_up(proxy, within):
    """Whether all clients leave the line in time."""
    with contextlib.suppress(ServerError):
        wait_until(lambda: proxy.live == 0, "all clients have left", within)
    return proxy.live == 0


def written(store, payload, bucket):
    """Write a payload, and check that the server holds the same bytes: then an error of a reader is its own."""
    pointer = store.write(payload)
    held, step = bucket.Object(pointer.key).get()["Body"].read(), 1 << 16
    places = range(0, max(len(held), len(payload)), step)
    wrong = [place for place in places if held[place : place + step] != payload[place : place + step]]
    assert not wrong, f"the server holds {len(held)} bytes; they differ from the payload in the 64 KiB from {wrong}"
    return pointer


def left(bucket):
    """What is in a bucket: keys of objects, and uploads that were never finished."""
    return [found.key for found in bucket.objects.all()], [upload.id for upload in bucket.multipart_uploads.all()]


NOTHING: tuple[list[str], list[str]] = ([], [])
