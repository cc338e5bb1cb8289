"""A side topic of a real Pulsar as a store: what is there, what is forged, and retention."""

from dataclasses import replace

import pulsar
import pytest

from claimcheck._wire.digest import digest_of
from claimcheck._wire.pointer import Pointer
from claimcheck.errors import (
    ConfigError,
    IntegrityError,
    PayloadNotFoundError,
    PointerRejectedError,
    StoreError,
)
from claimcheck.stores.pulsar_topic import PulsarTopicStore
from claimcheck.transports.pulsar import PulsarConsumer, PulsarProducer
from tests import servers
from tests.integration.pulsar_rig import LIMIT, content, receive

KEEPS = {"retentionTimeInMinutes": 60, "retentionSizeInMB": -1}


@pytest.fixture
def side(lab):
    """A side topic with unlimited retention."""
    name = f"{lab.topic}-side"
    lab.client.create_producer(name).close()
    lab.broker.set_policy(name, "retention", KEEPS)
    return name


@pytest.fixture
def entry(lab, side):
    """Return the store's entry in a configuration."""
    return {
        "type": "pulsar-topic", "url": lab.broker.service_url, "topic": side, "ttl_seconds": 600,
        "segment_bytes": 50_000, "admin_url": lab.broker.admin_url,
    }  # fmt: skip


@pytest.fixture
def store(entry):
    with PulsarTopicStore(**{name: value for name, value in entry.items() if name != "type"}) as store:
        yield store


def test_a_shared_subscription_and_no_service_but_pulsar(lab, entry):
    cc = lab.claimcheck("external", stores={"side": entry})
    wrap = {"consumer_type": pulsar.ConsumerType.Shared}
    consumers = [PulsarConsumer(lab.subscribe(consumer_type=pulsar.ConsumerType.Shared), cc, **wrap) for _ in range(2)]
    producer = PulsarProducer(lab.client.create_producer(lab.topic), cc, max_message_bytes=LIMIT)
    payloads = [content(5 * LIMIT, i) for i in range(8)]
    for payload in payloads:
        producer.send(payload)

    got = []
    for consumer in consumers:  # the broker gives each its turn
        for message in receive(consumer, 4):
            got.append(message.data())
            consumer.acknowledge(message)

    assert sorted(got) == sorted(payloads)
    lab.settled()


def test_a_partitioned_topic(lab):
    name = f"{lab.topic}-side"
    lab.broker.create_partitioned(name, 2)
    with PulsarTopicStore(url=lab.broker.service_url, topic=name, segment_bytes=50_000) as store:
        payloads = [content(60_000, i) for i in range(30)]  # random keys hash to one partition once in 2**29 runs
        pointers = [store.write(payload) for payload in payloads]

        assert [store.read(pointer) for pointer in pointers] == payloads
        assert {pointer.key.partition("@")[2].split(".")[0] for pointer in pointers} == {"0", "1"}


@pytest.fixture
def sends(lab, side):
    """Chunks from the test's own producer."""
    native = lab.client.create_producer(side)

    def send(number, piece, key="_-k"):
        about = {"claimcheck-uuid": key, "claimcheck-chunk": str(number)}
        return native.send(piece, properties=about, partition_key=key)

    return send


class TestWhatLiesThere:
    @pytest.fixture
    def pointer(self, store):
        written = store.write(content(150_000))

        def at(place, payload, **facts):
            key = f"_-k@-1.{place.ledger_id()}.{place.entry_id()}"
            return replace(written, key=key, size=len(payload), segment_bytes=10, checksum=digest_of(payload), **facts)

        return at

    def test_twice_out_of_order_and_between_those_of_others(self, store, sends, pointer):
        payload = content(40)
        pieces = [payload[i : i + 10] for i in range(0, 40, 10)]
        first = sends(0, pieces[0])
        sends(1, b"x" * 10, key="_-other")
        for number in (0, 3, 1, 1, 2, 3):
            sends(number, pieces[number])

        assert store.read(pointer(first, payload, segments=4)) == payload

    def test_a_chunk_that_is_missing_or_has_other_bytes(self, store, sends, pointer):
        payload = content(40)
        first = sends(0, payload[:10])
        sends(2, payload[20:30])
        with pytest.raises(PayloadNotFoundError, match="chunk 1 of 4"):
            store.read(pointer(first, payload, segments=4))
        sends(1, b"x" * 10)
        with pytest.raises(IntegrityError):
            store.read(pointer(first, payload[:20], segments=2))

    def test_a_place_that_somebody_made_up(self, store, sends, pointer):
        first = sends(0, b"x" * 10)
        good = pointer(first, b"x" * 10, segments=1)
        assert store.read(replace(good, segment_bytes=None)) == b"x" * 10

        for key in ("_-k@-1.999999.0", "_-k", "_-k@0.1.1.1", f"_-other@-1.{first.ledger_id()}.{first.entry_id()}"):
            with pytest.raises((PayloadNotFoundError, StoreError)):
                store.read(replace(good, key=key, segment_bytes=None))
        with pytest.raises(PointerRejectedError):
            store.read(replace(good, key="../x@-1.1.1", segment_bytes=None))


