"""What is acknowledged, given back, sought and put aside is a whole payload; the broker's books show it."""

import subprocess
import sys
import threading

import pulsar
import pytest

from claimcheck.envelope import encode_abort, encode_chunk
from claimcheck.errors import ConfigError
from claimcheck.transports.pulsar import PulsarConsumer, SharedSubscriptionError, deserialize, listening
from tests import servers
from tests.integration.pulsar_rig import LIMIT, STRATEGIES, Rig, content, nothing_comes, receive, rig

UUID = "00000000-0000-4000-8000-00000000000{}"
SHARED, KEYED = pulsar.ConsumerType.Shared, pulsar.ConsumerType.KeyShared
MANY = pytest.mark.parametrize("kind", [SHARED, KEYED], ids=str)


@pytest.fixture
def lab(pulsar_broker, pulsar_client, topic):
    with rig(pulsar_broker, pulsar_client, topic) as lab:
        yield lab


def chunk(which, position, count, piece):
    return encode_chunk(UUID.format(which), position, count, memoryview(piece))


class TestAcknowledge:
    def test_a_chunk_never_before_its_payload_and_none_is_left_behind(self, lab):
        consumer, native = lab.consumer(), lab.client.create_producer(lab.topic)
        for message in (chunk(1, 0, 2, b"a"), b"plain", chunk(2, 0, 2, b"c"), chunk(1, 1, 2, b"b")):
            native.send(message)

        for message in receive(consumer, 2):
            consumer.acknowledge(message)
        lab.settled(backlog=1)  # the lone head

        native.send(chunk(2, 1, 2, b"d"))
        consumer.acknowledge(consumer.receive(5000))
        lab.settled()

    @pytest.mark.parametrize("partitions", [0, 2])
    def test_by_an_id_that_comes_from_another_process(self, lab, partitions):
        if partitions:
            lab.broker.create_partitioned(lab.topic, partitions)
        consumer = lab.consumer()
        lab.producer("chunking").send(content(5 * LIMIT))
        data = consumer.receive(5000).message_id().serialize()
        again = subprocess.run(
            [sys.executable, "-c", _SERIALIZED_AGAIN], input=data, capture_output=True, check=True
        ).stdout

        consumer.acknowledge(deserialize(again))

        lab.settled()

    def test_given_back_by_an_id_that_comes_from_elsewhere(self, lab):
        consumer = lab.consumer(consumer_type=KEYED)
        lab.producer("chunking").send(payload := content(5 * LIMIT))
        first = consumer.receive(5000)

        consumer.negative_acknowledge(deserialize(first.message_id().serialize()))

        again = consumer.receive(5000)
        assert (again.data(), again.redelivery_count()) == (payload, 1)
        consumer.acknowledge(again)
        lab.settled()

    def test_duplicates_go_with_their_payload(self, lab):
        consumer, native = lab.consumer(), lab.client.create_producer(lab.topic)
        for message in (chunk(1, 0, 2, b"a"), chunk(1, 0, 2, b"a"), chunk(1, 1, 2, b"b"), chunk(1, 1, 2, b"b")):
            native.send(message)
        message = consumer.receive(5000)
        assert message.data() == b"ab"
        assert nothing_comes(consumer)

        consumer.acknowledge(message)
        native.send(chunk(1, 0, 2, b"a"))
        assert nothing_comes(consumer)

        lab.settled()

    def test_an_aborted_payload_leaves_nothing(self, lab):
        consumer, native = lab.consumer(), lab.client.create_producer(lab.topic)
        native.send(chunk(1, 0, 3, b"a"))
        native.send(encode_abort(UUID.format(1)))
        native.send(chunk(1, 1, 3, b"late"))

        assert nothing_comes(consumer)
        assert consumer.pending_payloads == 0
        lab.settled()

    def test_a_payload_that_contradicts_itself_can_be_acknowledged(self, lab):
        consumer, native = lab.consumer(), lab.client.create_producer(lab.topic)
        for message in (chunk(1, 0, 2, b"a"), chunk(1, 0, 2, b"X"), chunk(1, 1, 2, b"b")):
            native.send(message)

        message = consumer.receive(5000)

        assert "different bytes" in str(message.error)
        consumer.acknowledge(message)
        lab.settled()


