"""Dead letters are whole payloads, as the broker's statistics show."""

import pulsar
import pytest

from claimcheck.errors import ArgumentTypeError, ConfigError
from tests import servers
from tests.integration.pulsar_rig import LIMIT, STRATEGIES, chunk, content, nothing_comes, pending, receive, rig_on


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
            servers.wait_until(lambda: pending(consumer) == 1, "the head is held")
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
        servers.wait_until(lambda: pending(consumer) == 1, "the head is held")

        time[0] += 61
        assert nothing_comes(consumer, 0)

        lab.settled()
        letters = rig_on(lab, f"{lab.topic}-dlq").subscribe()
        if action == "dead_letter":
            letter = letters.receive(5000)
            assert (letter.data(), letter.properties()["a"]) == (chunk(1, 0, 2, b"a"), "b")
            assert "chunking.expire_after_seconds" in letter.properties()["dead-letter-reason"]
        else:
            assert nothing_comes(letters)
