"""Payloads of any size through a real Pulsar arrive whole, with the metadata of the native message."""

import asyncio
import threading

import pulsar
import pulsar.asyncio
import pytest

from claimcheck.errors import StoreUnavailableError
from claimcheck.testing import FaultyStore
from claimcheck.transports.pulsar import (
    AsyncPulsarConsumer,
    AsyncPulsarReader,
    PulsarConsumer,
    PulsarProducer,
    PulsarReader,
    WholeMessageId,
)
from tests.integration.pulsar_rig import LIMIT, STRATEGIES, content, nothing_comes, receive

SIZES = [0, 1, 1000, LIMIT - 200, LIMIT, LIMIT + 1, 10 * LIMIT, 3_000_000]


@pytest.mark.parametrize("strategy", STRATEGIES)
class TestEveryStrategy:
    @pytest.mark.parametrize("size", SIZES)
    def test_any_size_comes_back_with_its_key_and_properties(self, lab, strategy, size):
        consumer, producer = lab.consumer(), lab.producer(strategy)
        payload, about = content(size), {"name": "value", "claim": "check"}

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

    def test_asynchronously_in_order_and_each_callback_once(self, lab, strategy):
        consumer, producer, heard = lab.consumer(), lab.producer(strategy), []
        payloads = [content(size, i) for i, size in enumerate([10, 3 * LIMIT, 20, LIMIT, 30 * LIMIT, 0, 5])]
        for payload in payloads:
            producer.send_async(payload, lambda result, message_id: heard.append((result, message_id)))
        producer.flush()

        messages = receive(consumer, len(payloads))

        assert [message.data() for message in messages] == payloads
        assert heard == [(pulsar.Result.Ok, message.message_id()) for message in messages]

    @pytest.mark.parametrize("kind", [pulsar.schema.JsonSchema, pulsar.schema.AvroSchema])
    def test_a_schema_of_the_users_own(self, lab, strategy, kind):
        class Order(pulsar.schema.Record):
            number = pulsar.schema.Integer()
            text = pulsar.schema.String()

        schema = kind(Order)
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

    @pytest.mark.parametrize("partitions", [0, 3])
    def test_several_producers_of_all_kinds_on_one_topic(self, lab, strategy, partitions):
        if partitions:
            lab.broker.create_partitioned(lab.topic, partitions)
        consumer = lab.consumer()
        producers = [lab.producer(strategy), lab.producer("chunking"), lab.producer("external"), lab.producer()]
        payloads = [content([7, 2 * LIMIT, 11 * LIMIT][i % 3], i) for i in range(40)]
        for i, payload in enumerate(payloads):
            producers[i % 4].send_async(payload, lambda *_: None, partition_key=f"k{i % 5}" if i % 2 else None)
        for producer in producers:
            producer.flush()

        messages = receive(consumer, len(payloads))

        assert sorted(message.data() for message in messages) == sorted(payloads)
        for message in messages:
            consumer.acknowledge(message)
        lab.settled()


class TestPrefetch:
    def test_the_next_ones_are_read_meanwhile_and_within_the_bound(self, lab):
        reading, store, most = threading.Semaphore(0), lab.cc.store("m"), 0
        read = store.read
        store.read = lambda pointer: (reading.release(), read(pointer))[1]
        producer = lab.producer()
        for i in range(20):
            producer.send(content(200_000, i))
        consumer = lab.consumer(wrap={"prefetch_bytes": 500_000})

        for i in range(20):
            message = consumer.receive(5000)
            most = max(most, consumer._prefetch._held)
            if i == 10:
                assert message.data() == content(200_000, 10)  # the only one that is asked for

        assert 200_000 <= most <= 500_000
        for _ in range(5):
            assert reading.acquire(timeout=10)


def test_an_id_of_the_whole_survives_bytes_and_compares(lab):
    producer = lab.producer("chunking")
    before, whole, after = producer.send(b"a"), producer.send(content(5 * LIMIT)), producer.send(b"b")

    again = WholeMessageId.deserialize(whole.serialize())

    assert again == whole
    assert hash(again) == hash(whole)
    assert len(again.ids) == 6
    assert again > before
    assert again < after
    assert again.first <= again.last


def test_what_the_sender_is_told_is_the_id_that_the_receiver_has(lab):
    lab.broker.create_partitioned(lab.topic, 3)
    consumer, producer = lab.consumer(), lab.producer("chunking")
    sent = {producer.send(content(3 * LIMIT, i)) for i in range(6)}

    assert {message.message_id() for message in receive(consumer, 6)} == sent
    for message_id in sent:
        consumer.acknowledge(message_id)
    lab.settled()


