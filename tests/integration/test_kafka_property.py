"""Each payload is delivered once, for any interleaving of records and any crash of a consumer; on a real Kafka."""

import uuid

import confluent_kafka as kafka
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.integration.kafka_rig import chunks_of, content, receive, rig, values


@pytest.fixture(scope="module")
def lab(kafka_broker):
    with rig(kafka_broker, f"property-{uuid.uuid4().hex}", partitions=0) as lab:
        yield lab


@st.composite
def logs(draw):
    """Return several payloads, and their records interleaved, each payload's in order."""
    counts = draw(st.lists(st.integers(0, 4), min_size=1, max_size=7))  # 0 for a plain record
    queues = [chunks_of(content(40 + n, n), count) if count else [content(40 + n, n)] for n, count in enumerate(counts)]
    records = []
    while any(queues):
        queue = draw(st.sampled_from([queue for queue in queues if queue]))
        alone = counts[queues.index(queue)] == 1  # twice, it is two payloads to whoever begins in between
        records += [queue.pop(0)] * (2 if not alone and draw(st.integers(0, 9)) == 0 else 1)
    return records, [content(40 + n, n) for n in range(len(counts))], counts


@settings(max_examples=30, phases=[Phase.explicit, Phase.generate], suppress_health_check=list(HealthCheck))
@given(
    log=logs(), sessions=st.lists(st.integers(1, 3), max_size=4), most=st.sampled_from([1, 2, 100]), batch=st.booleans()
)
def test_each_payload_comes_once_wherever_consumers_die(lab, log, sessions, most, batch):
    records, payloads, counts = log
    lab.topic = lab.create(name=f"log-{uuid.uuid4().hex}")
    lab.send_raw(*records)
    plain_twice = sum(records.count(payload) - 1 for payload, count in zip(payloads, counts, strict=True) if not count)
    cc = lab.claimcheck("external", chunking={"max_pending_payloads": most, "max_redeliveries": 20})
    group, found = f"group-{lab.topic}", []
    for wanted in [*sessions, len(records)]:
        consumer = lab.consumer(group=group, cc=cc, subscribe=False)
        consumer._native.list_topics(lab.topic)  # else the client waits a second for the metadata of an assigned topic
        consumer.assign([kafka.TopicPartition(lab.topic, 0)])
        left = len(payloads) + plain_twice - len(found)
        messages = receive(consumer, min(wanted, left), 10) if left else receive(consumer, 1, 0.2)
        found += values(messages)
        for message in messages[-1:] if batch else messages:
            consumer.commit(message=message, asynchronous=False)
        consumer._native.close()

    assert set(found) == set(payloads)
    assert len(found) == len(payloads) + plain_twice
