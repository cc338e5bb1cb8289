"""The S3 store: payloads as objects in a bucket, through boto3."""

from claimcheck.stores.s3._store import S3Store

__all__ = ["S3Store"]
