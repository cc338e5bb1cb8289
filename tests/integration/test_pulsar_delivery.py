"""Listeners, seeking and redelivery: payloads are delivered whole."""

import threading

import pulsar
import pytest

from claimcheck.transports.pulsar import deserialize, listening
from tests.integration.pulsar_rig import LIMIT, STRATEGIES, chunk, content, nothing_comes, receive


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
