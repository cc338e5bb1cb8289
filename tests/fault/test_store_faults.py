"""Disks that are full, and stores that are down before, during and after: typed errors, and nothing half done."""

import contextlib
import errno
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import redis

import claimcheck
from claimcheck.errors import IntegrityError, PayloadNotFoundError, StoreError, StoreUnavailableError
from claimcheck.store import StoreContext
from claimcheck.stores.filesystem import PARTIAL_SUFFIX, FilesystemStore
from claimcheck.stores.redis import RedisStore
from claimcheck.stores.s3 import S3Store
from tests import servers
from tests.fault.proxy import Proxy

MIB = 1 << 20


class TriggerFile:
    """A payload that does something when half of it was read."""

    def __init__(self, size, action):
        self.size, self.action, self.position = size, action, 0

    def read(self, size):
        if self.action is not None and self.position >= self.size // 2:
            self.action, action = None, self.action
            action()
        count = min(size, self.size - self.position)
        self.position += count
        return b"x" * count


class TestFullDisk:
    @pytest.fixture
    def store(self, tmp_path):
        return FilesystemStore(path=str(tmp_path))

    def assert_refused(self, store, tmp_path, payload, text):
        with pytest.raises(StoreError, match=text) as caught:
            store.write(payload)
        assert type(caught.value) is StoreError
        assert list(tmp_path.iterdir()) == []

    def test_is_said_before_the_first_byte(self, store, tmp_path, monkeypatch):
        def full(*_):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        monkeypatch.setattr(os, "posix_fallocate", full)

        self.assert_refused(store, tmp_path, bytes(100), "No space left")

    def test_in_mid_payload_of_unknown_size(self, store, tmp_path, monkeypatch):
        write = os.write

        def full(descriptor, data):
            if os.fstat(descriptor).st_size >= 2 * MIB:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return write(descriptor, data)

        monkeypatch.setattr(os, "write", full)

        self.assert_refused(store, tmp_path, TriggerFile(4 * MIB, None), "No space left")

    def test_as_the_kernel_says_it(self, store, tmp_path):
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (MIB + 5, hard))
        try:
            self.assert_refused(store, tmp_path, bytes(4 * MIB), "File too large")
            self.assert_refused(store, tmp_path, TriggerFile(4 * MIB, None), "File too large")
            assert store.write(bytes(MIB)).size == MIB
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    def test_on_a_real_small_disk(self, tmp_path):
        mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(tmp_path)], capture_output=True)
        if mounted.returncode:
            pytest.skip("only root may mount a small disk")
        try:
            store = FilesystemStore(path=str(tmp_path))
            self.assert_refused(store, tmp_path, bytes(4 * MIB), "No space left")
            self.assert_refused(store, tmp_path, TriggerFile(4 * MIB, None), "No space left")
            assert store.read(store.write(b"small")) == b"small"
        finally:
            subprocess.run(["umount", str(tmp_path)], check=True)

    def test_leaves_the_first_error_when_tidying_up_fails_too(self, store, monkeypatch):
        def fail(*_, **__):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))

        monkeypatch.setattr(os, "posix_fallocate", fail)
        monkeypatch.setattr(Path, "unlink", fail)

        with pytest.raises(StoreError, match="Read-only"):
            store.write(b"payload")


def test_killed_writer_leaves_no_payload_but_a_name_that_tells(tmp_path):
    program = """
import os, sys
from claimcheck.registry import build_store
from claimcheck.config import StoreConfig
class Deadly:
    left = 3
    def read(self, size):
        Deadly.left -= 1
        if not Deadly.left:
            os.kill(os.getpid(), 9)
        return bytes(size)
import claimcheck
claimcheck.__path__.append(sys.argv[2])  # a bare checkout keeps stores/ beside the package
build_store(StoreConfig("filesystem", {"path": sys.argv[1]}), path="disk").write(Deadly(), destination="orders")
"""
    root = Path(claimcheck.__path__[0]).parent
    environment = {**os.environ, "PYTHONPATH": str(root)}

    done = subprocess.run([sys.executable, "-P", "-c", program, str(tmp_path), str(root)], env=environment, check=False)

    assert done.returncode == -9
    (left,) = tmp_path.iterdir()
    assert left.name.startswith(".orders-")
    assert left.name.endswith(PARTIAL_SUFFIX)


