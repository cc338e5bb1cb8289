"""The findings of the check about topics and groups of a real Kafka, with and without passwords and ACLs."""

from __future__ import annotations

import time
import uuid
from dataclasses import replace

import confluent_kafka as kafka
import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)

import claimcheck
from claimcheck.transports.kafka._queries import KafkaTarget
from tests import servers
from tests.check_rig import configuration, diagnosed, ids, text
from tests.integration.kafka_rig import Rig, rig
from tests.integration.test_garbage_servers import Lab

HOUR_MS = 3_600_000
GOOD = {"retention_ms": 20 * HOUR_MS, "segment_ms": HOUR_MS}
NOW = int(time.time() * 1000)


@pytest.fixture
def lab(kafka_broker, topic):
    with rig(kafka_broker, topic, partitions=0) as lab:
        yield lab


@pytest.fixture(autouse=True)
def _now(monkeypatch):
    """Set the time for each test: half an hour may pass between the import of this module and its tests."""
    monkeypatch.setitem(globals(), "NOW", int(time.time() * 1000))


def stored(**more):
    return configuration({"type": "memory"}, **more)


def target(lab: Rig, **more) -> KafkaTarget:
    return replace(KafkaTarget(lab.servers["bootstrap.servers"], (lab.topic,)), **more)


def seen(lab: Rig, raw=None, *, clock=time.time, **more):
    return diagnosed(raw or stored(), kafka=target(lab, **more), clock=clock)


def pointer() -> bytes:
    """Return an envelope with a pointer to a payload that expires after a day."""
    with claimcheck.from_dict(stored()) as cc:
        return cc.seal(cc.store("hot").write(b"payload"))


def found(report) -> list[str]:
    return ids(report, "kafka-", "connection-")


def test_a_good_topic_with_a_group_that_keeps_up_has_no_finding(lab):
    lab.create(2, **GOOD)
    lab.send_raw(b"a", b"b", timestamp=NOW)
    lab.commit(1)
    assert found(seen(lab)) == []
    assert lab.committed().offset == 1
    groups = {each.group_id for each in lab.admin.list_consumer_groups().result().valid}
    assert "claimcheck-check" not in groups
    assert found(seen(lab, groups=("nobody",))) == ["kafka-group-unknown"]


@pytest.mark.parametrize(
    ("settings", "found_id", "words"),
    [
        ({"retention_ms": 48 * HOUR_MS}, "kafka-retention", "warning {}: retention is 2 days"),
        ({"retention_ms": -1}, "kafka-retention", "warning {}: retention is unlimited, and payloads live 1 day"),
        ({"segment_ms": 10 * HOUR_MS}, "kafka-retention", "info {}: retention is "),
        ({"cleanup_policy": "compact,delete"}, "kafka-compacted", "warning {}: the topic is compacted"),
        (
            {"max_message_bytes": 500_000},
            "kafka-limit",
            "warning {}: threshold_bytes is auto (1,000,000 bytes by default), and the topic accepts 500,000",
        ),
    ],
)  # fmt: skip
def test_a_bad_setting_of_a_topic(lab, settings, found_id, words):
    lab.create(**{**GOOD, **settings})
    report = seen(lab)
    assert found(report) == [found_id]
    assert text(report, found_id).startswith(words.format(f"topic {lab.topic}"))


def test_what_does_not_fit_the_topic_is_an_error(lab):
    lab.create(**GOOD, max_message_bytes=500_000)
    raw = stored(threshold_bytes=600_000, strategy="hybrid", chunking={"max_message_bytes": 700_000})
    report = seen(lab, raw)
    assert found(report) == ["kafka-limit", "kafka-limit"]
    messages = {each.message for each in report.findings if each.severity == "error"}
    assert messages == {
        "threshold_bytes is 600,000 bytes, and the topic accepts 500,000",
        "chunking.max_message_bytes is 700,000 bytes, and the topic accepts 500,000",
    }
    fits = {"threshold_bytes": 500_000, "chunking": {"max_message_bytes": 400_000}}
    assert found(seen(lab, stored(strategy="hybrid", **fits))) == []


def test_chunks_on_a_compacted_topic_are_an_error_and_without_a_store_retention_does_not_matter(lab):
    lab.create(retention_ms=-1)
    raw = {"strategy": "chunking"}
    assert found(seen(lab, raw)) == []
    other = lab.create(name=f"{lab.topic}-compacted", cleanup_policy="compact")
    assert text(seen(lab, raw, topics=(other,)), "kafka-compacted").startswith("error ")


def test_the_lifetime_is_that_of_the_store_which_the_topic_uses(lab):
    lab.create(**GOOD)
    raw = stored()
    raw["stores"]["brief"] = {"type": "memory", "ttl_seconds": 3600}
    assert found(seen(lab, {**raw, "destinations": {"test-*": {"store": "brief"}}})) == ["kafka-retention"]
    assert found(seen(lab, {**raw, "destinations": {"other-*": {"store": "brief"}}})) == []


