"""Kafka's clients, instrumented by OpenTelemetry: the trace of each sender reaches the processing of its payload."""

import confluent_kafka as kafka
import pytest
from opentelemetry.instrumentation.confluent_kafka import ConfluentKafkaInstrumentor

import claimcheck
from claimcheck import telemetry
from claimcheck.errors import ConfigError
from claimcheck.transports.kafka import KafkaConsumer, KafkaProducer
from tests.integration.kafka_rig import LIMIT, rig
from tests.telemetry_rig import finished, tracer

PAYLOADS = {
    "plain": b"small",
    "plain with headers": b"small, too",
    "stored": bytes(LIMIT * 3),
    "chunks": bytes(LIMIT * 2),
}


@pytest.fixture
def broker(kafka_broker, topic):
    with rig(kafka_broker, topic) as broker:
        yield broker


@pytest.fixture(params=["proxies", "subclasses"])
def clients(request, broker):
    """A producer and a consumer: proxies around the client's own, or what takes the place of its classes."""
    sending = {**broker.servers, "message.max.bytes": LIMIT, "linger.ms": 0}
    receiving = {**broker.servers, "group.id": broker.group, "auto.offset.reset": "earliest",
                 "enable.auto.offset.store": False}  # fmt: skip
    instrumentor = ConfluentKafkaInstrumentor()
    if request.param == "proxies":
        producer = instrumentor.instrument_producer(kafka.Producer(sending))
        yield producer, instrumentor.instrument_consumer(kafka.Consumer(receiving))
        return
    instrumentor.instrument()
    try:
        yield kafka.Producer(sending), kafka.Consumer(receiving)
    finally:
        instrumentor.uninstrument()


def test_each_payload_is_processed_below_the_span_of_its_sender(broker, clients):
    finished()
    traces, hooks = {}, [telemetry.hook()]
    stores = {"m": {"type": "memory", "space": broker.topic}}
    with (
        claimcheck.from_dict({"strategy": "external", "stores": stores}, hooks=hooks) as external,
        claimcheck.from_dict({"strategy": "chunking", "stores": stores}) as chunking,
    ):
        for name, payload in PAYLOADS.items():
            producer = KafkaProducer(clients[0], chunking if name == "chunks" else external, max_message_bytes=LIMIT)
            with tracer.start_as_current_span(name) as span:
                headers = [("own", b"header")] if name == "plain with headers" else None
                producer.produce(broker.topic, payload, on_delivery=lambda *_: None, headers=headers)
                producer.flush(30)
            traces[payload] = span.get_span_context().trace_id
        consumer = KafkaConsumer(clients[1], external, prefetch_bytes=1 << 20)
        consumer.subscribe([broker.topic])
        received = []
        while len(received) < len(PAYLOADS):
            message = consumer.poll(30)
            with telemetry.processing(message) as span:
                received.append((message.value(), span.get_span_context().trace_id))
                assert [name for name, _ in message.headers()].count("traceparent") == 1
        consumer.close()
    assert received == list(traces.items())
    processed = {span.context.span_id: span for span in finished() if span.name == f"process {broker.topic}"}
    assert len(processed) == len(PAYLOADS)
    assert all(span.parent.is_remote for span in processed.values())


def test_clients_that_convert_values_are_refused(broker):
    serializing = kafka.SerializingProducer(broker.servers)
    deserializing = kafka.DeserializingConsumer({**broker.servers, "group.id": "g", "enable.auto.offset.store": False})
    for kind, client in ((KafkaProducer, serializing), (KafkaConsumer, deserializing)):
        with pytest.raises(ConfigError, match="neither serializes nor deserializes"):
            kind(client, broker.cc)
    deserializing.close()