class TestCumulatively:
    def test_everything(self, lab):
        consumer, producer = lab.consumer(), lab.producer("chunking")
        for i in range(6):
            producer.send(content([10, 3 * LIMIT][i % 2], i))

        consumer.acknowledge_cumulative(receive(consumer, 6)[-1])

        lab.settled()

    @pytest.mark.parametrize("id_of", [lambda m: m.message_id(), lambda m: deserialize(m.message_id().serialize())])
    @pytest.mark.parametrize("strategy", STRATEGIES)
    def test_by_an_id(self, lab, strategy, id_of):
        consumer, producer = lab.consumer(), lab.producer(strategy, batching_enabled=False)
        for i in range(3):
            producer.send(content(3 * LIMIT, i))

        consumer.acknowledge_cumulative(id_of(receive(consumer, 3)[-1]))

        lab.settled()

    def test_never_past_the_beginning_of_an_incomplete_payload(self, lab):
        consumer, native = lab.consumer(), lab.client.create_producer(lab.topic)
        for message in (b"1", chunk(1, 0, 2, b"a"), b"2", b"3"):
            native.send(message)

        consumer.acknowledge_cumulative(receive(consumer, 3)[-1])
        lab.settled(backlog=3)

        native.send(chunk(1, 1, 2, b"b"))
        consumer.acknowledge_cumulative(consumer.receive(5000))
        lab.settled()

    def test_never_past_a_payload_that_is_complete_but_goes_on_behind(self, lab):
        consumer, native = lab.consumer(), lab.client.create_producer(lab.topic)
        for message in (b"1", chunk(1, 0, 2, b"a"), b"2", chunk(1, 1, 2, b"b")):
            native.send(message)
        _, plain, whole = receive(consumer, 3)

        consumer.acknowledge_cumulative(plain)
        lab.settled(backlog=3)

        consumer.acknowledge_cumulative(whole)
        lab.settled()

    def test_where_nothing_is_known_of_what_lies_before(self, lab):
        consumer, native = lab.consumer(), lab.client.create_producer(lab.topic)
        for message in (chunk(1, 0, 2, b"a"), b"2"):
            native.send(message)

        consumer.acknowledge_cumulative(consumer.receive(5000))

        lab.settled(backlog=2)


class TestGiveBack:
    @pytest.mark.parametrize(("strategy", "kind"), [("external", SHARED), ("external", KEYED), ("chunking", KEYED)])
    def test_it_comes_again_whole(self, lab, kind, strategy):
        consumer = lab.consumer(consumer_type=kind)
        lab.producer(strategy).send(payload := content(7 * LIMIT))
        for count in range(3):
            message = consumer.receive(5000)
            assert (message.data(), message.redelivery_count()) == (payload, count)
            consumer.negative_acknowledge(message)

        consumer.acknowledge(consumer.receive(5000))

        lab.settled()

    def test_all_that_is_not_acknowledged(self, lab):
        consumer, producer = lab.consumer(), lab.producer("chunking")
        payloads = [content(size, i) for i, size in enumerate([10, 3 * LIMIT, 20])]
        for payload in payloads:
            producer.send(payload)
        receive(consumer, 3)

        consumer.redeliver_unacknowledged_messages()

        again = receive(consumer, 3)
        assert [message.data() for message in again] == payloads
        for message in again:
            consumer.acknowledge(message)
        lab.settled()

    @pytest.mark.parametrize("strategy", STRATEGIES)
    @pytest.mark.parametrize("how", ["unload", "redeliver"])
    def test_what_the_broker_delivers_again_by_itself(self, lab, how, strategy):
        consumer, producer = lab.consumer(), lab.producer(strategy, batching_enabled=False)
        payloads = [content(size, i) for i, size in enumerate([3 * LIMIT, 10, 4 * LIMIT])]
        for payload in payloads:
            producer.send(payload)
        consumer.acknowledge(receive(consumer, 3)[1])
        lab.settled(backlog=2 if strategy == "external" else 9)

        if how == "unload":
            lab.broker.unload(lab.topic)
        else:
            consumer._native.redeliver_unacknowledged_messages()

        again = receive(consumer, 2, seconds=30)
        assert sorted(message.data() for message in again) == sorted([payloads[0], payloads[2]])
        for message in again:
            consumer.acknowledge(message)
        lab.settled()

    def test_what_is_not_acknowledged_in_time(self, lab):
        consumer = lab.consumer(unacked_messages_timeout_ms=10_000)  # the client takes no less
        lab.producer("chunking").send(payload := content(5 * LIMIT))
        first = consumer.receive(5000)

        again = consumer.receive(25_000)

        assert (first.data(), again.data()) == (payload, payload)
        consumer.acknowledge(again)
        lab.settled()

    def test_acknowledged_while_it_comes_again(self, lab):
        """What is held of the second delivery is not left to expire, and its rest is no payload."""
        consumer, native = lab.consumer(), lab.client.create_producer(lab.topic)
        for n in range(3):
            native.send(chunk(1, n, 3, b"%d" % n))
        first = consumer.receive(5000)
        kept = _copies(lab)
        consumer.take(kept[0])
        assert consumer.pending_payloads == 1

        consumer.acknowledge(first)

        assert consumer.pending_payloads == 0
        for late in kept[1:]:
            consumer.take(late)
        assert consumer.take_ready() is None
        lab.settled()

    def test_what_expires_comes_again_until_it_is_complete(self, lab):
        time = [0.0]
        consumer = lab.consumer(wrap={"clock": lambda: time[0]})
        native = lab.client.create_producer(lab.topic)
        native.send(chunk(1, 0, 2, b"a"))
        with pytest.raises(pulsar.Timeout):
            consumer.receive(0)
        servers.wait_until(lambda: _pending(consumer) == 1, "the head is held")

        time[0] += 61
        with pytest.raises(pulsar.Timeout):
            consumer.receive(0)
        assert consumer.pending_payloads == 0
        servers.wait_until(lambda: _pending(consumer) == 1, "the head came again")

        native.send(chunk(1, 1, 2, b"b"))
        time[0] += 1
        servers.wait_until(lambda: _acknowledged_one(consumer), "it is complete")
        lab.settled()

    @MANY
    def test_when_its_consumer_goes_it_comes_whole_to_another(self, lab, kind):
        strategy = "external" if kind == pulsar.ConsumerType.Shared else "chunking"
        first = lab.consumer(consumer_type=kind)
        payloads = [content(3 * LIMIT, i) for i in range(4)]
        for payload in payloads:
            lab.producer(strategy).send(payload)
        receive(first, 2)
        second = lab.consumer(consumer_type=kind)

        first.close()

        got = receive(second, 4)
        assert sorted(message.data() for message in got) == sorted(payloads)
        for message in got:
            second.acknowledge(message)
        lab.settled()


