"""Share groups on a real Kafka: `cc.resolve` follows the pointers that the client's own share consumer returns."""

import confluent_kafka as kafka
import pytest
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource

from claimcheck.errors import ChunkError
from tests.integration.kafka_rig import LIMIT, WITHIN_SECONDS, content, rig

BIG = 5 * LIMIT


@pytest.fixture
def lab(kafka_broker, topic):
    with rig(kafka_broker, topic) as lab:
        entry = ConfigEntry("share.auto.offset.reset", "earliest", incremental_operation=AlterConfigOpType.SET)
        group = ConfigResource(ConfigResource.Type.GROUP, lab.group, incremental_configs=[entry])
        lab.admin.incremental_alter_configs([group])[group].result()
        yield lab


def received(lab):
    with kafka.ShareConsumer({**lab.servers, "group.id": lab.group}) as consumer:
        consumer.subscribe([lab.topic])
        records = consumer.poll(WITHIN_SECONDS)
        return [(record.value(), record.topic(), record.headers()) for record in records]


def test_payloads_of_any_size_are_resolved(lab):
    payloads = [b"plain", content(BIG), content(BIG, 1)]
    producer = lab.producer()
    for payload in payloads:
        producer.produce(lab.topic, payload, key=b"k")
    producer.flush()
    found = [lab.cc.resolve(value, destination=topic, headers=headers) for value, topic, headers in received(lab)]
    assert found == payloads


def test_a_chunk_is_an_error(lab):
    producer = lab.producer("chunking")
    producer.produce(lab.topic, content(BIG), key=b"k")
    producer.flush()
    for value, topic, headers in received(lab):
        with pytest.raises(ChunkError):
            lab.cc.resolve(value, destination=topic, headers=headers)
