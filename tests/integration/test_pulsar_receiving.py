"""What a real Pulsar alone does for receivers: metadata, schemas, readers, dead letters, acks, asyncio."""

import asyncio
import contextlib
import os
import time

import pulsar
import pulsar.asyncio
import pytest

import claimcheck
from claimcheck.errors import ArgumentTypeError, ConfigError, IncompletePayloadError
from claimcheck.transports.pulsar import (
    AsyncPulsarConsumer,
    AsyncPulsarReader,
    PulsarConsumer,
    PulsarProducer,
    PulsarReader,
    SharedSubscriptionError,
    deserialize,
)
from tests.clocks import Clock
from tests.integration.kafka_rig import on_a_loop
from tests.integration.pulsar_rig import KEYED, LIMIT, SHARED, STRATEGIES, chunk, content, receive

# Payloads ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", STRATEGIES)
class TestEveryStrategy:
    def test_a_payload_comes_back_with_its_key_and_properties(self, lab, strategy):
        consumer, producer = lab.consumer(), lab.producer(strategy)
        payload, about = content(3_000_000), {"name": "value", "claim": "check"}
        sent = producer.send(payload, properties=about, partition_key="k", ordering_key="o", event_timestamp=123_456)
        message = consumer.receive(10_000)
        assert message.data() == message.value() == payload
        assert (message.properties(), message.partition_key(), message.ordering_key()) == (about, "k", "o")
        assert (message.event_timestamp(), message.message_id()) == (123_456, sent)
        assert (message.producer_name(), message.redelivery_count()) == (producer.producer_name(), 0)
        assert message.topic_name().endswith(lab.topic)
        assert message.publish_timestamp() > 1_700_000_000_000
        consumer.acknowledge(message)
        lab.settled()

    def test_a_schema_of_the_users_own(self, lab, strategy):
        class Order(pulsar.schema.Record):
            number = pulsar.schema.Integer()
            text = pulsar.schema.String()

        schema = (pulsar.schema.JsonSchema if strategy == "external" else pulsar.schema.AvroSchema)(Order)
        consumer, producer = lab.consumer(schema=schema), lab.producer(strategy, schema=schema)
        for order in (small := Order(number=1, text="a"), large := Order(number=2, text="b" * 2 * LIMIT)):
            producer.send(order)
        for order in (small, large):
            message = consumer.receive(10_000)
            assert message.value() == order
            assert schema.decode(message.data()) == order

    def test_a_reader(self, lab, strategy):
        producer = lab.producer(strategy)
        payloads = [content(size) for size in (5, 4 * LIMIT, 6)]
        first, second, _ = [producer.send(payload) for payload in payloads]
        with PulsarReader(lab.client.create_reader(lab.topic, pulsar.MessageId.earliest), lab.cc) as reader:
            assert [reader.read_next(10_000).data() for _ in payloads] == payloads
            assert not reader.has_message_available()
            reader.seek(first)
            assert reader.has_message_available()
            assert reader.read_next(10_000).data() == payloads[1]
            reader.seek(second)
            assert reader.read_next(10_000).data() == payloads[2]


def test_without_a_receiver_queue_there_are_no_chunks(lab):
    lab.producer("external").send(content(2 * LIMIT))
    consumer = lab.consumer(receiver_queue_size=0)
    assert consumer.receive().data() == content(2 * LIMIT)
    lab.producer("chunking").send(content(2 * LIMIT))
    with pytest.raises(pulsar.exceptions.InvalidConfiguration):
        consumer.receive()


# Subscriptions of several consumers --------------------------------------------------------------------------------


def test_a_shared_subscription_refuses_chunks_and_names_the_way_out(lab):
    consumer = lab.consumer(consumer_type=SHARED)
    lab.producer("chunking").send(content(LIMIT + 1))
    lab.producer("external").send(payload := content(LIMIT + 2))
    first, second, pointer = receive(consumer, 3)
    for refused in (first, second):
        with pytest.raises(SharedSubscriptionError, match="Key_Shared"):
            refused.data()
        consumer.acknowledge(refused)
    assert pointer.data() == payload
    consumer.acknowledge(pointer)
    lab.settled()