def _of_two_chunks(first, payload):
    place = f"-1.{first.ledger_id()}.{first.entry_id()}"
    return Pointer(key=f"_-k@{place}", size=20, segments=2, segment_bytes=10, checksum=digest_of(payload))


class TestForgedPointers:
    """A manipulated pointer makes the reader read only a bounded part of the topic."""

    @pytest.fixture
    def real(self, store):
        """Two chunks, followed by 300 messages of 30 MB."""
        pointer = store.write(content(100_000))
        store.write(content(30 * 50_000 * 10))
        return pointer

    @pytest.fixture
    def one_more(self, real):
        """A pointer with one chunk more than the payload has."""
        return replace(real, segments=3, size=150_000)

    @pytest.fixture
    def bounded(self, entry):
        """A store with other limits."""
        opened = []

        def build(**options):
            kept = {name: value for name, value in entry.items() if name != "type"}
            opened.append(PulsarTopicStore(**kept))
            vars(opened[-1]).update({f"_{name}": value for name, value in options.items()})
            return opened[-1]

        yield build
        for store in opened:
            store.close()

    @pytest.mark.parametrize("bound", [{"max_gap_messages": 20}, {"max_gap_bytes": 1_000_000}])
    def test_one_chunk_more_than_there_are_reads_no_further_than_the_bound(self, lab, side, bounded, one_more, bound):
        before = lab.broker.stats(side)["msgOutCounter"]

        with pytest.raises(PayloadNotFoundError, match="chunk 2 of 3"):
            bounded(**bound).read(one_more)

        assert lab.broker.stats(side)["msgOutCounter"] - before < 20 + 2 + 2 * 16  # and what the client asks for ahead

    def test_as_many_as_the_bound_between_two_chunks_are_passed_over(self, bounded, sends):
        payload = content(20)
        first = sends(0, payload[:10])
        for number in ("one", "-1", "", "9" * 5000, *[0] * 16):  # some are no numbers
            sends(number, b"x" * 10, key="_-k" if isinstance(number, str) else "_-other")
        sends(1, payload[10:])
        pointer = _of_two_chunks(first, payload)

        assert bounded(max_gap_messages=20).read(pointer) == payload
        with pytest.raises(PayloadNotFoundError, match="19 messages"):
            bounded(max_gap_messages=19).read(pointer)

    @pytest.mark.parametrize("partition", ["7", "0"])
    def test_partitions_that_do_not_exist_are_refused_and_not_created(self, lab, side, store, real, partition):
        key = real.key.replace("@-1.", f"@{partition}.")

        with pytest.raises(PointerRejectedError, match="partition"):
            store.read(replace(real, key=key))

        topics = lab.broker.request("GET", "persistent/public/default")
        assert [topic for topic in topics if side in topic] == [f"persistent://public/default/{side}"]

    def test_a_partitioned_topic_is_not_read_as_one(self, lab):
        name = f"{lab.topic}-parts"
        lab.broker.create_partitioned(name, 2)
        with PulsarTopicStore(url=lab.broker.service_url, topic=name) as store:
            pointer = store.write(b"payload")
            for partition in ("-1", "2"):
                place = pointer.key.partition("@")[2].partition(".")[2]
                forged = replace(pointer, key=f"{pointer.key.partition('@')[0]}@{partition}.{place}")
                with pytest.raises(PointerRejectedError, match="partition"):
                    store.read(forged)


class TestRetention:
    def test_a_topic_that_forgets_too_soon_is_refused_before_anything_is_written(self, lab):
        store = PulsarTopicStore(url=lab.broker.service_url, topic=f"{lab.topic}-short", admin_url=lab.broker.admin_url)
        with store:
            with pytest.raises(ConfigError, match="retention"):
                store.write(b"payload")
            lab.broker.set_policy(f"{lab.topic}-short", "retention", {**KEEPS, "retentionTimeInMinutes": 60})
            with pytest.raises(ConfigError, match="60 minutes"):
                store.write(b"payload")
            lab.broker.set_policy(f"{lab.topic}-short", "retention", {**KEEPS, "retentionTimeInMinutes": -1})
            servers.wait_until(lambda: _writes(store), "the broker knows of the new retention")

    def test_where_nobody_can_look_the_log_says_so(self, lab, caplog):
        with PulsarTopicStore(url=lab.broker.service_url, topic=f"{lab.topic}-any") as store:
            store.write(b"payload")
            store.write(b"payload")

        assert caplog.text.count("set admin_url to check") == 1

    def test_what_was_trimmed_is_gone_and_never_something_else(self, lab):
        name = f"{lab.topic}-forgets"
        with PulsarTopicStore(url=lab.broker.service_url, topic=name) as store:
            pointer = store.write(b"payload")
            assert store.read(pointer) == b"payload"
            lab.broker.unload(name)
            later = store.write(b"later")
            lab.broker.trim(name)
            servers.wait_until(lambda: _is_gone(store, pointer), "the topic was trimmed")

            assert store.read(later) == b"later"


def _writes(store):
    try:
        store.write(b"payload")
    except ConfigError:
        return False
    return True


def _is_gone(store, pointer):
    try:
        store.read(pointer)
    except PayloadNotFoundError:
        return True
    return False
