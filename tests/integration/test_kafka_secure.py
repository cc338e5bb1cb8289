"""``claimcheck gc`` and ``check`` with a Kafka that has passwords and ACLs."""

from __future__ import annotations

import os
import uuid

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

from claimcheck.transports.kafka._queries import KafkaTarget
from tests import servers
from tests.check_rig import configuration, diagnosed, text
from tests.integration.test_garbage_servers import Lab

PASSWORD = "correct-horse"


@pytest.fixture(scope="module")
def broker(kafka_jars):
    if servers.KAFKA_JARS not in os.environ:
        pytest.skip("no jars to start a broker with TLS")
    with servers.kafka(password=PASSWORD) as broker:
        yield broker


def settings(broker, user="operator", password=PASSWORD):
    authority = str(broker.server.location.folder / "ca.crt")
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
def clients(broker):
    return {**settings(broker), "bootstrap.servers": broker.bootstrap_servers}


@pytest.fixture
def admin(clients):
    return AdminClient(clients)


@pytest.fixture
def lab(broker, admin, clients, topic, tmp_path, redis_url):
    """Three messages, of which two groups have read two and one; the command line runs as a user who may read them."""
    admin.create_topics([NewTopic(topic, 1)])[topic].result(30)
    allow(admin, ResourceType.TOPIC, topic, AclOperation.READ, AclOperation.DESCRIBE, AclOperation.DESCRIBE_CONFIGS)
    (tmp_path / "reader").write_text("".join(f"{k}={v}\n" for k, v in settings(broker, "reader").items()))
    store = {"type": "redis", "url": redis_url, "key_prefix": f"gc-{uuid.uuid4().hex}:"}
    options = ("--kafka", broker.bootstrap_servers, "--kafka-config", str(tmp_path / "reader"))
    lab = Lab(tmp_path, store, topic, *options)
    lab.pointers = lab.write(3)
    producer = kafka.Producer(clients)
    for envelope in lab.envelopes(lab.pointers):
        producer.produce(topic, envelope)
    assert producer.flush(30) == 0
    for group, offset in ((f"{topic}-seen", 2), (f"{topic}-hidden", 1)):
        consumer = kafka.Consumer({**clients, "group.id": group})
        consumer.commit(offsets=[kafka.TopicPartition(topic, 0, offset)], asynchronous=False)
        consumer.close()
    return lab


def test_a_group_that_the_user_may_not_see_keeps_everything(lab, admin, topic):
    """The broker does not list it, so its unread messages would not count: the command refuses to run."""
    allow(admin, ResourceType.GROUP, f"{topic}-seen", AclOperation.DESCRIBE)

    assert lab.collect("--yes", "--claim")["deleted"] == 0
    assert "grant DESCRIBE on the cluster" in lab.refuse("--consumed")
    allow(admin, ResourceType.BROKER, "kafka-cluster", AclOperation.DESCRIBE)
    assert "the committed offsets of all groups cannot be read" in lab.refuse("--consumed")
    allow(admin, ResourceType.GROUP, f"{topic}-hidden", AclOperation.DESCRIBE)
    assert lab.collect("--yes", "--claim", "--consumed")["deleted"] == 1
    assert lab.stored == {pointer.key for pointer in lab.pointers[1:]}


def test_the_check_needs_no_group_of_its_own(broker, lab, admin, topic):
    """The client looks for the coordinator of its group, although it never joins; the user has no right to it."""
    for group in ("seen", "hidden"):
        allow(admin, ResourceType.GROUP, f"{topic}-{group}", AclOperation.DESCRIBE)
    target = KafkaTarget(broker.bootstrap_servers, (topic,), options=settings(broker, "reader"))

    report = diagnosed(configuration({"type": "memory"}), kafka=target)

    assert [each.message for each in report.findings if each.id == "kafka-not-examined"] == []


@pytest.mark.slow
def test_the_check_names_a_refused_password(broker, topic, monkeypatch):
    monkeypatch.setattr("claimcheck._operate.check_topics._SECONDS", 2.0)
    target = KafkaTarget(broker.bootstrap_servers, (topic,), options=settings(broker, password="wrong-horse"))
    said = text(diagnosed(configuration({"type": "memory"}), kafka=target), "kafka-unreachable")
    assert "no Kafka broker answered (_AUTHENTICATION)" in said
    assert "wrong-horse" not in said