def test_without_a_receiver_queue_there_are_no_chunks(lab):
    lab.producer("external").send(content(2 * LIMIT))
    consumer = lab.consumer(receiver_queue_size=0)
    assert consumer.receive().data() == content(2 * LIMIT)

    lab.producer("chunking").send(content(2 * LIMIT))
    with pytest.raises(pulsar.exceptions.InvalidConfiguration):
        consumer.receive()


class TestReadAheadByDefault:
    @pytest.fixture
    def sent(self, lab):
        producer, sent = lab.producer("external"), [content(2 * LIMIT, n) for n in range(20)]
        for payload in sent:
            producer.send(payload)
        return sent

    @pytest.fixture
    def reads(self, lab):
        """The keys that are read from the store."""
        store, keys = lab.cc.store("m"), []
        read = store.read
        store.read = lambda pointer: (keys.append(pointer.key), read(pointer))[1]
        return keys

    def test_each_payload_is_read_once_and_in_advance(self, lab, sent, reads):
        consumer = lab.consumer()
        assert [consumer.receive(5000).data() for _ in sent] == sent
        assert len(reads) == len(set(reads)) == len(sent)
        assert consumer._prefetch._pool is not None

    def test_what_the_application_does_not_read_is_not_read_ahead(self, lab, sent, reads):
        consumer = lab.consumer()
        assert consumer.receive(5000).data() == sent[0]
        for _ in sent[1:]:
            consumer.receive(5000)
        producer = lab.producer("external")
        for payload in sent:
            producer.send(payload)
        for _ in sent:
            consumer.receive(5000)
        assert len(reads) <= len(sent)

    def test_a_payload_that_comes_alone_is_read_without_a_thread(self, lab):
        consumer, producer = lab.consumer(), lab.producer("external")
        for n in range(3):
            producer.send(content(2 * LIMIT, n))
            assert consumer.receive(5000).data() == content(2 * LIMIT, n)
        assert consumer._prefetch._pool is None

    def test_without_a_receiver_queue_it_is_off(self, lab, sent, reads):
        consumer = lab.consumer(receiver_queue_size=0)
        assert [consumer.receive().data() for _ in sent] == sent
        assert len(reads) == len(sent)


class TestOutage:
    @pytest.fixture
    def ill(self, lab):
        """A store that is unreachable until it is healed."""
        store = FaultyStore(store={"type": "memory"})
        store.context = lab.cc.store("m").context
        lab.cc._open.stores["m"] = store
        lab.producer("external").send(content(2 * LIMIT))
        store.fail("read")
        return store

    @pytest.mark.parametrize("how", ["reader", "consumer", "look-ahead"])
    def test_on_an_event_loop_nothing_waits_for_the_store(self, lab, ill, how):
        async def received(client):
            if how == "reader":
                native = await client.create_reader(lab.topic, pulsar.MessageId.earliest)
                return await AsyncPulsarReader(native, lab.cc).read_next()
            native = await client.subscribe(lab.topic, "s", initial_position=pulsar.InitialPosition.Earliest)
            wrap = {"prefetch_bytes": 100 * LIMIT} if how == "look-ahead" else {}
            return await AsyncPulsarConsumer(native, lab.cc, **wrap).receive()

        async def main():
            client = pulsar.asyncio.Client(
                lab.broker.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
            )
            message = await received(client)
            reads = ill.calls["read"]
            for _ in range(2):
                assert isinstance(message.error, StoreUnavailableError)
            assert ill.calls["read"] == reads

            ill.heal()
            assert await asyncio.to_thread(message.data) == content(2 * LIMIT) == message.data()
            await client.close()

        asyncio.run(main())


@pytest.mark.parametrize("wrap", [PulsarConsumer, PulsarProducer, PulsarReader])
def test_what_cannot_be_wrapped_is_refused(lab, wrap):
    for wrong in (None, lab, lab.client):
        with pytest.raises(TypeError):
            wrap(wrong, lab.cc)


def test_the_native_consumer_sees_chunks_with_the_names_of_pip_37(lab):
    lab.producer("chunking").send(content(2 * LIMIT), partition_key="k")
    native = lab.subscribe("native")

    chunks = [native.receive(5000) for _ in range(3)]

    assert [chunk.properties()["chunk_id"] for chunk in chunks] == ["0", "1", "2"]
    assert {chunk.properties()["num_chunks_from_msg"] for chunk in chunks} == {"3"}
    assert {chunk.partition_key() for chunk in chunks} == {"k"}
    assert nothing_comes(native)
