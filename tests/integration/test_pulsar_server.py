"""What other tests rely on in a Pulsar broker: its limit, its statistics, and that it survives a kill."""

import pulsar
import pytest

from tests import servers
from tests.integration.pulsar_rig import content

LIMIT = servers.PULSAR_MAX_MESSAGE_BYTES
EARLIEST = pulsar.InitialPosition.Earliest


def send(client, topic, *payloads):
    producer = client.create_producer(topic)
    for payload in payloads:
        producer.send(payload)
    producer.close()


def receive(client, topic, count, name="s"):
    consumer = client.subscribe(topic, name, initial_position=EARLIEST)
    payloads = []
    for _ in range(count):
        message = consumer.receive(20_000)
        consumer.acknowledge(message)
        payloads.append(message.data())
    consumer.close()
    return payloads


def backlog(broker, topic):
    return broker.stats(topic)["subscriptions"]["s"]["msgBacklog"]


class TestShared:
    def test_what_is_sent_comes(self, pulsar_client, topic):
        send(pulsar_client, topic, b"", b"a", content(LIMIT // 2))

        assert receive(pulsar_client, topic, 3) == [b"", b"a", content(LIMIT // 2)]

    @pytest.mark.parametrize("size", [LIMIT + 1, 2 * LIMIT])
    def test_more_than_the_limit_is_refused_and_the_producer_lives(self, pulsar_client, topic, size):
        producer = pulsar_client.create_producer(topic)

        with pytest.raises(pulsar.MessageTooBig):
            producer.send(content(size))

        producer.send(b"small")
        producer.close()
        assert receive(pulsar_client, topic, 1) == [b"small"]

    def test_the_backlog_counts_what_is_not_acknowledged(self, pulsar_broker, pulsar_client, topic):
        consumer = pulsar_client.subscribe(topic, "s")
        send(pulsar_client, topic, b"a", b"b", b"c")
        servers.wait_until(lambda: backlog(pulsar_broker, topic) == 3, "three are left")

        consumer.receive(10_000)
        consumer.acknowledge(consumer.receive(10_000))

        servers.wait_until(lambda: backlog(pulsar_broker, topic) == 2, "two are left")
        hole = pulsar_broker.internal_stats(topic)["cursors"]["s"]["individuallyDeletedMessages"]
        assert hole.strip("[]")  # the second is acknowledged, the first is not
        consumer.close()

    def test_unloading_delivers_anew_what_is_not_acknowledged(self, pulsar_broker, pulsar_client, topic):
        consumer = pulsar_client.subscribe(topic, "s", consumer_type=pulsar.ConsumerType.Shared)
        send(pulsar_client, topic, b"a")
        first = consumer.receive(10_000)

        pulsar_broker.unload(topic)

        again = consumer.receive(20_000)
        assert (again.data(), again.message_id()) == (b"a", first.message_id())
        consumer.close()

    def test_partitions(self, pulsar_broker, pulsar_client, topic):
        pulsar_broker.create_partitioned(topic, 3)

        parts = pulsar_client.get_topic_partitions(topic)

        assert [part.rpartition("-")[2] for part in parts] == ["partition-0", "partition-1", "partition-2"] or (
            [part.rpartition("-partition-")[2] for part in parts] == ["0", "1", "2"]
        )
        assert all(pulsar_broker.stats(part)["subscriptions"] == {} for part in parts)

    @pytest.mark.parametrize(
        ("policy", "values"),
        [
            ("retention", [{"retentionTimeInMinutes": n, "retentionSizeInMB": -1} for n in (60, -1)]),
            ("maxMessageSize", [5_000, 6_000]),
            ("deduplicationEnabled", [True, False]),
        ],
    )
    def test_a_policy_may_be_set_and_changed(self, pulsar_broker, pulsar_client, topic, policy, values):
        pulsar_client.create_producer(topic).close()  # a policy needs a topic
        for value in values:
            pulsar_broker.set_policy(topic, policy, value)

            assert pulsar_broker.request("GET", f"persistent/public/default/{topic}/{policy}") == value

    def test_a_topic_that_is_not_there_is_an_error(self, pulsar_broker, topic):
        with pytest.raises(OSError, match="404"):
            pulsar_broker.stats(topic)
