"""A side topic of a real Pulsar as a store: what is there, what is forged, and retention."""

from dataclasses import replace

import pytest

from claimcheck._wire.digest import digest_of
from claimcheck._wire.pointer import Pointer
from claimcheck.errors import ConfigError, IntegrityError, PayloadNotFoundError, PointerRejectedError, StoreError
from claimcheck.stores.pulsar_topic import PulsarTopicStore
from tests import servers
from tests.integration.pulsar_rig import content

KEEPS = {"retentionTimeInMinutes": 60, "retentionSizeInMB": -1}


@pytest.fixture
def side(lab):
    """A side topic with unlimited retention."""
    name = f"{lab.topic}-side"
    lab.client.create_producer(name).close()
    lab.broker.set_policy(name, "retention", KEEPS)
    return name


@pytest.fixture
def store(lab, side):
    place = {"url": lab.broker.service_url, "topic": side, "admin_url": lab.broker.admin_url}
    with PulsarTopicStore(**place, ttl_seconds=600, segment_bytes=50_000) as store:
        yield store


def test_a_partitioned_topic(lab, store, side):
    """Partitions that do not exist are refused and not created."""
    name = f"{lab.topic}-parts"
    lab.broker.create_partitioned(name, 2)
    with PulsarTopicStore(url=lab.broker.service_url, topic=name, segment_bytes=50_000) as parts:
        payloads = [content(60_000, i) for i in range(30)]  # random keys hash to one partition once in 2**29 runs
        pointers = [parts.write(payload) for payload in payloads]
        assert [parts.read(pointer) for pointer in pointers] == payloads
        assert {pointer.key.partition("@")[2].split(".")[0] for pointer in pointers} == {"0", "1"}
        for opened, pointer, wrong in ((parts, pointers[0], ("-1", "2")), (store, store.write(b"x"), ("7", "0"))):
            key, _, place = pointer.key.partition("@")
            for partition in wrong:
                with pytest.raises(PointerRejectedError, match="partition"):
                    opened.read(replace(pointer, key=f"{key}@{partition}.{place.partition('.')[2]}"))
    topics = lab.broker.request("GET", "persistent/public/default")
    assert sum(lab.topic in topic for topic in topics) == 3


class TestWhatLiesThere:
    """A payload is found among what others, or forgers, wrote; only a bounded part of the topic is read for it."""

    PAYLOAD = content(40)

    @pytest.fixture
    def sends(self, lab, side):
        """Chunks of ten bytes from the test's own producer; returns a pointer that begins there."""
        native = lab.client.create_producer(side)

        def send(number, piece=None, key="_-k", segments=4):
            piece = self.PAYLOAD[10 * number :][:10] if piece is None else piece
            about = {"claimcheck-uuid": key, "claimcheck-chunk": str(number)}
            place = native.send(piece, properties=about, partition_key=key)
            facts = {"size": 10 * segments, "segments": segments, "segment_bytes": 10}
            checksum = digest_of(self.PAYLOAD[: 10 * segments])
            return Pointer(key=f"_-k@-1.{place.ledger_id()}.{place.entry_id()}", checksum=checksum, **facts)

        return send

    def test_twice_out_of_order_and_between_as_many_of_others_as_the_bound(self, store, sends):
        pointer = sends(0)
        for number in ("one", "-1", "", "9" * 5000):  # no numbers
            sends(number, b"x" * 10)
        for _ in range(16):
            sends(0, b"x" * 10, key="_-other")
        for number in (0, 3, 1, 1, 2, 3):
            sends(number)
        store._max_gap_messages = 22
        assert store.read(pointer) == self.PAYLOAD
        store._max_gap_messages = 21
        with pytest.raises(PayloadNotFoundError, match="21 messages"):
            store.read(pointer)

    def test_a_chunk_that_is_missing_or_has_other_bytes(self, store, sends):
        pointer = sends(0)
        sends(2)
        with pytest.raises(PayloadNotFoundError, match="chunk 1 of 4"):
            store.read(pointer)
        sends(1, b"x" * 10)
        with pytest.raises(IntegrityError):
            store.read(replace(pointer, size=20, segments=2))

    def test_a_place_that_somebody_made_up(self, store, sends):
        good = sends(0, segments=1)
        assert store.read(replace(good, segment_bytes=None)) == self.PAYLOAD[:10]
        place = good.key.partition("@")[2]
        for key in ("_-k@-1.999999.0", "_-k", "_-k@0.1.1.1", f"_-other@{place}"):
            with pytest.raises((PayloadNotFoundError, StoreError)):
                store.read(replace(good, key=key, segment_bytes=None))
        with pytest.raises(PointerRejectedError):
            store.read(replace(good, key="../x@-1.1.1", segment_bytes=None))

    @pytest.mark.parametrize("bound", [{"_max_gap_messages": 20}, {"_max_gap_bytes": 1_000_000}])
    def test_one_chunk_more_than_there_are_reads_no_further_than_the_bound(self, lab, side, store, bound):
        """Two chunks, followed by 300 messages of 15 MB."""
        pointer = store.write(content(100_000))
        store.write(content(300 * 50_000))
        before = lab.broker.stats(side)["msgOutCounter"]
        vars(store).update(bound)
        with pytest.raises(PayloadNotFoundError, match="chunk 2 of 3"):
            store.read(replace(pointer, segments=3, size=150_000))
        assert lab.broker.stats(side)["msgOutCounter"] - before < 20 + 2 + 2 * 16  # and what the client asks for ahead


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
