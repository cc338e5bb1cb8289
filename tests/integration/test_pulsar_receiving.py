"""What a real Pulsar alone does for receivers: metadata, schemas, readers, subscription types, dead letters."""

import asyncio

import pulsar
import pulsar.asyncio
import pytest

from claimcheck.config import HEADER
from claimcheck.errors import ArgumentTypeError, ConfigError, IncompletePayloadError, StoreUnavailableError
from claimcheck.testing import FaultyStore
from claimcheck.transports.pulsar import (
    AsyncPulsarReader,
    PulsarConsumer,
    PulsarReader,
    SharedSubscriptionError,
    deserialize,
)
from tests import servers
from tests.clocks import Clock
from tests.integration.pulsar_rig import (
    KEYED,
    LIMIT,
    SHARED,
    STRATEGIES,
    UUID,
    chunk,
    content,
    nothing_comes,
    pending,
    receive,
)

# Payloads ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", STRATEGIES)
class TestEveryStrategy:
    @pytest.mark.parametrize("size", [LIMIT, 3_000_000])
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


def test_on_an_event_loop_a_reader_does_not_wait_for_the_store(lab):
    ill = FaultyStore(store={"type": "memory"})
    ill.context = lab.cc.store("m").context
    lab.cc._open.stores["m"] = ill
    lab.producer("external").send(content(2 * LIMIT))
    ill.fail("read")

    async def main():
        client = pulsar.asyncio.Client(lab.broker.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
        native = await client.create_reader(lab.topic, pulsar.MessageId.earliest)
        message = await AsyncPulsarReader(native, lab.cc).read_next()
        reads = ill.calls["read"]
        for _ in range(2):
            assert isinstance(message.error, StoreUnavailableError)
        assert ill.calls["read"] == reads

        ill.heal()
        assert await asyncio.to_thread(message.data) == content(2 * LIMIT) == message.data()
        await client.close()

    asyncio.run(main())


def test_the_native_consumer_sees_chunks_with_the_names_of_pip_37(lab):
    lab.producer("chunking").send(content(2 * LIMIT), partition_key="k")
    native = lab.subscribe("native")

    chunks = [native.receive(5000) for _ in range(3)]

    assert [chunk.properties()["chunk_id"] for chunk in chunks] == ["0", "1", "2"]
    assert {chunk.properties()["num_chunks_from_msg"] for chunk in chunks} == {"3"}
    assert {chunk.partition_key() for chunk in chunks} == {"k"}
    assert nothing_comes(native)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_signature_binds_to_the_topic_whatever_its_partition_is_called(lab, strategy):
    def signed(strategy):
        stores = {"m": {"type": "memory", "space": lab.topic}}
        return lab.claimcheck(strategy, signing={"key_id": "k1", "keys": {"k1": "a secret of ours"}}, stores=stores)

    lab.broker.create_partitioned(lab.topic, 3)
    consumer, producer = lab.consumer(cc=signed("external")), lab.producer(signed(strategy))
    payloads = [content(3 * LIMIT), HEADER + b" and then some", b"small", content(3 * LIMIT, 1)]
    for number, payload in enumerate(payloads):
        producer.send(payload, {"a": "b"}, f"k{number}")

    messages = receive(consumer, 4)

    assert sorted(message.data() for message in messages) == sorted(payloads)
    assert all(message.properties() == {"a": "b"} for message in messages)


# Seeking and unloading ---------------------------------------------------------------------------------------------


class TestSeek:
    @pytest.mark.parametrize("inclusive", [True, False])
    def test_to_the_whole(self, lab, inclusive):
        told = {"start_message_id_inclusive": inclusive}
        consumer, producer = lab.consumer(wrap=told, **told), lab.producer("chunking")
        payloads = [content(3 * LIMIT, i) for i in range(3)]
        ids = [producer.send(payload) for payload in payloads]
        receive(consumer, 3)

        consumer.seek(deserialize(ids[1].serialize()))

        assert consumer.receive(5000).data() == payloads[1 if inclusive else 2]


class TestBroker:
    def test_a_topic_that_is_unloaded_in_the_middle_of_a_payload(self, lab):
        consumer, native = lab.consumer(), lab.client.create_producer(lab.topic)
        for i in range(3):
            native.send(chunk(1, i, 4, b"%d" % i))
        assert nothing_comes(consumer)

        lab.broker.unload(lab.topic)
        native.send(chunk(1, 3, 4, b"3"))

        message = consumer.receive(30_000)
        assert message.data() == b"0123"
        assert nothing_comes(consumer)
        consumer.acknowledge(message)
        lab.settled()


# Subscriptions of several consumers --------------------------------------------------------------------------------


class TestShared:
    def test_chunks_are_refused_and_the_way_out_is_named(self, lab):
        consumer = lab.consumer(consumer_type=pulsar.ConsumerType.Shared)
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
    def test_a_type_that_nobody_told_is_found_out(self, lab, kind, partitions):
        if partitions:
            lab.broker.create_partitioned(lab.topic, partitions)
        consumer = PulsarConsumer(lab.subscribe(consumer_type=kind), lab.cc)
        lab.producer("chunking").send(payload := content(LIMIT + 1))

        message = consumer.receive(5000)

        if kind == pulsar.ConsumerType.Failover:  # delivers all chunks to one consumer
            assert message.data() == payload
        else:
            assert "consumer_type" in str(message.error)


class TestManyConsumers:
    def test_key_shared_keeps_payloads_whole_while_a_consumer_joins(self, lab):
        """The broker holds the last chunks for their new owner until the old one releases the first: they expire."""
        cc = lab.claimcheck("external", chunking={"expire_after_seconds": 1})
        first = lab.consumer(cc=cc, consumer_type=KEYED)
        native = lab.client.create_producer(lab.topic)
        payloads = {i: [b"%d-%d" % (i, n) for n in range(4)] for i in range(9)}

        def send(numbers):
            for n in numbers:
                for i, pieces in payloads.items():
                    native.send(chunk(i, n, 4, pieces[n]), partition_key=UUID.format(i))

        send([0, 1])
        assert nothing_comes(first)
        second = lab.consumer(cc=cc, consumer_type=KEYED)
        send([2, 3])

        got = []
        for consumer in (first, second) * 10:
            while len(got) < len(payloads) and (message := _next(consumer)) is not None:
                got.append(message.data())
                consumer.acknowledge(message)
        assert sorted(got) == sorted(b"".join(pieces) for pieces in payloads.values())
        lab.settled()

    def test_failover_in_the_middle_of_a_payload(self, lab):
        kind = pulsar.ConsumerType.Failover
        first, second = (lab.consumer(consumer_type=kind, consumer_name=name) for name in "ab")
        native = lab.client.create_producer(lab.topic)
        for i in range(2):
            native.send(chunk(1, i, 3, b"%d" % i))
        servers.wait_until(lambda: pending(first) + pending(second) == 1, "one of them has the head")
        (active,), (other,) = ([one for one in (first, second) if one.pending_payloads == held] for held in (1, 0))

        active.close()
        native.send(chunk(1, 2, 3, b"2"))

        message = other.receive(10_000)
        assert message.data() == b"012"
        other.acknowledge(message)
        lab.settled()


def _next(consumer):
    try:
        return consumer.receive(500)
    except pulsar.Timeout:
        return None


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


class TestBusyTopic:
    """A message is always available, so that no receive times out."""

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


class TestDeadWriter:
    def test_what_cannot_be_dead_lettered_is_reported(self, lab, head, clock):
        aside = lab.client.create_producer(f"{lab.topic}-dlq")
        aside.close()
        cc = lab.claimcheck("external", chunking={"on_expire": "dead_letter"})
        consumer = lab.consumer(cc=cc, wrap={"clock": clock, "dead_letter_producer": aside})
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


def _expire(receiver, clock):
    clock.now += EXPIRED
    receiver.tick()


# Dead letters ------------------------------------------------------------------------------------------------------


class TestDeadLetters:
    def test_a_chunk_of_the_largest_size_has_room_for_its_origin(self, lab):
        aside = lab.client.create_producer(f"{lab.topic}-dlq", producer_name="n" * 60)
        consumer = lab.consumer(wrap={"dead_letter_producer": aside})
        lab.producer("chunking").send(content(LIMIT + 1), properties={"p": "v" * 300}, partition_key="k" * 100)

        consumer.dead_letter(consumer.receive(5000), reason="x" * 1000)

        lab.settled()

    def test_options_that_make_no_sense(self, lab):
        with pytest.raises(ConfigError, match="dead_letter_producer"):
            lab.consumer("a", wrap={"max_redeliveries": 3})
        with pytest.raises(ConfigError, match="dead_letter_producer"):
            lab.consumer("b").dead_letter(object())
        for i, wrong in enumerate([lab.producer(), b"no producer"]):
            with pytest.raises(ArgumentTypeError, match=f"dead_letter_producer.*{type(wrong).__name__}"):
                lab.consumer(f"c{i}", wrap={"dead_letter_producer": wrong})

    @pytest.mark.parametrize(
        ("option", "found"),
        [("max_redeliveries", -1), ("prefetch_threads", 0), ("prefetch_bytes", "64 MiB")],
    )
    def test_numbers_that_make_no_sense(self, lab, option, found):
        with pytest.raises(ConfigError, match=f"{option}: found {found!r}, expected an integer of at least"):
            lab.consumer(wrap={option: found})
