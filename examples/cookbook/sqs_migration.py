"""AWS's extended client for SQS: a consumer that reads its pointers and claimcheck's envelopes.

    python examples/cookbook/sqs_migration.py

Needs boto3 and amazon-sqs-extended-client. QUEUE_URL names a queue and BUCKET a bucket. Payloads of claimcheck are in
the folder claims/.
"""

from __future__ import annotations

import json
import os
from typing import Any

import boto3

import claimcheck

QUEUE, BUCKET = os.environ["QUEUE_URL"], os.environ["BUCKET"]

sqs, s3 = boto3.client("sqs"), boto3.client("s3")
stores = {"disk": {"type": "filesystem", "path": "claims", "create": True}}
cc = claimcheck.from_dict({"threshold_bytes": 250_000, "stores": stores})


@cc.offload(payload="value")
def send(value: bytes) -> Any:
    attribute = {"DataType": "Binary", "BinaryValue": value}
    return sqs.send_message(QueueUrl=QUEUE, MessageBody="-", MessageAttributes={"claimcheck": attribute})


def payload(message: Any) -> bytes:
    attributes = message.get("MessageAttributes", {})
    if "claimcheck" in attributes:
        envelope: bytes = attributes["claimcheck"]["BinaryValue"]
        return cc.resolve(envelope)
    body: str = message["Body"]
    if not attributes.keys() & {"ExtendedPayloadSize", "SQSLargePayloadSize"}:
        return body.encode()
    _, pointer = json.loads(body)
    if pointer["s3BucketName"] != BUCKET:  # a message must not choose it
        raise PermissionError("a pointer to another bucket")
    content: bytes = s3.get_object(Bucket=BUCKET, Key=pointer["s3Key"])["Body"].read()
    return content


def receive() -> bytes:
    """Return the payload of one message, and delete the message."""
    while not (messages := sqs.receive_message(QueueUrl=QUEUE, MessageAttributeNames=["All"]).get("Messages")):
        pass
    received = payload(messages[0])
    sqs.delete_message(QueueUrl=QUEUE, ReceiptHandle=messages[0]["ReceiptHandle"])
    return received


def main() -> None:
    """Send a small and a large payload with each client, and read all of them."""
    import sqs_extended_client  # noqa: F401 - from here on, boto3 makes extended clients

    old = boto3.client("sqs")
    old.large_payload_support = BUCKET
    for text in ("small", "old   " * 100_000):
        old.send_message(QueueUrl=QUEUE, MessageBody=text)
        send(text.replace("old", "new").encode())
    for value in (receive() for _ in range(4)):
        print(f"{value[:5].decode().strip()}: {len(value):,} bytes")


if __name__ == "__main__":
    main()
