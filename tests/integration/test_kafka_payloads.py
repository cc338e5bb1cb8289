"""Payloads of any size through a real Kafka: complete, with all metadata of the native record."""

import asyncio
import io
import itertools

import confluent_kafka as kafka
import pytest

from claimcheck.errors import (
    ConfigError,
)
from claimcheck.transports.kafka import KafkaConsumer, KafkaProducer, OffsetStoreError, last_offset
from tests.integration.kafka_aio_rig import consuming
from tests.integration.kafka_rig import (
    LIMIT,
    SENT_AT,
    STRATEGIES,
    WITHIN_SECONDS,
    chunks_of,
    content,
    nothing_comes,
    receive,
    rig,
    values,
)

SIZES = [0, 1, 1000, LIMIT - 200, LIMIT, LIMIT + 1, 10 * LIMIT, 1_000_000]


@pytest.fixture
def lab(kafka_broker, topic):
    with rig(kafka_broker, topic) as lab:
        yield lab


@pytest.fixture
def wide(kafka_broker, topic):
    with rig(kafka_broker, topic, partitions=4) as lab:
        yield lab


@pytest.mark.parametrize("strategy", STRATEGIES)
class TestEveryStrategy:
    def test_any_size_comes_back_with_its_key_headers_and_time(self, lab, strategy):
        consumer, producer, reports = lab.consumer(), lab.producer(strategy), []
        for size in SIZES:
            producer.produce(
                lab.topic, content(size), b"k", headers=[("a", b"1"), ("a", b"2")], timestamp=SENT_AT,
                on_delivery=lambda *report: reports.append(report),
            )  # fmt: skip
        assert producer.flush(30) == 0

        messages = receive(consumer, len(SIZES))

        assert values(messages) == [content(size) for size in SIZES]
        assert {(m.key(), tuple(m.headers()), m.timestamp()) for m in messages} == {
            (b"k", (("a", b"1"), ("a", b"2")), (kafka.TIMESTAMP_CREATE_TIME, SENT_AT))
        }
        assert [(m.offset(), last_offset(m)) for m in messages] == [(r.offset(), last_offset(r)) for _, r in reports]
        assert {(error, r.topic(), r.partition(), r.key()) for error, r in reports} == {(None, lab.topic, 0, b"k")}
        assert all(isinstance(m, kafka.Message) and m.error() is None for m in messages)

    def test_a_payload_without_a_key_or_headers_has_none_at_its_reader(self, lab, strategy):
        consumer, producer, reports = lab.consumer(), lab.producer(strategy), []
        producer.produce(lab.topic, content(3 * LIMIT), on_delivery=lambda _, report: reports.append(report.key()))
        producer.flush(30)

        (message,) = receive(consumer, 1)

        assert (message.key(), message.headers() or [], reports) == (None, [], [None])

    def test_what_a_payload_may_be(self, lab, strategy):
        consumer, producer = lab.consumer(), lab.producer(strategy)
        large = content(4 * LIMIT)
        given = ["text", "ü" * LIMIT, bytearray(large), memoryview(large), io.BytesIO(large), io.BytesIO(b"s"), None]
        for value in given:
            producer.produce(lab.topic, value)
        producer.flush(30)

        expected = [b"text", "ü".encode() * LIMIT, large, large, large, b"s", None]
        assert values(receive(consumer, len(given))) == expected

    def test_all_of_a_payload_goes_to_the_partition_that_was_chosen(self, wide, strategy):
        consumer, producer, reports = wide.consumer(), wide.producer(strategy), []
        for partition in range(4):
            producer.produce(wide.topic, content(5 * LIMIT, partition), partition=partition,
                             on_delivery=lambda _, report: reports.append(report.partition()))  # fmt: skip
        producer.flush(30)

        received = {message.partition(): message.value() for message in receive(consumer, 4)}

        assert received == {partition: content(5 * LIMIT, partition) for partition in range(4)}
        assert sorted(reports) == [0, 1, 2, 3]


