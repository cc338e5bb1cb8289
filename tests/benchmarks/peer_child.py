"""One library at work, in a process and an environment of its own: puts payloads and gets them back, as it is told to.

    PYTHON peer_child.py NAME        PYTHON is of the environment that holds the library

Reads a line of JSON for each round, ``{"size": 1048576, "number": 3}``, and answers one: seconds of put and get, and
the bytes of memory that both together took at their peak. Servers are named by the environment. This file imports
nothing but the standard library, and the compared one, as its own documentation uses it. Each library is told to store
even small payloads, where it would send them inline.
"""

from __future__ import annotations

import asyncio
import base64
import ctypes
import dataclasses
import gc
import importlib.metadata
import json
import os
import statistics
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

BUCKET = "bench"
S3 = os.environ.get("AWS_ENDPOINT_URL_S3", "")
REDIS = os.environ.get("BENCH_REDIS_URL", "")
FOLDER = os.environ.get("BENCH_FOLDER", "")
FOR_MEMORY = 0  # the round of this number is one for memory; its seconds say less: all memory is new to it
_SMALL_BYTES, _IN_A_ROW = 1 << 20, 8

Pair = tuple[Callable[[Any], Any], Callable[[Any], Any]]
"""Puts a payload, which gives a token; and gets the payload of a token."""


def _boto3() -> Pair:
    """The floor of what goes to S3: one put_object and one get_object with defaults."""
    import boto3

    client = boto3.client("s3")

    def put(data: Any) -> str:
        key = uuid.uuid4().hex
        client.put_object(Bucket=BUCKET, Key=key, Body=data)
        return key

    return put, lambda key: client.get_object(Bucket=BUCKET, Key=key)["Body"].read()


def _obstore() -> Pair:
    """The same through obstore, in Rust."""
    from obstore.store import S3Store

    config: Any = {"endpoint": S3, "virtual_hosted_style_request": False}
    store = S3Store(BUCKET, config=config, client_options={"allow_http": True})

    def put(data: Any) -> str:
        key = uuid.uuid4().hex
        store.put(key, data)
        return key

    return put, lambda key: store.get(key).bytes().to_bytes()


def _redis_py() -> Pair:
    """The floor of what goes to Redis: one SET and one GET."""
    import redis

    client = redis.Redis.from_url(REDIS)

    def put(data: Any) -> str:
        key = uuid.uuid4().hex
        client.set(key, data, ex=600)
        return key

    return put, client.get


def _claimcheck(**store: Any) -> Pair:
    """This library: the decorated produce call, and resolving what it would have sent."""
    import claimcheck

    cc = claimcheck.from_dict({"strategy": "external", "threshold_bytes": 1000, "stores": {"hot": store}})

    @cc.offload(payload="value")
    def put(value: Any) -> Any:
        return value

    for _ in range(2000 if store["type"] == "filesystem" else 0):  # to 256 folders, which exist soon after midnight
        put(value=bytes(2000))
    return put, cc.resolve


def _sqs(*, amazon: bool) -> Pair:
    """Two packages of the same idea and module name: the pointer goes through SQS."""
    import boto3
    import sqs_extended_client  # noqa: F401 - changes boto3

    client: Any = boto3.client("sqs")
    if amazon:
        client.use_legacy_attribute = False
    client.large_payload_support, client.always_through_s3 = BUCKET, True
    queue = client.create_queue(QueueName=uuid.uuid4().hex)["QueueUrl"]

    def get(token: Any) -> Any:
        [message] = client.receive_message(QueueUrl=queue, MessageAttributeNames=["All"])["Messages"]
        unwanted.append(lambda: client.delete_message(QueueUrl=queue, ReceiptHandle=message["ReceiptHandle"]))
        return message["Body"]

    return lambda data: client.send_message(QueueUrl=queue, MessageBody=data), get


def _large_message_utils() -> Pair:
    from boto3_large_message_utils import LargeMessageBuilder, LargeMessageParser

    builder = LargeMessageBuilder(s3_bucket_for_cache=BUCKET, message_size_threshold=0)
    return builder.build, LargeMessageParser().parse


def _faust() -> Pair:
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
    return serializer._dumps, serializer._loads


def _kaf_s3() -> Pair:
    """The pointer goes through the mock broker that librdkafka brings."""
    from s3_connector import S3Consumer, S3Producer

    s3 = {"bucket": BUCKET, "prefix": "kaf", "max_inline_bytes": 1000}
    mock = {"bootstrap.servers": "x", "test.mock.num.brokers": 1, "linger.ms": 0}
    producer = S3Producer({"kafka": mock, "s3": s3})
    [broker] = producer.kafka_producer.list_topics("t", timeout=5).brokers.values()
    reader = {"bootstrap.servers": f"{broker.host}:{broker.port}", "group.id": "g", "auto.offset.reset": "earliest"}
    consumer = S3Consumer({"kafka": {**reader, "fetch.wait.max.ms": 5}, "s3": s3})
    consumer.subscribe(["t"])

    def put(data: Any) -> None:
        producer.produce("t", data)
        producer.flush(30)

    return put, lambda _: consumer.poll(30.0)


