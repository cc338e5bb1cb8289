"""Every incomplete payload ends, even on a busy topic: it expires, is redelivered, and is finally reported."""

import asyncio
import contextlib

import pulsar
import pulsar.asyncio
import pytest

from claimcheck.errors import ConfigError, IncompletePayloadError
from claimcheck.transports.pulsar import AsyncPulsarConsumer, AsyncPulsarReader, PulsarReader
from tests import servers
from tests.clocks import Clock
from tests.integration.pulsar_rig import (
    KEYED,
    LIMIT,
    chunk,
    content,
    pending,
)

EXPIRED = 61
"""More seconds than ``chunking.expire_after_seconds``."""


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def head(lab):
    """A topic with the first chunks of a payload whose writer died, and then a plain message."""
    native = lab.client.create_producer(lab.topic)
    native.send(chunk(1, 0, 2, b"a"), properties={"a": "b"}, partition_key="k")
    native.send(b"first")
    return native


class TestBusyTopic:
    """A message is always available, so that no receive times out."""

    @pytest.mark.parametrize("prefetch_bytes", [0, 10 * LIMIT])
    @pytest.mark.parametrize("payload", [b"plain", content(2 * LIMIT)], ids=["plain", "stored"])
    def test_of_a_consumer(self, lab, head, clock, payload, prefetch_bytes):
        cc = lab.claimcheck("external", chunking={"on_expire": "ack"})
        consumer = lab.consumer(cc=cc, wrap={"clock": clock, "prefetch_bytes": prefetch_bytes})
        consumer.acknowledge(consumer.receive(5000))
        assert consumer.pending_payloads == 1
        clock.now += EXPIRED
        lab.producer(cc).send(payload)

        consumer.acknowledge(consumer.receive(5000))

        assert consumer.pending_payloads == 0
        lab.settled()

    def test_of_a_batch_of_messages(self, lab, head, clock):
        cc = lab.claimcheck("external", chunking={"on_expire": "ack"})
        policy = pulsar.ConsumerBatchReceivePolicy(1, 1024, 10_000)
        consumer = lab.consumer(cc=cc, wrap={"clock": clock}, batch_receive_policy=policy)
        while not (found := consumer.batch_receive()):
            pass
        clock.now += EXPIRED
        head.send(b"second")

        found += consumer.batch_receive()

        assert [message.data() for message in found] == [b"first", b"second"]
        assert consumer.pending_payloads == 0

    def test_of_a_reader(self, lab, head, clock):
        reader = PulsarReader(lab.client.create_reader(lab.topic, pulsar.MessageId.earliest), lab.cc, clock=clock)
        assert reader.read_next(5000).data() == b"first"
        clock.now += EXPIRED
        head.send(b"second")

        assert reader.read_next(5000).data() == b"second"

        assert reader.pending_payloads == 0
        assert isinstance(reader.read_next(0).error, IncompletePayloadError)

    def test_of_the_asyncio_wrappers(self, lab, head, clock):
        async def main():
            async with _asyncio_client(lab) as client:
                cc = lab.claimcheck("external", chunking={"on_expire": "ack"})
                native = await client.subscribe(lab.topic, "s", initial_position=pulsar.InitialPosition.Earliest)
                reader = await client.create_reader(lab.topic, pulsar.MessageId.earliest)
                async with (
                    AsyncPulsarConsumer(native, cc, clock=clock) as consumer,
                    AsyncPulsarReader(reader, cc, clock=clock) as reader,
                ):
                    for take in (consumer.receive, reader.read_next):
                        assert (await take()).data() == b"first"
                    clock.now += EXPIRED
                    head.send(b"second")
                    for take in (consumer.receive, reader.read_next):
                        assert (await take()).data() == b"second"
                    assert (consumer.pending_payloads, reader.pending_payloads) == (0, 0)

        asyncio.run(main())


