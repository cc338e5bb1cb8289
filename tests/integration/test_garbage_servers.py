"""``claimcheck gc`` with real brokers and stores: exactly the orphans go, also after a kill."""

from __future__ import annotations

import json
import signal
import subprocess
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

import claimcheck
from claimcheck._store.contract import StoreContext
from claimcheck._wire.pointer import Pointer
from tests.integration.kafka_rig import rig
from tests.servers import wait_until
from tests.unit.cli.rig import command, ok, run

DAY = 86_400
COUNT = 100


class Lab:
    """A store with payloads that were written two days ago, and the command line."""

    def __init__(self, here: Path, store: dict[str, Any], topic: str, *broker: str) -> None:
        self.path, self.topic = here / "claimcheck.yaml", topic
        stores = {"hot": {"ttl_seconds": 7 * DAY, **store}}
        self.path.write_text(yaml.safe_dump({"strategy": "external", "stores": stores}))
        self.arguments = ["--config", str(self.path), "gc", *broker, "--topic", topic]
        self.cc = claimcheck.load(self.path)
        self.store = self.cc.store("hot")
        self.store.context = StoreContext(name="hot", clock=lambda: time.time() - 2 * DAY)

    def write(self, count: int, topic: str | None = None) -> list[Pointer]:
        return [self.store.write(b"payload", destination=topic or self.topic) for _ in range(count)]

    def envelopes(self, pointers: Sequence[Pointer]) -> list[bytes]:
        return [self.cc.seal(pointer) for pointer in pointers]

    @property
    def stored(self) -> set[str]:
        return {entry.key for entry in self.store.scan()}

    def collect(self, *options: str) -> dict[str, Any]:
        report: dict[str, Any] = json.loads(ok(*self.arguments, "--json", *options).stdout)
        return {**report, **report["stores"][0]}

    def refuse(self, *options: str) -> str:
        result = run(*self.arguments, "--yes", "--claim", *options)
        assert result.exit_code != 0
        return result.output

    def kill_during_deletion(self) -> None:
        """Start a slow collection, and kill it after its first deletions."""
        before = len(self.stored)
        process = subprocess.Popen(**command(*self.arguments, "--yes", "--claim", "--rate", "2"))
        try:
            wait_until(lambda: len(self.stored) < before, "something was deleted")
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()


