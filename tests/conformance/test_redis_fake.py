import threading
from typing import ClassVar

import fakeredis
import pytest
import redis

from tests.conformance.redis_medium import RedisConformance


@pytest.fixture(scope="module")
def fake_url():
    server = fakeredis.TcpFakeServer(("127.0.0.1", 0))
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    yield f"redis://127.0.0.1:{server.server_address[1]}/0"
    server.shutdown()
    server.server_close()
    thread.join()


class TestRedisStoreOnFake(RedisConformance):
    skip: ClassVar = {"test_large_payload_in_bounded_memory": "the fake server keeps its payloads in this process"}

    @pytest.fixture
    def options(self, fake_url):
        with redis.Redis.from_url(fake_url) as self.redis:
            yield {"type": "redis", "url": fake_url, "ttl_seconds": 600, "segment_bytes": 100_000}