@pytest.mark.parametrize("partitions", [0, 2])
@pytest.mark.parametrize("kind", [SHARED, KEYED, pulsar.ConsumerType.Failover], ids=str)
def test_a_type_that_nobody_told_is_found_out(lab, kind, partitions):
    if partitions:
        lab.broker.create_partitioned(lab.topic, partitions)
    consumer = PulsarConsumer(lab.subscribe(consumer_type=kind), lab.cc)
    lab.producer("chunking").send(payload := content(LIMIT + 1))
    message = consumer.receive(5000)
    if kind == pulsar.ConsumerType.Failover:  # delivers all chunks to one consumer
        assert message.data() == payload
    else:
        assert "consumer_type" in str(message.error)


# Incomplete payloads -----------------------------------------------------------------------------------------------


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


def expire(receiver, clock):
    clock.now += EXPIRED
    receiver.tick()


def test_what_cannot_be_dead_lettered_is_reported(lab, head, clock):
    aside = lab.client.create_producer(f"{lab.topic}-dlq")
    aside.close()
    cc = lab.claimcheck("external", chunking={"on_expire": "dead_letter"})
    consumer = lab.consumer(cc=cc, wrap={"clock": clock, "dead_letter_producer": aside})
    consumer.acknowledge(consumer.receive(5000))
    expire(consumer, clock)
    message = consumer.receive(5000)
    assert isinstance(message.error, IncompletePayloadError)
    consumer.acknowledge(message)
    lab.settled()


def test_a_reader_reports_an_incomplete_payload_once(lab, head, clock):
    reader = PulsarReader(lab.client.create_reader(lab.topic, pulsar.MessageId.earliest), lab.cc, clock=clock)
    assert reader.read_next(5000).data() == b"first"
    for position in (0, 0):  # late duplicates are not reported again
        expire(reader, clock)
        head.send(chunk(1, position, 2, b"a"))
    expire(reader, clock)
    head.send(b"last")
    message, last = reader.read_next(5000), reader.read_next(5000)
    assert isinstance(message.error, IncompletePayloadError)
    assert message.properties() == {"a": "b"}
    assert last.data() == b"last"
    assert not reader.has_message_available()


# Dead letters ------------------------------------------------------------------------------------------------------


def test_a_chunk_of_the_largest_size_has_room_for_its_origin(lab):
    aside = lab.client.create_producer(f"{lab.topic}-dlq", producer_name="n" * 60)
    consumer = lab.consumer(wrap={"dead_letter_producer": aside})
    lab.producer("chunking").send(content(LIMIT + 1), properties={"p": "v" * 300}, partition_key="k" * 100)
    consumer.dead_letter(consumer.receive(5000), reason="x" * 1000)
    lab.settled()


def test_options_that_make_no_sense(lab):
    native = lab.subscribe()
    with pytest.raises(ConfigError, match="dead_letter_producer"):
        PulsarConsumer(native, lab.cc).dead_letter(object())
    for option, value, error in (
        ("max_redeliveries", 3, "dead_letter_producer"),
        ("max_redeliveries", -1, "max_redeliveries: found -1"),
        ("prefetch_threads", 0, "prefetch_threads: found 0"),
        ("prefetch_bytes", "64 MiB", "prefetch_bytes: found '64 MiB', expected an integer of at least"),
        ("dead_letter_producer", lab.producer(), "dead_letter_producer.*PulsarProducer"),
        ("dead_letter_producer", b"no producer", "dead_letter_producer.*bytes"),
    ):
        with pytest.raises((ConfigError, ArgumentTypeError), match=error):
            PulsarConsumer(native, lab.cc, **{option: value})


# Acknowledgements apply to whole payloads, as the broker's statistics show ----------------------------------------


@pytest.mark.parametrize("partitions", [0, 2])
def test_the_id_that_the_sender_is_told_gives_back_and_acknowledges_the_whole_payload(lab, partitions):
    """Also after it was serialized."""
    if partitions:
        lab.broker.create_partitioned(lab.topic, partitions)
    consumer = lab.consumer(consumer_type=KEYED)
    sent = lab.producer("chunking").send(payload := content(5 * LIMIT))
    about = lab.subscribe("native").receive(5000).properties()
    assert (about["chunk_id"], about["num_chunks_from_msg"]) == ("0", "6"), "the names of PIP-37"
    message_id = consumer.receive(5000).message_id()
    assert message_id == sent
    consumer.negative_acknowledge(deserialize(message_id.serialize()))
    again = consumer.receive(5000)
    assert (again.data(), again.redelivery_count()) == (payload, 1)
    consumer.acknowledge(deserialize(sent.serialize()))
    lab.settled()