@pytest.mark.parametrize("partitioner", ["consistent_random", "murmur2_random", "random", "fnv1a"])
class TestPartitioners:
    def test_chunks_stay_together_whatever_partitions_and_keys(self, wide, partitioner):
        """The partitioner `random` ignores the key, so a common key is not enough."""
        consumer, producer = wide.consumer(), wide.producer("chunking", partitioner=partitioner)
        for i in range(12):
            producer.produce(wide.topic, content(5 * LIMIT, i), None if i % 2 else b"key %d" % i)
        producer.flush(30)

        assert sorted(values(receive(consumer, 12))) == sorted(content(5 * LIMIT, i) for i in range(12))

    def test_payloads_without_a_key_are_spread(self, wide, partitioner):
        producer, partitions = wide.producer("chunking", partitioner=partitioner), set()
        for i in range(40):
            producer.produce(wide.topic, content(2 * LIMIT, i), on_delivery=lambda _, r: partitions.add(r.partition()))
        producer.flush(30)

        assert partitions == {0, 1, 2, 3}


@pytest.mark.parametrize("partitioner", ["consistent_random", "murmur2_random", "fnv1a"])
class TestPartitionersByKey:
    def test_a_key_leads_chunks_where_it_leads_plain_records(self, wide, partitioner):
        producer, reports = wide.producer("chunking", partitioner=partitioner), {}
        for key, size in itertools.product((b"a", b"b", b"c", b"d", b"e"), (10, 3 * LIMIT)):
            producer.produce(wide.topic, content(size), key, on_delivery=lambda _, r, at=(key, size): reports.update(
                {at: r.partition()}))  # fmt: skip
        producer.flush(30)

        assert {at: partition for at, partition in reports.items() if at[1] == 10} == {
            (key, 10): reports[key, 3 * LIMIT] for key, _ in reports
        }


class TestMixed:
    def test_the_published_format_alone(self, lab):
        """Records of another implementation of the format: without our headers, and without a key."""
        payload = content(5000)
        lab.send_raw(*chunks_of(payload, 3), b"plain")

        messages = receive(lab.consumer(), 2)

        assert values(messages) == [payload, b"plain"]
        assert [(m.offset(), last_offset(m)) for m in messages] == [(0, 2), (3, 3)]

    def test_several_at_once_with_consume(self, lab):
        consumer, producer = lab.consumer(), lab.producer("chunking")
        sent = [content(size, n) for n, size in enumerate([10, 3 * LIMIT, 20, 30, 5 * LIMIT, 40] * 4)]
        for value in sent:
            producer.produce(lab.topic, value)
        producer.flush(30)

        found = []
        while len(found) < len(sent):
            batch = consumer.consume(7, 5.0)
            assert batch, "no more came"
            assert len(batch) <= 7
            found += batch

        assert values(found) == sent
        assert consumer.consume(7, 0.3) == []

    def test_stored_payloads_of_the_next_records_are_read_meanwhile_and_come_in_order(self, lab):
        consumer = lab.consumer(wrap={"prefetch_bytes": 5 * LIMIT, "prefetch_threads": 3})
        writers = [lab.producer(strategy) for strategy in STRATEGIES]
        sent = [content(size, n) for n, size in enumerate([2 * LIMIT, 10, 3 * LIMIT, 9 * LIMIT, 20] * 6)]
        for value, writer in zip(sent, itertools.cycle(writers), strict=False):
            writer.produce(lab.topic, value)
            writer.flush(30)

        assert values(receive(consumer, len(sent))) == sent


class TestBadRecords:
    def test_events_of_the_client_come_through(self, lab):
        consumer = lab.consumer(enable_partition_eof=True)
        lab.send_raw(b"one")

        found = [consumer.poll(10), consumer.poll(10)]

        assert found[0].value() == b"one"
        assert found[1].error().code() == kafka.KafkaError._PARTITION_EOF


