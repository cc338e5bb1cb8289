"""The findings of the check about topics of Kafka and Pulsar, Redis servers and buckets: scripted, and on real ones."""

from __future__ import annotations

import json
import re
import time
import uuid
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import boto3
import pulsar
import pytest
import redis

import claimcheck
from claimcheck._operate.check_stores import _redis
from claimcheck.transports.kafka._queries import KafkaTarget
from claimcheck.transports.pulsar._queries import PulsarTarget
from tests import servers
from tests.check_rig import configuration, diagnosed, ids, text
from tests.integration.kafka_rig import rig
from tests.integration.pulsar_rig import LIMIT

HOUR = 3600
HOUR_MS = HOUR * 1000


def stored(ttl_seconds=24 * HOUR, **more):
    return configuration({"type": "memory", "ttl_seconds": ttl_seconds}, **more)


def later(hours):
    return lambda: time.time() + hours * HOUR


def found(report, *prefixes):
    """Return severities and ids of the findings."""
    return sorted(f"{each.severity} {each.id}" for each in report.findings if each.id.startswith(prefixes))


# Kafka -------------------------------------------------------------------------------------------------------------


KAFKA = ("kafka-", "connection-")
GOOD = {"retention_ms": 20 * HOUR_MS, "segment_ms": HOUR_MS}
SMALL = {**GOOD, "max_message_bytes": 500_000}
FITS = {"threshold_bytes": 500_000, "chunking": {"max_message_bytes": 400_000}}
TOO_LARGE = {"threshold_bytes": 600_000, "chunking": {"max_message_bytes": 700_000}}
BRIEF = {"stores": {"hot": {"type": "memory"}, "brief": {"type": "memory", "ttl_seconds": HOUR}}}


@pytest.fixture
def kafka_lab(kafka_broker, topic):
    with rig(kafka_broker, topic, partitions=0) as lab:
        yield lab


def seen(lab, raw=None, *, clock=time.time, **more):
    target = replace(KafkaTarget(lab.servers["bootstrap.servers"], (lab.topic,)), **more)
    return diagnosed(raw or stored(), kafka=target, clock=clock)


def pointer(**options) -> bytes:
    """Return an envelope with a pointer to a payload that expires after a day, by default."""
    with claimcheck.from_dict(stored(**options)) as cc:
        return cc.seal(cc.store("hot").write(b"payload"))


def hours_ago(hours: float) -> int:
    return int(time.time() * 1000) - int(hours * HOUR_MS)


def test_a_good_topic_with_a_group_that_keeps_up_has_no_finding_and_one_that_lost_messages_has(kafka_lab):
    kafka_lab.create(2, **GOOD)
    kafka_lab.send_raw(*[b"x"] * 10, timestamp=hours_ago(0))
    kafka_lab.commit(10)
    assert found(seen(kafka_lab), *KAFKA) == []
    assert kafka_lab.committed().offset == 10
    groups = {each.group_id for each in kafka_lab.admin.list_consumer_groups().result().valid}
    assert "claimcheck-check" not in groups
    assert found(seen(kafka_lab, groups=("nobody",)), *KAFKA) == ["warning kafka-group-unknown"]
    kafka_lab.commit(2)
    kafka_lab.remove_below(6)
    assert "retention deleted up to 4 messages that group" in text(seen(kafka_lab), "kafka-group-lost")


@pytest.mark.parametrize(
    ("settings", "options", "expected"),
    [
        ({"retention_ms": 48 * HOUR_MS}, {}, ["warning kafka-retention"]),
        ({"retention_ms": -1}, {}, ["warning kafka-retention"]),
        ({"retention_ms": -1}, {"strategy": "chunking"}, []),
        ({"segment_ms": 10 * HOUR_MS}, {}, ["info kafka-retention"]),
        ({}, {**BRIEF, "destinations": {"test-*": {"store": "brief"}}}, ["warning kafka-retention"]),
        ({}, {**BRIEF, "destinations": {"other-*": {"store": "brief"}}}, []),
        ({"cleanup_policy": "compact,delete"}, {}, ["warning kafka-compacted"]),
        ({"cleanup_policy": "compact"}, {"strategy": "chunking"}, ["error kafka-compacted"]),
        (SMALL, {}, ["warning kafka-limit"]),
        (SMALL, {"strategy": "hybrid", **TOO_LARGE}, ["error kafka-limit"] * 2),
        (SMALL, {"strategy": "hybrid", **FITS}, []),
    ],
)
def test_settings_of_a_kafka_topic(kafka_lab, settings, options, expected):
    kafka_lab.create(**{**GOOD, **settings})
    assert found(seen(kafka_lab, stored(**options)), *KAFKA) == expected


