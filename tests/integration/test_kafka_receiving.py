"""What a real Kafka alone does for receivers: metadata, partitioners, events, dead letters and share groups."""

import uuid

import confluent_kafka as kafka
import pytest
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource

from claimcheck._wire.envelope import encode_abort, encode_literal, encode_pointer
from claimcheck.errors import (
    ArgumentTypeError,
    ChunkError,
    ClaimCheckError,
    ConfigError,
)
from claimcheck.transports.kafka import KafkaConsumer, KafkaProducer, OffsetStoreError, last_offset
from tests.integration.kafka_rig import (
    LIMIT,
    SENT_AT,
    STRATEGIES,
    WITHIN_SECONDS,
    Clock,
    chunks_of,
    content,
    nothing_comes,
    receive,
    rig,
    values,
)

# Payloads ----------------------------------------------------------------------------------------------------------


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
        sizes = [0, LIMIT, 10 * LIMIT]
        consumer, producer, reports = lab.consumer(), lab.producer(strategy), []
        for size in sizes:
            producer.produce(
                lab.topic, content(size), b"k", headers=[("a", b"1"), ("a", b"2")], timestamp=SENT_AT,
                on_delivery=lambda *report: reports.append(report),
            )  # fmt: skip
        assert producer.flush(30) == 0

        messages = receive(consumer, len(sizes))

        assert values(messages) == [content(size) for size in sizes]
        assert {(m.key(), tuple(m.headers()), m.timestamp()) for m in messages} == {
            (b"k", (("a", b"1"), ("a", b"2")), (kafka.TIMESTAMP_CREATE_TIME, SENT_AT))
        }
        assert [(m.offset(), last_offset(m)) for m in messages] == [(r.offset(), last_offset(r)) for _, r in reports]
        assert {(error, r.topic(), r.partition(), r.key()) for error, r in reports} == {(None, lab.topic, 0, b"k")}
        assert all(isinstance(m, kafka.Message) and m.error() is None for m in messages)

    def test_all_of_a_payload_goes_to_the_partition_that_was_chosen(self, wide, strategy):
        consumer, producer, reports = wide.consumer(), wide.producer(strategy), []
        for partition in range(4):
            producer.produce(wide.topic, content(5 * LIMIT, partition), partition=partition,
                             on_delivery=lambda _, report: reports.append(report.partition()))  # fmt: skip
        producer.flush(30)

        received = {message.partition(): message.value() for message in receive(consumer, 4)}

        assert received == {partition: content(5 * LIMIT, partition) for partition in range(4)}
        assert sorted(reports) == [0, 1, 2, 3]


@pytest.mark.parametrize("partitioner", ["murmur2_random", "random"])
def test_chunks_stay_together_and_go_where_plain_records_go_whatever_partitions(wide, partitioner):
    """The partitioner `random` ignores the key, so a common key is not enough; without a key payloads are spread."""
    consumer, producer, places = wide.consumer(), wide.producer("chunking", partitioner=partitioner), {}

    def send(key, payload):
        producer.produce(
            wide.topic, payload, key, on_delivery=lambda _, r: places.update({(key, payload): r.partition()})
        )

    sent = [(key, content(size)) for key in (b"a", b"b", b"c", b"d", b"e") for size in (10, 3 * LIMIT)]
    sent += [(None, content(2 * LIMIT, seed)) for seed in range(40)]
    for key, payload in sent:
        send(key, payload)
    producer.flush(30)

    assert sorted(values(receive(consumer, len(sent)))) == sorted(payload for _, payload in sent)
    assert {place for (key, _), place in places.items() if key is None} == {0, 1, 2, 3}
    if partitioner != "random":
        assert all(
            places[key, content(10)] == places[key, content(3 * LIMIT)] for key in (b"a", b"b", b"c", b"d", b"e")
        )


