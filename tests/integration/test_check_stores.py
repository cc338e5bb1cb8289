"""The findings of the check about real Redis servers and about buckets."""

from __future__ import annotations

import json
import re
import time
import uuid
from pathlib import Path
from types import SimpleNamespace

import boto3
import pytest
import redis

import claimcheck
from claimcheck._operate.check_stores import _redis
from tests import servers
from tests.check_rig import configuration, diagnosed, ids, text

# Redis -------------------------------------------------------------------------------------------------------------


GOOD_REDIS = ("--appendonly", "yes", "--maxmemory", "64mb", "--maxmemory-policy", "noeviction")
REDIS = ("redis-", "clock-", "store-failed")

NEEDS_REDIS = pytest.mark.usefixtures("redis_programs")


def hot_redis(url: str) -> dict:
    return configuration({"type": "redis", "url": url})


@NEEDS_REDIS
def test_a_good_server_has_no_finding_and_nothing_is_left_on_it():
    """Snapshots alone are persistence, too. Only a clock that differs is a warning."""
    with servers.redis(*GOOD_REDIS) as url, redis.Redis.from_url(url) as client:
        before = client.config_get()
        assert ids(diagnosed(hot_redis(url)), *REDIS) == []
        assert (client.dbsize(), client.config_get()) == (0, before)
        client.config_set("appendonly", "no")
        client.config_set("save", "3600 1")
        assert ids(diagnosed(hot_redis(url)), *REDIS) == []
        for ahead, words in ((60, "1 minute ahead of"), (-7200, "2 hours behind"), (1, "")):
            report = diagnosed(hot_redis(url), clock=lambda ahead=ahead: time.time() + ahead)
            assert ids(report, *REDIS) == (["clock-skew"] if words else [])
            assert not words or f"this machine's clock is {words} the server's" in text(report, "clock-skew")


@NEEDS_REDIS
@pytest.mark.parametrize(
    ("setting", "found", "words"),
    [
        (("--maxmemory-policy", "volatile-ttl"), "redis-eviction", "maxmemory-policy is volatile-ttl"),
        (("--appendonly", "no"), "redis-no-persistence", "no append-only file and no snapshots"),
        (("--maxmemory", "0", "--maxmemory-policy", "allkeys-lru"), "redis-memory-unlimited", "maxmemory is not set"),
    ],
)
def test_a_bad_setting_is_a_warning(setting, found, words):
    with servers.redis(*GOOD_REDIS, *setting) as url:
        report = diagnosed(hot_redis(url))
    assert ids(report, *REDIS) == [found]
    assert text(report, found).startswith("warning stores.hot: ")
    assert words in text(report, found)


@NEEDS_REDIS
def test_replicas_without_min_replicas_may_lose_payloads():
    with servers.redis(*GOOD_REDIS) as url, redis.Redis.from_url(url) as client:
        port = client.connection_pool.connection_kwargs["port"]
        with servers.redis("--replicaof", f"127.0.0.1 {port}", "--repl-diskless-sync-delay", "0"):
            client.config_set("repl-diskless-sync-delay", 0)
            servers.wait_until(lambda: client.info("replication")["connected_slaves"] == 1, "the replica is connected")
            report = diagnosed(hot_redis(url))
            assert ids(report, *REDIS) == ["redis-replication-unsafe"]
            assert "there is 1 replica, and min-replicas-to-write is 0" in text(report, "redis-replication-unsafe")
            servers.wait_until(lambda: client.wait(1, 1000) == 1, "the replica is online")
            client.config_set("min-replicas-to-write", 1)
            assert ids(diagnosed(hot_redis(url)), *REDIS) == []


def test_what_a_user_may_not_see_is_named(redis_acl_url):
    report = diagnosed(hot_redis(redis_acl_url))
    assert set(ids(report, *REDIS)) == {"redis-not-examined"}
    assert any("could not examine its settings" in each.message for each in report.findings)
    assert report.ok


@NEEDS_REDIS
def test_a_server_that_may_be_asked_but_not_for_its_configuration():
    with servers.redis(*GOOD_REDIS, "--appendonly", "no", "--rename-command", "CONFIG", "") as url:
        report = diagnosed(hot_redis(url))
    assert ids(report, *REDIS) == ["redis-not-examined"]
    assert "could not examine its settings" in text(report, "redis-not-examined")


def test_every_master_of_a_cluster_is_examined(redis_cluster_url):
    report = diagnosed(hot_redis(redis_cluster_url))
    places = {each.path for each in report.findings if each.id == "redis-no-persistence"}
    assert places == {f"stores.hot ({place})" for place in redis_cluster_url.partition("//")[2].split(",")}


def test_a_server_that_is_down_is_one_error(own_redis):
    url = servers.redis_url(own_redis)
    own_redis.kill()
    report = diagnosed(hot_redis(url))
    errors = [each for each in report.findings if each.severity == "error"]
    assert [each.id for each in errors] == ["store-failed"]
    assert isinstance(errors[0].error, claimcheck.StoreUnavailableError)


@pytest.mark.parametrize(
    ("version", "found"), [("6.0.16", ["redis-version"]), ("6.2.0", []), ("7.0.15", []), ("10.1", []), ("", [])]
)
def test_the_version(version, found):
    client = SimpleNamespace(info=lambda: {"redis_version": version, "maxmemory": 1, "aof_enabled": 1})
    assert [each.id for each in _redis("stores.hot", client)] == found


# S3 ----------------------------------------------------------------------------------------------------------------