class TestKafkaAndRedis:
    @pytest.fixture
    def broker(self, kafka_broker, topic):
        with rig(kafka_broker, topic, partitions=0) as broker:
            broker.create(3)
            yield broker

    @pytest.fixture
    def lab(self, broker, tmp_path, redis_url):
        store = {"type": "redis", "url": redis_url, "key_prefix": f"gc-{uuid.uuid4().hex}:"}
        return Lab(tmp_path, store, broker.topic, "--kafka", broker.servers["bootstrap.servers"])

    def send(self, broker, values, topic=None, **conf):
        producer = broker.native(**conf)
        for value in values:
            producer.produce(topic or broker.topic, value)
        assert producer.flush(30) == 0

    def test_exactly_the_orphans_go_also_after_a_kill(self, lab, broker):
        dead = broker.create(1, f"{lab.topic}.dlq")
        sent, orphans, other = lab.write(COUNT), lab.write(COUNT), lab.write(1, "other")
        self.send(broker, lab.envelopes(sent[10:]))
        self.send(broker, lab.envelopes(sent[:10]), dead)

        counted = lab.collect()
        lab.kill_during_deletion()
        deleted = lab.collect("--yes", "--claim")

        assert (counted["expired"], counted["referenced"], counted["deleted"]) == (COUNT, COUNT, 0)
        assert 0 < deleted["deleted"] < COUNT
        assert lab.stored == {pointer.key for pointer in sent + other}
        assert lab.store.read(sent[0]) == b"payload"
        assert orphans[0].key not in lab.stored

    def test_a_partition_that_ends_with_an_aborted_transaction_is_read_to_its_end(self, lab, broker):
        kept, aborted, lost = lab.write(1), lab.write(1), lab.write(1)
        self.send(broker, lab.envelopes(kept))
        producer = broker.native(transactional_id=f"gc-{broker.topic}")
        producer.init_transactions(30)
        producer.begin_transaction()
        producer.produce(broker.topic, lab.envelopes(aborted)[0])
        producer.flush(30)
        producer.abort_transaction(30)

        report = lab.collect("--yes", "--claim")

        assert (report["messages"], report["deleted"]) == (2, 1)
        assert lab.stored == {pointer.key for pointer in kept + aborted}
        assert lost[0].key not in lab.stored

    def test_what_every_group_has_read_goes_only_if_that_is_wanted(self, lab, broker):
        pointers = lab.write(10)
        broker.send_raw(*lab.envelopes(pointers))
        broker.commit(5)
        broker.group = "slow-group"
        broker.commit(3)

        kept = lab.collect("--yes", "--claim")
        deleted = lab.collect("--yes", "--claim", "--consumed")

        assert (kept["deleted"], deleted["deleted"]) == (0, 3)
        assert lab.stored == {pointer.key for pointer in pointers[3:]}

    def test_without_groups_or_with_one_that_has_committed_nothing_everything_counts(self, lab, broker):
        broker.send_raw(*lab.envelopes(lab.write(2)))
        without = lab.collect("--yes", "--claim", "--consumed")
        broker.commit(2)
        consumer = broker.native_consumer("new-group")
        consumer.subscribe([broker.topic])
        wait_until(lambda: consumer.poll(0.1) is None and consumer.assignment(), "the group has its partitions")
        beside = lab.collect("--yes", "--claim", "--consumed")
        consumer.close()
        assert (without["deleted"], beside["deleted"]) == (0, 0)

    @pytest.mark.parametrize(
        "value", [b"PRF_wdkafcli_header_\x02\x03{}", b"PRF_wdkafcli_header_\x09"], ids=["pointer", "envelope"]
    )
    def test_a_message_of_a_newer_version_deletes_nothing_and_is_named(self, lab, broker, value):
        lab.write(1)
        broker.send_raw(b"plain", value, partition=1)
        assert f"{broker.topic}, partition 1, offset 1" in lab.refuse()
        assert len(lab.stored) == 1

    def test_topics_that_do_not_exist_or_have_the_same_keys_delete_nothing(self, lab, broker):
        lab.write(1)
        broker.create(1, f"{broker.topic}.")  # the same slug
        assert "name both topics" in lab.refuse()
        assert "there is no topic missing" in lab.refuse("--topic", f"{broker.topic}.", "--topic", "missing")
        assert len(lab.stored) == 1

    def test_messages_that_are_deleted_while_their_topic_is_read_again_delete_nothing(self, lab, broker):
        from claimcheck._operate.gc import KafkaTopics
        from claimcheck.transports._common.topics import IncompleteReadError
        from claimcheck.transports.kafka._queries import KafkaTarget

        topics = KafkaTopics(KafkaTarget(broker.servers["bootstrap.servers"], (broker.topic,)))
        broker.send_raw(b"a", b"b")
        assert [message.value for message in topics.read()] == [b"a", b"b"]
        broker.send_raw(b"c", b"d", b"e")
        broker.remove_below(3)
        with pytest.raises(IncompleteReadError, match="lost messages"):
            list(topics.read())