def test_a_cumulative_acknowledgement_within_a_batch(lab):
    """The batch is acknowledged when all of its messages are: two by this call, the chunk with its payload."""
    consumer = lab.consumer()
    native = lab.client.create_producer(lab.topic, batching_enabled=True, batching_max_publish_delay_ms=10_000)
    for message in (b"1", chunk(1, 0, 2, b"a"), b"2"):
        native.send_async(message, None)
    native.flush()
    plain = receive(consumer, 2)[-1]
    assert plain.message_id().batch_index() == 2
    consumer.acknowledge_cumulative(plain.message_id())
    lab.settled(backlog=1)
    native.send_async(chunk(1, 1, 2, b"b"), None)
    native.flush()
    consumer.acknowledge(consumer.receive(5000))
    lab.settled()


# With asyncio: the same guarantees, and the event loop is never blocked -------------------------------------------


@contextlib.asynccontextmanager
async def asyncio_client(lab):
    client = pulsar.asyncio.Client(lab.broker.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    yield client
    await client.close()


@on_a_loop
async def test_receives_at_once_return_in_order_and_end_when_the_consumer_is_closed(lab):
    """Otherwise a cumulative acknowledgement would cover a payload that nobody has."""
    store, producer = lab.cc.store("m"), lab.producer(batching_enabled=False)
    payloads = [content(3 * LIMIT, 0), content(20, 1), content(3 * LIMIT, 2)]
    for payload in payloads:
        producer.send(payload)
    read, pauses = store.read, iter([0.5, 0.0])
    store.read = lambda pointer: (time.sleep(next(pauses)), read(pointer))[1]
    async with asyncio_client(lab) as client:
        earliest = pulsar.InitialPosition.Earliest
        consumer = AsyncPulsarConsumer(await client.subscribe(lab.topic, "s", initial_position=earliest), lab.cc)
        messages = await asyncio.gather(*(consumer.receive() for _ in payloads))
        assert [message.data() for message in messages] == payloads
        waiting = [asyncio.create_task(consumer.receive()) for _ in range(2)]
        await asyncio.sleep(0.1)
        await consumer.close()
        for result in await asyncio.gather(*waiting, consumer.receive(), return_exceptions=True):
            assert isinstance(result, pulsar.asyncio.PulsarException)
            assert result.error() == pulsar.Result.AlreadyClosed


@on_a_loop
async def test_an_asyncio_reader(lab):
    producer = lab.producer("chunking")
    ids = [producer.send(content(3 * LIMIT, i)) for i in range(2)]
    async with asyncio_client(lab) as client:
        native = await client.create_reader(lab.topic, pulsar.MessageId.earliest)
        async with AsyncPulsarReader(native, lab.cc) as reader:
            assert await reader.has_message_available()
            assert [(await reader.read_next()).data() for _ in range(2)] == [content(3 * LIMIT, i) for i in range(2)]
            assert not await reader.has_message_available()
            await reader.seek(ids[0])
            assert (await reader.read_next()).message_id() == ids[1]
            waiting = asyncio.create_task(reader.read_next())
            await asyncio.sleep(0.1)
        for call in (waiting, reader.read_next()):
            with pytest.raises(pulsar.asyncio.PulsarException, match="AlreadyClosed"):
                await call


def test_chunks_of_the_clients_own_are_read_beside_pointers(pulsar_client, topic):
    """Readers can be wrapped before writers turn off ``chunking_enabled``; docs/guides/migrating.md relies on it."""
    old, new = os.urandom(400_000), os.urandom(300_000)
    with claimcheck.from_dict({"stores": {"m": {"type": "memory"}}}) as cc:
        consumer = PulsarConsumer(pulsar_client.subscribe(topic, "s"), cc)
        pulsar_client.create_producer(topic, chunking_enabled=True, batching_enabled=False).send(old)
        PulsarProducer(pulsar_client.create_producer(topic), cc, max_message_bytes=100_000).send(new)
        messages = [consumer.receive(10_000), consumer.receive(10_000)]
        assert [message.data() for message in messages] == [old, new]
        for message in messages:
            consumer.acknowledge(message)
        consumer.close()
        again = PulsarConsumer(pulsar_client.subscribe(topic, "s"), cc)
        with pytest.raises(pulsar.Timeout):
            again.receive(1000)
        again.close()
