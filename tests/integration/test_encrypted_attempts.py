"""Encrypted payloads that several processes write at the same time, in a folder, Redis and S3."""

from __future__ import annotations

import base64
import os
import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import claimcheck
from claimcheck import ClaimCheck, Pointer
from claimcheck._content.source import Source
from claimcheck._store.store import Store

pytest.importorskip("cryptography")

KEYS = {name: base64.b64encode(name.encode() * 16).decode() for name in ("k1", "k2")}
SEGMENT = 64 << 10
PAYLOAD = os.urandom(3 * SEGMENT + 1)
SEVERAL = os.urandom((2 << 20) + 1)  # of the segments of the encryption


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
