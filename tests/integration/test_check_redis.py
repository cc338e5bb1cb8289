"""The findings of the check about real Redis servers, with settings that will lose payloads and with good ones."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest
import redis

import claimcheck
from claimcheck._operate.check_stores import _redis
from tests import servers
from tests.check_rig import configuration, diagnosed, ids, text

GOOD = ("--appendonly", "yes", "--maxmemory", "64mb", "--maxmemory-policy", "noeviction")
OURS = ("redis-", "clock-", "store-failed")

pytestmark = pytest.mark.usefixtures("redis_programs")


def hot(url: str) -> dict:
    return configuration({"type": "redis", "url": url})


def test_a_good_server_has_no_finding_and_nothing_is_left_on_it():
    with servers.redis(*GOOD) as url, redis.Redis.from_url(url) as client:
        before = client.config_get()
        assert ids(diagnosed(hot(url)), *OURS) == []
        assert (client.dbsize(), client.config_get()) == (0, before)


@pytest.mark.parametrize(
    ("setting", "found", "words"),
    [
        (("--maxmemory-policy", "volatile-ttl"), "redis-eviction", "maxmemory-policy is volatile-ttl"),
        (("--appendonly", "no"), "redis-no-persistence", "no append-only file and no snapshots"),
        (("--maxmemory", "0"), "redis-memory-unlimited", "maxmemory is not set"),
        (("--maxmemory", "0", "--maxmemory-policy", "allkeys-lru"), "redis-memory-unlimited", "maxmemory is not set"),
    ],
)
def test_a_bad_setting_is_a_warning(setting, found, words):
    with servers.redis(*GOOD, *setting) as url:
        report = diagnosed(hot(url))
    assert ids(report, *OURS) == [found]
    assert text(report, found).startswith("warning stores.hot: ")
    assert words in text(report, found)


def test_snapshots_alone_are_persistence():
    with servers.redis(*GOOD, "--appendonly", "no", "--save", "3600 1") as url:
        assert ids(diagnosed(hot(url)), *OURS) == []


def test_replicas_without_min_replicas_may_lose_payloads():
    with servers.redis(*GOOD) as url, redis.Redis.from_url(url) as client:
        port = client.connection_pool.connection_kwargs["port"]
        with servers.redis("--replicaof", f"127.0.0.1 {port}", "--repl-diskless-sync-delay", "0"):
            client.config_set("repl-diskless-sync-delay", 0)
            servers.wait_until(lambda: client.info("replication")["connected_slaves"] == 1, "the replica is connected")
            report = diagnosed(hot(url))
            assert ids(report, *OURS) == ["redis-replication-unsafe"]
            assert "there is 1 replica, and min-replicas-to-write is 0" in text(report, "redis-replication-unsafe")
            servers.wait_until(lambda: client.wait(1, 1000) == 1, "the replica is online")
            client.config_set("min-replicas-to-write", 1)
            assert ids(diagnosed(hot(url)), *OURS) == []


@pytest.mark.parametrize(("ahead", "words"), [(60, "1 minute ahead of"), (-7200, "2 hours behind"), (1, None)])
def test_clocks_that_differ_are_a_warning(ahead, words):
    with servers.redis(*GOOD) as url:
        report = diagnosed(hot(url), clock=lambda: time.time() + ahead)
    assert ids(report, *OURS) == (["clock-skew"] if words else [])
    assert words is None or f"this machine's clock is {words} the server's" in text(report, "clock-skew")


def test_what_a_user_may_not_see_is_named(redis_acl_url):
    report = diagnosed(hot(redis_acl_url))
    assert set(ids(report, *OURS)) == {"redis-not-examined"}
    assert any("could not examine its settings" in each.message for each in report.findings)
    assert report.ok


def test_a_server_that_may_be_asked_but_not_for_its_configuration():
    with servers.redis(*GOOD, "--appendonly", "no", "--rename-command", "CONFIG", "") as url:
        report = diagnosed(hot(url))
    assert ids(report, *OURS) == ["redis-not-examined"]
    assert "could not examine its settings" in text(report, "redis-not-examined")


def test_every_master_of_a_cluster_is_examined(redis_cluster_url):
    report = diagnosed(hot(redis_cluster_url))
    places = {each.path for each in report.findings if each.id == "redis-no-persistence"}
    assert places == {f"stores.hot ({place})" for place in redis_cluster_url.partition("//")[2].split(",")}


def test_a_server_that_is_down_is_one_error(own_redis):
    url = servers.redis_url(own_redis)
    own_redis.kill()
    report = diagnosed(hot(url))
    errors = [each for each in report.findings if each.severity == "error"]
    assert [each.id for each in errors] == ["store-failed"]
    assert isinstance(errors[0].error, claimcheck.StoreUnavailableError)


@pytest.mark.parametrize(
    ("version", "found"), [("6.0.16", ["redis-version"]), ("6.2.0", []), ("7.0.15", []), ("10.1", []), ("", [])]
)
def test_the_version(version, found):
    client = SimpleNamespace(info=lambda: {"redis_version": version, "maxmemory": 1, "aof_enabled": 1})
    assert [each.id for each in _redis("stores.hot", client)] == found