class TestDeadLetters:
    @pytest.mark.parametrize("strategy", STRATEGIES)
    def test_a_payload_that_came_too_often(self, lab, strategy):
        aside = lab.client.create_producer(f"{lab.topic}-dlq")
        kind = pulsar.ConsumerType.KeyShared
        wrap = {"dead_letter_producer": aside, "max_redeliveries": 2}
        consumer = lab.consumer(consumer_type=kind, wrap=wrap)
        sent = lab.producer(strategy).send(payload := content(5 * LIMIT), properties={"a": "b"}, partition_key="k")
        for _ in range(3):
            consumer.negative_acknowledge(consumer.receive(5000))
        lab.settled()

        other = rig_on(lab, f"{lab.topic}-dlq").consumer()
        letter = other.receive(5000)

        about = letter.properties()
        assert (letter.data(), letter.partition_key(), about.pop("a")) == (payload, "k", "b")
        assert about["REAL_TOPIC"].endswith(lab.topic)
        assert about["ORIGIN_MESSAGE_ID"] == str(getattr(sent, "first", sent))
        assert "2 redeliveries" in about["dead-letter-reason"]

    @pytest.mark.parametrize("strategy", STRATEGIES)
    @pytest.mark.parametrize("kind", [pulsar.ConsumerType.Exclusive, pulsar.ConsumerType.Failover], ids=str)
    def test_where_the_broker_does_not_count_we_do(self, lab, kind, strategy):
        aside = lab.client.create_producer(f"{lab.topic}-dlq")
        consumer = lab.consumer(consumer_type=kind, wrap={"dead_letter_producer": aside, "max_redeliveries": 2})
        producer = lab.producer(strategy)
        for payload in (b"small", content(5 * LIMIT)):
            producer.send(payload)
            for _ in range(3):
                consumer.negative_acknowledge(consumer.receive(5000))
            lab.settled()

        letters = receive(rig_on(lab, f"{lab.topic}-dlq").consumer(), 2)
        assert [letter.data() for letter in letters] == [b"small", content(5 * LIMIT)]
        assert not consumer._redeliveries

    @pytest.mark.parametrize("cumulatively", [True, False])
    def test_what_is_acknowledged_is_counted_no_more(self, lab, cumulatively):
        aside = lab.client.create_producer(f"{lab.topic}-dlq")
        consumer = lab.consumer(wrap={"dead_letter_producer": aside, "max_redeliveries": 2})
        lab.producer("chunking").send(payload := content(2 * LIMIT))
        consumer.negative_acknowledge(consumer.receive(5000))
        assert consumer._redeliveries

        again = consumer.receive(5000)
        assert again.data() == payload
        (consumer.acknowledge_cumulative if cumulatively else consumer.acknowledge)(again)

        assert not consumer._redeliveries
        lab.settled()

    def test_chunks_that_expire_too_often(self, lab):
        time, aside = [0.0], lab.client.create_producer(f"{lab.topic}-dlq")
        wrap = {"clock": lambda: time[0], "dead_letter_producer": aside, "max_redeliveries": 2}
        consumer = lab.consumer(wrap=wrap)
        lab.client.create_producer(lab.topic).send(chunk(1, 0, 2, b"a"))
        for _ in range(3):
            servers.wait_until(lambda: _pending(consumer) == 1, "the head is held")
            time[0] += 61
            consumer.tick()

        lab.settled()
        letter = rig_on(lab, f"{lab.topic}-dlq").subscribe().receive(5000)
        assert letter.data() == chunk(1, 0, 2, b"a")

    def test_by_hand(self, lab):
        aside = lab.client.create_producer(f"{lab.topic}-dlq")
        consumer = lab.consumer(wrap={"dead_letter_producer": aside})
        lab.producer("chunking").send(payload := content(2 * LIMIT))

        consumer.dead_letter(consumer.receive(5000), reason="no sense in it")

        lab.settled()
        letter = rig_on(lab, f"{lab.topic}-dlq").consumer().receive(5000)
        assert (letter.data(), letter.properties()["dead-letter-reason"]) == (payload, "no sense in it")

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
            with pytest.raises(TypeError, match=f"dead_letter_producer.*{type(wrong).__name__}"):
                lab.consumer(f"c{i}", wrap={"dead_letter_producer": wrong})

    @pytest.mark.parametrize(
        ("option", "found"),
        [("max_redeliveries", -1), ("prefetch_threads", 0), ("prefetch_bytes", -1), ("prefetch_bytes", "64 MiB")],
    )
    def test_numbers_that_make_no_sense(self, lab, option, found):
        with pytest.raises(ConfigError, match=f"{option}: found {found!r}, expected a whole number from"):
            lab.consumer(wrap={option: found})


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
    @MANY
    def test_a_type_that_nobody_told_is_found_out(self, lab, kind, partitions):
        if partitions:
            lab.broker.create_partitioned(lab.topic, partitions)
        consumer = PulsarConsumer(lab.subscribe(consumer_type=kind), lab.cc)
        lab.producer("chunking").send(content(LIMIT + 1))

        assert "consumer_type" in str(consumer.receive(5000).error)

    @pytest.mark.parametrize("partitions", [0, 2])
    @pytest.mark.parametrize("kind", [pulsar.ConsumerType.Exclusive, pulsar.ConsumerType.Failover], ids=str)
    def test_of_others_nothing_has_to_be_told(self, lab, kind, partitions):
        if partitions:
            lab.broker.create_partitioned(lab.topic, partitions)
        consumer = PulsarConsumer(lab.subscribe(consumer_type=kind), lab.cc)
        lab.producer("chunking").send(payload := content(LIMIT + 1))

        assert consumer.receive(5000).data() == payload


