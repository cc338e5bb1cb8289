"""``claimcheck gc`` and sweeps with real brokers and stores: exactly the orphans go."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import boto3
import pytest
import redis
import redis.cluster
import yaml

import claimcheck
from claimcheck._operate.sweep import Sweep
from claimcheck._store.contract import StoreContext
from claimcheck._wire.pointer import Pointer
from claimcheck.errors import PayloadNotFoundError
from claimcheck.stores.redis import RedisStore
from claimcheck.stores.s3 import S3Store
from tests.integration.kafka_rig import rig
from tests.servers import wait_until
from tests.unit.cli.rig import ok, run

DAY = 86_400
COUNT = 30


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

    def check_orphans(self, sent: list[Pointer]) -> None:
        """Exactly the orphans go; those of another topic stay."""
        self.write(COUNT)
        other = self.write(1, "other")

        counted, deleted = self.collect(), self.collect("--yes", "--claim")

        assert (counted["expired"], counted["referenced"], counted["deleted"]) == (COUNT, len(sent), 0)
        assert (deleted["deleted"], self.stored) == (COUNT, {pointer.key for pointer in sent + other})
        assert self.store.read(sent[0]) == b"payload"


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

    def test_exactly_the_orphans_go(self, lab, broker):
        dead, sent = broker.create(1, f"{lab.topic}.dlq"), lab.write(COUNT)
        self.send(broker, lab.envelopes(sent[10:]))
        self.send(broker, lab.envelopes(sent[:10]), dead)
        lab.check_orphans(sent)

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

    def test_exactly_the_orphans_go(self, lab, send, pulsar_client):
        """Of single messages, of batches and of dead letters, under the short and the full name of the topic."""
        subscriptions = [pulsar_client.subscribe(name, "s") for name in (lab.topic, f"{lab.topic}-s-DLQ")]
        sent = lab.write(COUNT // 2) + lab.write(COUNT // 2, f"persistent://public/default/{lab.topic}")
        send(lab.envelopes(sent[20:]))
        send(lab.envelopes(sent[5:20]), batching_enabled=True, batching_max_messages=7)
        send(lab.envelopes(sent[:5]), f"{lab.topic}-s-DLQ")
        lab.check_orphans(sent)
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


# Sweeps ------------------------------------------------------------------------------------------------------------


HOUR = 3600


def later(seconds: float):
    """A clock that is ahead."""
    return lambda: time.time() + seconds


class TestIncompleteUploads:
    @pytest.fixture
    def store(self, s3_server, s3_bucket):
        with S3Store(bucket=s3_bucket, prefix="claims", endpoint_url=s3_server.endpoint_url, ttl_seconds=HOUR) as store:
            yield store

    @pytest.fixture
    def begin(self, s3_server, s3_bucket):
        client = boto3.client("s3", endpoint_url=s3_server.endpoint_url)

        def begin(key, *, parts):
            upload = {"Bucket": s3_bucket, "Key": key}
            upload["UploadId"] = client.create_multipart_upload(**upload)["UploadId"]
            for number in range(1, parts + 1):
                client.upload_part(**upload, PartNumber=number, Body=bytes(5 << 20))

        return begin

    def left(self, s3_server, s3_bucket):
        bucket = boto3.resource("s3", endpoint_url=s3_server.endpoint_url).Bucket(s3_bucket)
        return sorted(upload.object_key for upload in bucket.multipart_uploads.all())

    def test_go_after_the_grace_and_those_of_others_stay(self, store, begin, s3_server, s3_bucket):
        store._server_time = lambda: None  # it is not later there
        now = int(time.time() * 1000)
        new_key = store._key("orders", uuid.uuid4(), created_ms=now, expires_ms=now + 1000)
        begin(new_key, parts=2)
        begin(f"claims/orders-{uuid.uuid4()}", parts=0)
        begin("claims/of-others", parts=1)
        pointer = store.write(b"payload")

        early = Sweep(dry_run=False, clock=later(HOUR / 2)).run(store)
        late = Sweep(dry_run=False, clock=later(1.5 * HOUR)).run(store)

        assert (early.kept, early.deleted) == ({"alive": 1, "recent": 2}, 0)
        assert (late.leftovers, late.deleted, late.kept) == (2, 2, {"alive": 1})
        assert self.left(s3_server, s3_bucket) == ["claims/of-others"]
        assert store.read(pointer) == b"payload"


class RedisSweep:
    """Payloads whose keys say that they have expired, on a server that does not delete them."""

    @pytest.fixture
    def store(self, url):
        with RedisStore(
            url=url, key_prefix=f"sweep-{uuid.uuid4().hex}:", ttl_seconds=HOUR, segment_bytes=1000
        ) as store:
            yield store

    def test_all_segments_go_and_what_is_alive_stays(self, store, client):
        lost = [store.write(bytes(size), destination="orders") for size in (0, 10, 250_000)]
        names = [f"{pointer.key}-{i}" for pointer in lost for i in range(pointer.segments)]
        for name in names:
            client.persist(name)
        client.delete(f"{lost[2].key}-7")  # evicted
        alive = store.write(bytes(3000), destination="orders")
        other = f"{store.prefix}of-others-0"
        client.set(other, b"kept", px=60_000)

        store._server_time = lambda: None  # it is not later there
        early = Sweep(dry_run=False, clock=later(1.5 * HOUR)).run(store)
        late = Sweep(dry_run=False, clock=later(2.5 * HOUR)).run(store)

        assert (early.kept, early.deleted) == ({"alive": 4}, 0)
        assert (late.expired, late.failed) == (4, 0), "alive is expired by that clock, too"
        assert not any(client.exists(name) for name in names)
        with pytest.raises(PayloadNotFoundError):
            store.read(alive)
        assert client.get(other) == b"kept"


class TestRedis(RedisSweep):
    @pytest.fixture
    def url(self, redis_url):
        return redis_url

    @pytest.fixture
    def client(self, url):
        with redis.Redis.from_url(url) as client:
            yield client


class TestCluster(RedisSweep):
    @pytest.fixture
    def url(self, redis_cluster_url):
        return redis_cluster_url

    @pytest.fixture
    def client(self, redis_cluster):
        client = redis.cluster.RedisCluster("127.0.0.1", redis_cluster.nodes[0].port)
        yield client
        client.close()
