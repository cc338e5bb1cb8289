"""Failed sends on a real Kafka: definite failures are rolled back, unknown ones are kept, no report is lost."""

import confluent_kafka as kafka
import pytest

from claimcheck.errors import PartialSendError
from tests.integration.kafka_rig import LIMIT, STRATEGIES, content, nothing_comes, receive, rig, stored, values

LARGE = content(4 * LIMIT)
NOBODY = {"bootstrap_servers": "127.0.0.1:1"}


@pytest.fixture
def lab(kafka_broker, topic):
    with rig(kafka_broker, topic) as lab:
        yield lab


class Reports(list):
    """Delivery reports: errors by name, or the offset."""

    def __call__(self, error, report):
        self.append(error.name() if error is not None else report.offset())


@pytest.mark.parametrize(
    ("options", "arguments", "error", "name"),
    [
        ({"strategy": "chunking", "wrap": {"max_message_bytes": 3 * LIMIT}}, {}, kafka.KafkaException,
         "MSG_SIZE_TOO_LARGE"),
        ({}, {"partition": 99}, kafka.KafkaException, "_UNKNOWN_PARTITION"),
        ({}, {"headers": [("h", object())]}, TypeError, ""),
        ({}, {"timestamp": "now"}, TypeError, ""),
        ({"transactional_id": "tx"}, {}, kafka.KafkaException, "_STATE"),
        ({"queue_buffering_max_messages": 1, **NOBODY}, {}, BufferError, ""),
    ],
)  # fmt: skip
def test_what_the_client_refuses_is_raised_and_nothing_is_stored_or_sent(lab, options, arguments, error, name):
    """Of a transaction that was not begun, and of a queue that is full, too."""
    producer = lab.producer(**options)
    producer._room_seconds = 0.05
    if "transactional_id" in options:
        producer.init_transactions(30)
    else:
        producer.produce(lab.topic, b"first")
        producer.flush(0.1 if NOBODY.items() <= options.items() else 10)  # the client knows the topic now
    with pytest.raises(error, match=name or None):
        producer.produce(lab.topic, LARGE, **arguments)
    assert stored(lab) == 0
    producer.purge()


def test_more_chunks_than_the_queue_holds_from_a_callback(lab):
    consumer, reports = lab.consumer(), Reports()
    producer = lab.producer("chunking", queue_buffering_max_messages=2)
    producer.produce(
        lab.topic, b"first", on_delivery=lambda *_: producer.produce(lab.topic, LARGE * 10, on_delivery=reports)
    )
    assert producer.flush(20) == 0
    assert values(receive(consumer, 2)) == [b"first", LARGE * 10]
    assert reports == [1]