class TestClient:
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

    def test_events_of_the_client_come_through(self, lab):
        consumer = lab.consumer(enable_partition_eof=True)
        lab.send_raw(b"one")

        found = [consumer.poll(10), consumer.poll(10)]

        assert found[0].value() == b"one"
        assert found[1].error().code() == kafka.KafkaError._PARTITION_EOF

    def test_a_consumer_that_stores_offsets_itself_is_refused(self, lab):
        native = lab.native_consumer(enable_auto_offset_store=True)

        with pytest.raises(OffsetStoreError, match=r"enable\.auto\.offset\.store"):
            KafkaConsumer(native, lab.cc)
        native.close()

    def test_numbers_that_make_no_sense_are_refused(self, lab):
        native = lab.native_consumer()
        for option in ({"max_message_bytes": 0}, {"max_message_bytes": "1000"}):
            with pytest.raises(ConfigError, match=next(iter(option))):
                KafkaProducer(lab.native(), lab.cc, **option)
        for option in ({"prefetch_bytes": -1}, {"prefetch_threads": 0}):
            with pytest.raises(ConfigError, match=next(iter(option))):
                KafkaConsumer(native, lab.cc, **option)
        native.close()

    def test_the_rest_of_the_client_is_there(self, lab):
        consumer, producer = lab.consumer(), lab.producer()
        lab.send_raw(b"one", b"two")
        receive(consumer, 2)
        at = kafka.TopicPartition(lab.topic, 0)

        assert consumer.get_watermark_offsets(at, 10) == (0, 2)
        assert consumer.memberid()
        assert producer.cluster_id(10) == consumer.cluster_id(10)
        assert [each.offset for each in consumer.offsets_for_times([kafka.TopicPartition(lab.topic, 0, 0)], 10)] == [0]
        assert (len(producer), bool(producer)) == (0, True)
        assert "0 records" in repr(producer)
        assert "1 partitions" in repr(consumer)
        assert nothing_comes(consumer, 0.3)


# Incomplete payloads -----------------------------------------------------------------------------------------------


A, B = (content(600, n) for n in range(2))


@pytest.fixture
def clock():
    return Clock()


def test_headers_and_keys_of_held_chunks_are_not_kept(lab):
    """Only the first chunk's headers are kept: headers can be larger than the pieces."""
    lab.send_raw(*chunks_of(A, 3)[:2], headers={"large": b"x" * LIMIT})
    consumer = lab.consumer()
    assert nothing_comes(consumer)

    held = consumer._assignment.resolver.clear()

    assert [(native.headers(), native.key(), native.value()) for native in held] == [(None, None, None)] * 2


def test_an_abort_with_another_key_ends_nothing_while_the_payload_is_to_be_read_again(lab, clock):
    identity = str(uuid.uuid4())
    first, *rest = chunks_of(A, 3, identity)
    lab.send_raw(first, key=b"victim")
    lab.send_raw(encode_abort(identity), key=b"attacker")
    consumer = lab.consumer(wrap={"clock": clock})
    assert nothing_comes(consumer)
    clock.ahead += 61
    assert nothing_comes(consumer, 2.0)  # it goes back, and meets the abort once more
    lab.send_raw(*rest, key=b"victim")

    assert values(receive(consumer, 1)) == [A]


# Dead letters ------------------------------------------------------------------------------------------------------


@pytest.fixture
def dead_lab(kafka_broker, topic):
    with rig(kafka_broker, topic) as dead_lab:
        dead_lab.create(2, f"{topic}.dlq")
        yield dead_lab


def letters(dead_lab, count, cc=None):
    """Return the messages of the dead-letter topic."""
    return receive(dead_lab.consumer(f"{dead_lab.topic}.dlq", group="letters", cc=cc), count)


