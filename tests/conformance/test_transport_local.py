"""The transport kit on the embedded broker."""

import pytest

from claimcheck.transports.local import (
    BrokerCommitError,
    LocalBroker,
    LocalConsumer,
    LocalProducer,
    MessageTooLargeError,
)
from tests.kit.transport_conformance import TransportConformance
from tests.kit.transport_harness import Facts


class UncertainBroker(LocalBroker):
    """Appends, but then reports that the result is unknown."""

    def append(self, *args, **options):
        super().append(*args, **options)
        raise BrokerCommitError("the disk failed at the very end", path="broker.sqlite")


class TestLocal(TransportConformance):
    limit_bytes = 4096
    refusal = MessageTooLargeError
    unknown = BrokerCommitError
    acks_are_immediate = False  # a position: what lies beyond an unacknowledged message comes again
    has_look_ahead = False
    has_dead_letters = False
    has_counted_redeliveries = False
    has_open_producers = False

    @pytest.fixture
    def broker(self, tmp_path, clock):
        self.path = tmp_path / "broker.sqlite"
        options = {"max_message_bytes": self.limit_bytes, "clock": clock, "sleep": clock.advance}
        with LocalBroker(self.path, **options) as self.native:
            yield

    def create_topic(self, topic, partitions):
        self.native.create_topic(topic, partitions)

    def append(self, topic, data, *, key, headers, writer):
        return self.native.append(topic, data, key=key, headers=headers, partition=0).offset

    def messages(self, topic):
        places = [(part, self.native.end_offset(topic, part)) for part in range(self.native.partitions(topic))]
        return [message.value for part, end in places for message in self.native.fetch(topic, part, 0, end)]

    def backlog(self, topic):
        query = "SELECT coalesce(sum(offset), 0) FROM positions WHERE grp = 'g' AND topic = ?"
        with self.native.database.read() as connection:
            (position,) = connection.execute(query, (topic,)).fetchone()
        return self.native.stats(topic).messages - position

    # Sending ---------------------------------------------------------------------------------------------------

    def open_producer(self, cc, topic):
        return LocalProducer(self.native, cc)

    def close(self, opened):
        if not isinstance(opened, LocalProducer):  # which has nothing to close
            opened.close()

    def send(self, producer, topic, payload, *, key, headers):
        producer.send(topic, payload, key=key, headers=headers)

    def send_refused(self, cc, topic, payload):
        with LocalBroker(self.path, max_message_bytes=self.limit_bytes) as broker:
            producer = LocalProducer(broker, cc)
            broker.max_message_bytes = 100  # lowered since
            producer.send(topic, payload)

    def send_unknown(self, cc, topic, payload):
        with UncertainBroker(self.path, max_message_bytes=self.limit_bytes) as broker:
            LocalProducer(broker, cc).send(topic, payload)

    # Receiving -------------------------------------------------------------------------------------------------

    def open_consumer(self, cc, topic, *, clock, look_ahead, dead_letters):
        return LocalConsumer(self.native, cc, topics=[topic], group="g", redelivery_delay_seconds=0)

    def receive(self, consumer, seconds):
        return consumer.receive(timeout=seconds)

    def payload_of(self, message):
        return message.value

    def facts_of(self, topic, message):
        return Facts(message.topic, message.partition, message.offset, message.key, message.headers)

    def acknowledge(self, consumer, message):
        consumer.ack(message)

    def give_back(self, consumer, message):
        consumer.nack(message)

    def seek(self, consumer, topic, position):
        consumer.seek(topic, 0, position)
