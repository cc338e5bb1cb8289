"""Every program of the cookbook does what its page promises, with the real library."""

from __future__ import annotations

import asyncio
from importlib import import_module as load
from pathlib import Path

import boto3
import pika
import pytest
import temporalio.converter
from confluent_kafka import Consumer
from redis import Redis

import claimcheck
from tests import test_examples
from tests.docs_pages import ROOT, blocks

PAGE = "docs/guides/cookbook.md"
PROGRAMS = ROOT / "examples" / "cookbook"
LARGE = bytes(3_000_000)
SMALL_BYTES = 600  # more than any pointer envelope has


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(PROGRAMS)  # each of them is loaded by one test


def run(name, **environment):
    return test_examples.run(f"cookbook/{name}.py", cwd=Path.cwd(), timeout=120, **environment).splitlines()


def stored():
    return [path for path in Path("claims").rglob("*") if path.is_file()]


def is_pointer(value):
    return value.startswith(claimcheck.HEADER) and len(value) < SMALL_BYTES


def records(servers, topic):
    """Return the values of two records, as any other reader of the topic sees them."""
    consumer = Consumer({"bootstrap.servers": servers, "group.id": f"{topic}-raw", "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    values = [message.value() for message in consumer.consume(2, timeout=30)]
    consumer.close()
    return values


def test_the_page_shows_parts_of_the_programs():
    page = (ROOT / PAGE).read_text()
    assert len(page.split()) <= 950
    programs = {path: path.read_text() for path in PROGRAMS.glob("*.py")}
    assert [path.name for path in programs if f"`examples/cookbook/{path.name}`" not in page] == []
    for block in blocks(PAGE):
        assert max(map(len, block.code.splitlines())) <= 88
        for part in block.code.rstrip().split("\n\n"):
            assert any(part.strip("\n") in text for text in programs.values()), (block.line, part)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of redis-py, about Celery's calls
def test_celery(redis_url, topic, monkeypatch):
    assert run("celery_tasks", REDIS_URL=redis_url) == ["2 words", "1,000,000 words"]
    monkeypatch.setenv("REDIS_URL", redis_url)
    program = load("celery_tasks")
    with program.app, Redis.from_url(redis_url) as server:
        program.app.conf.task_default_queue = topic
        assert program.send(LARGE).id
        [message] = server.lrange(topic, 0, -1)
        server.delete(topic)
    assert len(message) < 3_000


def test_aiokafka(kafka_broker, topic):
    servers = kafka_broker.bootstrap_servers
    assert run("aiokafka_stream", KAFKA_SERVERS=servers, TOPIC=topic) == ["5 bytes", "3,000,000 bytes"]
    small, large = records(servers, topic)
    assert (small, is_pointer(large)) == (b"small", True)


def test_schema_registry(kafka_broker, topic):
    servers = kafka_broker.bootstrap_servers
    said = run("schema_registry", KAFKA_SERVERS=servers, TOPIC=topic)
    assert said == ["page 1: 5 bytes", "page 2: 3,000,000 bytes"]
    small, large = records(servers, topic)
    assert is_pointer(large)
    assert stored()[0].read_bytes()[:5] == small[:5] == b"\0\0\0\0\1"  # the magic byte, and the id of the schema


def test_temporal():
    assert run("temporal_codec")[0] == "33 bytes in the history, a string of 5"
    converter, plain = load("temporal_codec").converter, temporalio.converter.default()
    values = ["small", {"large": LARGE.decode()}]
    before, encoded = (asyncio.run(each.encode(values)) for each in (plain, converter))
    assert encoded[0] == before[0]
    assert encoded[1].ByteSize() < SMALL_BYTES
    assert asyncio.run(converter.payload_codec.decode(encoded)) == before  # with all metadata
    assert asyncio.run(converter.decode(encoded, [str, dict])) == values


def test_sqs(moto_url, topic, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", moto_url)
    monkeypatch.setenv("BUCKET", topic)
    boto3.client("s3").create_bucket(Bucket=topic)
    queue = boto3.client("sqs").create_queue(QueueName=topic)["QueueUrl"]
    monkeypatch.setenv("QUEUE_URL", queue)
    expected = ["new: 600,000 bytes", "old: 600,000 bytes", "small: 5 bytes", "small: 5 bytes"]
    assert sorted(run("sqs_migration")) == expected  # in a process of its own: the library changes boto3
    program = load("sqs_migration")
    program.send(LARGE)
    [message] = program.sqs.receive_message(QueueUrl=queue, MessageAttributeNames=["All"])["Messages"]
    assert is_pointer(message["MessageAttributes"]["claimcheck"]["BinaryValue"])
    assert program.payload(message) == LARGE
    elsewhere = '["software.amazon.payloadoffloading.PayloadS3Pointer", {"s3BucketName": "b", "s3Key": "k"}]'
    with pytest.raises(PermissionError):
        program.payload({"Body": elsewhere, "MessageAttributes": {"ExtendedPayloadSize": {}}})


def test_bakdata(s3_server, s3_bucket, monkeypatch):
    """With the bytes of its format: the Faust library needs an older click than claimcheck's command line."""
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", s3_server.endpoint_url)
    monkeypatch.setenv("BASE_PATH", f"s3://{s3_bucket}/kafka")
    assert run("bakdata_migration") == ["first byte: 3,000,000", "header: 3,000,000", "new: 6,000,000"]
    program = load("bakdata_migration")
    flag = ("__large.message.backed.value", b"\0")
    assert program.payload(b"\0inline") == program.payload(b"inline", [flag]) == b"inline"
    assert program.payload(b"plain", [("other", b"\1")]) == b"plain"
    assert is_pointer(program.new(LARGE))
    for uri in (f"s3://{s3_bucket}/kafka-other/1", "s3://other/kafka/1", "file:///etc/hostname"):
        with pytest.raises(PermissionError):
            program.payload(b"\1" + uri.encode())


def test_cloudevents():
    said = run("cloudevents_dataref")
    assert said == ["5 bytes in the message, 5 of data", "0 bytes in the message, 3,000,000 of data"]
    program = load("cloudevents_dataref")
    attributes = {"type": "scan", "source": "/scanner/1"}
    small, large = (program.event(dict(attributes), data) for data in (b"small", LARGE))
    assert (small.get_data(), small.get_extension("dataref")) == (b"small", None)
    assert (large.get_data(), len(large.get_extension("dataref")) < 1_000) == (None, True)
    assert program.data_of(large) == LARGE
    other = program.CloudEvent({**attributes, "dataref": "https://example.com/1"}, b"theirs")
    assert program.data_of(other) == b"theirs"


def test_rabbitmq(rabbitmq_url, topic, monkeypatch):
    assert run("rabbitmq_pika", AMQP_URL=rabbitmq_url) == ["5 bytes", "3,000,000 bytes"]
    program, before = load("rabbitmq_pika"), stored()
    with pika.BlockingConnection(pika.URLParameters(rabbitmq_url)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        with pytest.raises(pika.exceptions.UnroutableError):
            program.publish(channel, topic, LARGE)
        assert stored() == before  # deleted: no queue has its pointer
        channel.queue_declare(topic)
        program.publish(channel, topic, LARGE)
        _, _, body = channel.basic_get(topic, auto_ack=True)
        channel.queue_delete(topic)
    assert is_pointer(body)
    assert program.cc.resolve(body) == LARGE
