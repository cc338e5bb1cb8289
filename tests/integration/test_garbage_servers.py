"""``claimcheck gc`` with real brokers and stores: exactly the orphans go."""

from __future__ import annotations

import base64
import json
import time
import uuid
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import confluent_kafka as kafka
import pytest
import yaml
from confluent_kafka.admin import AclOperation, AdminClient, NewTopic, ResourceType

import claimcheck
from claimcheck._operate.gc import KafkaTopics, PulsarTopics
from claimcheck._store.contract import StoreContext
from claimcheck._wire.pointer import Pointer
from claimcheck.transports._common.topics import IncompleteReadError
from claimcheck.transports.kafka._queries import KafkaTarget
from claimcheck.transports.pulsar._queries import PulsarTarget
from tests.check_rig import configuration, diagnosed, ids, text
from tests.integration.kafka_rig import authority_of, grant, login, rig
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
        """Without groups everything counts, and so it does with one that has partitions and has committed nothing."""
        pointers = lab.write(10)
        broker.send_raw(*lab.envelopes(pointers))
        assert lab.collect("--yes", "--claim", "--consumed")["deleted"] == 0
        broker.commit(5)
        broker.group = "slow-group"
        broker.commit(3)
        consumer = broker.native_consumer("new-group")
        consumer.subscribe([broker.topic])
        wait_until(lambda: consumer.poll(0.1) is None and consumer.assignment(), "the group has its partitions")
        assert lab.collect("--yes", "--consumed")["deleted"] == 0
        consumer.close()
        assert lab.collect("--yes")["deleted"] == 0
        assert lab.collect("--yes", "--consumed")["deleted"] == 3
        assert lab.stored == {pointer.key for pointer in pointers[3:]}

    def test_messages_that_are_deleted_while_their_topic_is_read_again_delete_nothing(self, lab, broker):
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
        place = lab.arguments
        lab.arguments = [each for each in place if "http" not in each and each != "--admin-url"]
        assert "--admin-url" in lab.refuse()
        lab.arguments = place
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


# Kafka with passwords and ACLs -------------------------------------------------------------------------------------


@pytest.fixture
def allow(secure_kafka):
    admin = AdminClient(login(secure_kafka))

    def allow(kind, name, *operations):
        grant(admin, "reader", [(kind, name, each) for each in operations])

    allow.admin = admin
    return allow


@pytest.fixture
def secure_lab(secure_kafka, allow, topic, tmp_path, redis_url):
    """Three messages, of which two groups have read two and one; the command line runs as a user who may read them."""
    allow.admin.create_topics([NewTopic(topic, 1)])[topic].result(30)
    allow(ResourceType.TOPIC, topic, AclOperation.READ, AclOperation.DESCRIBE, AclOperation.DESCRIBE_CONFIGS)
    (tmp_path / "reader").write_text("".join(f"{k}={v}\n" for k, v in login(secure_kafka, "reader").items()))
    store = {"type": "redis", "url": redis_url, "key_prefix": f"gc-{uuid.uuid4().hex}:"}
    options = ("--kafka", secure_kafka.bootstrap_servers, "--kafka-config", str(tmp_path / "reader"))
    secure_lab = Lab(tmp_path, store, topic, *options)
    secure_lab.pointers = secure_lab.write(3)
    producer = kafka.Producer(login(secure_kafka))
    for envelope in secure_lab.envelopes(secure_lab.pointers):
        producer.produce(topic, envelope)
    assert producer.flush(30) == 0
    for group, offset in ((f"{topic}-seen", 2), (f"{topic}-hidden", 1)):
        consumer = kafka.Consumer({**login(secure_kafka), "group.id": group})
        consumer.commit(offsets=[kafka.TopicPartition(topic, 0, offset)], asynchronous=False)
        consumer.close()
    return secure_lab


def test_a_group_that_the_user_may_not_see_keeps_everything(secure_lab, allow, topic):
    """The broker does not list it, so its unread messages would not count: the command refuses to run."""
    allow(ResourceType.GROUP, f"{topic}-seen", AclOperation.DESCRIBE)
    assert secure_lab.collect("--yes", "--claim")["deleted"] == 0
    assert "grant DESCRIBE on the cluster" in secure_lab.refuse("--consumed")
    allow(ResourceType.BROKER, "kafka-cluster", AclOperation.DESCRIBE)
    assert "the committed offsets of all groups cannot be read" in secure_lab.refuse("--consumed")
    allow(ResourceType.GROUP, f"{topic}-hidden", AclOperation.DESCRIBE)
    assert secure_lab.collect("--yes", "--claim", "--consumed")["deleted"] == 1
    assert secure_lab.stored == {pointer.key for pointer in secure_lab.pointers[1:]}


def test_the_check_needs_no_group_of_its_own_and_names_a_refused_password(
    secure_kafka, secure_lab, allow, topic, monkeypatch
):
    """The client looks for the coordinator of its group, although it never joins; the user has no right to it."""
    for group in ("seen", "hidden"):
        allow(ResourceType.GROUP, f"{topic}-{group}", AclOperation.DESCRIBE)
    target = KafkaTarget(secure_kafka.bootstrap_servers, (topic,), options=login(secure_kafka, "reader"))
    assert "kafka-not-examined" not in ids(diagnosed(configuration({"type": "memory"}), kafka=target))
    monkeypatch.setattr("claimcheck._operate.check_topics._SECONDS", 2.0)
    wrong = replace(target, options=login(secure_kafka) | {"sasl.password": "wrong-horse"})
    said = text(diagnosed(configuration({"type": "memory"}), kafka=wrong), "kafka-unreachable")
    assert "no Kafka broker answered (_AUTHENTICATION)" in said
    assert "wrong-horse" not in said


OAUTH: dict[str, Any] = {}


def oauth() -> dict[str, Any]:
    """Arguments for clients of Kafka that log in as ``reader`` with a token."""

    def token(_: str) -> tuple[str, float]:
        OAUTH["tokens"] += 1
        claims: dict[str, Any] = {"sub": "reader", "iat": time.time(), "exp": time.time() + 300}
        parts = [base64.urlsafe_b64encode(json.dumps(each).encode()).decode() for each in ({"alg": "none"}, claims)]
        return ".".join(part.rstrip("=") for part in [*parts, ""]), claims["exp"]

    secure = {"security.protocol": "sasl_ssl", "ssl.ca.location": OAUTH["authority"], "sasl.mechanism": "OAUTHBEARER"}
    return {**secure, "oauth_cb": token}


def test_a_function_makes_the_clients_of_commands(secure_kafka, secure_lab, allow, topic):
    OAUTH.update(authority=str(authority_of(secure_kafka)), tokens=0)
    for group in ("seen", "hidden"):
        allow(ResourceType.GROUP, f"{topic}-{group}", AclOperation.DESCRIBE)
    broker = ["--kafka", secure_kafka.bootstrap_servers, "--client", f"{__name__}:oauth"]
    secure_lab.arguments[3:7] = broker
    secure_lab.write(1)
    checked = run("--config", str(secure_lab.path), "check", "--servers", *broker, "--topic", topic, "--json")
    assert {"kafka-not-examined", "kafka-unreachable"}.isdisjoint(checked.output.split('"'))
    assert OAUTH["tokens"] > 0
    assert secure_lab.collect("--yes", "--claim")["deleted"] == 1