def _temporal() -> Pair:
    """External storage of its data converter."""
    run = asyncio.new_event_loop().run_until_complete

    async def connect() -> Any:
        import aioboto3
        from temporalio.contrib.aws.s3driver import S3StorageDriver
        from temporalio.contrib.aws.s3driver.aioboto3 import new_aioboto3_client
        from temporalio.converter import DataConverter, ExternalStorage

        client = new_aioboto3_client(await aioboto3.Session().client("s3").__aenter__())
        driver = S3StorageDriver(client=client, bucket=BUCKET, max_payload_size=1 << 30)
        storage = ExternalStorage(drivers=[driver], payload_size_threshold=0)
        return dataclasses.replace(DataConverter.default, external_storage=storage)

    converter = run(connect())
    return lambda data: run(converter.encode([data])), lambda token: run(converter.decode(token, [bytes]))[0]


def _proxystore(*, in_redis: bool) -> Pair:
    from proxystore.store import Store

    if in_redis:
        from proxystore.connectors.redis import RedisConnector

        connector = RedisConnector(urlsplit(REDIS).hostname, urlsplit(REDIS).port)
    else:
        from proxystore.connectors.file import FileConnector

        connector = FileConnector(FOLDER)
    store = Store("bench", connector, cache_size=0)
    return store.put, store.get


_S3 = {"endpoint_url": S3, "region_name": "us-east-1"}
ADAPTERS: dict[str, Callable[[], Pair]] = {
    "boto3": _boto3,
    "obstore": _obstore,
    "redis-py": _redis_py,
    "claimcheck redis": lambda: _claimcheck(type="redis", url=REDIS),
    "claimcheck s3": lambda: _claimcheck(type="s3", bucket=BUCKET, **_S3),
    "claimcheck obstore": lambda: _claimcheck(type="obstore", url=f"s3://{BUCKET}/claims", **_S3),
    "claimcheck file": lambda: _claimcheck(type="filesystem", path=FOLDER, create=True),
    "amazon-sqs-extended-client": lambda: _sqs(amazon=True),
    "sqs-extended-client": lambda: _sqs(amazon=False),
    "boto3-large-message-utils": _large_message_utils,
    "faust-large-message-serializer": _faust,
    "kaf-s3-connector": _kaf_s3,
    "temporalio": _temporal,
    "proxystore redis": lambda: _proxystore(in_redis=True),
    "proxystore file": lambda: _proxystore(in_redis=False),
}
PACKAGES = {"redis-py": "redis", "claimcheck": "claimcheck-messaging"}  # where they have another name
OF_TEXT = ("amazon-sqs-extended-client", "sqs-extended-client", "boto3-large-message-utils")
unwanted: list[Callable[[], object]] = []
"""What is done after a payload came back, and not timed."""


# Rounds ----------------------------------------------------------------------------------------------------------


def _status(key: str) -> int:
    text = Path("/proc/self/status").read_text()
    return int(text.partition(f"{key}:")[2].split()[0]) * 1024


def _payload(size: int, number: int, *, text: bool) -> Any:
    """Text of so many bytes that no other round has: random, and already in memory."""
    block = base64.b64encode(os.urandom(min(size, 1 << 20) // 4 * 3))
    data = (b"%016d" % number + block * (size // len(block) + 1))[:size]
    return data.decode() if text else data


def _once(pair: Pair, data: Any, number: int) -> dict[str, float]:
    if number == FOR_MEMORY:
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)  # freed memory goes back to the system, so that taking it again is seen
    Path("/proc/self/clear_refs").write_text("5")  # the high-water mark begins anew
    before, begin = _status("VmRSS"), time.perf_counter()
    token = pair[0](data)
    middle = time.perf_counter()
    back = pair[1](token)
    end, peak = time.perf_counter(), _status("VmHWM")
    if back != data:
        raise ValueError(f"put {len(data)} bytes and got {type(back).__name__} that differ")
    while unwanted:
        unwanted.pop()()
    return {"put": middle - begin, "get": end - middle, "extra": peak - before}


def main(name: str) -> None:
    """Work until the input ends; whatever a library prints goes to standard error."""
    output = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)

    def one_round(size: int, number: int) -> dict[str, float]:
        """Put and get a payload, several times in a row if it is small; returns the mean of each."""
        count = _IN_A_ROW if size <= _SMALL_BYTES else 1
        several = [_once(pair, _payload(size, number, text=name in OF_TEXT), number) for _ in range(count)]
        return {key: statistics.fmean(one[key] for one in several) for key in several[0]}

    try:
        pair = ADAPTERS[name]()
        one_round(300 << 10, -1)  # connections and modules are there before anything is counted
        package = name.split()[0]
        print(json.dumps({"version": importlib.metadata.version(PACKAGES.get(package, package))}), file=output)
        for line in sys.stdin:
            print(json.dumps(one_round(**json.loads(line))), file=output)
    except Exception as error:
        print(json.dumps({"error": f"{type(error).__name__}: {error}"[:300]}), file=output)
    os._exit(0)  # some leave threads behind that do not end


if __name__ == "__main__":
    main(sys.argv[1])
