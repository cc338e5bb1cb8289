"""The share consumer on a real Kafka: pointers are resolved, chunks raise an error."""

import confluent_kafka as kafka
import pytest
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource

from claimcheck.errors import EnvelopeError, PayloadNotFoundError
from claimcheck.transports.kafka import KafkaMessage, KafkaShareConsumer, ShareGroupError
from tests.integration.kafka_rig import LIMIT, WITHIN_SECONDS, chunks_of, content, rig, values

BIG = 5 * LIMIT
ACCEPT, RELEASE = kafka.AcknowledgeType.ACCEPT, kafka.AcknowledgeType.RELEASE


@pytest.fixture
def lab(kafka_broker, topic):
    with rig(kafka_broker, topic) as lab:
        entry = ConfigEntry("share.auto.offset.reset", "earliest", incremental_operation=AlterConfigOpType.SET)
        group = ConfigResource(ConfigResource.Type.GROUP, lab.group, incremental_configs=[entry])
        lab.admin.incremental_alter_configs([group])[group].result()
        yield lab


def sharing(lab, mode="explicit"):
    """Return a wrapped member of the rig's group."""
    options = {"group.id": lab.group, "share.acknowledgement.mode": mode}
    consumer = KafkaShareConsumer(kafka.ShareConsumer({**lab.servers, **options}), lab.cc)
    consumer.subscribe([lab.topic])
    return consumer


def test_payloads_of_any_size_come_with_all_that_a_message_has(lab):
    payloads = [b"plain", content(BIG), b"", content(BIG, 1), None]
    producer = lab.producer()
    for payload in payloads:
        producer.produce(lab.topic, payload, key=b"k", headers={"a": b"b"})
    producer.flush()
    lookalike = b"PRF_wdkafcli_header_" + b"\2 looks like one of ours"
    producer.produce(lab.topic, lookalike, key=b"k", headers={"a": b"b"})
    producer.flush()
    with sharing(lab, "implicit") as consumer:
        messages = consumer.poll(WITHIN_SECONDS)
        assert type(messages) is kafka.Messages
        assert consumer.subscription() == [lab.topic]
        assert values(messages) == [*payloads, lookalike]
        for offset, message in enumerate(messages):
            assert (message.offset(), message.key(), message.headers()) == (offset, b"k", [("a", b"b")])
            assert message.delivery_count() == 1


def test_a_message_that_is_released_comes_again_and_one_that_is_accepted_does_not(lab):
    producer = lab.producer()
    for n in range(3):
        producer.produce(lab.topic, content(BIG, n))
    producer.flush()
    with sharing(lab) as consumer:
        first, second, third = consumer.poll(WITHIN_SECONDS)
        consumer.acknowledge(first)
        consumer.acknowledge(second, RELEASE)
        consumer.acknowledge_offset(lab.topic, 0, third.offset(), ACCEPT)
        assert list(consumer.commit_sync(WITHIN_SECONDS).values()) == [None]
        (again,) = consumer.poll(WITHIN_SECONDS)
        assert (again.offset(), again.delivery_count(), again.value()) == (1, 2, content(BIG, 1))
        consumer.acknowledge(again)


def test_a_payload_is_read_when_it_is_asked_for_and_stops_no_other(lab):
    producer = lab.producer()
    for payload in (content(BIG), b"next"):
        producer.produce(lab.topic, payload)
    producer.flush()
    with sharing(lab) as consumer:
        stored, plain = consumer.poll(WITHIN_SECONDS)
        assert (isinstance(stored, KafkaMessage), stored.stored_bytes, len(stored)) == (True, BIG, BIG)
        assert plain.value() == b"next"
        lab.cc.store("m")._payloads.clear()
        with pytest.raises(PayloadNotFoundError):
            stored.value()
        for message in (stored, plain):
            consumer.acknowledge(message, kafka.AcknowledgeType.REJECT)


def test_a_chunk_says_why_it_is_none_for_a_share_group_and_can_be_acknowledged(lab):
    producer = lab.producer("chunking")
    producer.produce(lab.topic, content(2 * LIMIT))
    producer.produce(lab.topic, b"next")
    producer.flush()
    with sharing(lab) as consumer:
        *chunks, plain = consumer.poll(WITHIN_SECONDS)
        assert len(chunks) == 3
        for chunk in chunks:
            with pytest.raises(ShareGroupError, match="strategy external") as caught:
                chunk.value()
            assert (caught.value.total, len(caught.value.uuid)) == (3, 36)
            consumer.acknowledge(chunk, RELEASE)
        assert plain.value() == b"next"
        consumer.acknowledge(plain)
        assert [message.delivery_count() for message in consumer.poll(WITHIN_SECONDS)] == [2, 2, 2]
        for chunk in chunks:
            consumer.acknowledge(chunk)


def test_what_is_damaged_says_so_and_stops_no_other(lab):
    header = lab.cc.config.header
    (chunk,) = chunks_of(b"x" * 100, 1)
    lab.send_raw(header + b"\x09" + b"x" * 40, header + b"\x02{broken", chunk[:40], b"next")
    with sharing(lab, "implicit") as consumer:
        *bad, good = consumer.poll(WITHIN_SECONDS)
        assert good.value() == b"next"
        for message in bad:
            with pytest.raises(EnvelopeError):
                message.value()


def test_another_kind_of_consumer_is_refused(lab):
    consumer = lab.native_consumer()
    with pytest.raises(TypeError, match="expected a confluent_kafka.ShareConsumer"):
        KafkaShareConsumer(consumer, lab.cc)
    consumer.close()