def test_a_group_is_behind_with_the_oldest_pointer_that_it_has_not_read(kafka_lab):
    """Plain messages and pointers that were read do not count; behind many plain ones an unread pointer does."""
    kafka_lab.create(3, retention_ms=-1)  # the broker deletes what is older than the retention at any time
    kafka_lab.send_raw(pointer(), timestamp=hours_ago(40))  # read
    kafka_lab.send_raw(*[b"plain"] * 300, None, timestamp=hours_ago(30))
    kafka_lab.send_raw(pointer(), timestamp=hours_ago(0))
    kafka_lab.send_raw(pointer(), timestamp=hours_ago(40), partition=1)  # read
    kafka_lab.commit(1)
    kafka_lab.commit(1, partition=1)
    assert ids(seen(kafka_lab, groups=(kafka_lab.group,)), *KAFKA) == ["kafka-retention"]
    kafka_lab.send_raw(pointer(), timestamp=hours_ago(13), partition=2)  # of which the group has read nothing
    for hours, severity, age in ((0, "warning", "13 hours"), (12, "error", "1 day")):
        said = text(seen(kafka_lab, groups=(kafka_lab.group,), clock=later(hours)), "kafka-group-lag")
        words = f"topic {kafka_lab.topic}: the oldest unread pointer of group {kafka_lab.group} is {age} old"
        assert said.startswith(f"{severity} {words}")
    assert ids(seen(kafka_lab, clock=later(-11)), *KAFKA) == ["kafka-retention"]


def test_unread_pointers_are_read_with_the_configuration_of_this_reader(kafka_lab):
    """As a consumer would: another name or place of the store, a signature that is required, an expired payload."""
    kafka_lab.create(**GOOD)
    kafka_lab.send_raw(pointer(ttl_seconds=HOUR), timestamp=hours_ago(0))
    kafka_lab.commit(0)
    keys = {"keys": {"k": "cmVhbGx5IDMyIGJ5dGVzIG9mIHJhbmRvbW5lc3MhISE="}}
    elsewhere = configuration({"type": "memory", "space": "of nobody"})
    renamed = {**stored(), "store": "cache", "stores": {"cache": stored()["stores"]["hot"]}}
    assert ids(seen(kafka_lab), *KAFKA) == []
    said = text(seen(kafka_lab, renamed), "kafka-pointer-rejected")
    assert "names the store 'hot', which is not configured here" in said
    assert "is gone" in text(seen(kafka_lab, elsewhere), "kafka-payload-missing")
    for section in ("signing", "encryption"):
        assert "kafka-pointer-rejected" in ids(seen(kafka_lab, stored(**{section: keys})))
    expired = seen(kafka_lab, elsewhere, clock=later(2))
    assert ids(expired, *KAFKA) == ["kafka-group-lag"]
    assert "the payload of the oldest unread pointer of group" in text(expired, "kafka-group-lag")


def test_messages_of_transactions_count_and_their_markers_do_not(kafka_lab):
    kafka_lab.create(retention_ms=-1)
    native = kafka_lab.native(transactional_id=kafka_lab.topic)
    native.init_transactions()
    native.begin_transaction()
    native.produce(kafka_lab.topic, pointer(), timestamp=hours_ago(30))
    assert native.flush(30) == 0
    kafka_lab.commit(0)
    assert "kafka-group-lag" in ids(seen(kafka_lab))  # an open transaction hides nothing
    native.commit_transaction()
    assert "kafka-group-lag" in ids(seen(kafka_lab))
    kafka_lab.commit(1)  # only the marker is left
    assert ids(seen(kafka_lab), *KAFKA) == ["kafka-retention"]


