"""Copies of stored payloads; tests/conformance has the rest."""

import uuid

import pytest

from claimcheck._store.contract import StoreContext
from claimcheck.errors import ConfigError, IntegrityError, StoreUnavailableError
from claimcheck.stores.filesystem import FilesystemStore
from claimcheck.stores.memory import MemoryStore
from claimcheck.testing import FaultyStore

IDENTITY = uuid.UUID(int=7)
LARGE = bytes(range(256)) * (9 << 12)  # over what an identified copy keeps in memory


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


def test_a_large_payload_with_an_identity_goes_through_a_file(store, archive, tmp_path):
    pointer = store.write(LARGE, destination="orders")

    copies = [store.copy(pointer, to=archive, identity=IDENTITY) for _ in range(2)]

    assert copies[0].key == copies[1].key
    assert archive.read(copies[0]) == LARGE
    assert len(files(tmp_path)) == 1


@pytest.mark.parametrize("identity", [None, IDENTITY])
@pytest.mark.parametrize("size", [1000, len(LARGE)])
def test_a_damaged_payload_leaves_no_copy(store, archive, tmp_path, identity, size):
    pointer = store.write(LARGE[:size])
    (path,) = files(tmp_path, "source")
    path.write_bytes(bytes(size))

    with pytest.raises(IntegrityError):
        store.copy(pointer, to=archive, identity=identity)

    assert files(tmp_path) == []


def test_a_damaged_payload_does_not_replace_its_good_copy(store, archive, tmp_path):
    pointer = store.write(LARGE)
    copied = store.copy(pointer, to=archive, identity=IDENTITY)
    (path,) = files(tmp_path, "source")
    path.write_bytes(bytes(len(LARGE)))

    with pytest.raises(IntegrityError):
        store.copy(pointer, to=archive, identity=IDENTITY)

    assert archive.read(copied) == LARGE


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
    with pytest.raises(ConfigError, match="ttl_seconds"):
        store.extend(store.write(b"payload"), seconds)
