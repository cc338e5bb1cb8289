"""Dead letters are whole payloads, as the broker's statistics show."""

import pulsar
import pytest

from claimcheck.errors import ArgumentTypeError, ConfigError
from tests.integration.pulsar_rig import LIMIT, STRATEGIES, content, receive, rig_on


class TestDeadLetters:
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

    @pytest.mark.parametrize("by", ["hand", "negative acknowledgement"])
    def test_the_pointer_of_a_stored_payload_is_unchanged(self, lab, by):
        signing = {"key_id": "a", "keys": {"a": "0123456789abcdef"}}
        stores = {"m": {"type": "memory", "space": lab.topic}}
        cc = lab.claimcheck("external", stores=stores, signing=signing)
        aside = lab.client.create_producer(f"{lab.topic}-dlq")
        lab.producer(cc).send(payload := content(2 * LIMIT), properties={"a": "b"}, partition_key="k")
        wrap = {"dead_letter_producer": aside, "max_redeliveries": 0}
        consumer = lab.consumer(cc=cc, wrap=wrap)
        if by == "hand":
            consumer.dead_letter(consumer.receive(5000))
        else:
            consumer.negative_acknowledge(consumer.receive(5000))
        lab.settled()

        native = rig_on(lab, f"{lab.topic}-dlq").subscribe().receive(5000)

        assert cc.resolve(native.data(), destination=lab.topic) == payload
        assert (native.properties()["a"], native.partition_key()) == ("b", "k")

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
        [("max_redeliveries", -1), ("prefetch_threads", 0), ("prefetch_bytes", -1), ("prefetch_bytes", "64 MiB")],
    )
    def test_numbers_that_make_no_sense(self, lab, option, found):
        with pytest.raises(ConfigError, match=f"{option}: found {found!r}, expected an integer of at least"):
            lab.consumer(wrap={option: found})