@pytest.mark.parametrize(
    ("hours", "severity", "age"), [(13, "warning", "13 hours"), (25, "error", "1 day"), (2, "", "")]
)
def test_a_group_is_behind_with_the_oldest_pointer_that_it_has_not_read(lab, hours, severity, age):
    """Plain messages and pointers that were read do not count; behind many plain ones an unread pointer does."""
    lab.create(3, retention_ms=-1)  # the broker deletes what is older than the retention at any time
    lab.send_raw(pointer(), timestamp=NOW - 40 * HOUR_MS)  # read
    lab.send_raw(*[b"plain"] * 300, None, timestamp=NOW - 30 * HOUR_MS)
    lab.send_raw(pointer(), timestamp=NOW)
    lab.send_raw(pointer(), timestamp=NOW - 40 * HOUR_MS, partition=1)  # read
    lab.commit(1)
    lab.commit(1, partition=1)
    assert found(seen(lab, groups=(lab.group,))) == ["kafka-retention"]
    lab.send_raw(pointer(), timestamp=NOW - hours * HOUR_MS, partition=2)  # of which the group has read nothing
    report = seen(lab, groups=(lab.group,))
    assert found(report) == [*(["kafka-group-lag"] if severity else []), "kafka-retention"]
    if severity:
        words = f"{severity} topic {lab.topic}: the oldest unread pointer of group {lab.group} is {age} old"
        assert text(report, "kafka-group-lag").startswith(words)


def test_unread_pointers_are_read_with_the_configuration_of_this_reader(lab):
    """As a consumer would: another name or place of the store, a signature that is required, an expired payload."""
    lab.create(**GOOD)
    lab.send_raw(pointer(), timestamp=NOW)
    lab.commit(0)
    keys = {"keys": {"k": "cmVhbGx5IDMyIGJ5dGVzIG9mIHJhbmRvbW5lc3MhISE="}}
    elsewhere = configuration({"type": "memory", "space": "of nobody"})
    renamed = {**stored(), "store": "cache", "stores": {"cache": stored()["stores"]["hot"]}}

    assert found(seen(lab, stored())) == []
    message = text(seen(lab, renamed), "kafka-pointer-rejected")
    assert message.startswith("error topic ")
    assert "names the store 'hot', which is not configured here" in message
    assert "is gone" in text(seen(lab, elsewhere), "kafka-payload-missing")
    for section in ("signing", "encryption"):
        assert "kafka-pointer-rejected" in found(seen(lab, stored(**{section: keys})))
    assert found(seen(lab, elsewhere, clock=lambda: time.time() + 25 * HOUR_MS / 1000)) == ["kafka-group-lag"]


def test_an_unread_message_whose_payload_has_expired_is_an_error_although_the_lifetime_was_raised(lab):
    lab.create(**GOOD)
    brief = stored(threshold_bytes=1000)
    brief["stores"]["hot"]["ttl_seconds"] = HOUR_MS / 1000
    with claimcheck.from_dict(brief) as cc:
        producer = lab.producer(cc)
        producer.produce(lab.topic, bytes(3000))
        assert producer.flush(30) == 0
    lab.commit(0)
    assert found(seen(lab)) == []
    report = seen(lab, clock=lambda: time.time() + 2 * HOUR_MS / 1000)
    assert "the payload of the oldest unread pointer of group" in text(report, "kafka-group-lag")


def test_messages_of_transactions_count_and_their_markers_do_not(lab):
    lab.create(retention_ms=-1)
    native = lab.native(transactional_id=lab.topic)
    native.init_transactions()
    native.begin_transaction()
    native.produce(lab.topic, pointer(), timestamp=NOW - 30 * HOUR_MS)
    assert native.flush(30) == 0
    lab.commit(0)
    assert "kafka-group-lag" in found(seen(lab))  # an open transaction hides nothing
    native.commit_transaction()
    assert "kafka-group-lag" in found(seen(lab))
    lab.commit(1)  # only the marker is left
    assert found(seen(lab)) == ["kafka-retention"]


def test_messages_that_retention_deleted_unread(lab):
    lab.create(**GOOD)
    lab.send_raw(*(b"x" for _ in range(10)), timestamp=NOW)
    lab.commit(2)
    lab.remove_below(6)
    assert "retention deleted up to 4 messages that group" in text(seen(lab), "kafka-group-lost")


def test_dead_letter_topics_are_found_by_their_names(lab):
    lab.create(**GOOD)
    lab.create(name=f"{lab.topic}.DLT", retention_ms=-1)
    lab.create(name=f"{lab.topic}-dlq", **GOOD)
    assert text(seen(lab), "kafka-dead-letters").startswith(f"warning topic {lab.topic}.DLT: ")
    lab.create(name=f"{lab.topic}.errors", retention_ms=48 * HOUR_MS)
    assert found(seen(lab)) == ["kafka-dead-letters"] * 2


