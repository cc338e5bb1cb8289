"""`rewrap` with every kind of store that can be listed: what changes, what stays, and what it reports."""

from __future__ import annotations

import base64
import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import claimcheck
from claimcheck._content_header import read_header
from claimcheck._reader import PieceReader
from claimcheck._rewrap import rewrap
from claimcheck._store import Store
from claimcheck.errors import (
    ConfigError,
    IntegrityError,
    ScanNotSupportedError,
    StoreError,
    StoreUnavailableError,
)
from claimcheck.stores.memory import MemoryStore

pytest.importorskip("cryptography")

KEYS = {name: base64.b64encode(name.encode() * 16).decode() for name in ("k1", "k2")}
LONG = "a-key-with-a-very-long-name-" * 30
SIZES = (1, 5000, (1 << 20) + 1000)


class Unlistable(MemoryStore):
    def _scan(self, after: str | None) -> Any:
        return Store._scan(self, after)


class Stubborn(MemoryStore):
    """Cannot be written to."""

    error: Exception | None = None

    def _replace_start(self, *args: Any) -> None:
        if self.error is not None:
            raise self.error
        super()._replace_start(*args)


@pytest.fixture(params=["memory", "filesystem", "redis", "s3"])
def medium(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, Any]:
    if request.param == "memory":
        return {"type": "memory", "space": uuid.uuid4().hex}
    if request.param == "filesystem":
        return {"type": "filesystem", "path": str(tmp_path), "ttl_seconds": 1000}
    if request.param == "redis":
        url = request.getfixturevalue("fake_redis_url")
        return {"type": "redis", "url": url, "key_prefix": f"{uuid.uuid4().hex}:", "ttl_seconds": 1000}
    import boto3

    url, bucket = request.getfixturevalue("moto_url"), f"test-{uuid.uuid4().hex}"
    boto3.client("s3", endpoint_url=url).create_bucket(Bucket=bucket)
    return {"type": "s3", "endpoint_url": url, "bucket": bucket}


OPENED: list[claimcheck.ClaimCheck] = []


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    yield
    while OPENED:
        OPENED.pop().close()


def opened(medium: dict[str, Any], key_id: str | None = "k1", keys: dict[str, str] = KEYS) -> Store:
    encryption = {"encryption": {"key_id": key_id, "keys": keys}} if key_id else {}
    OPENED.append(claimcheck.from_dict({"strategy": "external", "stores": {"s": medium}, **encryption}))
    return OPENED[-1].store("s")


def in_memory(key_id: str | None = "k1", cls: type[MemoryStore] = MemoryStore, **options: Any) -> MemoryStore:
    medium = {"type": f"{cls.__module__}:{cls.__name__}", "space": options.pop("space", "") or uuid.uuid4().hex}
    store = opened(medium, key_id, **options)
    assert isinstance(store, MemoryStore)
    return store


def test_afterwards_no_payload_needs_the_old_key(medium: dict[str, Any]) -> None:
    old, new = opened(medium), opened(medium, "k2")
    payloads = [os.urandom(size) for size in SIZES]
    pointers = [old.write(payload, destination="orders") for payload in payloads]
    pointers.append(old.write(payloads[1], destination="orders", identity=uuid.uuid4()))
    payloads.append(payloads[1])
    entries = {entry.key: entry.expires_ms for entry in old.scan()}

    dry = rewrap(new)
    assert (dry.dry_run, dry.scanned, dry.rewrapped, dry.by_key) == (True, 4, 4, {"k1": 4})
    assert opened(medium, "k1", {"k1": KEYS["k1"]}).read(pointers[0]) == payloads[0]

    report = rewrap(new, dry_run=False)
    assert (report.rewrapped, report.failed, report.by_key) == (4, 0, {"k1": 4})
    reader = opened(medium, "k2", {"k2": KEYS["k2"]})
    for pointer, payload in zip(pointers, payloads, strict=True):
        assert reader.read(pointer) == payload
    for entry in reader.scan():  # the remaining lifetime in Redis is rounded
        assert abs((entry.expires_ms or 0) - (entries.pop(entry.key) or 0)) < 2000
    assert not entries
    again = rewrap(new, dry_run=False)
    assert (again.rewrapped, again.current, again.by_key) == (0, 4, {"k2": 4})


def test_a_payload_that_is_not_encrypted_stays_as_it_is(medium: dict[str, Any]) -> None:
    plain, payloads = opened(medium, None), [b"x", b"CCE1" + bytes(100), os.urandom(5000)]
    pointers = [plain.write(payload, destination="orders") for payload in payloads]
    report = rewrap(opened(medium, "k2"), dry_run=False)
    assert (report.not_encrypted, report.rewrapped, report.failed) == (3, 0, 0)
    assert [plain.read(pointer) for pointer in pointers] == payloads


