"""The transport conformance kit on a real Pulsar, blocking and with asyncio."""

import contextlib
import logging

import pulsar
import pulsar.asyncio
import pytest

from claimcheck.transports.pulsar import (
    AsyncPulsarConsumer,
    AsyncPulsarProducer,
    PulsarConsumer,
    PulsarProducer,
    SendDeadlineError,
)
from tests import servers
from tests.kit.transport_asyncio import AsyncioConformance
from tests.kit.transport_conformance import TransportConformance
from tests.kit.transport_harness import Facts

REDELIVERY_MILLIS = 50

quiet = logging.getLogger("pulsar-client-of-the-conformance-tests")
quiet.setLevel(logging.CRITICAL + 1)


class PulsarConformance(TransportConformance):
    limit_bytes = servers.PULSAR_MAX_MESSAGE_BYTES
    refusal = pulsar.exceptions.MessageTooBig
    unknown = SendDeadlineError
    closed = pulsar.exceptions.AlreadyClosed
    acks_are_immediate = False
    header_shapes = ("mapping",)
    key_types = (str,)

    @pytest.fixture
    def broker(self, pulsar_broker, pulsar_client):
        self.server, self.client = pulsar_broker, pulsar_client
        self.writers = {}
        yield
        for writer in self.writers.values():
            writer.close()

    def create_topic(self, topic, partitions):
        """A topic that is not partitioned is created when it is first used."""
        if partitions > 1:
            self.server.create_partitioned(topic, partitions)

    def append(self, topic, data, *, key, headers, writer):
        if (topic, writer) not in self.writers:
            name = f"{writer}-{topic}"
            self.writers[topic, writer] = self.client.create_producer(topic, name, batching_enabled=False)
        return place(self.writers[topic, writer].send(data, properties=headers, partition_key=key))

    def messages(self, topic):
        found = []
        for part in self.client.get_topic_partitions(topic):
            with contextlib.closing(self.client.create_reader(part, pulsar.MessageId.earliest)) as reader:
                while reader.has_message_available():
                    message = reader.read_next(5000)
                    found.append(None if message.has_null_value() else message.data())
        return found

    def backlog(self, topic):
        stats = (self.server.stats(part) for part in self.client.get_topic_partitions(topic))
        return sum(each["subscriptions"]["s"]["msgBacklog"] for each in stats)

    # Sending ---------------------------------------------------------------------------------------------------

    def open_producer(self, cc, topic, client=None, **options):
        native = (client or self.client).create_producer(topic, batching_enabled=False)
        return PulsarProducer(native, cc, **{"max_message_bytes": self.limit_bytes, **options})

    def send(self, producer, topic, payload, *, key=None, headers=None):
        producer.send(payload, properties=headers, partition_key=key)

    def begin(self, producer, topic, payload):
        producer.send_async(payload, lambda result, message_id: None)

    def send_refused(self, cc, topic, payload):
        """The properties are too large for the broker, but not for the wrapper's limit."""
        producer = self.open_producer(cc, topic, max_message_bytes=2 * self.limit_bytes)
        self.send_and_close(producer, topic, payload, headers={"large": "v" * self.limit_bytes})

    def send_unknown(self, cc, topic, payload):
        """To a topic with a limit that the client does not know, so that it retries forever."""
        self.client.create_producer(topic).close()
        self.server.set_policy(topic, "maxMessageSize", 100)
        client = self.own_client()
        try:
            self.send_and_close(self.open_producer(cc, topic, client, deadline_seconds=1), topic, payload)
        finally:
            self.close(client)  # the broker keeps dropping its connection, so it may be closed already

    def own_client(self):
        return pulsar.Client(self.server.service_url, logger=quiet, operation_timeout_seconds=30)

    # Receiving -------------------------------------------------------------------------------------------------

    subscription = {
        "initial_position": pulsar.InitialPosition.Earliest,
        "negative_ack_redelivery_delay_ms": REDELIVERY_MILLIS,
        "start_message_id_inclusive": True,
    }

    def wrapping(self, topic, clock, look_ahead, dead_letters):
        """Return the wrapper's options."""
        options = {"clock": clock, "start_message_id_inclusive": True}
        if look_ahead is not None:
            options["prefetch_bytes"] = (8 << 20) * look_ahead
        if dead_letters:
            producer = self.client.create_producer(f"{topic}-dead-letters", batching_enabled=False)
            self.writers[topic, "dead letters"] = producer
            options |= {"dead_letter_producer": producer, "max_redeliveries": 2}
        return options

    def open_consumer(self, cc, topic, *, clock, look_ahead, dead_letters):
        native = self.client.subscribe(topic, "s", **self.subscription)
        return PulsarConsumer(native, cc, **self.wrapping(topic, clock, look_ahead, dead_letters))

    def receive(self, consumer, seconds):
        try:
            return consumer.receive(int(seconds * 1000))
        except pulsar.Timeout:
            return None

    def payload_of(self, message):
        return None if message.has_null_value() else message.data()

    def facts_of(self, topic, message):
        name, _, partition = message.topic_name().rpartition("/")[2].partition("-partition-")
        message_id = message.message_id()
        key = message.partition_key().encode() or None
        headers = [(name, value.encode()) for name, value in message.properties().items()]
        return Facts(name, int(partition or 0), place(getattr(message_id, "first", message_id)), key, headers)

    def acknowledge(self, consumer, message):
        self.run(consumer.acknowledge(message))

    def give_back(self, consumer, message):
        self.run(consumer.negative_acknowledge(message))

    def dead_letter(self, consumer, message):
        self.run(consumer.dead_letter(message))

    def dead_letters(self, topic):
        return self.messages(f"{topic}-dead-letters")

    def seek(self, consumer, topic, position):
        self.run(consumer.seek(pulsar.MessageId(*position)))


def place(message_id):
    """Return the fields of an id in the order of `pulsar.MessageId`'s arguments."""
    return message_id.partition(), message_id.ledger_id(), message_id.entry_id(), message_id.batch_index()


class TestPulsar(PulsarConformance):
    pass


class TestAsyncPulsar(AsyncioConformance, PulsarConformance):
    refusal = closed = pulsar.asyncio.PulsarException
    skip = {"test_the_next_payloads_are_read_while_one_is_processed": "only receives that wait at once read at once"}

    @pytest.fixture(autouse=True)
    def _native(self, _running_loop, broker):
        self.native = self.own_client()
        yield
        self.run(self.native.close())

    def own_client(self):
        async def opened():
            return pulsar.asyncio.Client(self.server.service_url, logger=quiet)

        return self.run(opened())

    def open_producer(self, cc, topic, client=None, **options):
        async def made():
            native = await (client or self.native).create_producer(topic, batching_enabled=False)
            return AsyncPulsarProducer(native, cc, **{"max_message_bytes": self.limit_bytes, **options})

        return self.run(made())

    async def sending(self, producer, topic, payload, *, key=None, headers=None):
        await producer.send(payload, properties=headers, partition_key=key)

    def open_consumer(self, cc, topic, *, clock, look_ahead, dead_letters):
        async def made():
            native = await self.native.subscribe(topic, "s", **self.subscription)
            return AsyncPulsarConsumer(native, cc, **self.wrapping(topic, clock, look_ahead, dead_letters))

        return self.run(made())

    async def receiving(self, consumer):
        return await consumer.receive()
