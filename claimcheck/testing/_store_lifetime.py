"""The checks of copies and of longer lifetimes."""

from __future__ import annotations

import uuid

import pytest

from claimcheck._pointer import Pointer
from claimcheck._store import Store
from claimcheck.errors import PayloadNotFoundError, ScanNotSupportedError, StoreError
from claimcheck.hooks import OperationEvent
from claimcheck.testing import _payloads as payloads
from claimcheck.testing._store_kit import MIB, OpenStore, StoreKit

_MORE_SECONDS = 600
_ROUNDED_MS = 1000


class LifetimeConformance(StoreKit):
    """`Store.extend` and `Store.copy`."""

    @pytest.mark.parametrize("size", ["empty", "several segments"])
    def test_extension_ends_later(self, store: Store, size: str) -> None:
        """An extended payload is the same, and neither the medium nor a sweep deletes it earlier."""
        ttl = self._ttl_of(store)
        expected = payloads.content(0 if size == "empty" else 2 * (store.segment_bytes or MIB) + 1)
        pointer = store.write(expected, destination="orders")

        extended = store.extend(pointer, ttl + _MORE_SECONDS)

        assert (extended.expires_ms or 0) >= (pointer.expires_ms or 0) + _MORE_SECONDS * 1000 - _ROUNDED_MS
        assert "orders" in extended.key
        assert store.read(extended) == self.peek(extended) == expected
        assert store.read(pointer) == expected, "another message may still point at it"
        assert_kept_until(store, extended)

    def test_extension_never_shortens(self, store: Store) -> None:
        """A shorter one returns the same pointer, or leaves the longer lifetime as it is."""
        ttl = self._ttl_of(store)
        pointer = store.write(b"payload", destination="orders")
        extended = store.extend(pointer, ttl + _MORE_SECONDS)

        assert store.extend(pointer, 0) is pointer
        assert store.extend(extended, ttl + 1) is extended
        between = store.extend(pointer, ttl + _MORE_SECONDS / 2)

        assert store.read(between) == store.read(extended) == b"payload"
        assert_kept_until(store, extended)

    def test_extension_of_a_vanished_payload_fails(self, store: Store, events: list[OperationEvent]) -> None:
        """It raises `PayloadNotFoundError` and writes nothing."""
        ttl = self._ttl_of(store)
        pointer = store.write(payloads.content(1000))
        self.damage(pointer, None)

        with pytest.raises(PayloadNotFoundError):
            store.extend(pointer, ttl + _MORE_SECONDS)

        self._assert_no_other_payload(pointer, events)

    def test_extension_of_a_cut_payload_fails(self, store: Store, events: list[OperationEvent]) -> None:
        """A part of a payload is not extended, or copied, as if it were the whole."""
        ttl = self._ttl_of(store)
        content = payloads.content(2 * (store.segment_bytes or MIB) + 1)
        pointer = store.write(content)
        self.damage(pointer, content[: len(content) // 2])

        with pytest.raises(StoreError):
            store.extend(pointer, ttl + _MORE_SECONDS)

        self._assert_no_other_payload(pointer, events)

    @pytest.mark.parametrize("identity", [None, uuid.UUID(int=7)])
    def test_copy_is_a_payload_of_its_own(
        self, store: Store, open_store: OpenStore, identity: uuid.UUID | None
    ) -> None:
        """It has the other store's name and is readable; the original stays."""
        other = open_store(name="archive")
        pointer = store.write(payloads.content(3000), destination="orders")

        copied = store.copy(pointer, to=other, identity=identity)

        assert copied.store == "archive"
        assert copied.key != pointer.key
        assert "orders" in copied.key
        assert other.read(copied) == store.read(pointer) == payloads.content(3000)

    def test_copies_with_an_identity_are_one(self, store: Store, open_store: OpenStore) -> None:
        """A task that runs again uses the same key; a medium with keys of its own may store a second copy."""
        other, identity = open_store(name="archive"), uuid.uuid4()
        pointer = store.write(payloads.content(3000), destination="orders")

        first, second = (store.copy(pointer, to=other, identity=identity) for _ in range(2))

        assert str(identity) in first.key
        assert first.key.partition("@")[0] == second.key.partition("@")[0]
        assert other.read(first) == other.read(second) == payloads.content(3000)

    def _ttl_of(self, store: Store) -> float:
        """Return the store's lifetime; without one, checks that nothing is ever extended, and skips the rest."""
        if store.ttl_seconds is None:
            pointer = store.write(b"payload")
            assert store.extend(pointer, _MORE_SECONDS) is pointer
            pytest.skip("the payloads of this store have no lifetime to extend")
        return store.ttl_seconds

    def _assert_no_other_payload(self, pointer: Pointer, events: list[OperationEvent]) -> None:
        written = {event.key for event in events if (event.operation, event.phase) == ("write", "completed")}
        started = {event.key for event in events if (event.operation, event.phase) == ("write", "started")}
        assert written == {pointer.key}
        for key in started - written:
            assert self.peek(Pointer(key=key, size=pointer.size, segments=1)) is None


def assert_kept_until(store: Store, pointer: Pointer) -> None:
    """The listing, by which a sweep deletes, must not end a payload's lifetime before its pointer does."""
    try:
        entry = next(each for each in store.scan() if each.key == pointer.key)
    except ScanNotSupportedError:
        return
    assert entry.expires_ms is not None
    assert pointer.expires_ms is not None
    assert entry.expires_ms + 50 >= pointer.expires_ms  # the medium may count its remaining milliseconds
