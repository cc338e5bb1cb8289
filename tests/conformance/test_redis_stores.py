"""The store kit on Redis: a fake one, a real one, and every kind of server that a URL can name."""

import contextlib
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import ClassVar

import pytest
import redis
import redis.cluster

import claimcheck
from claimcheck.testing import StoreConformance
from tests.conformance.subsets import REACH_THE_SERVER, FewerPayloads, only


class RedisConformance(StoreConformance):
    def peek(self, pointer):
        found = [self.redis.get(f"{pointer.key}-{i}") for i in range(pointer.segments)]
        return b"".join(found) if all(part is not None for part in found) else next(filter(None, found), None)

    def damage(self, pointer, payload):
        piece = pointer.segment_bytes or pointer.size
        for i in range(pointer.segments):
            last = i == pointer.segments - 1
            part = (payload or b"")[i * piece : None if last else (i + 1) * piece]
            if part or (payload is not None and i == 0):
                self.redis.set(f"{pointer.key}-{i}", part, px=60_000)
            else:
                self.redis.delete(f"{pointer.key}-{i}")


class TestRedisStore(RedisConformance):
    more: ClassVar[dict[str, int]] = {}

    @pytest.fixture
    def options(self, redis_url):
        with redis.Redis.from_url(redis_url) as self.redis:
            yield {"type": "redis", "url": redis_url, "ttl_seconds": 600, **self.more}


class TestRedisStoreOnFake(FewerPayloads, RedisConformance):
    skip: ClassVar = {"test_large_payload_in_bounded_memory": "the fake server keeps its payloads in this process"}

    @pytest.fixture
    def options(self, fake_redis_url):
        with redis.Redis.from_url(fake_redis_url) as self.redis:
            yield {"type": "redis", "url": fake_redis_url, "ttl_seconds": 600, "segment_bytes": 100_000}


@only(
    *REACH_THE_SERVER,
    "test_damaged_payload_is_an_error",
    "test_hostile_pointer_is_refused_before_any_io",
    "test_any_destination_makes_a_good_key",
)
class TestRedisStoreVersion1(FewerPayloads, TestRedisStore):
    """Pointer version 1: other keys, and pointers without store name, size or checksum."""

    more: ClassVar = {"pointer_version": 1}


VARIANTS: dict[str, tuple[str, str, dict[str, int]]] = {
    "TLS": ("redis_tls_url", "", {}),
    "a unix socket": ("redis_unix_url", "", {}),
    "a user with few rights in database 3": ("redis_acl_url", "", {}),
    "protocol 3": ("redis_url", "?protocol=3", {}),
    "protocol 2": ("redis_url", "?protocol=2", {}),  # redis-py's default is one of the two, depending on its version
    "a cluster": ("redis_cluster", "", {}),
    "a cluster, version 1": ("redis_cluster", "", {"pointer_version": 1}),  # no hash tags: segments on all nodes
    "sentinel": ("redis_sentinel", "", {}),
}
"""The fixture of each variant's server, the query of its URL, and more options."""


@pytest.mark.redis
@only(*REACH_THE_SERVER)
class TestVariants(FewerPayloads, RedisConformance):
    @pytest.fixture(params=VARIANTS)
    def options(self, request):
        fixture, query, more = VARIANTS[request.param]
        server = request.getfixturevalue(fixture)
        url = f"{getattr(server, 'url', server)}{query}"
        if fixture == "redis_cluster":
            client = redis.cluster.RedisCluster("127.0.0.1", server.nodes[0].port)
        else:
            client = redis.Redis(port=server.master.port) if fixture == "redis_sentinel" else redis.Redis.from_url(url)
        with contextlib.closing(client) as self.redis:
            yield {"type": "redis", "url": url, "ttl_seconds": 600, **more}


# Without hiredis ---------------------------------------------------------------------------------------------------


PROGRAM = """
import sys
sys.modules["hiredis"] = None
import pytest, redis
assert redis.connection.DefaultParser.__module__.startswith("redis._parsers.resp"), redis.connection.DefaultParser
sys.exit(pytest.main(sys.argv[1:]))
"""


def test_the_store_kit_passes_without_hiredis(redis_url, tmp_path):
    kits = [f"{__file__}::{name}" for name in ("TestRedisStore", "TestRedisStoreVersion1")]
    root, library = Path(__file__).resolve().parents[2], Path(claimcheck.__file__).parents[1]
    environment = {**os.environ, "PYTHONPATH": f"{library}{os.pathsep}{root}", "CLAIMCHECK_TEST_REDIS_URL": redis_url}
    command = [sys.executable, "-P", "-c", PROGRAM, "-q", "-p", "no:cacheprovider", f"--basetemp={tmp_path / 'its'}"]
    done = subprocess.run(
        [*command, f"--rootdir={root}", *kits], cwd=root, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert int(re.findall(r"(\d+) passed", done.stdout)[0]) > 150
