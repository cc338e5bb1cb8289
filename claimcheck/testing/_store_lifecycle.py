"""The checks of listings, deletions, copies and longer lifetimes; skipped for a store that does not implement them."""

from __future__ import annotations

import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial

import pytest

import claimcheck.testing._store_kit as payloads
from claimcheck._store.listing import StoreEntry
from claimcheck._store.store import Store
from claimcheck._wire.pointer import Pointer
from claimcheck.errors import PayloadNotFoundError, PointerRejectedError, ScanNotSupportedError, StoreError
from claimcheck.hooks import OperationEvent
from claimcheck.testing._store_kit import MIB, OpenStore, StoreKit

DAY = 86_400


class ScanConformance(StoreKit):
    """Listing and deleting. The medium may hold payloads of other tests."""

    def test_listing_has_every_payload(self, store: Store) -> None:
        """Each payload is listed, with what its pointer says about its lifetime and, if known, its size."""
        sizes = [0, 1, 2 * (store.segment_bytes or MIB) + 1]
        pointers = [store.write(payloads.content(size), destination="orders") for size in sizes]

        entries = listed(store, pointers)

        assert set(entries) == {pointer.key for pointer in pointers}
        for pointer in pointers:
            entry = entries[pointer.key]
            assert (entry.kind, entry.has_lifetime) == ("payload", True)
            assert entry.size in (None, pointer.size)
            assert_not_earlier(entry, pointer)

    def test_listing_has_payloads_with_an_identity(self, store: Store) -> None:
        """Their keys have no time; the medium's own time counts, from the last write."""
        identity = uuid.uuid4()
        pointers = [store.write(b"payload", destination="orders", identity=identity) for _ in range(2)]

        entry = listed(store, pointers[:1])[pointers[0].key]

        assert not entry.is_immutable
        assert_not_earlier(entry, pointers[1])

    def test_listing_has_no_deleted_payload(self, store: Store) -> None:
        """A payload that was rolled back is not listed."""
        kept, gone = store.write(b"kept"), store.write(b"gone")
        assert len(listed(store, [kept, gone])) == 2

        store.rollback(gone)

        assert set(listed(store, [kept, gone])) == {kept.key}

    def test_listing_can_be_continued(self, store: Store, open_store: OpenStore) -> None:
        """From any position, another instance lists everything that comes after it."""
        keys = {store.write(b"payload", destination=f"topic-{i}").key for i in range(6)}
        self._needs_listing(store)
        entries = [entry for entry in store.scan() if entry.key in keys]

        for number, entry in enumerate(entries):
            rest = {each.key for each in open_store().scan(after=entry.position)}
            assert {each.key for each in entries[number + 1 :]} <= rest

    def test_parts_of_a_listing_have_every_entry_once(self, open_store: OpenStore) -> None:
        """Several processes can list a store together."""
        days = [open_store(clock=partial(_later, n * DAY)) for n in range(4)]
        pointers = [store.write(b"payload", destination=f"topic-{i}") for store in days for i in range(5)]
        pointers += [days[0].write(b"payload", destination="orders", identity=uuid.uuid4()) for _ in range(9)]
        store, keys = open_store(), {pointer.key for pointer in pointers}
        self._needs_listing(store)

        for count in (1, 3, 50):
            parts = [{entry.key for entry in store.scan(partition=part)} & keys for part in store.partitions(count)]
            assert sorted(key for part in parts for key in part) == sorted(keys)

    def test_delete_deletes_exactly_its_entries(self, store: Store) -> None:
        """All parts of a payload are deleted, and nothing else; a repetition is harmless."""
        gone = [
            store.write(payloads.content(n), destination="orders") for n in (0, 2 * (store.segment_bytes or MIB) + 1)
        ]
        kept = store.write(b"kept", destination="orders")
        entries = list(listed(store, gone).values())

        outcomes = [each.outcome for each in store.delete(entries)]
        again = [each.outcome for each in store.delete(entries)]

        assert outcomes == ["deleted", "deleted"]
        assert set(again) <= {"gone", "deleted"}
        assert store.read(kept) == self.peek(kept) == b"kept"
        for pointer in gone:
            assert self.peek(pointer) is None
            with pytest.raises(PayloadNotFoundError):
                store.read(pointer)

    def test_delete_keeps_an_entry_that_was_written_again(self, store: Store) -> None:
        """Such an entry is a newer version of the payload, with a lifetime of its own."""
        pointer = store.write(b"payload", destination="orders", identity=uuid.uuid4())
        entry = listed(store, [pointer])[pointer.key]

        (deletion,) = store.delete([replace(entry, version="an earlier version")])

        assert deletion.outcome == "changed"
        assert store.read(pointer) == b"payload"

    def test_two_may_delete_at_a_time(self, store: Store, open_store: OpenStore) -> None:
        """Entries that another process deletes meanwhile are not errors."""
        pointers = [store.write(b"payload", destination="orders") for _ in range(20)]
        entries = list(listed(store, pointers).values())

        with ThreadPoolExecutor(2) as threads:
            results = list(threads.map(lambda each: each.delete(entries), [store, open_store()]))

        assert {each.outcome for result in results for each in result} <= {"deleted", "gone"}
        assert all(self.peek(pointer) is None for pointer in pointers)

    def test_delete_refuses_an_entry_out_of_the_prefix(self, store: Store) -> None:
        """Nothing of another store is deleted."""
        if not store.prefix:
            pytest.skip("this store has no prefix")
        self._needs_listing(store)

        with pytest.raises(PointerRejectedError):
            store.delete([StoreEntry(key=f"other-{store.prefix}x")])

    def _needs_listing(self, store: Store) -> None:
        listed(store, [])


def listed(store: Store, pointers: list[Pointer]) -> dict[str, StoreEntry]:
    """Return the entries of these payloads by key; skips the test if the store cannot be listed."""
    keys = {pointer.key for pointer in pointers}
    try:
        return {entry.key: entry for entry in store.scan() if entry.key in keys}
    except ScanNotSupportedError:
        pytest.skip("this store cannot list its payloads: it does not implement _scan")


def assert_not_earlier(entry: StoreEntry, pointer: Pointer) -> None:
    """The lifetime in a listing must not end before the one in the pointer."""
    if pointer.expires_ms is None:
        assert entry.expires_ms is None
    else:
        assert entry.expires_ms is not None
        assert pointer.expires_ms <= entry.expires_ms + 50  # the medium may count its remaining milliseconds
        assert entry.expires_ms <= pointer.expires_ms + 60_000


def _later(seconds: float) -> float:
    return time.time() + seconds


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

    @pytest.mark.parametrize("harm", ["vanished", "cut"])
    def test_extension_of_a_damaged_payload_fails(self, store: Store, events: list[OperationEvent], harm: str) -> None:
        """It raises an error and writes nothing: a part of a payload is not extended as if it were the whole."""
        ttl = self._ttl_of(store)
        content = payloads.content(2 * (store.segment_bytes or MIB) + 1)
        pointer = store.write(content)
        self.damage(pointer, None if harm == "vanished" else content[: len(content) // 2])

        with pytest.raises(PayloadNotFoundError if harm == "vanished" else StoreError):
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
