"""The findings of the check about topics and subscriptions of a real Pulsar, with and without tokens and TLS."""

from __future__ import annotations

import time
from dataclasses import replace

import pulsar
import pytest

from claimcheck.transports.pulsar._queries import PulsarTarget
from tests import servers
from tests.check_rig import configuration, diagnosed, ids, text
from tests.integration.pulsar_rig import LIMIT, Rig

HOUR = 3600
FITS = {"threshold_bytes": LIMIT, "chunking": {"max_message_bytes": LIMIT}}
EVICTING = {"limitSize": 1 << 40, "limitTime": -1, "policy": "consumer_backlog_eviction"}


def stored(**more):
    return configuration({"type": "memory"}, **{**FITS, **more})


def seen(lab: Rig, raw=None, *, clock=time.time, **more):
    target = PulsarTarget(lab.broker.service_url, lab.broker.admin_url, (lab.topic,))
    return diagnosed(raw or stored(), pulsar=replace(target, **more), clock=clock)


def found(report) -> list[str]:
    return ids(report, "pulsar-", "clock-", "connection-")


def set_policy(lab: Rig, name: str, value: object, query: str = "", topic: str | None = None, shown: str = "") -> None:
    """Set a topic-level policy, and wait until it is in effect."""
    path = f"persistent/public/default/{topic or lab.topic}"
    before = lab.broker.request("GET", f"{path}/{shown or name}")
    lab.broker.request("POST", f"{path}/{name}{query}", value)
    servers.wait_until(
        lambda: lab.broker.request("GET", f"{path}/{shown or name}") != before, f"the topic has its {name}"
    )


def set_ttl(lab: Rig, seconds: int, topic: str | None = None) -> None:
    set_policy(lab, "messageTTL", None, f"?messageTTL={seconds}", topic)


def set_retention(lab: Rig, minutes: int, topic: str | None = None) -> None:
    set_policy(lab, "retention", {"retentionTimeInMinutes": minutes, "retentionSizeInMB": -1}, topic=topic)


@pytest.fixture
def good(lab):
    """A topic with a message TTL, and one subscription without a backlog."""
    lab.subscribe("s")
    set_ttl(lab, HOUR)
    return lab


def test_a_good_topic_has_no_finding(good):
    good.client.create_producer(good.topic).send(b"read by none")
    set_retention(good, 60)
    assert found(seen(good)) == []
    assert found(seen(good, stored(strategy="chunking"))) == []
    assert good.broker.stats(good.topic)["subscriptions"].keys() == {"s"}


def test_unread_messages_that_stay_longer_than_payloads(lab):
    lab.subscribe("s")
    named = f"warning topic persistent://public/default/{lab.topic}: "
    assert text(seen(lab), "pulsar-message-ttl").startswith(f"{named}there is no message TTL, so")
    set_ttl(lab, 48 * HOUR)
    report = seen(lab)
    assert found(report) == ["pulsar-message-ttl"]
    assert text(report, "pulsar-message-ttl").startswith(f"{named}the message TTL is 2 days, so")


def test_read_messages_that_stay_longer_than_payloads(good):
    for minutes, words in ((48 * 60, "is 2 days, and payloads live 1 day"), (-1, "is unlimited,")):
        set_retention(good, minutes)
        report = seen(good)
        assert found(report) == ["pulsar-retention"]
        assert words in text(report, "pulsar-retention")


def test_policies_of_the_namespace_count(lab):
    namespace = f"public/{lab.topic}"
    topic = f"persistent://{namespace}/orders"
    lab.broker.request("PUT", f"namespaces/{namespace}", {})
    lab.broker.request("PUT", topic.replace("://", "/"))
    assert found(seen(lab, topics=(topic,))) == ["pulsar-message-ttl"]
    lab.broker.request("POST", f"namespaces/{namespace}/messageTTL", HOUR)
    servers.wait_until(lambda: found(seen(lab, topics=(topic,))) == [], "the namespace's policy is in effect")
    policy = {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}
    lab.broker.request("POST", f"namespaces/{namespace}/retention", policy)
    servers.wait_until(lambda: found(seen(lab, topics=(topic,))) == ["pulsar-retention"], "so is the other one")
    lab.broker.request("DELETE", topic.replace("://", "/"))
    lab.broker.request("DELETE", f"namespaces/{namespace}")


def test_a_backlog_quota_that_drops_messages_matters_for_chunks(good):
    set_policy(good, "backlogQuota", EVICTING, "?backlogQuotaType=destination_storage", shown="backlogQuotaMap")
    assert found(seen(good)) == []
    assert found(seen(good, stored(strategy="hybrid"))) == ["pulsar-backlog-eviction"]


def test_what_does_not_fit_the_broker_is_an_error(good):
    report = seen(good, stored(threshold_bytes=LIMIT + 1))
    assert text(report, "pulsar-limit").startswith("error ")
    assert found(report) == ["pulsar-limit"]
    large = stored(strategy="hybrid", chunking={"max_message_bytes": LIMIT + 1})
    assert "chunking.max_message_bytes is 102,401" in text(seen(good, large), "pulsar-limit")
    assert found(seen(good, stored(threshold_bytes="auto"))) == []


