"""The libraries that are compared, each behind the same two calls, as its own documentation uses it.

Run by peer_child.py in an environment that holds one of them; so an adapter imports its library when it is made. Each
library is told to store even small payloads, where it would send them inline.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
import uuid
from typing import Any
from urllib.parse import urlsplit

BUCKET = "bench"
S3 = os.environ.get("AWS_ENDPOINT_URL_S3", "")
REDIS = os.environ.get("BENCH_REDIS_URL", "")
FOLDER = os.environ.get("BENCH_FOLDER", "")


class Boto3:
    """The floor of what goes to S3: one put_object and one get_object with defaults."""

    package, text = "boto3", False

    def __init__(self) -> None:
        import boto3

        self.client = boto3.client("s3")

    def put(self, data: Any) -> Any:
        key = uuid.uuid4().hex
        self.client.put_object(Bucket=BUCKET, Key=key, Body=data)
        return key

    def get(self, token: Any) -> Any:
        return self.client.get_object(Bucket=BUCKET, Key=token)["Body"].read()


class Obstore:
    """The same through obstore, in Rust."""

    package, text = "obstore", False

    def __init__(self) -> None:
        from obstore.store import S3Store

        config: Any = {"endpoint": S3, "virtual_hosted_style_request": False}
        self.store = S3Store(BUCKET, config=config, client_options={"allow_http": True})

    def put(self, data: Any) -> Any:
        key = uuid.uuid4().hex
        self.store.put(key, data)
        return key

    def get(self, token: Any) -> Any:
        return self.store.get(token).bytes().to_bytes()


class RedisPy:
    """The floor of what goes to Redis: one SET and one GET."""

    package, text = "redis", False

    def __init__(self) -> None:
        import redis

        self.client = redis.Redis.from_url(REDIS)

    def put(self, data: Any) -> Any:
        key = uuid.uuid4().hex
        self.client.set(key, data, ex=600)
        return key

    def get(self, token: Any) -> Any:
        return self.client.get(token)


class ClaimCheck:
    """This library: the decorated produce call, and resolving what it would have sent."""

    package, text = "claimcheck", False
    store: dict[str, Any] = {}

    def __init__(self) -> None:
        import claimcheck

        raw = {"strategy": "external", "threshold_bytes": 1000, "stores": {"hot": self.store}}
        self.cc = claimcheck.from_dict(raw)
        self.put = self.cc.offload(payload="value")(self.publish)
        self.get = self.cc.resolve

    @staticmethod
    def publish(value: Any) -> Any:
        return value


class ClaimCheckRedis(ClaimCheck):
    store = {"type": "redis", "url": REDIS}


class ClaimCheckS3(ClaimCheck):
    store = {"type": "s3", "bucket": BUCKET, "endpoint_url": S3, "region_name": "us-east-1"}


class ClaimCheckObstore(ClaimCheck):
    store = {"type": "obstore", "url": f"s3://{BUCKET}/claims", "endpoint_url": S3, "region_name": "us-east-1"}


class ClaimCheckFile(ClaimCheck):
    """It divides the payloads of a day among 256 folders, which exist soon after midnight."""

    store = {"type": "filesystem", "path": FOLDER, "create": True}

    def __init__(self) -> None:
        super().__init__()
        for _ in range(2000):
            self.put(value=bytes(2000))


class AmazonSqs:
    """amazon-sqs-extended-client: the pointer goes through SQS."""

    package, text = "amazon-sqs-extended-client", True

    def __init__(self) -> None:
        self.client = self.connect()
        self.client.large_payload_support = BUCKET
        self.client.always_through_s3 = True
        self.queue = self.client.create_queue(QueueName=uuid.uuid4().hex)["QueueUrl"]

    def connect(self) -> Any:
        import boto3
        import sqs_extended_client  # noqa: F401 - changes boto3

        client = boto3.client("sqs")
        client.use_legacy_attribute = False
        return client

    def put(self, data: Any) -> Any:
        self.client.send_message(QueueUrl=self.queue, MessageBody=data)

    def get(self, token: Any) -> Any:
        answer = self.client.receive_message(QueueUrl=self.queue, MessageAttributeNames=["All"])
        self.message = answer["Messages"][0]
        return self.message["Body"]

    def forget(self) -> None:
        self.client.delete_message(QueueUrl=self.queue, ReceiptHandle=self.message["ReceiptHandle"])


class Sqs(AmazonSqs):
    """sqs-extended-client: the same idea, another package of the same module name."""

    package = "sqs-extended-client"

    def connect(self) -> Any:
        import boto3
        import sqs_extended_client  # noqa: F401 - changes boto3

        return boto3.client("sqs")


class LargeMessageUtils:
    """boto3-large-message-utils."""

    package, text = "boto3-large-message-utils", True

    def __init__(self) -> None:
        from boto3_large_message_utils import LargeMessageBuilder, LargeMessageParser

        self.put = LargeMessageBuilder(s3_bucket_for_cache=BUCKET, message_size_threshold=0).build
        self.get = LargeMessageParser().parse


class Faust:
    """faust-large-message-serializer."""

    package, text = "faust-large-message-serializer", False

    def __init__(self) -> None:
        from faust_large_message_serializer import LargeMessageSerializer, LargeMessageSerializerConfig

        config = LargeMessageSerializerConfig(
            base_path=f"s3://{BUCKET}/",
            max_size=0,
            large_message_s3_region="us-east-1",
            large_message_s3_access_key=os.environ["AWS_ACCESS_KEY_ID"],
            large_message_s3_secret_key=os.environ["AWS_SECRET_ACCESS_KEY"],
            large_message_s3_endpoint=S3,
        )
        serializer = LargeMessageSerializer("topic", config)
        self.put, self.get = serializer._dumps, serializer._loads


class KafS3:
    """kaf-s3-connector: the pointer goes through the mock broker that librdkafka brings."""

    package, text = "kaf-s3-connector", False

    def __init__(self) -> None:
        from s3_connector import S3Consumer, S3Producer

        s3 = {"bucket": BUCKET, "prefix": "kaf", "max_inline_bytes": 1000}
        mock = {"bootstrap.servers": "x", "test.mock.num.brokers": 1, "linger.ms": 0}
        self.producer = S3Producer({"kafka": mock, "s3": s3})
        [broker] = self.producer.kafka_producer.list_topics("t", timeout=5).brokers.values()
        reader = {
            "bootstrap.servers": f"{broker.host}:{broker.port}",
            "group.id": "g",
            "auto.offset.reset": "earliest",
            "fetch.wait.max.ms": 5,
        }
        self.consumer = S3Consumer({"kafka": reader, "s3": s3})
        self.consumer.subscribe(["t"])

    def put(self, data: Any) -> Any:
        self.producer.produce("t", data)
        self.producer.flush(30)

    def get(self, token: Any) -> Any:
        return self.consumer.poll(30.0)


class Temporal:
    """temporalio: external storage of its data converter."""

    package, text = "temporalio", False

    def __init__(self) -> None:
        self.run = asyncio.new_event_loop().run_until_complete
        self.converter = self.run(self.connect())

    async def connect(self) -> Any:
        import aioboto3
        from temporalio.contrib.aws.s3driver import S3StorageDriver
        from temporalio.contrib.aws.s3driver.aioboto3 import new_aioboto3_client
        from temporalio.converter import DataConverter, ExternalStorage

        client = new_aioboto3_client(await aioboto3.Session().client("s3").__aenter__())
        driver = S3StorageDriver(client=client, bucket=BUCKET, max_payload_size=1 << 30)
        storage = ExternalStorage(drivers=[driver], payload_size_threshold=0)
        return dataclasses.replace(DataConverter.default, external_storage=storage)

    def put(self, data: Any) -> Any:
        return self.run(self.converter.encode([data]))

    def get(self, token: Any) -> Any:
        return self.run(self.converter.decode(token, [bytes]))[0]


class ProxyStore:
    """proxystore, over Redis."""

    package, text = "proxystore", False

    def __init__(self) -> None:
        from proxystore.store import Store

        store = Store("bench", self.connector(), cache_size=0)
        self.put, self.get = store.put, store.get

    def connector(self) -> Any:
        from proxystore.connectors.redis import RedisConnector

        address = urlsplit(REDIS)
        return RedisConnector(address.hostname, address.port)


class ProxyStoreFile(ProxyStore):
    def connector(self) -> Any:
        from proxystore.connectors.file import FileConnector

        return FileConnector(FOLDER)


ADAPTERS: dict[str, type[Any]] = {
    "boto3": Boto3,
    "obstore": Obstore,
    "redis-py": RedisPy,
    "claimcheck redis": ClaimCheckRedis,
    "claimcheck s3": ClaimCheckS3,
    "claimcheck obstore": ClaimCheckObstore,
    "claimcheck file": ClaimCheckFile,
    "amazon-sqs-extended-client": AmazonSqs,
    "sqs-extended-client": Sqs,
    "boto3-large-message-utils": LargeMessageUtils,
    "faust-large-message-serializer": Faust,
    "kaf-s3-connector": KafS3,
    "temporalio": Temporal,
    "proxystore redis": ProxyStore,
    "proxystore file": ProxyStoreFile,
}
"""By the name that is printed."""