def test_dead_letter_topics_of_kafka_are_found_by_their_names(kafka_lab):
    for name, settings in ({"": GOOD, ".DLT": {"retention_ms": -1}, "-dlq": GOOD}).items():
        kafka_lab.create(name=f"{kafka_lab.topic}{name}", **settings)
    assert text(seen(kafka_lab), "kafka-dead-letters").startswith(f"warning topic {kafka_lab.topic}.DLT: ")
    kafka_lab.create(name=f"{kafka_lab.topic}.errors", retention_ms=48 * HOUR_MS)
    assert ids(seen(kafka_lab), *KAFKA) == ["kafka-dead-letters"] * 2


def test_a_topic_or_a_broker_that_is_missing_is_an_error_and_an_address_without_tls_a_warning(kafka_lab, monkeypatch):
    assert found(seen(kafka_lab), *KAFKA) == ["error kafka-topic-missing"]
    monkeypatch.setattr("claimcheck._operate.check_topics._SECONDS", 0.5)
    target = KafkaTarget("127.0.0.1:1,kafka.invalid:2", ("t",))
    assert ids(diagnosed(stored(), kafka=target), *KAFKA) == ["connection-plain", "kafka-unreachable"]


# Pulsar ------------------------------------------------------------------------------------------------------------


PULSAR = ("pulsar-", "connection-")
PULSAR_FITS = {"threshold_bytes": LIMIT, "chunking": {"max_message_bytes": LIMIT}}
EVICTING = {"limitSize": 1 << 40, "limitTime": -1, "policy": "consumer_backlog_eviction"}
READ = {"s": {"type": "Exclusive", "msgBacklog": 0}}
SHARED = {"s": {"type": "Shared", "msgBacklog": 0}}
UNREAD = {"s": {"type": "Exclusive", "msgBacklog": 1, "earliestMsgPublishTimeInBacklog": HOUR_MS}}
EVICTS = {"backlogQuotaMap": {"destination_storage": EVICTING}}
KEEPS = {"retention": {"retentionTimeInMinutes": -1}, "messageTTL": HOUR}
DEAD = "persistent/public/default/t-s-DLQ"
HYBRID, CHUNKING = {"strategy": "hybrid"}, {"strategy": "chunking"}


@dataclass(frozen=True)
class Scripted(PulsarTarget):
    """A web service that knows one topic and perhaps its dead-letter topic, whose policies are given."""

    facts: dict[str, Any] = field(default_factory=dict)

    def admin(self, *, seconds: float = 0) -> Any:
        topic = {"messageTTL": HOUR, "subscriptions": READ, **self.facts}
        policies = {"persistent/public/default/t": topic, DEAD: self.facts.get("dead")}
        limit = int(topic.get("maxMessageSize") or LIMIT)

        def get(path: str) -> Any:
            name, _, what = path.partition("?")[0].rpartition("/")
            known = policies.get(name) or {}
            return known.get(what) if what != "stats" else {"subscriptions": {}, **known} if known else None

        return SimpleNamespace(get=get, max_message_bytes=lambda topic: limit)


