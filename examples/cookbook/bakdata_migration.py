"""bakdata's large-message serializers: a reader of their records and of claimcheck's envelopes.

    python examples/cookbook/bakdata_migration.py

Needs boto3 and a bucket: BASE_PATH is the serializer's setting (default: s3://large-messages/kafka), and
AWS_ENDPOINT_URL_S3 names another server than Amazon's. Payloads of claimcheck are in the folder claims/.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

import boto3

import claimcheck

BASE_PATH = os.environ.get("BASE_PATH", "s3://large-messages/kafka").rstrip("/")

s3 = boto3.client("s3")
stores = {"disk": {"type": "filesystem", "path": "claims", "create": True}}
cc = claimcheck.from_dict({"stores": stores})
FLAG = "__large.message.backed.value"


def payload(value: bytes, headers: Iterable[tuple[str, bytes]] = ()) -> bytes:
    flag = dict(headers).get(FLAG)
    if flag is None and value[:1] in (b"\0", b"\1"):  # the older format
        flag, value = value[:1], value[1:]
    if flag is None:
        return cc.resolve(value)
    return fetch(value.decode()) if flag == b"\1" else value


def fetch(uri: str) -> bytes:
    if not uri.startswith(f"{BASE_PATH}/"):  # a message must not choose it
        raise PermissionError("a pointer to somewhere else")
    bucket, _, key = uri.removeprefix("s3://").partition("/")
    content: bytes = s3.get_object(Bucket=bucket, Key=key)["Body"].read()
    return content


@cc.offload(payload="value")
def new(value: bytes) -> bytes:
    """Return the value of a record as claimcheck writes it."""
    return value


def main() -> None:
    """Read records of both formats of the serializer, and an envelope."""
    uri = f"{BASE_PATH}/scans/values/1"
    bucket, _, key = uri.removeprefix("s3://").partition("/")
    s3.put_object(Bucket=bucket, Key=key, Body=b"old" * 1_000_000)
    print(f"first byte: {len(payload(bytes([1]) + uri.encode())):,}")
    print(f"header: {len(payload(uri.encode(), [(FLAG, bytes([1]))])):,}")
    print(f"new: {len(payload(new(b'new' * 2_000_000))):,}")


if __name__ == "__main__":
    main()