EXPIRY = {"ID": "old", "Status": "Enabled", "Filter": {"Prefix": "claims/"}, "Expiration": {"Days": 2}}
ABORT = {"AbortIncompleteMultipartUpload": {"DaysAfterInitiation": 1}}
KEPT = {**EXPIRY, **ABORT}
NONCURRENT = {"NoncurrentVersionExpiration": {"NoncurrentDays": 1}}
S3 = ("s3-", "store-no-expiry", "store-failed", "clock-")


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
    return configuration({"type": "s3", **place, **more})


def put_rules(client, bucket, *rules):
    client.put_bucket_lifecycle_configuration(Bucket=bucket, LifecycleConfiguration={"Rules": list(rules)})


def test_the_rule_of_the_guide_is_good_and_nothing_is_left_in_the_bucket(client, bucket):
    guide = Path("docs/guides/deletion.md").read_text()
    rules = json.loads(re.search(r"```json\n(.*?)```", guide, re.DOTALL)[1])
    client.put_bucket_lifecycle_configuration(Bucket=bucket, LifecycleConfiguration=rules)
    before = client.get_bucket_lifecycle_configuration(Bucket=bucket)["Rules"]
    assert ids(diagnosed(hot_s3(client, bucket, ttl_seconds=7 * 86_400)), *S3) == []
    assert client.list_objects_v2(Bucket=bucket)["KeyCount"] == 0
    assert client.get_bucket_lifecycle_configuration(Bucket=bucket)["Rules"] == before


def test_a_bucket_without_rules_keeps_everything(client, bucket):
    report = diagnosed(hot_s3(client, bucket))
    assert ids(report, *S3) == ["s3-no-abort", "s3-no-expiry"]
    assert "warning stores.hot: no lifecycle rule deletes objects below 'claims/'" in text(report, "s3-no-expiry")


@pytest.mark.parametrize(
    ("rules", "found"),
    [
        ([{**KEPT, "Status": "Disabled"}], ["s3-no-abort", "s3-no-expiry"]),
        ([{**KEPT, "Filter": {"Prefix": "other/"}}], ["s3-no-abort", "s3-no-expiry"]),
        ([{**KEPT, "Filter": {"Prefix": "cl"}}], []),
        ([EXPIRY], ["s3-no-abort"]),
        ([KEPT, {**EXPIRY, "ID": "tag", "Filter": {"Tag": {"Key": "a", "Value": "b"}}, "Expiration": {"Days": 1}}], []),
        ([{**KEPT, "Filter": {"And": {"Prefix": "claims/", "Tags": [{"Key": "a", "Value": "b"}]}}}],
         ["s3-no-abort", "s3-no-expiry"]),
    ],
)  # fmt: skip
def test_rules_that_do_or_do_not_apply(client, bucket, rules, found):
    put_rules(client, bucket, *rules)
    assert ids(diagnosed(hot_s3(client, bucket)), *S3) == found


@pytest.mark.parametrize("prefix", ["", "claims/orders"])
def test_a_rule_that_deletes_before_the_lifetime_ends_is_an_error(client, bucket, prefix):
    put_rules(client, bucket, KEPT | {"Expiration": {"Days": 8}}, {**EXPIRY, "ID": "x", "Filter": {"Prefix": prefix}})
    report = diagnosed(hot_s3(client, bucket, ttl_seconds=7 * 86_400))
    assert ids(report, *S3) == ["s3-expiry-early"]
    words = "error stores.hot: the lifecycle rule 'x' deletes payloads after 2 days, but ttl_seconds is 7 days"
    assert text(report, "s3-expiry-early") == words


def test_a_rule_that_archives_payloads_is_an_error(client, bucket):
    moving = {"ID": "cold", "Status": "Enabled", "Filter": {"Prefix": ""}}
    put_rules(client, bucket, KEPT, {**moving, "Transitions": [{"Days": 0, "StorageClass": "GLACIER"}]})
    assert ids(diagnosed(hot_s3(client, bucket)), *S3) == ["s3-archived"]
    put_rules(client, bucket, KEPT, {**moving, "Transitions": [{"Days": 30, "StorageClass": "GLACIER"}]})
    assert ids(diagnosed(hot_s3(client, bucket)), *S3) == []


def test_versions_stay_unless_a_rule_deletes_them(client, bucket):
    put_rules(client, bucket, KEPT)
    client.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    assert ids(diagnosed(hot_s3(client, bucket)), *S3) == ["s3-versioning"]
    put_rules(client, bucket, {**KEPT, **NONCURRENT})
    assert ids(diagnosed(hot_s3(client, bucket)), *S3) == []


# A real server ---------------------------------------------------------------------------------------------------


def test_what_a_server_does_not_support_is_named_and_its_clock_is_compared(s3_resource, s3_bucket):
    raw = hot_s3(s3_resource.meta.client, s3_bucket)
    report = diagnosed(raw)
    assert set(ids(report, *S3)) == {"s3-not-examined"}
    assert any("could not examine the lifecycle rules" in each.message for each in report.findings)
    report = diagnosed(raw, clock=lambda: time.time() - 120)
    assert "this machine's clock is 2 minutes behind the server's" in text(report, "clock-skew")


def test_a_missing_bucket_is_one_finding(client):
    report = diagnosed(hot_s3(client, f"missing-{uuid.uuid4().hex}"))
    (error,) = [each for each in report.findings if each.severity != "info"]
    assert error.id == "store-failed"
    assert error.fix.startswith("Check the bucket")
    assert ids(report, "s3-", "store-not") == []