@pytest.mark.parametrize(
    ("facts", "options", "hours", "expected"),
    [
        ({}, {}, 0, []),
        ({}, CHUNKING, 0, []),
        ({"messageTTL": None}, {}, 0, ["warning pulsar-message-ttl"]),
        ({"messageTTL": 48 * HOUR}, {}, 0, ["warning pulsar-message-ttl"]),
        ({"retention": {"retentionTimeInMinutes": 60}}, {}, 0, []),
        ({"retention": {"retentionTimeInMinutes": 48 * 60}}, {}, 0, ["warning pulsar-retention"]),
        ({"retention": {"retentionTimeInMinutes": -1}}, {}, 0, ["warning pulsar-retention"]),
        (EVICTS, {}, 0, []),
        (EVICTS, HYBRID, 0, ["warning pulsar-backlog-eviction"]),
        ({}, {"threshold_bytes": "auto"}, 0, []),
        ({}, {"threshold_bytes": LIMIT + 1}, 0, ["error pulsar-limit"]),
        ({}, {**HYBRID, "chunking": {"max_message_bytes": LIMIT + 1}}, 0, ["error pulsar-limit"]),
        ({"maxMessageSize": 50_000}, {}, 0, ["error pulsar-limit", "warning pulsar-topic-limit"]),
        ({"maxMessageSize": 50_000}, {"threshold_bytes": 40_000}, 0, ["warning pulsar-topic-limit"]),
        ({"subscriptions": SHARED}, {}, 0, []),
        ({"subscriptions": SHARED}, HYBRID, 0, ["warning pulsar-shared-chunks"]),
        ({"subscriptions": SHARED}, CHUNKING, 0, ["error pulsar-shared-chunks"]),
        ({"subscriptions": UNREAD}, {}, 2, []),
        ({"subscriptions": UNREAD}, {}, 14, ["warning pulsar-backlog"]),
        ({"subscriptions": UNREAD}, {}, 26, ["error pulsar-backlog"]),
        ({"dead": {"messageTTL": HOUR}}, {}, 0, ["warning pulsar-dead-letters-dropped"]),
        ({"dead": KEEPS}, {}, 0, ["warning pulsar-dead-letters"]),
        ({"dead": {"retention": {"retentionTimeInMinutes": 60}}}, {}, 0, []),
        ({"dead": {"subscriptions": READ}}, {}, 0, ["warning pulsar-dead-letters"]),
        ({"dead": {"subscriptions": READ, "messageTTL": HOUR}}, {}, 0, []),
    ],
)
def test_facts_about_a_pulsar_topic(facts, options, hours, expected):
    target = Scripted(None, "http://localhost:1", ("t",), facts=facts)
    report = diagnosed(stored(**{**PULSAR_FITS, **options}), pulsar=target, clock=lambda: hours * HOUR)
    assert found(report, *PULSAR) == expected


@pytest.mark.parametrize("partitions", [0, 2])
def test_every_fact_of_a_real_pulsar_is_found_and_what_was_repaired_is_not(lab, partitions):
    """Of the topic itself or of its namespace."""
    namespace = f"public/{lab.topic}"
    topic = f"persistent://{namespace}/orders"
    path = topic.replace("://", "/")
    target = PulsarTarget(lab.broker.service_url, lab.broker.admin_url, (topic,), ("s", "other"))
    raw = stored(**PULSAR_FITS, **HYBRID)
    lab.broker.request("PUT", f"namespaces/{namespace}", {})
    assert found(diagnosed(raw, pulsar=target), *PULSAR) == ["error pulsar-topic-missing"]
    assert lab.broker.request("GET", f"persistent/{namespace}") == []  # it was not created by looking at it
    if partitions:
        lab.broker.create_partitioned(topic, partitions)
    consumer = lab.client.subscribe(topic, "s", consumer_type=pulsar.ConsumerType.Shared)
    lab.client.create_producer(topic).send(b"unread")
    lab.client.create_producer(f"{topic}-s-DLQ").close()
    bad = {"retentionTimeInMinutes": 48 * 60, "retentionSizeInMB": -1}
    lab.broker.request("POST", f"namespaces/{namespace}/retention", bad)
    lab.broker.request("POST", f"{path}/backlogQuota?backlogQuotaType=destination_storage", EVICTING)
    lab.broker.request("POST", f"{path}/maxMessageSize", 50_000)
    expected = {
        "pulsar-backlog", "pulsar-backlog-eviction", "pulsar-dead-letters", "pulsar-limit", "pulsar-message-ttl",
        "pulsar-retention", "pulsar-shared-chunks", "pulsar-subscription-unknown", "pulsar-topic-limit",
    }  # fmt: skip

    def seen(raw, clock=time.time):
        return set(ids(diagnosed(raw, pulsar=target, clock=clock), *PULSAR))

    servers.wait_until(lambda: seen(raw, later(13)) == expected, "all policies are in effect")
    consumer.close()
    lab.broker.request("POST", f"namespaces/{namespace}/messageTTL", HOUR)
    lab.broker.request("POST", f"{path}/retention", {**bad, "retentionTimeInMinutes": 60})
    lab.broker.request("DELETE", f"{path}/maxMessageSize")
    left = {"pulsar-dead-letters", "pulsar-subscription-unknown"}
    servers.wait_until(lambda: seen(stored(**PULSAR_FITS)) == left, "the policies are in effect")
    unseen = diagnosed(raw, pulsar=replace(target, admin_url=None))
    assert "only the web service knows" in text(unseen, "pulsar-not-examined")
    nobody = diagnosed(raw, pulsar=replace(target, url=None, admin_url="http://pulsar.invalid:1"))
    assert ids(nobody, *PULSAR) == ["connection-plain", "pulsar-unreachable"]