def dead_letter(dead_lab, count=1, *, cc=None, **wrap):
    """Receive messages, send them to the dead-letter topic and commit them."""
    wrap = {"dead_letter_producer": dead_lab.native(message_max_bytes=LIMIT + 2000), **wrap}
    consumer = dead_lab.consumer(cc=cc, wrap=wrap)
    for message in receive(consumer, count):
        consumer.dead_letter(message, f"{dead_lab.topic}.dlq", reason="no sense in it")
        consumer.commit(message, asynchronous=False)
    (place,) = consumer.committed([kafka.TopicPartition(dead_lab.topic, 0)], timeout=10)
    return place.offset


def test_what_cannot_be_read_arrives_unchanged(dead_lab):
    first, _ = chunks_of(content(100), 2)
    damaged = encode_pointer(b"no pointer")
    look_alike = encode_literal(encode_pointer(b"a payload that looks like an envelope"))
    dead_lab.send_raw(first, damaged, look_alike, None, b"plain")

    cc = dead_lab.claimcheck("external", chunking={"max_redeliveries": 0})
    dead_letter(dead_lab, 5, cc=cc, clock=Hurried())

    consumer = dead_lab.native_consumer("letters")
    consumer.subscribe([f"{dead_lab.topic}.dlq"])
    values = [record.value() for record in receive(consumer, 5)]
    consumer.close()
    assert sorted(values, key=str) == sorted([first, damaged, look_alike, None, b"plain"], key=str)


class Hurried:
    """A clock that passes a minute at each look, so that chunks expire at once."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        self.now += 60
        return self.now


def test_a_consumer_without_a_producer_keeps_no_chunks(dead_lab):
    producer = dead_lab.producer("chunking")
    producer.produce(dead_lab.topic, content(5 * LIMIT))
    producer.flush()
    consumer = dead_lab.consumer()
    (message,) = receive(consumer, 1)

    assert message.records == ()
    with pytest.raises(ConfigError, match="dead_letter_producer"):
        consumer.dead_letter(message, f"{dead_lab.topic}.dlq")
    other = dead_lab.consumer(group="other", subscribe=False, wrap={"dead_letter_producer": dead_lab.native()})
    with pytest.raises(ClaimCheckError, match="the chunks were not kept"):
        other.dead_letter(message, f"{dead_lab.topic}.dlq")
    with pytest.raises(ArgumentTypeError, match="dead_letter_producer"):
        dead_lab.consumer(group="third", subscribe=False, wrap={"dead_letter_producer": producer})


def test_a_refused_dead_letter_is_an_error(dead_lab):
    dead_lab.send_raw(b"plain")
    consumer = dead_lab.consumer(wrap={"dead_letter_producer": dead_lab.native()})
    (message,) = receive(consumer, 1)

    with pytest.raises(kafka.KafkaException):
        consumer.dead_letter(message, "not a valid name")


# Share groups ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_share_group_resolves_pointers_and_refuses_chunks(kafka_broker, topic, strategy):
    payloads = [content(5 * LIMIT), b"plain"][: 1 if strategy == "chunking" else 2]
    with rig(kafka_broker, topic) as lab:
        entry = ConfigEntry("share.auto.offset.reset", "earliest", incremental_operation=AlterConfigOpType.SET)
        group = ConfigResource(ConfigResource.Type.GROUP, lab.group, incremental_configs=[entry])
        lab.admin.incremental_alter_configs([group])[group].result()
        producer = lab.producer(strategy)
        for payload in payloads:
            producer.produce(topic, payload, key=b"k")
        producer.flush()
        with kafka.ShareConsumer({**lab.servers, "group.id": lab.group}) as consumer:
            consumer.subscribe([topic])
            records = consumer.poll(WITHIN_SECONDS)

            def resolve(record):
                return lab.cc.resolve(record.value(), destination=record.topic(), headers=record.headers())

            assert records
            if strategy == "external":
                assert [resolve(record) for record in records] == payloads
            for record in records if strategy == "chunking" else ():
                with pytest.raises(ChunkError):
                    resolve(record)