class TestManyConsumers:
    def test_key_shared_keeps_payloads_whole_while_a_consumer_joins(self, lab):
        """The broker keeps the tails for their new owner until the old one has given the heads back: they expire."""
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
        servers.wait_until(lambda: _pending(first) + _pending(second) == 1, "one of them has the head")
        (active,), (other,) = ([one for one in (first, second) if one.pending_payloads == held] for held in (1, 0))

        active.close()
        native.send(chunk(1, 2, 3, b"2"))

        message = other.receive(10_000)
        assert message.data() == b"012"
        other.acknowledge(message)
        lab.settled()


class TestBounds:
    def test_what_had_to_make_room_comes_again_and_is_completed(self, lab):
        cc = lab.claimcheck("external", chunking={"max_pending_payloads": 1})
        consumer, native = lab.consumer(cc=cc), lab.client.create_producer(lab.topic)
        for which, n in ((1, 0), (2, 0), (1, 1), (2, 1)):
            native.send(chunk(which, n, 2, b"%d%d" % (which, n)))

        got = set()
        while len(got) < 2:  # an Exclusive subscription gives all back that is not acknowledged, whatever is given back
            message = consumer.receive(5000)
            got.add(message.data())
            consumer.acknowledge(message)
        assert got == {b"1011", b"2021"}
        lab.settled()

    @pytest.mark.parametrize("action", ["ack", "dead_letter"])
    def test_what_expires_goes_as_it_is_configured(self, lab, action):
        time = [0.0]
        cc = lab.claimcheck("external", chunking={"on_expire": action})
        aside = lab.client.create_producer(f"{lab.topic}-dlq")
        consumer = lab.consumer(cc=cc, wrap={"clock": lambda: time[0], "dead_letter_producer": aside})
        lab.client.create_producer(lab.topic).send(chunk(1, 0, 2, b"a"), properties={"a": "b"})
        servers.wait_until(lambda: _pending(consumer) == 1, "the head is held")

        time[0] += 61
        assert nothing_comes(consumer, 0)

        lab.settled()
        letters = rig_on(lab, f"{lab.topic}-dlq").subscribe()
        if action == "dead_letter":
            letter = letters.receive(5000)
            assert (letter.data(), letter.properties()["a"]) == (chunk(1, 0, 2, b"a"), "b")
            assert letter.properties()["dead-letter-reason"].startswith("expired")
        else:
            assert nothing_comes(letters)