# Redis -------------------------------------------------------------------------------------------------------------


REDIS = ("redis-", "clock-", "store-failed")


def hot_redis(url: str) -> dict[str, Any]:
    return configuration({"type": "redis", "url": url})


@pytest.mark.parametrize(
    ("info", "save", "expected"),
    [
        ({}, "", []),
        ({"aof_enabled": 0}, "3600 1", []),
        ({"aof_enabled": 0}, "", ["redis-no-persistence"]),
        ({"maxmemory_policy": "volatile-ttl"}, "", ["redis-eviction"]),
        ({"maxmemory": 0, "maxmemory_policy": "allkeys-lru"}, "", ["redis-memory-unlimited"]),
        ({"connected_slaves": 1}, "", ["redis-replication-unsafe"]),
        ({"connected_slaves": 2, "min_slaves_good_slaves": 1}, "", []),
        ({"redis_version": "6.0.16"}, "", ["redis-version"]),
        ({"redis_version": "6.2.0"}, "", []),
        ({"redis_version": "10.1"}, "", []),
        ({"redis_version": ""}, "", []),
    ],
)
def test_facts_about_a_redis(info, save, expected):
    facts = {"maxmemory": 1, "maxmemory_policy": "noeviction", "aof_enabled": 1, "role": "master", **info}
    client = SimpleNamespace(info=lambda: facts, config_get=lambda _: {"save": save})
    assert [each.id for each in _redis("stores.hot", client)] == expected


def test_every_fact_of_a_real_redis_is_found_and_nothing_is_left_on_it(redis_programs):
    with servers.redis("--maxmemory", "64mb", "--maxmemory-policy", "volatile-ttl") as url:
        client = redis.Redis.from_url(url)
        port = client.connection_pool.connection_kwargs["port"]
        with servers.redis("--replicaof", f"127.0.0.1 {port}"):
            servers.wait_until(lambda: client.info("replication")["connected_slaves"] == 1, "the replica is connected")
            bad = ids(diagnosed(hot_redis(url)), *REDIS)
        assert bad == ["redis-eviction", "redis-no-persistence", "redis-replication-unsafe"]
        client.config_set("maxmemory-policy", "noeviction")
        client.config_set("appendonly", "yes")
        before = client.config_get()
        for hours, words in ((1, "1 hour ahead of"), (-2, "2 hours behind"), (0, "")):
            report = diagnosed(hot_redis(url), clock=later(hours))
            assert ids(report, "redis-eviction", "redis-no", "clock-") == (["clock-skew"] if words else [])
            assert not words or f"this machine's clock is {words} the server's" in text(report, "clock-skew")
        assert (client.dbsize(), client.config_get()) == (0, before)
        client.close()


def test_what_a_user_may_not_see_is_named_and_every_master_of_a_cluster_is_examined(redis_acl_url, redis_cluster):
    report = diagnosed(hot_redis(redis_acl_url))
    assert set(ids(report, *REDIS)) == {"redis-not-examined"}
    assert any("could not examine its settings" in each.message for each in report.findings)
    assert report.ok
    report = diagnosed(hot_redis(redis_cluster.url))
    places = {each.path for each in report.findings if each.id == "redis-no-persistence"}
    assert places == {f"stores.hot (127.0.0.1:{node.port})" for node in redis_cluster.nodes}


# S3 ----------------------------------------------------------------------------------------------------------------


S3 = ("s3-", "store-no-expiry", "store-failed", "clock-")
EXPIRY = {"ID": "old", "Status": "Enabled", "Filter": {"Prefix": "claims/"}, "Expiration": {"Days": 8}}
KEPT = {**EXPIRY, "AbortIncompleteMultipartUpload": {"DaysAfterInitiation": 1}}
EARLY = {**EXPIRY, "ID": "x", "Expiration": {"Days": 2}}
TAGGED = {"Prefix": "claims/", "Tags": [{"Key": "a", "Value": "b"}]}
MOVING = {"ID": "cold", "Status": "Enabled", "Filter": {"Prefix": ""}}
NOTHING = ["warning s3-no-abort", "warning s3-no-expiry"]