class TestDeadWriter:
    @pytest.mark.parametrize("kind", [pulsar.ConsumerType.Exclusive, KEYED], ids=str)
    def test_with_the_defaults_it_is_reported_after_three_redeliveries(self, lab, head, clock, kind):
        consumer = lab.consumer(consumer_type=kind, wrap={"clock": clock})
        consumer.acknowledge(consumer.receive(5000))
        for _ in range(3):
            _expire(consumer, clock)
            assert consumer.take_ready() is None
            servers.wait_until(lambda: pending(consumer) == 1, "the head came again")

        _expire(consumer, clock)
        message = consumer.receive(5000)

        assert isinstance(message.error, IncompletePayloadError)
        with pytest.raises(IncompletePayloadError):
            message.value()
        assert (message.properties(), message.partition_key()) == ({"a": "b"}, "k")
        consumer.acknowledge(message)
        lab.settled()

    def test_given_back_it_is_reported_again_after_the_next_expiry(self, lab, head, clock):
        cc = lab.claimcheck("external", chunking={"max_redeliveries": 0})
        consumer = lab.consumer(cc=cc, wrap={"clock": clock})
        consumer.acknowledge(consumer.receive(5000))
        _expire(consumer, clock)

        consumer.negative_acknowledge(consumer.receive(5000))
        servers.wait_until(lambda: pending(consumer) == 1, "the head came again")
        _expire(consumer, clock)

        consumer.acknowledge(consumer.receive(5000))
        lab.settled()

    @pytest.mark.parametrize("producer", ["none", "closed"])
    def test_what_cannot_be_dead_lettered_is_reported(self, lab, head, clock, producer):
        aside = lab.client.create_producer(f"{lab.topic}-dlq")
        aside.close()
        cc = lab.claimcheck("external", chunking={"on_expire": "dead_letter"})
        wrap = {"clock": clock, "dead_letter_producer": aside if producer == "closed" else None}
        consumer = lab.consumer(cc=cc, wrap=wrap)
        consumer.acknowledge(consumer.receive(5000))

        _expire(consumer, clock)

        message = consumer.receive(5000)
        assert isinstance(message.error, IncompletePayloadError)
        consumer.acknowledge(message)
        lab.settled()

    def test_a_reader_reports_it_once(self, lab, head, clock):
        reader = PulsarReader(lab.client.create_reader(lab.topic, pulsar.MessageId.earliest), lab.cc, clock=clock)
        assert reader.read_next(5000).data() == b"first"
        for position in (0, 0):  # late duplicates are not reported again
            _expire(reader, clock)
            head.send(chunk(1, position, 2, b"a"))
        _expire(reader, clock)
        head.send(b"last")

        message, last = reader.read_next(5000), reader.read_next(5000)

        assert isinstance(message.error, IncompletePayloadError)
        assert message.properties() == {"a": "b"}
        assert last.data() == b"last"
        assert not reader.has_message_available()

    def test_a_reader_reports_what_is_evicted(self, lab, head):
        cc = lab.claimcheck("external", chunking={"max_pending_payloads": 1})
        reader = PulsarReader(lab.client.create_reader(lab.topic, pulsar.MessageId.earliest), cc)
        head.send(chunk(2, 0, 2, b"b"))

        found = [reader.read_next(5000).error, reader.read_next(5000).error]

        assert found[0] is None
        assert "chunking.max_pending_payloads" in str(found[1])

    def test_a_reader_drops_what_the_configuration_acknowledges_with_a_warning(self, lab, head, clock, caplog):
        cc = lab.claimcheck("external", chunking={"on_expire": "ack"})
        reader = PulsarReader(lab.client.create_reader(lab.topic, pulsar.MessageId.earliest), cc, clock=clock)
        assert reader.read_next(5000).data() == b"first"

        _expire(reader, clock)

        assert reader.take_ready() is None
        assert [record.levelname for record in caplog.records if "expired" in record.message] == ["WARNING"]


@pytest.mark.parametrize("wrap", [AsyncPulsarConsumer, AsyncPulsarReader])
def test_a_path_instead_of_a_claimcheck_is_refused(lab, wrap):
    async def main():
        async with _asyncio_client(lab) as client:
            native = (
                await client.subscribe(lab.topic, "s")
                if wrap is AsyncPulsarConsumer
                else await client.create_reader(lab.topic, pulsar.MessageId.earliest)
            )
            with pytest.raises(ConfigError, match="cc: found an object of type str"):
                wrap(native, "claimcheck.yaml")
            await native.close()

    asyncio.run(main())


@contextlib.asynccontextmanager
async def _asyncio_client(lab):
    client = pulsar.asyncio.Client(lab.broker.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    try:
        yield client
    finally:
        await client.close()


def _expire(receiver, clock):
    clock.now += EXPIRED
    receiver.tick()