class TestRedis:
    @pytest.fixture
    def server(self, redis_url):
        with redis.Redis.from_url(redis_url) as client:
            yield client

    @pytest.fixture
    def proxy(self, redis_url):
        place = urlsplit(redis_url)
        with Proxy(place.hostname, place.port) as proxy:
            yield proxy

    @pytest.fixture
    def store(self, proxy, server):
        prefix = f"test-{uuid.uuid4().hex}:"
        store = RedisStore(url=f"redis://127.0.0.1:{proxy.port}/0", key_prefix=prefix, ttl_seconds=60)
        store.context = StoreContext(name="hot")
        yield store
        store.close()
        for key in server.scan_iter(f"{prefix}*"):
            server.delete(key)

    def keys(self, server, store):
        return list(server.scan_iter(f"{store.prefix}*"))

    def test_down_before_the_write(self, store, proxy, server):
        proxy.die()

        with pytest.raises(StoreUnavailableError) as caught:
            store.write(bytes(MIB))

        assert caught.value.retryable
        assert self.keys(server, store) == []

    def test_line_cut_during_the_write_is_made_again(self, store, proxy, server):
        pointer = store.write(TriggerFile(20 * MIB, proxy.cut))

        assert store.read(pointer) == b"x" * 20 * MIB
        assert proxy.connections > 1

    def test_connection_killed_by_the_server_during_the_write(self, store, server):
        killed = []

        def kill():
            killed.append(server.client_kill_filter(_id=str(store._client().client_id())))

        assert store.read(store.write(TriggerFile(20 * MIB, kill))) == b"x" * 20 * MIB
        assert killed == [1]

    def test_down_during_the_write(self, store, proxy, server):
        with pytest.raises(StoreUnavailableError) as caught:
            store.write(TriggerFile(40 * MIB, proxy.die))

        left = self.keys(server, store)
        assert left, "the line was cut after some segments, or this test shows nothing"
        assert all(0 < server.pttl(key) <= 60_000 for key in left), "what nobody could remove expires by itself"
        assert any("could not be removed" in note for note in caught.value.__notes__)

    def test_back_again_after_the_write_failed(self, store, proxy, server, monkeypatch):
        """Down for the write, up for undoing it: nothing is left."""
        monkeypatch.setattr(store, "_set", breaking_after(store._set, calls=2, error=ConnectionResetError("cut")))

        with pytest.raises(StoreUnavailableError):
            store.write(TriggerFile(40 * MIB, None))

        assert self.keys(server, store) == []

    def test_answer_lost_after_the_write(self, store, proxy, server):
        store.write(b"so that a connection is there")
        before = self.keys(server, store)
        proxy.lose_answers()

        with pytest.raises(StoreUnavailableError):
            store.write(bytes(MIB))

        assert len(self.keys(server, store)) <= len(before) + 2  # written or not: unknown, and it expires

    def test_down_before_the_read(self, store, proxy):
        pointer = store.write(bytes(MIB))
        proxy.die()

        with pytest.raises(StoreUnavailableError):
            store.read(pointer)

    def test_down_during_the_read(self, store, proxy):
        pointer = store.write(bytes(20 * MIB))

        with store.open(pointer) as file:
            file.read(MIB)
            proxy.die()
            with pytest.raises(StoreUnavailableError):
                file.read()

    def test_line_cut_during_the_read_is_made_again(self, store, proxy):
        pointer = store.write(bytes(20 * MIB))

        with store.open(pointer) as file:
            got = len(file.read(MIB))
            proxy.cut()
            assert got + len(file.read()) == 20 * MIB

    def test_down_before_the_rollback(self, store, proxy, server):
        pointer = store.write(bytes(MIB))
        proxy.die()

        with pytest.raises(StoreUnavailableError):
            store.rollback(pointer)

        assert self.keys(server, store)

    @pytest.mark.parametrize("lost", [0, 7, 19])
    def test_one_evicted_segment_is_named(self, store, server, lost):
        pointer = store.write(bytes(20 * MIB))
        server.delete(f"{pointer.key}-{lost}")

        with pytest.raises(PayloadNotFoundError, match=f"segment {lost} of {pointer.segments}"):
            store.read(pointer)

    def test_segments_of_another_size_are_no_payload(self, store, server):
        pointer = store.write(bytes(3 * MIB))
        server.set(f"{pointer.key}-1", bytes(10), px=60_000)

        with pytest.raises(IntegrityError, match="size"):
            store.read(pointer)


@pytest.fixture
def own_redis(redis_url):
    """A server that a test may treat as it likes."""
    if not shutil.which("redis-server"):
        pytest.skip("a Redis of one's own needs redis-server on PATH; the shared one must not be filled up")
    with servers.redis() as url, redis.Redis.from_url(url) as client:
        yield client, url


