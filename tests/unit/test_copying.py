"""Copies of stored payloads; tests/conformance has the rest."""

import pytest

from claimcheck._store.contract import StoreContext
from claimcheck.errors import ConfigError, IntegrityError, StoreUnavailableError
from claimcheck.stores.filesystem import FilesystemStore
from claimcheck.stores.memory import MemoryStore
from claimcheck.testing import FaultyStore

LARGE = bytes(range(256)) * (9 << 12)


@pytest.fixture
def store(tmp_path):
    return FilesystemStore(path=tmp_path / "source", create=True, ttl_seconds=60)


@pytest.fixture
def archive(tmp_path):
    store = FilesystemStore(path=tmp_path / "archive", create=True)
    store.context = StoreContext(name="archive")
    return store


def files(tmp_path, folder="archive"):
    return [path for path in (tmp_path / folder).rglob("*") if path.is_file()]


@pytest.mark.parametrize("size", [1000, len(LARGE)])
def test_a_damaged_payload_leaves_no_copy(store, archive, tmp_path, size):
    pointer = store.write(LARGE[:size])
    (path,) = files(tmp_path, "source")
    path.write_bytes(bytes(size))

    with pytest.raises(IntegrityError):
        store.copy(pointer, to=archive)

    assert files(tmp_path) == []


def test_errors_of_either_store_are_its_own(archive):
    source = FaultyStore(store=MemoryStore(space="copies"))
    target = FaultyStore(store=archive)
    pointer = source.write(b"payload")
    for store in (source, target):
        store.fail("read" if store is source else "write")
        with pytest.raises(StoreUnavailableError):
            source.copy(pointer, to=target)
        store.heal()


@pytest.mark.parametrize(("shortest", "lifetime"), [(None, 60), (30, 60), (90, 90)])
def test_a_payload_may_live_longer_than_others(store, shortest, lifetime):
    pointer = store.write(b"payload", min_ttl_seconds=shortest)

    assert pointer.expires_ms - pointer.created_ms == lifetime * 1000
    assert f"-{lifetime}s." in pointer.key


@pytest.mark.parametrize("seconds", [-1, float("nan"), "7d"])
def test_no_lifetime(store, seconds):
    with pytest.raises(ConfigError, match="ttl_seconds"):
        store.write(b"payload", min_ttl_seconds=seconds)