class TestReports:
    def test_an_exception_in_a_callback_is_raised_by_poll_and_stops_no_other_report(self, lab):
        producer, reports = lab.producer("chunking"), Reports()

        def fail(*_):
            raise ZeroDivisionError

        producer.produce(lab.topic, b"small", on_delivery=fail)
        producer.produce(lab.topic, LARGE, on_delivery=reports)
        producer.produce(lab.topic, b"small", on_delivery=reports)
        with pytest.raises(ZeroDivisionError):
            producer.flush(10)
        assert producer.flush(10) == 0
        assert len(reports) == 2

    def test_callbacks_are_told_apart_as_the_client_does(self, lab):
        """Of two the first one is called; what is not callable is refused, but ignored behind a callback."""
        wrapped, first, second = lab.producer(), Reports(), Reports()
        for producer, payload in ((lab.native(), b"native"), (wrapped, LARGE), (wrapped, b"small")):
            producer.produce(lab.topic, payload, callback=first, on_delivery=second)
            producer.produce(lab.topic, payload, b"k", -1, second, 1234567890123)
            producer.flush(10)
        for payload in (LARGE, b"small"):
            with pytest.raises(TypeError, match="callable"):
                wrapped.produce(lab.topic, payload, b"k", -1, 1234567890123)
            with pytest.raises(TypeError, match="callable"):
                wrapped.produce(lab.topic, payload, b"k", on_delivery="later")
        assert (first, second) == ([0, 2, 4], [1, 3, 5])
        assert (wrapped.flush(10), stored(lab)) == (0, 2)

    def test_none_is_lost_when_the_producer_is_fenced(self, lab):
        """The client's own flush loses them: it calls callbacks with the fatal error pending."""
        name, reports = f"tx-{lab.topic}", Reports()
        old, new = lab.producer(transactional_id=name, linger_ms=2000), lab.producer(transactional_id=name)
        old.init_transactions(30)
        old.begin_transaction()
        old.produce(lab.topic, b"first")
        old.flush(10)
        new.init_transactions(30)
        for _ in range(20):  # none is polled for, so that all reports come with the end
            old._native.produce(lab.topic, b"plain", on_delivery=reports)
            old.produce(lab.topic, LARGE, on_delivery=reports)
        with pytest.raises(kafka.KafkaException) as raised:
            for _ in range(10):
                old.flush(1)
        assert raised.value.args[0].fatal()
        old.flush(10)
        assert len(reports) == 40
        assert set(reports) == {"INVALID_PRODUCER_EPOCH"}
        assert stored(lab) == 20  # whoever reads uncommitted messages may see them

    def test_chunks_need_them(self, lab):
        producer = lab.producer("chunking", delivery_report_only_error=True)
        with pytest.raises(PartialSendError, match=r"delivery\.report\.only\.error"):
            producer.produce(lab.topic, LARGE)
        producer.flush(10)
        consumer = lab.consumer()
        assert nothing_comes(consumer)
        assert consumer.pending_payloads == 0  # they were told that no more of it comes

    def test_where_nobody_knows_offsets(self, lab):
        producer, reports = lab.producer("chunking", acks=0), Reports()
        producer.produce(lab.topic, LARGE, on_delivery=reports)
        assert producer.flush(10) == 0
        assert reports == [None]
        assert values(receive(lab.consumer(), 1)) == [LARGE]

    def test_an_interrupt_that_the_client_swallows_ends_the_send(self, lab, monkeypatch):
        """The client's poll then fails without setting an exception."""
        producer = lab.producer("chunking")

        class Interrupted:
            def poll(self, seconds):
                raise SystemError("<method 'poll'> returned NULL without setting an exception")

        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(producer._poller, "_native", Interrupted())
            producer.produce(lab.topic, LARGE)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_consume_transform_produce_exactly_once(lab, strategy):
    """Every third transaction is aborted, and the consumer seeks back to the committed offset."""
    target, sent = lab.create(name=f"{lab.topic}-out"), [content(3 * LIMIT, n) for n in range(7)]
    source, producer = lab.producer(strategy), lab.producer(strategy, transactional_id=f"tx-{lab.topic}")
    for value in sent:
        source.produce(lab.topic, value)
    source.flush(10)
    producer.init_transactions(30)
    consumer, at = lab.consumer(), [kafka.TopicPartition(lab.topic, 0)]
    done = rounds = 0
    while done < len(sent):
        (message,) = receive(consumer, 1)
        producer.begin_transaction()
        producer.produce(target, message.value()[::-1])
        producer.send_offsets_to_transaction(consumer.position(at), consumer.consumer_group_metadata(), 30)
        rounds += 1
        if rounds % 3 == 0:
            producer.abort_transaction(30)
            (committed,) = consumer.committed(at, 30)
            consumer.seek(committed)
        else:
            producer.commit_transaction(30)
            done += 1
    producer.flush(10)
    reader = lab.consumer(target, group=f"{lab.group}-out")
    assert values(receive(reader, len(sent))) == [value[::-1] for value in sent]
    assert nothing_comes(reader)
    assert rounds > len(sent)
    assert stored(lab) == (2 * len(sent) if strategy == "external" else 0), "what was aborted is not stored"
