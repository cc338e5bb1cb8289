"""The checks that reach the server, on every kind of Redis that a URL can name; all of them are real servers."""

import contextlib

import pytest
import redis
import redis.cluster

from tests.conformance.redis_medium import RedisConformance
from tests.conformance.subsets import REACH_THE_SERVER, FewerPayloads, only


@only(*REACH_THE_SERVER)
class RedisVariant(FewerPayloads, RedisConformance):
    """Reads the server through the same URL as the store; `url` comes from the fixtures of tests/conftest.py."""

    @pytest.fixture
    def client(self, url):
        return redis.Redis.from_url(url)

    @pytest.fixture
    def options(self, url, client):
        with contextlib.closing(client) as self.redis:
            yield {"type": "redis", "url": url, "ttl_seconds": 600}


class TestEncrypted(RedisVariant):
    @pytest.fixture
    def url(self, redis_tls_url):
        return redis_tls_url


class TestUnixSocket(RedisVariant):
    @pytest.fixture
    def url(self, redis_unix_url):
        return redis_unix_url


class TestUserWithFewRightsInDatabase3(RedisVariant):
    @pytest.fixture
    def url(self, redis_acl_url):
        return redis_acl_url


class TestProtocol3(RedisVariant):
    @pytest.fixture
    def url(self, redis_url):
        return f"{redis_url}?protocol=3"


class TestProtocol2(RedisVariant):
    """redis-py's default is one of the two, depending on its version."""

    @pytest.fixture
    def url(self, redis_url):
        return f"{redis_url}?protocol=2"


class TestCluster(RedisVariant):
    @pytest.fixture
    def url(self, redis_cluster_url):
        return redis_cluster_url

    @pytest.fixture
    def client(self, redis_cluster):
        return redis.cluster.RedisCluster("127.0.0.1", redis_cluster.nodes[0].port)


class TestSentinel(RedisVariant):
    @pytest.fixture
    def url(self, redis_sentinel):
        return redis_sentinel.url

    @pytest.fixture
    def client(self, redis_sentinel):
        return redis.Redis(port=redis_sentinel.master.port)


class TestClusterVersion1(TestCluster):
    """Version 1 has no hash tags: its segments lie on all nodes."""

    @pytest.fixture
    def options(self, url, client):
        with contextlib.closing(client) as self.redis:
            yield {"type": "redis", "url": url, "ttl_seconds": 600, "pointer_version": 1}
