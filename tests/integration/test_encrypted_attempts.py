"""Encrypted payloads that several processes write, rewrap and delete at the same time, in a folder, Redis and S3."""

from __future__ import annotations

import base64
import os
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml

import claimcheck
from claimcheck import ClaimCheck, Pointer
from claimcheck._payload import Source
from claimcheck._rewrap import rewrap
from claimcheck._store import Store
from claimcheck.errors import IntegrityError, PayloadNotFoundError

pytest.importorskip("cryptography")

KEYS = {name: base64.b64encode(name.encode() * 16).decode() for name in ("k1", "k2")}
SEGMENT = 64 << 10
PAYLOAD = os.urandom(3 * SEGMENT + 1)
SEVERAL = os.urandom((2 << 20) + 1)  # of the segments of the encryption

KILLED = """
import os, signal, sys
import claimcheck
from claimcheck import _rewrap
count, replace = 0, _rewrap._Run._replace
def killed(self, *args):
    global count
    count += 1
    if count == 4:
        store = self._store
        write = getattr(store, "_write" if type(store).__name__ == "FilesystemStore" else "_rewrite")
        def cut(pointer, source):
            next(iter(source.pieces(1000)))
            os.kill(os.getpid(), signal.SIGKILL)
        store._write = store._rewrite = cut
        replace(self, *args)
        os.kill(os.getpid(), signal.SIGKILL)  # Redis needs one command only
    replace(self, *args)
_rewrap._Run._replace, _rewrap._PARALLEL = killed, 1
with claimcheck.load(sys.argv[1]) as cc:
    _rewrap.rewrap(cc.store("s"), dry_run=False)
"""


@pytest.fixture(params=["filesystem", "redis", "s3"])
def medium(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, Any]:
    if request.param == "filesystem":
        return {"type": "filesystem", "path": str(tmp_path / "payloads"), "create": True, "ttl_seconds": 3600}
    prefix = f"attempts-{uuid.uuid4().hex}"
    if request.param == "redis":
        url = request.getfixturevalue("redis_url")
        return {"type": "redis", "url": url, "key_prefix": f"{prefix}:", "segment_bytes": SEGMENT, "ttl_seconds": 300}
    server, bucket = request.getfixturevalue("s3_server"), request.getfixturevalue("s3_bucket")
    return {"type": "s3", "endpoint_url": server.endpoint_url, "bucket": bucket, "ttl_seconds": 3600}


@pytest.fixture
def opened(medium: dict[str, Any]) -> Iterator[Callable[..., Store]]:
    """Opens the store in a configuration of its own, as another process would."""
    opened: list[ClaimCheck] = []

    def store(key_id: str = "k1", *, keys: str = "k1 k2") -> Store:
        opened.append(claimcheck.from_dict(config(medium, key_id, keys)))
        return opened[-1].store("s")

    yield store
    for entry in list(store().scan()):
        with suppress(Exception):
            store().delete([entry])
    for cc in opened:
        cc.close()


def config(medium: dict[str, Any], key_id: str, keys: str = "k1 k2") -> dict[str, Any]:
    encryption = {"key_id": key_id, "keys": {name: KEYS[name] for name in keys.split()}}
    return {"strategy": "external", "stores": {"s": medium}, "encryption": encryption}


class Died(BaseException):
    """The process of an attempt ended here."""


def interrupted(store: Store, number: int, then: Callable[[], None]) -> None:
    """Call a function before piece ``number`` of the next write of a store."""
    inner: dict[str, Any] = {name: getattr(store, name) for name in ("_write", "_rewrite")}

    def write(name: str) -> Callable[..., Any]:
        def hooked(pointer: Any, source: Source) -> Any:
            pieces = source.pieces

            def observed(piece_bytes: int) -> Iterator[memoryview]:
                for position, piece in enumerate(pieces(piece_bytes)):
                    if position == number:
                        then()
                    yield piece

            source.pieces = observed  # type: ignore[method-assign]
            return inner[name](pointer, source)

        return hooked

    store._write, store._rewrite = write("_write"), write("_rewrite")  # type: ignore[method-assign]


@pytest.mark.parametrize("dies", [False, True])
@pytest.mark.parametrize("number", [0, 1, 3])
def test_an_attempt_within_another_one(opened: Callable[..., Store], number: int, dies: bool) -> None:
    """The second attempt begins and ends while the first one is writing, which then ends or dies."""
    identity, reader, first, second = uuid.uuid4(), opened(), opened(), opened()
    pointers: list[Pointer] = []

    def other_attempt() -> None:
        if not pointers:
            pointers.append(second.write(PAYLOAD, destination="orders", identity=identity))
            assert reader.read(pointers[0]) == PAYLOAD
            if dies:
                raise Died

    interrupted(first, number, other_attempt)
    with suppress(Died):
        pointers.append(first.write(PAYLOAD, destination="orders", identity=identity))
    pointers.append(opened().write(PAYLOAD, destination="orders", identity=identity))
    assert len({pointer.key for pointer in pointers}) == 1
    for pointer in pointers:
        assert reader.read(pointer) == PAYLOAD
        assert reader.read_range(pointer, SEGMENT, 9) == PAYLOAD[SEGMENT : SEGMENT + 9]


