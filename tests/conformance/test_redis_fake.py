from typing import ClassVar

import pytest
import redis

from tests.conformance.redis_medium import RedisConformance


class TestRedisStoreOnFake(RedisConformance):
    skip: ClassVar = {"test_large_payload_in_bounded_memory": "the fake server keeps its payloads in this process"}

    @pytest.fixture
    def options(self, fake_redis_url):
        with redis.Redis.from_url(fake_redis_url) as self.redis:
            yield {"type": "redis", "url": fake_redis_url, "ttl_seconds": 600, "segment_bytes": 100_000}