def test_redis_without_memory_in_mid_payload_is_left_clean(own_redis):
    server, url = own_redis
    server.config_set("maxmemory", "32mb")
    server.config_set("maxmemory-policy", "noeviction")
    store = RedisStore(url=url)

    with pytest.raises(StoreError, match="maxmemory") as caught:
        store.write(bytes(64 * MIB))

    assert type(caught.value) is StoreError
    assert server.dbsize() == 0
    assert store.read(store.write(b"small")) == b"small"
    store.close()


def test_redis_wrong_password_is_not_worth_trying_again(own_redis):
    server, url = own_redis
    server.config_set("requirepass", "right")
    store = RedisStore(url=url.replace("//", "//:hunter2@"))

    with pytest.raises(StoreError) as caught:
        store.write(b"payload")

    assert not caught.value.retryable
    assert not hasattr(caught.value, "__notes__")
    assert "hunter2" not in str(caught.value)
    store.close()


@pytest.mark.parametrize("used", [False, True])
def test_stopped_redis_is_waited_for_once(own_redis, used, caplog):
    server, url = own_redis
    store = RedisStore(url=url, timeout_seconds=1)
    if used:
        store.write(b"so that a connection is there")
    with stopped(server.info("server")["process_id"]):
        began = time.monotonic()
        with pytest.raises(StoreUnavailableError) as caught:
            store.write(bytes(100))
        took = time.monotonic() - began

    assert 0.9 < took < 1.8
    assert not hasattr(caught.value, "__notes__")
    assert caplog.text == ""
    assert server.dbsize() == used
    store.close()


def test_encrypted_line_to_a_plain_redis_is_waited_for_once(own_redis, caplog):
    store = RedisStore(url=own_redis[1].replace("redis://", "rediss://"), timeout_seconds=1, connect_timeout_seconds=1)
    began = time.monotonic()

    with pytest.raises(StoreError) as caught:
        store.write(bytes(100))

    assert time.monotonic() - began < 1.8
    assert not hasattr(caught.value, "__notes__")
    assert caplog.text == ""
    store.close()


@contextlib.contextmanager
def stopped(process):
    os.kill(process, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(process, signal.SIGCONT)


class TestS3:
    @pytest.fixture
    def proxy(self, s3_server):
        place = urlsplit(s3_server.endpoint_url)
        with Proxy(place.hostname, place.port) as proxy:
            yield proxy

    @pytest.fixture
    def store(self, proxy, s3_bucket, monkeypatch):
        monkeypatch.setattr("botocore.endpoint.time.sleep", lambda seconds: None)
        endpoint = f"http://127.0.0.1:{proxy.port}"
        store = S3Store(bucket=s3_bucket, endpoint_url=endpoint, part_bytes=5 * MIB, single_put_bytes=5 * MIB)
        yield store
        store.close()

    def test_line_cut_during_the_write_is_made_again(self, store, proxy):
        pointer = store.write(TriggerFile(40 * MIB, proxy.cut))

        assert store.read(pointer) == b"x" * 40 * MIB

    def test_down_during_the_write(self, store, proxy):
        with pytest.raises(StoreUnavailableError) as caught:
            store.write(TriggerFile(40 * MIB, proxy.die))

        assert any("lifecycle rule" in note for note in caught.value.__cause__.__notes__)

    def test_down_during_the_read(self, store, proxy):
        pointer = store.write(bytes(40 * MIB))

        with store.open(pointer) as file:
            file.read(MIB)
            proxy.die()
            with pytest.raises(StoreUnavailableError):
                file.read()


PROGRAM = """
import resource, sys
import claimcheck
claimcheck.__path__.append(sys.argv[2])  # a bare checkout keeps stores/ beside the package
from dataclasses import replace
from claimcheck.errors import IntegrityError
from claimcheck.stores.memory import MemoryStore
store = MemoryStore()
pointer = replace(store.write(b"ten bytes."), size=5 << 30)
resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
for read in (store.read, lambda pointer: store.open(pointer).read()):
    try:
        read(pointer)
    except IntegrityError as error:
        print(error.expected, error.actual)
"""


def test_a_declared_size_is_no_reason_to_run_out_of_memory():
    root = str(Path(claimcheck.__path__[0]).parent)
    environment = {**os.environ, "PYTHONPATH": root}

    done = subprocess.run(
        [sys.executable, "-P", "-c", PROGRAM, "", root], env=environment, capture_output=True, text=True, check=False
    )

    assert done.stdout.splitlines() == [f"{5 << 30} 10"] * 2, done.stderr


def breaking_after(function, *, calls, error):
    left = [calls]

    def wrapped(*arguments):
        left[0] -= 1
        if left[0] < 0:
            raise error
        return function(*arguments)

    return wrapped
