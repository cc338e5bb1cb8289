"""The transport kit on the Kafka wrappers, blocking and asyncio, with a real broker."""

import contextlib
import logging

import confluent_kafka as kafka
import pytest
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic, ResourceType
from confluent_kafka.aio import AIOConsumer, AIOProducer

from claimcheck.transports.kafka import AsyncKafkaConsumer, AsyncKafkaProducer, KafkaConsumer, KafkaProducer
from tests.kit.transport_asyncio import AsyncioConformance
from tests.kit.transport_conformance import TransportConformance
from tests.kit.transport_harness import Facts
from tests.servers import wait_until

SECONDS = 30
NOBODY = {"bootstrap.servers": "127.0.0.1:1", "message.timeout.ms": 200}

quiet = logging.getLogger("kafka-client-of-the-conformance-tests")
quiet.setLevel(logging.CRITICAL + 1)


class KafkaConformance(TransportConformance):
    limit_bytes = 10_000
    refusal = unknown = kafka.KafkaException
    has_nack = False
    has_counted_redeliveries = False

    @pytest.fixture
    def broker(self, kafka_broker):
        self.servers = {"bootstrap.servers": kafka_broker.bootstrap_servers}
        self.admin = AdminClient(self.servers, logger=quiet)
        self.raw = kafka.Producer({**self.servers, "linger.ms": 0}, logger=quiet)
        yield
        self.raw.flush(SECONDS)
        del self.raw, self.admin  # they hold connections, and pytest keeps this object until the end

    def create_topic(self, topic, partitions, **config):
        self.admin.create_topics([NewTopic(topic, partitions, 1, config=config)])[topic].result()

    def append(self, topic, data, *, key, headers, writer):
        """Writers differ by their keys only."""
        reports = []
        self.raw.produce(
            topic, data, key, partition=0, headers=headers, on_delivery=lambda _, report: reports.append(report)
        )
        assert self.raw.flush(SECONDS) == 0
        return reports[0].offset()

    def messages(self, topic):
        with self.reading(topic) as (consumer, ends):
            consumer.assign([kafka.TopicPartition(topic, partition, 0) for partition in ends])
            found = []
            while missing := sum(ends.values()) - len(found):
                found += [message.value() for message in consumer.consume(missing, 1)]
        return found

    def backlog(self, topic):
        with self.reading(topic) as (consumer, ends):
            places = [kafka.TopicPartition(topic, partition) for partition in ends]
            committed = consumer.committed(places, timeout=SECONDS)
        return sum(ends.values()) - sum(max(place.offset, 0) for place in committed)

    @contextlib.contextmanager
    def reading(self, topic):
        """Yield a consumer with the group id that never joins the group, and the end offset of each partition."""
        consumer = kafka.Consumer(self.consumer_options(topic), logger=quiet)
        partitions = consumer.list_topics(topic, SECONDS).topics[topic].partitions
        places = {partition: kafka.TopicPartition(topic, partition) for partition in partitions}
        yield consumer, {p: consumer.get_watermark_offsets(place, SECONDS)[1] for p, place in places.items()}
        consumer.close()

    # Sending ---------------------------------------------------------------------------------------------------

    def producer_options(self):
        return {**self.servers, "message.max.bytes": self.limit_bytes, "linger.ms": 0}

    def open_producer(self, cc, topic, **options):
        native = kafka.Producer({**self.producer_options(), **options}, logger=quiet)
        return KafkaProducer(native, cc, max_message_bytes=self.limit_bytes)

    def send(self, producer, topic, payload, *, key=None, headers=None):
        errors = []
        producer.produce(topic, payload, key, headers=headers, on_delivery=lambda error, _: errors.append(error))
        assert producer.flush(SECONDS) == 0
        if errors[0] is not None:
            raise kafka.KafkaException(errors[0])

    def begin(self, producer, topic, payload):
        producer.produce(topic, payload)

    def flush(self, producer):
        assert producer.flush(SECONDS) == 0

    def send_refused(self, cc, topic, payload):
        self.lower_limit(topic)
        self.send_and_close(self.open_producer(cc, topic), topic, payload)

    def send_unknown(self, cc, topic, payload):
        self.send_and_close(self.open_producer(cc, topic, **NOBODY), topic, payload)

    def lower_limit(self, topic):
        """Lower the topic's limit below the size of a pointer, without telling the producer."""
        change = ConfigEntry("max.message.bytes", "150", incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[change])
        self.admin.incremental_alter_configs([resource])[resource].result()
        wait_until(lambda: self.limit_of(topic) == "150", "the broker applies the lower limit")

    def limit_of(self, topic):
        resource = ConfigResource(ResourceType.TOPIC, topic)
        return self.admin.describe_configs([resource])[resource].result()["max.message.bytes"].value

    # Receiving -------------------------------------------------------------------------------------------------

    def consumer_options(self, topic):
        manual = {"auto.offset.reset": "earliest", "enable.auto.offset.store": False, "enable.auto.commit": False}
        quick = {"fetch.error.backoff.ms": 10, "topic.metadata.refresh.fast.interval.ms": 10, "fetch.wait.max.ms": 50}
        return {**self.servers, "group.id": topic, **manual, **quick}

    def open_consumer(self, cc, topic, *, clock, look_ahead, dead_letters):
        native = kafka.Consumer(self.consumer_options(topic), logger=quiet)
        consumer = KafkaConsumer(native, cc, **self.wrapping(clock, look_ahead, dead_letters))
        consumer.subscribe([topic])
        return consumer

    def wrapping(self, clock, look_ahead, dead_letters):
        """Return the wrapper's options."""
        options = {"clock": clock, "dead_letter_producer": self.raw if dead_letters else None}
        return options if look_ahead is None else {**options, "prefetch_bytes": (1 << 20) * look_ahead}

    def receive(self, consumer, seconds):
        return self.without_event(consumer.poll(seconds))

    def without_event(self, message):
        assert message is None or message.error() is None, message.error()
        return message

    def payload_of(self, message):
        return message.value()

    def facts_of(self, topic, message):
        assert message.topic() == topic
        return Facts(topic, message.partition(), message.offset(), message.key(), message.headers() or [])

    def acknowledge(self, consumer, message):
        self.run(consumer.commit(message, asynchronous=False))

    def dead_letter(self, consumer, message):
        self.run(consumer.dead_letter(message, f"{message.topic()}-dead-letters", reason="no sense in it"))
        self.acknowledge(consumer, message)

    def dead_letters(self, topic):
        return self.messages(f"{topic}-dead-letters")

    def seek(self, consumer, topic, position):
        self.run(consumer.seek(kafka.TopicPartition(topic, 0, position)))


class TestKafka(KafkaConformance):
    pass


class TestAsyncKafka(AsyncioConformance, KafkaConformance):
    def open_producer(self, cc, topic, **options):
        async def made():
            native = AIOProducer({**self.producer_options(), "logger": quiet, **options}, buffer_timeout=0)
            return AsyncKafkaProducer(native, cc, max_message_bytes=self.limit_bytes)

        return self.run(made())

    async def sending(self, producer, topic, payload, *, key=None, headers=None):
        await (await producer.produce(topic, payload, key, headers=headers))

    def begin(self, producer, topic, payload):
        """A record has its place in the order when `produce` returns its future."""
        self._begun.append(self.run(producer.produce(topic, payload)))

    def open_consumer(self, cc, topic, *, clock, look_ahead, dead_letters):
        async def made():
            native = AIOConsumer({**self.consumer_options(topic), "logger": quiet})
            consumer = AsyncKafkaConsumer(native, cc, **self.wrapping(clock, look_ahead, dead_letters))
            await consumer.subscribe([topic])
            return consumer

        return self.run(made())

    async def receiving(self, consumer):
        return self.without_event(await consumer.poll())
