"""The hooks of the store kit for S3, for a mock and for a real server."""

import functools

import boto3
import pytest
from botocore.exceptions import ClientError

from claimcheck.stores._parts import TransferPolicy
from claimcheck.testing import StoreConformance

PART_BYTES = 5 << 20
TRANSFER_BYTES = 16 << 20


@functools.cache
def resource(endpoint_url):
    """One session for all tests: boto3 reads its service description for each, which takes 0.1 s."""
    return boto3.resource("s3", endpoint_url=endpoint_url)


class S3Conformance(StoreConformance):
    memory_bytes = 48 << 20  # those for parts, one being read, one being filled

    def medium(self, endpoint_url, bucket):
        """Open the bucket and return the options of a store that needs several parts for `several MiB`."""
        self.bucket = resource(endpoint_url).Bucket(bucket)
        return {
            "type": "s3",
            "bucket": bucket,
            "prefix": "claims",
            "endpoint_url": endpoint_url,
            "ttl_seconds": 600,
            "transfer_bytes": TRANSFER_BYTES,
        }

    @pytest.fixture(autouse=True)
    def _several_parts(self, monkeypatch):
        monkeypatch.setattr(TransferPolicy, "_part", PART_BYTES)
        monkeypatch.setattr(TransferPolicy, "_single", PART_BYTES)

    @pytest.fixture(autouse=True)
    def _no_unfinished_uploads(self, options):
        yield
        assert [upload.id for upload in self.bucket.multipart_uploads.all()] == []

    def peek(self, pointer):
        try:
            return self.bucket.Object(pointer.key).get()["Body"].read()
        except ClientError:
            return None

    def damage(self, pointer, payload):
        target = self.bucket.Object(pointer.key)
        target.delete() if payload is None else target.put(Body=payload)
