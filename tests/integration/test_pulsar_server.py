"""What other tests take for granted of the Pulsar they are given: its limit, its numbers, and that it survives a kill."""

import logging
import os
import socket
from contextlib import ExitStack, contextmanager

import pulsar
import pytest

from tests import servers
from tests.integration.pulsar_rig import content

LIMIT = servers.PULSAR_MAX_MESSAGE_BYTES
EARLIEST = pulsar.InitialPosition.Earliest


@pytest.fixture
def start(pulsar_jars):
    """Starts brokers of our own, with a client each."""
    if servers.JARS not in os.environ:
        pytest.skip("no jars to start a broker of one's own")
    with ExitStack() as stack:
        yield lambda **options: stack.enter_context(broker_and_client(**options))


@contextmanager
def broker_and_client(**options):
    logger = logging.getLogger("pulsar-client-of-a-test")
    logger.setLevel(logging.CRITICAL)
    with servers.pulsar(**options) as broker:
        client = pulsar.Client(broker.service_url, logger=logger, operation_timeout_seconds=30)
        yield broker, client
        client.close()


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


def listens_everywhere(port):
    """Whether a port of 127.0.0.1 is open at another address of the same machine, as what binds 0.0.0.0 is."""
    with socket.socket() as probe:
        probe.settimeout(5)
        return probe.connect_ex(("127.0.0.2", port)) == 0


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

    def test_trimming_removes_what_everybody_has_had(self, pulsar_broker, pulsar_client, topic):
        send(pulsar_client, topic, b"old")
        receive(pulsar_client, topic, 1)
        pulsar_broker.unload(topic)  # only a ledger that is closed can go
        send(pulsar_client, topic, b"new")
        before = {ledger["ledgerId"] for ledger in pulsar_broker.internal_stats(topic)["ledgers"]}

        def gone():
            pulsar_broker.trim(topic)
            return min(before) not in {led["ledgerId"] for led in pulsar_broker.internal_stats(topic)["ledgers"]}

        servers.wait_until(gone, "the first ledger is gone")
        assert receive(pulsar_client, topic, 1) == [b"new"]

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

    def test_the_limit_of_a_single_topic(self, pulsar_broker, pulsar_client, topic):
        pulsar_client.create_producer(topic).close()
        pulsar_broker.set_policy(topic, "maxMessageSize", 5_000)

        with pytest.raises(pulsar.PulsarException):
            send(pulsar_client, topic, content(6_000))

    def test_a_topic_that_is_not_there_is_an_error(self, pulsar_broker, topic):
        with pytest.raises(OSError, match="404"):
            pulsar_broker.stats(topic)


@pytest.mark.timeout(300)
class TestOwn:
    def test_killed_and_started_again_it_has_all_that_it_confirmed(self, start, topic):
        broker, client = start()
        broker.create_partitioned(f"{topic}-parts", 2)
        client.subscribe(topic, "s").close()
        payloads = [content(1_000, i) for i in range(50)]
        send(client, topic, *payloads)

        for _ in range(2):
            broker.server.kill()
            broker.server.start()

        assert backlog(broker, topic) == 50
        assert receive(client, topic, 50) == payloads
        assert len(client.get_topic_partitions(f"{topic}-parts")) == 2

    def test_two_side_by_side_know_nothing_of_each_other(self, start, topic):
        (small, small_client), (large, large_client) = start(), start(max_message_bytes=5 << 20)
        send(large_client, topic, content(4 << 20))
        send(small_client, topic, b"small")

        assert receive(large_client, topic, 1) == [content(4 << 20)]
        assert receive(small_client, topic, 1) == [b"small"]
        assert small.server.pid != large.server.pid