class TestWhatIsWrapped:
    def test_a_consumer_that_stores_offsets_itself_is_refused(self, lab):
        native = lab.native_consumer(enable_auto_offset_store=True)

        with pytest.raises(OffsetStoreError, match=r"enable\.auto\.offset\.store"):
            KafkaConsumer(native, lab.cc)
        native.close()

    def test_other_classes_are_refused_by_name(self, lab):
        with pytest.raises(TypeError, match="KafkaProducer"):
            KafkaProducer(lab.producer(), lab.cc)
        with pytest.raises(TypeError, match="str"):
            KafkaConsumer("consumer", lab.cc)
        native = lab.native_consumer()
        with pytest.raises(ConfigError, match="claimcheck.load"):
            KafkaConsumer(native, "claimcheck.yaml")
        native.close()

    @pytest.mark.parametrize("option", [{"max_message_bytes": 0}, {"max_message_bytes": "1000"}])
    def test_numbers_of_a_producer_that_make_no_sense(self, lab, option):
        with pytest.raises(ConfigError, match=next(iter(option))):
            KafkaProducer(lab.native(), lab.cc, **option)

    @pytest.mark.parametrize("option", [{"prefetch_bytes": -1}, {"prefetch_threads": 0}])
    def test_numbers_of_a_consumer_that_make_no_sense(self, lab, option):
        native = lab.native_consumer()

        with pytest.raises(ConfigError, match=next(iter(option))):
            KafkaConsumer(native, lab.cc, **option)
        native.close()

    def test_the_rest_of_the_client_is_there(self, lab):
        consumer, producer = lab.consumer(), lab.producer()
        lab.send_raw(b"one", b"two")
        receive(consumer, 2)
        at = kafka.TopicPartition(lab.topic, 0)

        assert consumer.get_watermark_offsets(at, 10) == (0, 2)
        assert [each.partition for each in consumer.assignment()] == [0]
        assert consumer.memberid()
        assert consumer.list_topics(lab.topic, 10).topics[lab.topic].partitions.keys() == {0}
        assert producer.list_topics(timeout=10).topics[lab.topic].partitions.keys() == {0}
        assert producer.cluster_id(10) == consumer.cluster_id(10)
        assert [each.offset for each in consumer.offsets_for_times([kafka.TopicPartition(lab.topic, 0, 0)], 10)] == [0]
        assert (len(producer), bool(producer)) == (0, True)
        assert "0 records" in repr(producer)
        assert "1 partitions" in repr(consumer)
        assert nothing_comes(consumer, 0.3)


class TestReadAheadByDefault:
    @pytest.fixture
    def reads(self, lab):
        """The keys that are read from the store."""
        store, keys = lab.cc.store("m"), []
        read = store.read
        store.read = lambda pointer: (keys.append(pointer.key), read(pointer))[1]
        return keys

    def _send(self, lab, strategy, count=20):
        producer, sent = lab.producer(strategy), [content(2 * LIMIT, n) for n in range(count)]
        for value in sent:
            producer.produce(lab.topic, value)
        producer.flush(30)
        return sent

    @pytest.mark.parametrize("batch", [1, 5])
    def test_each_payload_is_read_once_and_in_advance(self, lab, reads, batch):
        sent, consumer, found = self._send(lab, "external"), lab.consumer(), []
        while len(found) < len(sent):
            before = len(found)
            found.extend(message.value() for message in consumer.consume(batch, WITHIN_SECONDS))
            assert len(found) > before
        assert found == sent
        assert sorted(reads) == sorted(set(reads))
        assert len(reads) == len(sent)
        assert consumer._receiver.prefetch._pool is not None

    def test_what_the_application_does_not_read_is_not_read_ahead(self, lab, reads):
        sent, consumer = self._send(lab, "external"), lab.consumer()
        assert consumer.poll(WITHIN_SECONDS).value() == sent[0]
        for _ in sent[1:]:
            consumer.poll(WITHIN_SECONDS)
        self._send(lab, "external")
        for _ in sent:
            consumer.poll(WITHIN_SECONDS)
        assert len(reads) <= len(sent)

    def test_a_payload_that_comes_alone_is_read_without_a_thread(self, lab):
        consumer = lab.consumer()
        for _ in range(3):
            [sent] = self._send(lab, "external", 1)
            assert consumer.poll(WITHIN_SECONDS).value() == sent
        assert consumer._receiver.prefetch._pool is None

    def test_an_asynchronous_consumer_reads_ahead_too(self, lab, reads):
        sent = self._send(lab, "external")

        async def main():
            async with consuming(lab) as consumer:
                found = [(await consumer.poll(WITHIN_SECONDS)).value() for _ in sent]
                return found, consumer._blocking._receiver.prefetch._pool

        found, pool = asyncio.run(main())
        assert found == sent
        assert len(reads) == len(sent)
        assert pool is not None
