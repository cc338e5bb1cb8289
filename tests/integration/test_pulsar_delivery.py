"""Seeking and redelivery: payloads are delivered whole."""

import pytest

from claimcheck.transports.pulsar import deserialize
from tests.integration.pulsar_rig import LIMIT, chunk, content, nothing_comes, receive


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