def test_attempts_at_the_same_time(opened: Callable[..., Store]) -> None:
    stores, reader = [opened() for _ in range(4)], opened()
    start = threading.Barrier(len(stores))

    def attempt(store: Store, identity: uuid.UUID) -> Any:
        start.wait(60)
        return store.write(PAYLOAD, destination="orders", identity=identity)

    with ThreadPoolExecutor(len(stores)) as executor:
        for _ in range(5):
            identity = uuid.uuid4()
            for pointer in executor.map(attempt, stores, [identity] * len(stores)):
                assert reader.read(pointer) == PAYLOAD


def test_readers_in_the_middle_of_a_payload_that_is_rewrapped(opened: Callable[..., Store]) -> None:
    store = opened()
    pointer = store.write(SEVERAL, destination="orders")
    with store.open(pointer) as whole, store.open(pointer) as seeking:
        assert whole.read(1000) == SEVERAL[:1000]
        seeking.seek(1 << 20)
        assert seeking.read(10) == SEVERAL[1 << 20 : (1 << 20) + 10]
        assert rewrap(opened("k2"), dry_run=False).rewrapped == 1
        assert whole.read() == SEVERAL[1000:]
        seeking.seek(5)
        assert seeking.read() == SEVERAL[5:]
    assert opened("k2", keys="k2").read(pointer) == SEVERAL
    with pytest.raises(IntegrityError, match="'k2'"):
        opened(keys="k1").read(pointer)


def test_rewrap_beside_writers_deletions_and_attempts(opened: Callable[..., Store]) -> None:
    writer, deleter, other = opened(), opened(), opened("k2")
    kept = [(writer.write(PAYLOAD, destination="orders"), PAYLOAD)]

    def write() -> None:
        for number in range(24):
            payload = os.urandom(100_000)
            identity = uuid.uuid4() if number % 3 == 0 else None
            pointer = writer.write(payload, destination="orders", identity=identity)
            if number % 4 == 1:
                deleter.rollback(pointer)
            else:
                kept.append((pointer, payload))
            if identity is not None:
                writer.write(payload, destination="orders", identity=identity)

    with ThreadPoolExecutor(2) as executor:
        running = executor.submit(write)
        while not running.done():
            assert rewrap(other, dry_run=False).failed == 0
        running.result()
    assert rewrap(opened("k2"), dry_run=False).failed == 0
    assert rewrap(opened("k2")).rewrapped == 0
    reader = opened("k2", keys="k2")
    assert len(kept) == 19
    for pointer, payload in kept:
        assert reader.read(pointer) == payload


def test_rewrap_that_is_killed_and_run_again(
    opened: Callable[..., Store], medium: dict[str, Any], tmp_path: Path, worker_env: dict[str, str]
) -> None:
    store = opened()
    written = [(store.write(payload, destination="o"), payload) for payload in (os.urandom(20_000) for _ in range(8))]
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(config(medium, "k2")))
    child = subprocess.run([sys.executable, "-c", KILLED, str(path)], env=os.environ | worker_env, timeout=120)
    assert child.returncode == -signal.SIGKILL

    assert all(opened().read(pointer) == payload for pointer, payload in written)
    report = rewrap(opened("k2"), dry_run=False)
    assert report.failed == 0
    assert 4 <= report.rewrapped + 1 <= 6
    reader = opened("k2", keys="k2")
    assert all(reader.read(pointer) == payload for pointer, payload in written)


def test_a_payload_that_is_written_again_while_it_is_rewrapped(opened: Callable[..., Store]) -> None:
    store, identity = opened("k2"), uuid.uuid4()
    pointer = opened().write(PAYLOAD, destination="o", identity=identity)
    replace = store._replace_start

    def after_another_attempt(*args: Any) -> None:
        assert opened().write(PAYLOAD, destination="o", identity=identity).key == pointer.key
        replace(*args)

    store._replace_start = after_another_attempt  # type: ignore[method-assign, assignment]
    report = rewrap(store, dry_run=False)
    assert (report.rewrapped, report.failed) == (1, 0)
    assert opened("k2", keys="k2").read(pointer) == PAYLOAD


def test_a_payload_that_is_deleted_while_it_is_rewrapped(opened: Callable[..., Store]) -> None:
    store, pointer = opened("k2"), opened().write(PAYLOAD, destination="o")
    replace = store._replace_start

    def deleted(*args: Any) -> None:
        opened().rollback(pointer)
        replace(*args)

    store._replace_start = deleted  # type: ignore[method-assign, assignment]
    report = rewrap(store, dry_run=False)
    assert (report.gone, report.rewrapped, report.failed) == (1, 0, 0)
    with pytest.raises(PayloadNotFoundError):
        opened().read(pointer)
