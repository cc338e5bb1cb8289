"""The store that fails on demand, and with it: what every store does when the medium fails."""

import io
import pickle

import pytest

from claimcheck._registry import build_store, check_store
from claimcheck._store.contract import StoreContext
from claimcheck.config import StoreConfig
from claimcheck.errors import PayloadNotFoundError, StoreError, StoreUnavailableError
from claimcheck.stores.memory import MemoryStore
from claimcheck.testing import FaultyStore

MOMENTS = ["before", "during", "after"]


@pytest.fixture
def store(request):
    faulty = FaultyStore(store=MemoryStore(space=request.node.nodeid))
    faulty.context = StoreContext(name="hot")
    return faulty


def payloads(store):
    return store.inner._payloads


def test_without_faults_it_is_the_inner_store(store):
    pointer = store.write(b"payload", destination="orders")

    assert pointer.store == "hot"
    assert payloads(store) == {pointer.key: b"payload"}
    assert store.read(pointer) == b"payload"
    store.rollback(pointer)
    with pytest.raises(PayloadNotFoundError, match="'hot'"):
        store.read(pointer)
    assert store.calls == {"write": 1, "read": 2, "rollback": 1}


@pytest.mark.parametrize("when", MOMENTS)
@pytest.mark.parametrize("size", [0, 1, 3 << 20])
@pytest.mark.parametrize("shape", [bytes, io.BytesIO])
def test_failed_write_leaves_nothing(store, when, size, shape):
    store.fail("write", when=when)

    with pytest.raises(StoreUnavailableError, match="injected fault"):
        store.write(shape(bytes(size)))

    assert payloads(store) == {}


@pytest.mark.parametrize("when", MOMENTS)
def test_failed_rollback_of_a_failed_write_is_a_note(store, when):
    store.fail("write", when="after")
    store.fail("rollback", when=when, error=RuntimeError("second"))

    with pytest.raises(StoreUnavailableError, match="injected fault") as caught:
        store.write(b"payload")

    assert any("RuntimeError" in note for note in caught.value.__notes__)
    assert len(payloads(store)) == (when != "after")


@pytest.mark.parametrize("when", MOMENTS)
@pytest.mark.parametrize("size", [0, 1, 5 << 20])
def test_failed_read(store, when, size):
    pointer = store.write(bytes(size))
    store.fail("read", when=when)

    with pytest.raises(StoreUnavailableError):
        store.read(pointer)
    with store.open(pointer) as file, pytest.raises(StoreUnavailableError):
        file.read()


@pytest.mark.parametrize("when", MOMENTS)
def test_failed_rollback_may_be_repeated(store, when):
    pointer = store.write(b"payload")
    store.fail("rollback", when=when, times=1)

    with pytest.raises(StoreUnavailableError):
        store.rollback(pointer)
    store.rollback(pointer)

    assert payloads(store) == {}


def test_faults_wear_off(store):
    store.fail("write", times=2)
    for _ in range(2):
        with pytest.raises(StoreUnavailableError):
            store.write(b"payload")

    store.write(b"payload")


def test_faults_are_healed(store):
    store.fail("write")
    with pytest.raises(StoreUnavailableError):
        store.write(b"payload")
    store.heal()

    store.write(b"payload")


@pytest.mark.parametrize(
    ("error", "expected"),
    [(TimeoutError(), StoreUnavailableError), (OSError("full"), StoreError), (KeyError(), StoreError)],
)
def test_any_error_may_be_injected(store, error, expected):
    store.fail("write", error=error)

    with pytest.raises(StoreError) as caught:
        store.write(b"payload")

    assert type(caught.value) is expected
    assert caught.value.__cause__ is error


def test_it_is_made_from_yaml():
    config = StoreConfig(
        "claimcheck.testing:FaultyStore", {"store": {"type": "filesystem", "path": "/nowhere", "ttl_seconds": 60}}
    )

    check_store(config, path="stores.hot")
    store = build_store(pickle.loads(pickle.dumps(config)), path="stores.hot")

    assert store.ttl_seconds == 60
    store.close()
