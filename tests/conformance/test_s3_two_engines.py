"""boto3 and obstore on one bucket of a real server: each reads and deletes what the other wrote."""

import os

import boto3
import pytest

from claimcheck.errors import PayloadNotFoundError
from claimcheck.stores.obstore import ObstoreStore
from claimcheck.stores.s3 import S3Store
from claimcheck.testing._store_kit import Breaking
from tests.conformance.s3_medium import PART_BYTES
from tests.parts import divided

SIZES = {"empty": 0, "small": 1000, "one part": PART_BYTES, "several parts": 3 * PART_BYTES + 17}


@pytest.fixture(params=["", "claims/of a/team"], ids=["", "prefix"])
def stores(request, s3_server, s3_bucket):
    sizes = {"part": PART_BYTES, "single": PART_BYTES, "endpoint_url": s3_server.endpoint_url}
    boto = divided(S3Store, bucket=s3_bucket, prefix=request.param, **sizes)
    rust = divided(ObstoreStore, url=f"s3://{s3_bucket}/{request.param}", **sizes)
    with boto, rust:
        yield {"boto3": boto, "obstore": rust}


@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
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

    bucket = boto3.resource("s3", endpoint_url=s3_server.endpoint_url).Bucket(s3_bucket)
    assert list(bucket.multipart_uploads.all()) == []
    assert list(bucket.objects.all()) == []
