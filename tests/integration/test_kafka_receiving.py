"""What a real Kafka alone does: metadata, partitioners, dead letters, share groups, commits, retention, asyncio."""

import asyncio
import contextlib
import itertools
import time

import confluent_kafka as kafka
import pytest
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource

from claimcheck._wire.envelope import encode_literal, encode_pointer
from claimcheck.errors import ArgumentTypeError, ChunkError, ClaimCheckError, ConfigError, IncompletePayloadError
from claimcheck.transports.kafka import KafkaConsumer, KafkaProducer, OffsetStoreError, last_offset
from claimcheck.transports.kafka._partition import CommitMetadata
from tests.integration.kafka_rig import (
    LIMIT,
    STRATEGIES,
    WITHIN_SECONDS,
    chunks_of,
    consuming,
    content,
    nothing_comes,
    on_a_loop,
    poll,
    producing,
    receive,
    rig,
    send,
    soon,
    stored,
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
def test_payloads_come_back_with_all_that_belongs_to_them_from_the_partition_that_was_chosen(wide, strategy):
    consumer, producer, reports, sizes = wide.consumer(), wide.producer(strategy), [], [0, LIMIT, 5 * LIMIT, 10 * LIMIT]
    sent_at = int(time.time() * 1000) - 60_000  # so recent that retention keeps it
    for partition, size in enumerate(sizes):
        producer.produce(
            wide.topic, content(size), b"k", partition, headers=[("a", b"1"), ("a", b"2")], timestamp=sent_at,
            on_delivery=lambda *report: reports.append(report),
        )  # fmt: skip
    assert producer.flush(30) == 0
    messages = sorted(receive(consumer, len(sizes)), key=kafka.Message.partition)
    reports.sort(key=lambda pair: pair[1].partition())
    assert values(messages) == [content(size) for size in sizes]
    assert {(m.key(), tuple(m.headers()), m.timestamp()) for m in messages} == {
        (b"k", (("a", b"1"), ("a", b"2")), (kafka.TIMESTAMP_CREATE_TIME, sent_at))
    }
    for number, (message, (error, report)) in enumerate(zip(messages, reports, strict=True)):
        assert (message.offset(), last_offset(message)) == (report.offset(), last_offset(report))
        assert (error, report.topic(), report.partition(), report.key()) == (None, wide.topic, number, b"k")
        assert (isinstance(message, kafka.Message), message.error()) == (True, None)


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


def test_several_at_once_with_consume_and_the_events_of_the_client(lab):
    consumer, producer = lab.consumer(enable_partition_eof=True), lab.producer("chunking")
    sent = [content(size, n) for n, size in enumerate([10, 3 * LIMIT, 20, 30, 5 * LIMIT, 40] * 4)]
    for value in sent:
        producer.produce(lab.topic, value)
    producer.flush(30)
    found = []
    while len(found) <= len(sent):
        batch = consumer.consume(5, 5.0)
        assert 0 < len(batch) <= 5
        found += batch
    assert values(found[:-1]) == sent
    assert found[-1].error().code() == kafka.KafkaError._PARTITION_EOF
    at = kafka.TopicPartition(lab.topic, 0)
    assert consumer.get_watermark_offsets(at, 10)[0] == 0
    assert producer.cluster_id(10) == consumer.cluster_id(10)
    assert (len(producer), bool(producer)) == (0, True)


def test_options_that_make_no_sense_are_refused(lab):
    storing, native = lab.native_consumer(enable_auto_offset_store=True), lab.native_consumer()
    with pytest.raises(OffsetStoreError, match=r"enable\.auto\.offset\.store"):
        KafkaConsumer(storing, lab.cc)
    for option in ({"max_message_bytes": 0}, {"max_message_bytes": "1000"}):
        with pytest.raises(ConfigError, match=next(iter(option))):
            KafkaProducer(lab.native(), lab.cc, **option)
    for option in ({"prefetch_bytes": -1}, {"prefetch_threads": 0}):
        with pytest.raises(ConfigError, match=next(iter(option))):
            KafkaConsumer(native, lab.cc, **option)
    storing.close()
    native.close()


# Dead letters ------------------------------------------------------------------------------------------------------


def test_what_cannot_be_read_arrives_unchanged(lab):
    """Also a chunk of an incomplete payload: the clock passes a minute at each look, so that it expires at once."""
    dlq, (first, _) = lab.create(2, f"{lab.topic}.dlq"), chunks_of(content(100), 2)
    damaged = encode_pointer(b"no pointer")
    look_alike = encode_literal(encode_pointer(b"a payload that looks like an envelope"))
    lab.send_raw(first, damaged, look_alike, None, b"plain")
    cc = lab.claimcheck("external", chunking={"max_redeliveries": 0})
    wrap: dict[str, object] = {"dead_letter_producer": lab.native(message_max_bytes=LIMIT + 2000)}
    wrap["clock"] = itertools.count(0, 60).__next__
    consumer = lab.consumer(cc=cc, wrap=wrap)
    for message in receive(consumer, 5):
        consumer.dead_letter(message, dlq, reason="no sense in it")
    native = lab.native_consumer("letters")
    native.subscribe([dlq])
    found = values(receive(native, 5))
    native.close()
    assert sorted(found, key=str) == sorted([first, damaged, look_alike, None, b"plain"], key=str)


def test_dead_letters_that_cannot_be_sent_are_errors(lab):
    """Without a producer chunks are not kept; and the broker may refuse them."""
    producer, dlq = lab.producer("chunking"), f"{lab.topic}.dlq"
    producer.produce(lab.topic, content(5 * LIMIT))
    producer.flush()
    consumer = lab.consumer()
    (message,) = receive(consumer, 1)
    assert message.records == ()
    with pytest.raises(ConfigError, match="dead_letter_producer"):
        consumer.dead_letter(message, dlq)
    other = lab.consumer(group="other", wrap={"dead_letter_producer": lab.native()})
    with pytest.raises(ClaimCheckError, match="the chunks were not kept"):
        other.dead_letter(message, dlq)
    with pytest.raises(ArgumentTypeError, match="dead_letter_producer"):
        lab.consumer(group="third", subscribe=False, wrap={"dead_letter_producer": producer})
    with pytest.raises(kafka.KafkaException):
        other.dead_letter(receive(other, 1)[0], "not a valid name")


# Share groups ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_share_group_resolves_pointers_and_refuses_chunks(lab, strategy):
    entry = ConfigEntry("share.auto.offset.reset", "earliest", incremental_operation=AlterConfigOpType.SET)
    group = ConfigResource(ConfigResource.Type.GROUP, lab.group, incremental_configs=[entry])
    lab.admin.incremental_alter_configs([group])[group].result()
    producer = lab.producer(strategy)
    producer.produce(lab.topic, payload := content(5 * LIMIT), key=b"k")
    producer.flush()
    with kafka.ShareConsumer({**lab.servers, "group.id": lab.group}) as consumer:
        consumer.subscribe([lab.topic])
        record, *_ = consumer.poll(WITHIN_SECONDS)
        raising = pytest.raises(ChunkError) if strategy == "chunking" else contextlib.nullcontext()
        with raising:
            assert lab.cc.resolve(record.value(), destination=record.topic(), headers=record.headers()) == payload


# Commits never pass an incomplete payload, and retention that removes records of one ends it ----------------------


A, B = (content(600, n) for n in range(2))


def at(lab, offset=kafka.OFFSET_INVALID, *metadata):
    return kafka.TopicPartition(lab.topic, 0, offset, *metadata)


COMMITS = {
    "message": lambda consumer, message, _: consumer.commit(message=message, asynchronous=False),
    "asynchronously": lambda consumer, message, _: consumer.commit(message=message),  # done when it is closed
    "offsets": lambda consumer, _, behind: consumer.commit(offsets=[behind], asynchronous=False),
    "position": lambda consumer, _, behind: consumer.commit(offsets=consumer.position([behind]), asynchronous=False),
    "stored": lambda consumer, message, _: (consumer.store_offsets(message), consumer.commit(asynchronous=False)),
    "stored offsets": lambda consumer, _, behind: (
        consumer.store_offsets(offsets=[behind]),
        consumer.commit(asynchronous=False),
    ),
    "automatic": lambda *_: None,
}


@pytest.mark.parametrize(
    ("how", "received", "offset", "mark"),
    [
        *((how, 2, 0, CommitMetadata(4)) for how in COMMITS if how != "automatic"),
        ("automatic", 1, 0, CommitMetadata(3)),
        ("automatic", 3, 5, None),
        ("message", 4, 6, None),
    ],
)
def test_no_way_of_committing_passes_the_head_of_an_incomplete_payload(lab, how, received, offset, mark):
    """On the topic: a0 b0 b1 plain a1 end; b is complete first, then the plain record, then a."""
    a, b = chunks_of(A, 2), chunks_of(B, 2)
    lab.send_raw(a[0], b[0], b[1], b"plain", a[1], b"end")
    automatic = how == "automatic"
    consumer = lab.consumer(
        wrap={"auto_offset_store": automatic}, enable_auto_commit=automatic, auto_commit_interval_ms=10
    )
    message = receive(consumer, received)[-1]
    COMMITS[how](consumer, message, at(lab, last_offset(message) + 1))
    consumer.close()
    committed = lab.committed()
    assert (committed.offset, CommitMetadata.decode(committed.metadata)) == (offset, mark)


def test_where_the_metadata_is_the_users_own_payloads_come_at_least_once(lab):
    lab.send_raw(chunks_of(A, 2)[0], *chunks_of(B, 2), b"plain")
    first = lab.consumer()
    message = receive(first, 2)[-1]
    first.commit(offsets=[at(lab, message.offset() + 1, "my own")], asynchronous=False)
    first.close()
    assert (lab.committed().offset, lab.committed().metadata) == (0, "my own")
    assert values(receive(lab.consumer(), 2)) == [B, b"plain"]


class TestRestartInTheMiddle:
    def test_a_head_before_the_committed_offset_is_found(self, lab):
        """A client that does not support chunks committed an offset in the middle of a payload."""
        chunks = chunks_of(A, 5)
        lab.send_raw(b"one", *chunks[:3])
        lab.commit(3)
        lab.send_raw(*chunks[3:], b"end")
        consumer = lab.consumer()
        messages = receive(consumer, 2)
        assert values(messages) == [A, b"end"]
        assert messages[0].offset() == 1
        assert nothing_comes(consumer)

    def test_one_that_retention_has_removed_is_reported_at_once(self, lab):
        lab.send_raw(*chunks_of(A, 4), b"end")
        lab.remove_below(2)
        consumer = lab.consumer()
        bad, end = receive(consumer, 2)
        consumer.commit(message=end, asynchronous=False)
        assert isinstance(bad.payload_error, IncompletePayloadError)
        assert "begins at offset 2 now" in str(bad.payload_error)
        assert (bad.offset(), end.value(), lab.committed().offset) == (2, b"end", 5)

    def test_from_the_end_on_one_that_began_before_is_passed(self, lab):
        """It is not reported when it expires; the clock passes a minute at each look."""
        chunks = chunks_of(A, 3)
        lab.send_raw(*chunks[:2])
        consumer = lab.consumer(auto_offset_reset="latest", wrap={"clock": itertools.count(0, 60).__next__})
        while not consumer.assignment():
            consumer.poll(0.1)
        assert nothing_comes(consumer, 0.5)
        lab.send_raw(chunks[2], b"end")
        (message,) = receive(consumer, 1)
        assert nothing_comes(consumer)
        consumer.commit(message=message, asynchronous=False)
        assert (message.value(), lab.committed().offset) == (b"end", 4)

    def test_one_whose_chunks_changed_their_order_is_delivered_behind_what_was_removed(self, lab):
        """Only near the start can a first chunk be missing because retention removed it."""
        lab.send_raw(b"gone", *[b"plain"] * 1100)
        lab.remove_below(1)
        chunks = chunks_of(A, 3)
        lab.send_raw(chunks[1], chunks[0], chunks[2])
        messages = receive(lab.consumer(), 1101)
        assert messages[-1].value() == A


# Retention ---------------------------------------------------------------------------------------------------------


PLAIN = [b"plain %d" % n for n in range(10)]


@pytest.mark.parametrize(
    ("protocol", "reset"),
    [
        ({}, "latest"),
        ({"partition_assignment_strategy": "cooperative-sticky"}, "earliest"),
        ({"group_protocol": "consumer"}, "error"),
        ({"subscribe": False}, "latest"),
    ],
)
def test_what_retention_removed_while_no_consumer_was_there_is_passed(lab, protocol, reset):
    """An incomplete payload holds back the group's offset; later payloads were delivered."""

    def opened():
        consumer = lab.consumer(auto_offset_reset=reset, **protocol)
        if protocol == {"subscribe": False}:
            consumer.assign([at(lab)])
        return consumer

    lab.commit(0)  # else nothing would be read where the client starts at the end
    lab.send_raw(chunks_of(A, 2)[0], b"one", b"two")
    first = opened()
    first.commit(message=receive(first, 1)[0], asynchronous=False)
    first.close()
    assert lab.committed().offset == 0
    lab.remove_below(1)
    second = opened()
    messages = receive(second, 1)
    lab.send_raw(*PLAIN)
    messages += receive(second, 10)
    assert values(messages) == [b"two", *PLAIN]
    second.commit(message=messages[-1], asynchronous=False)
    assert nothing_comes(second, 0.5)
    assert lab.committed().offset == lab.end()


# With asyncio: every record, in order -----------------------------------------------------------------------------


BIG = 5 * LIMIT


@on_a_loop
async def test_what_is_not_sent_is_said_at_once_or_by_its_future_and_nothing_is_kept(lab):
    """A wrong call, a partition that does not exist, a purge; what stands beside it is sent."""
    async with producing(lab) as producer:
        before = await producer.produce(lab.topic, b"before")
        for wrong in ({"value": b"wrong", "headers": {"a": 3}}, {"value": content(BIG), "timestamp": "now"}):
            with pytest.raises(TypeError):
                await producer.produce(lab.topic, **wrong)
        await soon(before)  # the client knows the topic now, and refuses at once
        refused = await producer.produce(lab.topic, content(BIG), partition=7)
        after = await producer.produce(lab.topic, b"after")
        with pytest.raises(kafka.KafkaException, match="_UNKNOWN_PARTITION"):
            await soon(refused)
        assert await soon(producer.flush()) == 0
        assert (before.result().value(), after.result().value(), stored(lab)) == (b"before", b"after", 0)
    async with producing(lab, linger_ms=60_000) as producer:
        futures = [await producer.produce(lab.topic, payload) for payload in (b"small", content(BIG))]
        await producer.purge()
        for future in futures:
            with pytest.raises(kafka.KafkaException, match="_PURGE_QUEUE"):
                await soon(future)
        await soon(producer.flush())
        assert stored(lab) == 0
    consumer = lab.consumer()
    assert values(receive(consumer, 2)) == [b"before", b"after"]
    assert nothing_comes(consumer, 0.5)


@on_a_loop
async def test_a_full_queue_is_waited_for_and_nothing_polls_when_all_is_sent(lab):
    async with producing(lab, queue_buffering_max_messages=5) as producer:
        before = asyncio.all_tasks()
        futures = [await soon(producer.produce(lab.topic, b"%d" % i)) for i in range(100)]
        await soon(asyncio.gather(*futures))
        await send(producer, lab.topic, content(BIG))
        await soon(asyncio.gather(*asyncio.all_tasks() - before))  # no end if somebody still polled
    assert values(receive(lab.consumer(), 101)) == [*(b"%d" % i for i in range(100)), content(BIG)]


@on_a_loop
async def test_transactions(lab):
    """What is aborted is not stored; offsets of a consumer go along."""
    async with producing(lab, transactional_id=f"tx-{lab.topic}") as producer, consuming(lab) as consumer:
        await soon(producer.init_transactions())
        for n, end in enumerate((producer.commit_transaction, producer.abort_transaction)):
            await soon(producer.begin_transaction())
            futures = [await producer.produce(lab.topic, each) for each in (b"small %d" % n, content(BIG, n))]
            await soon(end())
            reports = await soon(asyncio.gather(*futures, return_exceptions=True))
            assert n or all(report.error() is None for report in reports)
        await soon(producer.flush())
        assert stored(lab) == 1
        for _ in range(15):  # about every third was the producer's end
            await soon(producer.begin_transaction())
            future = await producer.produce(lab.topic, b"small")
            await soon(producer.abort_transaction())
            assert future.result().error() is None
        await soon(producer.begin_transaction())
        assert values(await poll(consumer, 2)) == [b"small 0", content(BIG)]
        positions = await consumer.position(await consumer.assignment())
        await soon(producer.send_offsets_to_transaction(positions, await consumer.consumer_group_metadata()))
        await soon(producer.commit_transaction())
    assert lab.committed().offset == 2


@on_a_loop
async def test_nobody_waits_for_a_receive_that_waits(lab):
    """Its client also stores the offset of the last message meanwhile."""
    options = {"enable_auto_commit": True, "auto_commit_interval_ms": 50}
    async with consuming(lab, wrap={"auto_offset_store": True}, **options) as consumer:
        lab.send_raw(b"one", b"two")
        await poll(consumer, 2)
        waiting = asyncio.create_task(consumer.poll())
        while (await asyncio.to_thread(lab.committed)).offset != 2:
            assert not waiting.done()
        lab.send_raw(b"three")
        message = await soon(waiting)
        abandoned = asyncio.create_task(consumer.poll())
        await asyncio.sleep(0)
        await soon(consumer.commit(message, asynchronous=False))
        abandoned.cancel()  # and `close` comes to its end
    assert (message.value(), lab.committed().offset) == (b"three", 3)


@on_a_loop
async def test_callbacks_are_coroutines_that_may_use_the_consumer_and_raise_out_of_poll(lab):
    seen = []

    async def on_assign(consumer, partitions):
        seen.append(("assign", consumer))
        for partition in partitions:
            partition.offset = 1
        await consumer.assign(partitions)

    async def on_revoke(consumer, partitions):
        seen.append(("revoke", consumer))
        await asyncio.gather(consumer.commit(asynchronous=False, offsets=await consumer.position(partitions)))

    async def failing(consumer, partitions):
        raise LookupError("no place for them")

    async with consuming(lab, callbacks={"on_assign": on_assign, "on_revoke": on_revoke}) as consumer:
        lab.send_raw(b"a", b"b", b"c")
        assert values(await poll(consumer, 1)) == [b"b"]
    assert (seen, lab.committed().offset) == ([("assign", consumer), ("revoke", consumer)], 2)
    async with consuming(lab, callbacks={"on_assign": failing}) as consumer:
        with pytest.raises(LookupError, match="no place"):
            await soon(consumer.poll())
    with pytest.raises(OffsetStoreError):
        async with consuming(lab, enable_auto_offset_store=True):
            pass
