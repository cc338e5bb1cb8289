import pytest
import redis

from tests.conformance.redis_medium import RedisConformance
from tests.conformance.subsets import REACH_THE_SERVER, FewerPayloads, only


class TestRedisStore(RedisConformance):
    @pytest.fixture
    def options(self, redis_url):
        with redis.Redis.from_url(redis_url) as self.redis:
            yield {"type": "redis", "url": redis_url, "ttl_seconds": 600}


@only(
    *REACH_THE_SERVER,
    "test_damaged_payload_is_an_error",
    "test_hostile_pointer_is_refused_before_any_io",
    "test_any_destination_makes_a_good_key",
)
class TestRedisStoreVersion1(FewerPayloads, TestRedisStore):
    """Pointer version 1: other keys, and pointers without store name, size or checksum."""

    @pytest.fixture
    def options(self, redis_url):
        with redis.Redis.from_url(redis_url) as self.redis:
            yield {"type": "redis", "url": redis_url, "ttl_seconds": 600, "pointer_version": 1}