class TestListener:
    @pytest.mark.parametrize("strategy", STRATEGIES)
    def test_it_is_given_whole_payloads_and_what_it_raises_ends_nothing(self, lab, strategy, caplog):
        got, done = [], threading.Event()

        def listener(consumer, message):
            got.append(message.data())
            consumer.acknowledge(message)
            if len(got) == 4:
                done.set()
            if len(got) == 2:
                raise ValueError("no reason")

        lab.subscribe(message_listener=listening(listener, lab.cc))
        producer = lab.producer(strategy)
        payloads = [content([10, 3 * LIMIT][i % 2], i) for i in range(4)]
        for payload in payloads:
            producer.send(payload)

        assert done.wait(20)
        assert got == payloads
        assert "no reason" in caplog.text
        lab.settled()

    @pytest.mark.parametrize("strategy", STRATEGIES)
    def test_of_a_reader(self, lab, strategy):
        got, done = [], threading.Event()

        def listener(reader, message):
            got.append((type(reader).__name__, message.data()))
            if len(got) == 3:
                reader.close()
                done.set()

        lab.client.create_reader(lab.topic, pulsar.MessageId.earliest, reader_listener=listening(listener, lab.cc))
        producer = lab.producer(strategy)
        payloads = [content([10, 3 * LIMIT][i % 2], i) for i in range(3)]
        for payload in payloads:
            producer.send(payload)

        assert done.wait(20)
        assert got == [("PulsarReader", payload) for payload in payloads]


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

    def test_chunks_from_before_never_complete_with_chunks_from_after(self, lab):
        consumer, native = lab.consumer(), lab.client.create_producer(lab.topic)
        ids = [native.send(chunk(1, i, 4, b"%d" % i)) for i in range(2)]
        assert nothing_comes(consumer)

        consumer.seek(ids[1])
        for i in (2, 3):
            native.send(chunk(1, i, 4, b"%d" % i))
        assert nothing_comes(consumer)
        assert consumer.pending_payloads == 1

        consumer.seek(pulsar.MessageId.earliest)
        assert consumer.receive(5000).data() == b"0123"


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


_SERIALIZED_AGAIN = """
import sys
from claimcheck.transports.pulsar import deserialize
sys.stdout.buffer.write(deserialize(sys.stdin.buffer.read()).serialize())
"""


def _copies(lab):
    """The messages of the topic, once more, as the broker would deliver them again."""
    reader = lab.client.create_reader(lab.topic, pulsar.MessageId.earliest)
    found = []
    while reader.has_message_available():
        found.append(reader.read_next(5000))
    reader.close()
    return found


def _next(consumer):
    try:
        return consumer.receive(500)
    except pulsar.Timeout:
        return None


def rig_on(lab, topic):
    """The same, on another topic, with the same stores."""
    other = Rig(lab.broker, lab.client, topic, lab._stack)
    other.cc = lab.cc
    return other


def _pending(consumer):
    assert nothing_comes(consumer, 0)
    return consumer.pending_payloads


def _acknowledged_one(consumer):
    try:
        consumer.acknowledge(consumer.receive(0))
    except pulsar.Timeout:
        return False
    return True