@pytest.fixture(scope="module")
def client(moto_url):
    """A client of a server that supports lifecycle rules."""
    return boto3.client("s3", endpoint_url=moto_url)


@pytest.fixture
def bucket(client):
    name = f"test-{uuid.uuid4().hex}"
    client.create_bucket(Bucket=name)
    return name


def hot_s3(client, bucket, **more):
    place = {"bucket": bucket, "prefix": "claims", "endpoint_url": client.meta.endpoint_url}
    return configuration({"type": "s3", "ttl_seconds": 7 * 86_400, **place, **more})


def put_rules(client, bucket, *rules):
    client.put_bucket_lifecycle_configuration(Bucket=bucket, LifecycleConfiguration={"Rules": list(rules)})


def test_the_rule_of_the_guide_is_good_and_nothing_is_left_in_the_bucket(client, bucket):
    assert found(diagnosed(hot_s3(client, bucket)), *S3) == NOTHING
    guide = Path("docs/guides/deletion.md").read_text()
    put_rules(client, bucket, *json.loads(re.search(r"```json\n(.*?)```", guide, re.DOTALL)[1])["Rules"])
    before = client.get_bucket_lifecycle_configuration(Bucket=bucket)["Rules"]
    assert found(diagnosed(hot_s3(client, bucket)), *S3) == []
    assert client.list_objects_v2(Bucket=bucket)["KeyCount"] == 0
    assert client.get_bucket_lifecycle_configuration(Bucket=bucket)["Rules"] == before


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        ([{**KEPT, "Status": "Disabled"}], NOTHING),
        ([{**KEPT, "Filter": {"Prefix": "other/"}}], NOTHING),
        ([{**KEPT, "Filter": {"And": TAGGED}}], NOTHING),
        ([{**KEPT, "Filter": {"Prefix": "cl"}}], []),
        ([EXPIRY], ["warning s3-no-abort"]),
        ([KEPT, {**EARLY, "Filter": {"Tag": {"Key": "a", "Value": "b"}}}], []),
        ([KEPT, {**EARLY, "Filter": {"Prefix": ""}}], ["error s3-expiry-early"]),
        ([KEPT, {**EARLY, "Filter": {"Prefix": "claims/orders"}}], ["error s3-expiry-early"]),
        ([KEPT, {**MOVING, "Transitions": [{"Days": 0, "StorageClass": "GLACIER"}]}], ["error s3-archived"]),
        ([KEPT, {**MOVING, "Transitions": [{"Days": 30, "StorageClass": "GLACIER"}]}], []),
    ],
)
def test_rules_that_do_or_do_not_apply(client, bucket, rules, expected):
    put_rules(client, bucket, *rules)
    assert found(diagnosed(hot_s3(client, bucket)), *S3) == expected


def test_versions_stay_unless_a_rule_deletes_them(client, bucket):
    put_rules(client, bucket, KEPT)
    client.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    assert ids(diagnosed(hot_s3(client, bucket)), *S3) == ["s3-versioning"]
    put_rules(client, bucket, {**KEPT, "NoncurrentVersionExpiration": {"NoncurrentDays": 1}})
    assert ids(diagnosed(hot_s3(client, bucket)), *S3) == []


def test_what_a_real_server_does_not_support_is_named_and_its_clock_is_compared(s3_resource, s3_bucket):
    report = diagnosed(hot_s3(s3_resource.meta.client, s3_bucket), clock=lambda: time.time() - 120)
    assert set(ids(report, *S3)) == {"clock-skew", "s3-not-examined"}
    assert any("could not examine the lifecycle rules" in each.message for each in report.findings)
    assert "this machine's clock is 2 minutes behind the server's" in text(report, "clock-skew")


def test_a_server_that_is_down_or_a_missing_bucket_is_one_finding(client):
    for raw, fix in (
        (hot_s3(client, f"missing-{uuid.uuid4().hex}"), "Check the bucket"),
        (hot_redis("redis://127.0.0.1:1"), ""),
    ):
        (error,) = [each for each in diagnosed(raw).findings if each.severity == "error"]
        assert (error.id, error.fix.startswith(fix)) == ("store-failed", True)
        assert isinstance(error.error, claimcheck.StoreError)
