"""The transport conformance kit on a real Pulsar, blocking and with asyncio."""

import contextlib

import pulsar
import pulsar.asyncio
import pytest

from claimcheck.transports.pulsar import AsyncPulsarConsumer, AsyncPulsarProducer
from tests.conformance.event_loop import running_loop
from tests.conformance.pulsar_transport import PulsarConformance, quiet
from tests.kit.transport_asyncio import AsyncioConformance


class TestPulsar(PulsarConformance):
    pass


class TestAsyncPulsar(AsyncioConformance, PulsarConformance):
    refusal = closed = pulsar.asyncio.PulsarException
    skip = {"test_the_next_payloads_are_read_while_one_is_processed": "only receives that wait at once read at once"}

    @pytest.fixture(autouse=True)
    def _loop(self, broker):
        with running_loop() as self.run:
            self.native = self.run(self._opened())
            yield
            self.run(self.native.close())

    async def _opened(self):
        return pulsar.asyncio.Client(self.server.service_url, logger=quiet)

    # Sending ---------------------------------------------------------------------------------------------------

    def open_producer(self, cc, topic, client=None, **options):
        async def made():
            native = await (client or self.native).create_producer(topic, batching_enabled=False)
            return AsyncPulsarProducer(native, cc, **{"max_message_bytes": self.limit_bytes, **options})

        return self.run(made())

    async def sending(self, producer, topic, payload, *, key=None, headers=None):
        await producer.send(payload, properties=headers, partition_key=key)

    def send_refused(self, cc, topic, payload):
        producer = self.open_producer(cc, topic, max_message_bytes=2 * self.limit_bytes)
        self._send_and_close(producer, payload, properties={"large": "v" * self.limit_bytes})

    def send_unknown(self, cc, topic, payload):
        self.client.create_producer(topic).close()
        self.server.set_policy(topic, "maxMessageSize", 100)
        client = self.run(self._opened())
        producer = self.open_producer(cc, topic, client, deadline_seconds=1)
        try:
            self._send_and_close(producer, payload)
        finally:
            self.close(client)

    def _send_and_close(self, producer, payload, **options):
        try:
            self.run(producer.send(payload, **options))
        finally:
            self.close(producer)

    # Receiving -------------------------------------------------------------------------------------------------

    def open_consumer(self, cc, topic, *, clock, look_ahead, dead_letters):
        async def made():
            native = await self.native.subscribe(topic, "s", **self.subscription)
            return AsyncPulsarConsumer(native, cc, **self.wrapping(topic, clock, look_ahead, dead_letters))

        return self.run(made())

    async def receiving(self, consumer):
        return await consumer.receive()

    def acknowledge(self, consumer, message):
        self.run(consumer.acknowledge(message))

    def give_back(self, consumer, message):
        self.run(consumer.negative_acknowledge(message))

    def dead_letter(self, consumer, message):
        self.run(consumer.dead_letter(message))

    def seek(self, consumer, topic, position):
        self.run(consumer.seek(pulsar.MessageId(*position)))

    def close(self, opened):
        with contextlib.suppress(pulsar.asyncio.PulsarException):  # closed before
            self.run(opened.close())
