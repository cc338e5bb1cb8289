"""The transport kit on the Kafka wrappers, blocking and asyncio, with a real broker."""

import contextlib

import confluent_kafka as kafka
import pytest
from confluent_kafka.aio import AIOConsumer, AIOProducer

from claimcheck.transports.kafka import AsyncKafkaConsumer, AsyncKafkaProducer
from tests.conformance.event_loop import running_loop
from tests.conformance.kafka_transport import NOBODY, KafkaConformance, quiet
from tests.kit.transport_asyncio import AsyncioConformance


class TestKafka(KafkaConformance):
    pass


class TestAsyncKafka(AsyncioConformance, KafkaConformance):
    @pytest.fixture(autouse=True)
    def _loop(self):
        with running_loop() as self.run:
            yield

    # Sending ---------------------------------------------------------------------------------------------------

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

    def send_refused(self, cc, topic, payload):
        self.lower_limit(topic)
        self._send_and_close(self.open_producer(cc, topic), topic, payload)

    def send_unknown(self, cc, topic, payload):
        self._send_and_close(self.open_producer(cc, topic, **NOBODY), topic, payload)

    def _send_and_close(self, producer, topic, payload):
        try:
            self.send(producer, topic, payload)
        finally:
            self.run(producer.flush())
            self.close(producer)

    # Receiving -------------------------------------------------------------------------------------------------

    def open_consumer(self, cc, topic, *, clock, look_ahead, dead_letters):
        async def made():
            native = AIOConsumer({**self.consumer_options(topic), "logger": quiet})
            consumer = AsyncKafkaConsumer(native, cc, **self.wrapping(clock, look_ahead, dead_letters))
            await consumer.subscribe([topic])
            return consumer

        return self.run(made())

    async def receiving(self, consumer):
        return self.without_event(await consumer.poll())

    def acknowledge(self, consumer, message):
        self.run(consumer.commit(message, asynchronous=False))

    def dead_letter(self, consumer, message):
        self.run(consumer.dead_letter(message, f"{message.topic()}-dead-letters"))
        self.acknowledge(consumer, message)

    def seek(self, consumer, topic, position):
        self.run(consumer.seek(kafka.TopicPartition(topic, 0, position)))

    def close(self, opened):
        with contextlib.suppress(RuntimeError):  # closed before
            self.run(opened.close())
