"""Every promise of a store, on Redis in every shape that an address can name; all of them real servers."""

import contextlib

import pytest
import redis
import redis.cluster

from tests.conformance.redis_medium import RedisConformance


class RedisVariant(RedisConformance):
    """Reaches the medium by the same way as the store; `url` comes from the fixtures of tests/conftest.py."""

    @pytest.fixture
    def back_door(self, url):
        return redis.Redis.from_url(url)

    @pytest.fixture
    def options(self, url, back_door):
        with contextlib.closing(back_door) as self.redis:
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
    """Which of the two is used where nobody asks is redis-py's choice, and changes with its version."""

    @pytest.fixture
    def url(self, redis_url):
        return f"{redis_url}?protocol=2"


class TestCluster(RedisVariant):
    @pytest.fixture
    def url(self, redis_cluster_url):
        return redis_cluster_url

    @pytest.fixture
    def back_door(self, redis_cluster):
        return redis.cluster.RedisCluster("127.0.0.1", redis_cluster.nodes[0].port)


class TestSentinel(RedisVariant):
    @pytest.fixture
    def url(self, redis_sentinel):
        return redis_sentinel.url

    @pytest.fixture
    def back_door(self, redis_sentinel):
        return redis.Redis(port=redis_sentinel.master.port)


class TestClusterVersion1(TestCluster):
    """The published form knows no slots: its segments lie on all nodes."""

    @pytest.fixture
    def options(self, url, back_door):
        with contextlib.closing(back_door) as self.redis:
            yield {"type": "redis", "url": url, "ttl_seconds": 600, "pointer_version": 1}