def test_a_limit_of_the_topic_itself_is_a_warning(good):
    set_policy(good, "maxMessageSize", 50_000)
    report = seen(good, stored(threshold_bytes=40_000, chunking={"max_message_bytes": 40_000}))
    assert found(report) == ["pulsar-topic-limit"]
    assert found(seen(good)) == ["pulsar-limit", "pulsar-topic-limit"]


def test_chunks_on_a_shared_subscription(lab):
    consumer = lab.subscribe("s", consumer_type=pulsar.ConsumerType.Shared)
    set_ttl(lab, HOUR)
    assert found(seen(lab)) == []
    assert text(seen(lab, stored(strategy="chunking")), "pulsar-shared-chunks").startswith("error ")
    assert text(seen(lab, stored(strategy="hybrid")), "pulsar-shared-chunks").startswith("warning ")
    consumer.close()
    lab.subscribe("s", consumer_type=pulsar.ConsumerType.KeyShared)
    assert found(seen(lab, stored(strategy="chunking"))) == []


@pytest.mark.parametrize("partitions", [0, 2])
def test_a_subscription_that_is_behind(lab, partitions):
    if partitions:
        lab.broker.create_partitioned(lab.topic, partitions)
    consumer = lab.subscribe("s")
    lab.subscribe("fast")
    set_ttl(lab, HOUR)
    lab.client.create_producer(lab.topic).send(b"unread")
    assert consumer.receive(5000)  # but does not acknowledge it
    for hours, severity in ((13, "warning"), (25, "error"), (2, "")):
        report = seen(lab, clock=lambda hours=hours: time.time() + hours * HOUR, subscriptions=("s",))
        assert [each for each in found(report) if each != "clock-skew"] == (["pulsar-backlog"] if severity else [])
        if severity:
            start = f"{severity} topic persistent://public/default/{lab.topic}: "
            assert text(report, "pulsar-backlog").startswith(start)
    assert "pulsar-subscription-unknown" in found(seen(lab, subscriptions=("other",)))


def test_dead_letter_topics_that_outlive_payloads_or_keep_nothing(good):
    dead = f"{good.topic}-s-DLQ"
    good.client.create_producer(dead).close()
    assert found(seen(good)) == ["pulsar-dead-letters-dropped"]
    assert f"warning topic persistent://public/default/{dead}: " in text(seen(good), "pulsar-dead-letters-dropped")
    set_retention(good, 48 * 60, dead)
    assert found(seen(good)) == ["pulsar-dead-letters"]
    longer = {"type": "memory", "ttl_seconds": 48 * HOUR}
    assert found(seen(good, configuration(longer, **FITS))) == []
    set_retention(good, 60, dead)
    assert found(seen(good)) == []
    good.client.subscribe(dead, "inspection").close()
    assert found(seen(good)) == ["pulsar-dead-letters"]  # unread ones have no message TTL
    set_ttl(good, HOUR, dead)
    assert found(seen(good)) == []


def test_what_is_missing_or_cannot_be_asked(lab):
    assert found(seen(lab)) == ["pulsar-topic-missing"]
    with pytest.raises(Exception, match="404"):
        lab.broker.stats(lab.topic)  # it was not created by looking at it
    lab.client.create_producer(lab.topic).close()
    report = seen(lab, admin_url=None)
    assert found(report) == ["pulsar-not-examined"]
    assert "only the web service knows" in text(report, "pulsar-not-examined")
    nobody = seen(lab, url=None, admin_url="http://pulsar.invalid:1")
    assert found(nobody) == ["connection-plain", "pulsar-unreachable"]


# Tokens and TLS ----------------------------------------------------------------------------------------------------


RAW = configuration({"type": "memory"}, threshold_bytes=100_000)


@pytest.fixture
def secure_seen(secure_pulsar, topic):
    secure_pulsar.open.request("PUT", f"persistent/public/default/{topic}")

    def secure_seen(token=None, ca_file=str(secure_pulsar.authority), **more):
        urls = {"url": secure_pulsar.tls_url, "admin_url": secure_pulsar.tls_admin_url, **more}
        return diagnosed(RAW, pulsar=PulsarTarget(**urls, topics=(topic,), token=token, ca_file=ca_file))

    return secure_seen


def test_a_superuser_sees_everything_and_others_are_told_what_was_not_examined(secure_pulsar, secure_seen):
    assert ids(secure_seen(secure_pulsar.token("operator")), "pulsar-", "connection-") == ["pulsar-message-ttl"]
    secure_pulsar.open.request("POST", "namespaces/public/default/permissions/reader", ["consume"])
    report = secure_seen(secure_pulsar.token("reader"))
    assert set(ids(report, "pulsar-")) == {"pulsar-not-examined"}
    assert report.ok
    text = " ".join(each.message for each in report.findings)
    assert all(f"could not examine the {what}: " in text for what in ("policies", "size limits"))


@pytest.mark.parametrize("admin", [True, False])
def test_a_missing_token_or_a_certificate_of_an_unknown_authority_is_an_error(
    secure_pulsar, secure_seen, admin, monkeypatch
):
    monkeypatch.setattr("claimcheck._operate.check_topics._SECONDS", 2)
    only = {"url": None} if admin else {"admin_url": None}
    rest = [] if admin else ["pulsar-not-examined"]
    for report in (secure_seen(None, **only), secure_seen(secure_pulsar.token("operator"), ca_file=None, **only)):
        assert ids(report, "pulsar-") == [*rest, "pulsar-unreachable"]
        assert secure_pulsar.token("operator") not in str(report)
