"""Kafka as a broker under test, on a real broker."""

import dataclasses
import re
import uuid

import confluent_kafka
import pytest

from claimcheck.transports.kafka._queries import MAX_MESSAGE_BYTES
from tests.benchmarks.compare import kafka
from tests.benchmarks.compare.broker import BrokerAddress, TopicSettings
from tests.benchmarks.compare.model import MODES, CompareError, NotMeasuredError
from tests.compare import broker_checks as checks
from tests.compare.rig import lab_on
from tests.real.process import wait_until


@pytest.fixture
def broker(kafka_broker):
    return kafka.connect(BrokerAddress("kafka", kafka_broker.bootstrap_servers))


@pytest.fixture
def lab(broker, tmp_path):
    with lab_on(broker, tmp_path) as lab:
        yield lab


@pytest.mark.parametrize("mode", MODES)
def test_delivery_and_commit(lab, mode):
    checks.check_delivery_and_commit(lab, mode)


@pytest.mark.parametrize(("mode", "skips"), [("external", False), ("chunking", True), ("native", False)])
def test_seek(lab, mode, skips):
    checks.check_seek(lab, mode, skips=skips)


def test_partitions(lab):
    checks.check_partitions(lab)


def test_topics(broker):
    checks.check_topics(broker, f"claimcheck-compare-{uuid.uuid4().hex}")


def test_bytes_are_those_of_the_records(lab, broker):
    assert broker.bytes_source == "the sizes of the records, without batches"
    checks.check_bytes(lab)


def test_a_sample_joins_no_group(lab, broker):
    before = _groups(broker)
    checks.check_sample(lab)
    assert _groups(broker) == before


def _groups(broker):
    """Return the groups that are named as that of a sample; other tests have groups on this broker, too."""
    names = {each.group_id for each in broker._admin.list_consumer_groups().result().valid}
    return {name for name in names if re.fullmatch(r"claimcheck-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", name)}


def test_a_sample_of_a_missing_topic(broker):
    with pytest.raises(CompareError, match="check its name"):
        broker.sample_sizes(f"claimcheck-compare-{uuid.uuid4().hex}", 10)


def test_retention_deletes(lab, broker):
    with checks.traffic(lab, "chunking", 3 * broker.limit_bytes, retention=1) as lane:
        lane.send(*checks.large(lab, 0))
        assert broker.readable_messages(lane.topic) > 3
        wait_until(lambda: broker.readable_messages(lane.topic) == 0, "the messages are deleted")


def test_a_seek_waits_for_the_assignment(lab, broker):
    with checks.traffic(lab, "external", 1000) as lane:
        sent = [lab.payload(1000, number) for number in range(3)]
        lane.send(*sent)
        consumer = lane.consumer()
        consumer.seek(0, 2)
        assert checks.payloads_of(checks.receive(consumer, 1)) == sent[2:]


def test_errors_of_a_send_reach_flush(lab, broker):
    with checks.traffic(lab, "native", 1000) as lane:
        producer = broker.producer("native", lane.topic, lane.cc)
        producer.send(bytes(2 * broker.limit_bytes))
        with pytest.raises(confluent_kafka.KafkaException, match="MSG_SIZE_TOO_LARGE"):
            producer.flush(checks.SECONDS)
        producer.close()


def test_the_group_waits_as_long_as_requested_for_a_dead_member(lab, broker):
    assert broker._min_session_seconds() <= 6
    with checks.traffic(lab, "external", 1000) as lane:
        lane.send(lab.payload(1000, 0))
        options = {"group": lane.topic, "session_seconds": 0.001}  # below every broker's minimum
        consumer = broker.consumer("external", lane.topic, lane.cc, **options)
        checks.receive(consumer, 1)
        consumer.close()


def test_a_limit_that_the_broker_cannot_have(lab, broker):
    with pytest.raises(NotMeasuredError, match=r"socket.request.max.bytes"):
        broker.create_topic(f"claimcheck-compare-{uuid.uuid4().hex}", TopicSettings(max_message_bytes=200 << 20))


def test_a_consumer_fetches_several_chunks_at_once_unless_the_user_says_otherwise():
    user = {"bootstrap.servers": "127.0.0.1:1", "max.partition.fetch.bytes": "1048576"}

    assert kafka.consumer_conf({}, "g")["max.partition.fetch.bytes"] > 3 * MAX_MESSAGE_BYTES
    assert user.items() <= kafka.consumer_conf(user, "g").items()


def test_no_broker(monkeypatch):
    monkeypatch.setattr(kafka, "_SECONDS", 0.5)
    options = (("sasl.password", "hunter2"), ("sasl.username", "u"))
    address = BrokerAddress("kafka", "127.0.0.1:1", options=options)
    assert "hunter2" not in repr(address)
    with pytest.raises(CompareError, match="no Kafka broker answered") as caught:
        kafka.connect(address)
    assert "hunter2" not in str(caught.value)


def test_a_setting_that_the_client_does_not_know():
    with pytest.raises(CompareError, match="does not accept"):
        kafka.connect(BrokerAddress("kafka", "127.0.0.1:1", options=(("sasl.secret", "hunter2"),)))


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (confluent_kafka.KafkaError.TOPIC_AUTHORIZATION_FAILED, "not permitted to create topic t: permit Create"),
        (confluent_kafka.KafkaError.POLICY_VIOLATION, "did not create topic t .POLICY_VIOLATION.: too many"),
    ],
)
def test_refused_topics(code, text):
    with pytest.raises(CompareError, match=text):
        raise kafka.not_created("t", confluent_kafka.KafkaException(confluent_kafka.KafkaError(code, "too many")))


def test_a_worker_can_connect_with_the_address(broker):
    again = kafka.connect(dataclasses.replace(broker.address))
    assert again.label == broker.label