def test_a_failure_is_reported_and_the_other_payloads_are_rewrapped() -> None:
    old = in_memory()
    pointers = [old.write(os.urandom(100), destination="orders") for _ in range(8)]
    contents = [old._payloads[pointer.key] for pointer in pointers]
    damaged = [
        contents[0].replace(b'"key":"', b'"key":"AAAA'),
        contents[1].replace(b'"key_id":"k1"', b'"key_id":"k3"'),
        contents[2].replace(b'"key_id":"k1"', b'"key_xx":"k1"'),
        contents[3][:500],
        contents[4].replace(b'"key_id":"k1"', b'"size":"100"  '),
        b"CCE1\0\0\0\x02[]",
    ]
    old._payloads.update(zip([pointer.key for pointer in pointers], damaged, strict=False))
    new = in_memory("k2", space=old_space(old))
    report = rewrap(new, dry_run=False)
    assert (report.scanned, report.rewrapped, report.failed) == (8, 2, 6)
    assert len(report.errors) == 5
    assert all(isinstance(error, StoreError) and "orders-" in str(error) for error in report.errors)
    assert [old._payloads[pointer.key] for pointer in pointers[:6]] == damaged


def test_a_dry_run_names_payloads_whose_key_is_missing() -> None:
    old = in_memory()
    old.write(b"x", destination="orders")
    report = rewrap(in_memory("k2", space=old_space(old), keys={"k2": KEYS["k2"]}))
    assert (report.rewrapped, report.failed, report.by_key) == (0, 1, {"k1": 1})
    assert "orders-" in str(report.errors[0])
    assert "'k1', which is not configured here" in str(report.errors[0])


def old_space(store: MemoryStore) -> str:
    from claimcheck.stores import memory

    return next(space for space, payloads in memory._SPACES.items() if payloads is store._payloads)


def test_a_data_key_that_does_not_fit_into_the_header_is_a_failure() -> None:
    old = in_memory()
    pointer = old.write(b"x" * 100, destination="orders")
    new = in_memory(LONG, space=old_space(old), keys=KEYS | {LONG: KEYS["k2"]})
    report = rewrap(new, dry_run=False)
    assert report.failed == 1
    assert "too short" in str(report.errors[0])
    assert old.read(pointer) == b"x" * 100


def test_redis_segments_that_are_shorter_than_the_header_stay_as_they_are(fake_redis_url: str) -> None:
    medium = {
        "type": "redis",
        "url": fake_redis_url,
        "key_prefix": f"{uuid.uuid4().hex}:",
        "segment_bytes": 500,
        "ttl_seconds": 100,
    }
    old = opened(medium)
    pointer = old.write(b"x" * 2000, destination="orders")
    report = rewrap(opened(medium, "k2"), dry_run=False)
    assert (report.failed, report.rewrapped) == (1, 0)
    assert old.read(pointer) == b"x" * 2000


def test_an_attempt_after_a_rewrap_keeps_the_size_of_what_is_stored() -> None:
    """Earlier pointers would be wrong otherwise: a shorter data key may leave more space in the header."""
    old = in_memory(LONG, keys=KEYS | {LONG: KEYS["k2"]})
    pointer = old.write(b"x" * 100, destination="orders")
    new = in_memory(space=old_space(old), keys=KEYS | {LONG: KEYS["k2"]})
    assert rewrap(new, dry_run=False).rewrapped == 1
    content = old._payloads[pointer.key]
    stream = new.context.content.stream_of(lambda start, stop: PieceReader([content[start:stop]]), len(content))
    assert stream.header.key_id == "k1"
    assert stream.size == read_header(PieceReader([content]))[1] > 1024


def test_a_store_that_cannot_be_reached_ends_the_run() -> None:
    store = in_memory(cls=Stubborn)
    store.write(b"x", destination="orders")
    new = in_memory("k2", cls=Stubborn, space=old_space(store))
    assert isinstance(new, Stubborn)
    new.error = ConnectionError("down")
    with pytest.raises(StoreUnavailableError):
        rewrap(new, dry_run=False)
    new.error = PermissionError("read only")
    assert rewrap(new, dry_run=False).failed == 1


def test_a_report_after_each_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("claimcheck._rewrap._BATCH", 2)
    store = in_memory()
    for _ in range(5):
        store.write(b"x", destination="orders")
    seen: list[int] = []
    rewrap(in_memory("k2", space=old_space(store)), on_batch=lambda report: seen.append(report.scanned))
    assert seen == [2, 4, 5]


def test_what_it_needs() -> None:
    with pytest.raises(ConfigError, match="key_id"):
        rewrap(in_memory(None))
    with pytest.raises(ScanNotSupportedError):
        rewrap(in_memory(cls=Unlistable))


def test_a_payload_of_a_deleted_key_is_lost() -> None:
    store = in_memory()
    pointer = store.write(b"x", destination="orders")
    without = in_memory("k2", space=old_space(store), keys={"k2": KEYS["k2"]})
    report = rewrap(without, dry_run=False)
    assert (report.failed, report.by_key) == (1, {"k1": 1})
    with pytest.raises(IntegrityError, match="'k1'"):
        without.read(pointer)
