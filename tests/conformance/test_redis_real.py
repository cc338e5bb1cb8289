import pytest
import redis

from tests.conformance.redis_medium import RedisConformance


class TestRedisStore(RedisConformance):
    @pytest.fixture
    def options(self, redis_url):
        with redis.Redis.from_url(redis_url) as self.redis:
            yield {"type": "redis", "url": redis_url, "ttl_seconds": 600}


class TestRedisStoreVersion1(TestRedisStore):
    """The published form: other keys, and pointers that know neither store, size nor checksum."""

    @pytest.fixture
    def options(self, redis_url):
        with redis.Redis.from_url(redis_url) as self.redis:
            yield {"type": "redis", "url": redis_url, "ttl_seconds": 600, "pointer_version": 1}