@pytest.mark.slow
def test_a_topic_or_a_broker_that_is_missing_is_an_error_and_an_address_without_tls_a_warning(lab, monkeypatch):
    assert text(seen(lab), "kafka-topic-missing") == (
        f"error topic {lab.topic}: the topic does not exist, or may not be described"
    )
    monkeypatch.setattr("claimcheck._operate.check_topics._SECONDS", 0.5)
    report = diagnosed(stored(), kafka=KafkaTarget("127.0.0.1:1,kafka.invalid:2", ("t",)))
    assert found(report) == ["connection-plain", "kafka-unreachable"]
    secure = {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", "sasl.username": "u", "sasl.password": "pw"}
    kafka = KafkaTarget("kafka.invalid:2", ("t",), options=secure)
    assert found(diagnosed(stored(), kafka=kafka)) == ["kafka-unreachable"]
    assert "pw" not in repr(kafka)


# Passwords and ACLs ------------------------------------------------------------------------------------------------


PASSWORD = "correct-horse"


@pytest.fixture(scope="module")
def secure_broker(own_kafka_jars):
    with servers.kafka(password=PASSWORD) as secure_broker:
        yield secure_broker


def secure_settings(secure_broker, user="operator", password=PASSWORD):
    authority = str(secure_broker.server.location.folder / "ca.crt")
    secure = {"security.protocol": "sasl_ssl", "ssl.ca.location": authority, "sasl.mechanism": "PLAIN"}
    return {**secure, "sasl.username": user, "sasl.password": password}


def allow(admin, kind, name, *operations):
    rules = [
        AclBinding(kind, name, ResourcePatternType.LITERAL, "User:reader", "*", each, AclPermissionType.ALLOW)
        for each in operations
    ]
    for created in admin.create_acls(rules).values():
        created.result(30)


@pytest.fixture
def clients(secure_broker):
    return {**secure_settings(secure_broker), "bootstrap.servers": secure_broker.bootstrap_servers}


@pytest.fixture
def admin(clients):
    return AdminClient(clients)


@pytest.fixture
def secure_lab(secure_broker, admin, clients, topic, tmp_path, redis_url):
    """Three messages, of which two groups have read two and one; the command line runs as a user who may read them."""
    admin.create_topics([NewTopic(topic, 1)])[topic].result(30)
    allow(admin, ResourceType.TOPIC, topic, AclOperation.READ, AclOperation.DESCRIBE, AclOperation.DESCRIBE_CONFIGS)
    (tmp_path / "reader").write_text("".join(f"{k}={v}\n" for k, v in secure_settings(secure_broker, "reader").items()))
    store = {"type": "redis", "url": redis_url, "key_prefix": f"gc-{uuid.uuid4().hex}:"}
    options = ("--kafka", secure_broker.bootstrap_servers, "--kafka-config", str(tmp_path / "reader"))
    secure_lab = Lab(tmp_path, store, topic, *options)
    secure_lab.pointers = secure_lab.write(3)
    producer = kafka.Producer(clients)
    for envelope in secure_lab.envelopes(secure_lab.pointers):
        producer.produce(topic, envelope)
    assert producer.flush(30) == 0
    for group, offset in ((f"{topic}-seen", 2), (f"{topic}-hidden", 1)):
        consumer = kafka.Consumer({**clients, "group.id": group})
        consumer.commit(offsets=[kafka.TopicPartition(topic, 0, offset)], asynchronous=False)
        consumer.close()
    return secure_lab


def test_a_group_that_the_user_may_not_see_keeps_everything(secure_lab, admin, topic):
    """The broker does not list it, so its unread messages would not count: the command refuses to run."""
    allow(admin, ResourceType.GROUP, f"{topic}-seen", AclOperation.DESCRIBE)

    assert secure_lab.collect("--yes", "--claim")["deleted"] == 0
    assert "grant DESCRIBE on the cluster" in secure_lab.refuse("--consumed")
    allow(admin, ResourceType.BROKER, "kafka-cluster", AclOperation.DESCRIBE)
    assert "the committed offsets of all groups cannot be read" in secure_lab.refuse("--consumed")
    allow(admin, ResourceType.GROUP, f"{topic}-hidden", AclOperation.DESCRIBE)
    assert secure_lab.collect("--yes", "--claim", "--consumed")["deleted"] == 1
    assert secure_lab.stored == {pointer.key for pointer in secure_lab.pointers[1:]}


@pytest.mark.slow
def test_the_check_needs_no_group_of_its_own_and_names_a_refused_password(
    secure_broker, secure_lab, admin, topic, monkeypatch
):
    """The client looks for the coordinator of its group, although it never joins; the user has no right to it."""
    for group in ("seen", "hidden"):
        allow(admin, ResourceType.GROUP, f"{topic}-{group}", AclOperation.DESCRIBE)
    target = KafkaTarget(secure_broker.bootstrap_servers, (topic,), options=secure_settings(secure_broker, "reader"))

    report = diagnosed(configuration({"type": "memory"}), kafka=target)

    assert [each.message for each in report.findings if each.id == "kafka-not-examined"] == []

    monkeypatch.setattr("claimcheck._operate.check_topics._SECONDS", 2.0)
    target = KafkaTarget(
        secure_broker.bootstrap_servers, (topic,), options=secure_settings(secure_broker, password="wrong-horse")
    )
    said = text(diagnosed(configuration({"type": "memory"}), kafka=target), "kafka-unreachable")
    assert "no Kafka broker answered (_AUTHENTICATION)" in said
    assert "wrong-horse" not in said