class TestPulsarAndS3:
    @pytest.fixture
    def lab(self, pulsar_broker, topic, tmp_path, s3_server, s3_bucket):
        store = {"type": "s3", "bucket": s3_bucket, "prefix": "claims", "endpoint_url": s3_server.endpoint_url}
        broker = ("--pulsar", pulsar_broker.service_url, "--admin-url", pulsar_broker.admin_url)
        return Lab(tmp_path, store, topic, *broker)

    @pytest.fixture
    def send(self, pulsar_broker, pulsar_client, topic):
        pulsar_broker.request("PUT", f"persistent/public/default/{topic}/partitions", 2)

        def send(values, to=topic, **options):
            producer = pulsar_client.create_producer(to, **options)
            for value in values:
                producer.send_async(value, lambda result, message_id: None)
            producer.flush()
            producer.close()

        return send

    def test_exactly_the_orphans_go_also_after_a_kill(self, lab, send, pulsar_client):
        subscriptions = [pulsar_client.subscribe(name, "s") for name in (lab.topic, f"{lab.topic}-s-DLQ")]
        full = f"persistent://public/default/{lab.topic}"
        sent, orphans, other = (
            lab.write(COUNT // 2) + lab.write(COUNT // 2, full),
            lab.write(COUNT, full),
            lab.write(1, "x"),
        )
        send(lab.envelopes(sent[50:]))
        send(lab.envelopes(sent[10:50]), batching_enabled=True, batching_max_messages=7)
        send(lab.envelopes(sent[:10]), f"{lab.topic}-s-DLQ")

        counted = lab.collect()
        lab.kill_during_deletion()
        deleted = lab.collect("--yes", "--claim")

        assert (counted["expired"], counted["referenced"], counted["deleted"]) == (COUNT, COUNT, 0)
        assert 0 < deleted["deleted"] < COUNT
        assert lab.stored == {pointer.key for pointer in sent + other}
        assert orphans[0].key not in lab.stored
        for subscription in subscriptions:
            subscription.close()

    def test_what_every_subscription_has_read_goes_only_if_that_is_wanted(self, lab, send, pulsar_client):
        name = f"persistent://public/default/{lab.topic}-partition-0"
        fast, slow = (pulsar_client.subscribe(name, each) for each in ("fast", "slow"))
        pointers = lab.write(10)
        send(lab.envelopes(pointers), name, batching_enabled=False)
        for consumer, count in ((fast, 5), (slow, 3)):
            for _ in range(count):
                message = consumer.receive(10_000)
            consumer.acknowledge_cumulative(message)
            consumer.close()

        kept = lab.collect("--yes", "--claim")
        wait_until(lambda: lab.collect("--yes", "--consumed")["referenced"] == 7, "both acknowledgements arrived")

        assert kept["deleted"] == 0
        assert lab.stored == {pointer.key for pointer in pointers[3:]}

    def test_a_lost_ledger_deletes_nothing(self, lab, send, pulsar_broker, pulsar_client):
        from claimcheck._operate.gc import PulsarTopics
        from claimcheck.transports._common.topics import IncompleteReadError
        from claimcheck.transports.pulsar._queries import PulsarTarget

        target = PulsarTarget(pulsar_broker.service_url, pulsar_broker.admin_url, (lab.topic,))
        name = f"persistent://public/default/{lab.topic}-partition-0"
        topics = PulsarTopics(target)
        send([b"a"], name)
        assert [message.value for message in topics.read()] == [b"a"]
        send([b"b"], name)
        assert [message.value for message in topics.read()][-1:] == [b"b"]
        path = name.replace("://", "/")
        ledgers = len(pulsar_broker.internal_stats(name)["ledgers"])
        pulsar_broker.request("PUT", f"{path}/unload", None)
        send([b"c"], name)  # to a new ledger; no subscription keeps the old one
        wait_until(lambda: pulsar_broker.request("POST", f"{path}/trim", None) or True, "the topic was trimmed")
        wait_until(lambda: len(pulsar_broker.internal_stats(name)["ledgers"]) == ledgers, "the old ledger is gone")
        with pytest.raises(IncompleteReadError, match="lost messages"):
            list(topics.read())

    def test_the_web_service_is_needed_and_topics_must_exist(self, lab, pulsar_broker):
        lab.write(1)
        assert "there is no topic persistent://public/default/" in lab.refuse()
        lab.arguments = lab.arguments[:5] + lab.arguments[7:]
        assert "--admin-url" in lab.refuse()
        assert len(lab.stored) == 1
