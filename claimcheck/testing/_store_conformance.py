"""The contract of a store, as tests for every store.

A store author writes a fixture and two hooks, in a test file of about 15 lines::

    class TestTapeStore(StoreConformance):
        @pytest.fixture
        def options(self, tmp_path):                      # the store's entry in YAML
            self.tape = tmp_path / "tape"
            return {"type": "mypackage.stores:TapeStore", "path": str(self.tape)}

        def peek(self, pointer): ...                       # read the medium without the store
        def damage(self, pointer, payload): ...            # change the medium without the store
"""

from __future__ import annotations

import io
import pickle
import tracemalloc
import uuid
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from urllib.parse import urlsplit

import pytest

import claimcheck.testing._store_kit as payloads
from claimcheck._registry import check_store
from claimcheck._store.listing import StoreEntry
from claimcheck._store.store import Store
from claimcheck.config import StoreConfig
from claimcheck.errors import IntegrityError, PayloadError, PayloadNotFoundError, PointerRejectedError
from claimcheck.hooks import OperationEvent
from claimcheck.testing._store_kit import (
    MIB,
    OpenStore,
    StoreKit,
    as_if_written,
    assert_not_earlier,
    content,
    damaged_size,
    forbid_io,
    later,
    listed,
    piece_bytes,
    read_in_pieces,
)

_LOST = (IntegrityError, PayloadNotFoundError)
_DAY = 86_400


class StoreConformance(StoreKit):
    """Subclass it under a name that begins with ``Test`` and override `options`, `peek` and `damage`.

    Declare tests that the store cannot pass in `skip`, with a reason; the report shows them as skipped. Listings,
    deletions and longer lifetimes are skipped for a store that does not implement them.
    """

    # Round trips -----------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("shape", payloads.SHAPES)
    @pytest.mark.parametrize("size", payloads.SIZES)
    def test_round_trip(self, store: Store, size: str, shape: str) -> None:
        """Payloads of every size and type come back: as bytes, as a file, and at the beginning of a buffer."""
        expected = content(payloads.SIZES[size](piece_bytes(store)))
        buffer = bytearray(len(expected)) + b"rest"

        pointer = store.write(payloads.SHAPES[shape](expected), destination="orders")

        assert pointer.size == len(expected)
        assert store.read(pointer) == read_in_pieces(store, pointer) == self.peek(pointer) == expected
        with store.open(pointer) as file:
            assert file.read() == expected
        assert store.read_into(pointer, buffer) == len(expected)
        assert buffer == expected + b"rest"

    def test_caller_may_reuse_the_buffer(self, store: Store) -> None:
        payload = bytearray(content(3000))

        pointer = store.write(payload)
        payload[:] = bytes(len(payload))

        assert store.read(pointer) == content(3000)

    def test_large_payload_in_bounded_memory(self, store: Store) -> None:
        """A payload that is larger than the allowed memory can be written, read and copied."""
        size = 2 * self.memory_bytes
        assert store.read(store.write(b"vendor and connections")), "which are not measured here"
        tracemalloc.start()
        try:
            pointer = store.write(payloads.Unseekable(payloads.Zeros(size)))
            assert store.copy(pointer, to=store).checksum == pointer.checksum
            with store.open(pointer) as file:  # last: a native thread that calls back while tracemalloc stops crashes
                assert sum(len(piece) for piece in iter(lambda: file.read(MIB), b"")) == size
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

        assert peak < self.memory_bytes

    # Keys and rollback -----------------------------------------------------------------------------------------

    def test_same_payload_twice_rests_twice(self, store: Store) -> None:
        """Keys are unique per write: a rollback deletes one of two equal payloads."""
        first, second = store.write(b"same", destination="orders"), store.write(b"same", destination="orders")

        store.rollback(first)

        assert first.key != second.key
        assert (self.peek(first), self.peek(second)) == (None, b"same")
        assert store.read(second) == b"same"

    @pytest.mark.parametrize("destination", payloads.DESTINATIONS)
    def test_any_destination_makes_a_good_key(self, store: Store, destination: str) -> None:
        """A destination is part of a key for humans and cannot change where the payload is stored."""
        pointer = store.write(b"payload", destination=destination)

        store.check(pointer)
        assert pointer.key.isascii()
        assert pointer.key.isprintable()
        assert len(pointer.key) < 300
        assert self.peek(pointer) == store.read(pointer) == b"payload"

    def test_rollback_leaves_nothing_and_may_be_repeated(self, store: Store) -> None:
        """A rollback deletes all segments and is idempotent; a read then raises `PayloadNotFoundError`."""
        pointer = store.write(content(2 * piece_bytes(store) + 1))

        store.rollback(pointer)
        store.rollback(pointer)

        assert self.peek(pointer) is None
        with pytest.raises(PayloadNotFoundError):
            store.read(pointer)

    def test_rollback_of_what_never_was_is_harmless(self, store: Store) -> None:
        """A rollback of a payload that is gone or was never written does nothing."""
        gone, kept = store.write(b"gone"), store.write(b"kept")
        self.damage(gone, None)

        store.rollback(gone)
        store.rollback(replace(gone, key=gone.key.replace(gone.key.strip("{}")[-36:], str(uuid.uuid4()))))

        assert store.read(kept) == b"kept"

    # Writes that fail ------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("broken", payloads.BROKEN)
    def test_failed_write_leaves_nothing(self, store: Store, events: list[OperationEvent], broken: str) -> None:
        """A payload that fails halfway leaves nothing and raises `PayloadError`; the store keeps working."""
        size = 3 * piece_bytes(store)

        with pytest.raises((PayloadError, KeyboardInterrupt)):
            store.write(payloads.BROKEN[broken](size))

        assert [event.phase for event in events] == ["started", "failed"]
        assert self.peek(as_if_written(store, events[0].key, size)) is None
        assert store.read(store.write(b"next")) == b"next"

    # Missing and damaged payloads ------------------------------------------------------------------------------

    @pytest.mark.parametrize("size", ["some", "segments"])
    def test_vanished_payload_is_not_found(self, store: Store, size: str) -> None:
        pointer = store.write(content(damaged_size(store, size)))
        self.damage(pointer, None)

        with pytest.raises(PayloadNotFoundError) as caught:
            store.read(pointer)
        with pytest.raises(PayloadNotFoundError), store.open(pointer) as file:
            file.read(1)
        with pytest.raises(PayloadNotFoundError):
            store.read_range(pointer, (pointer.size or 0) // 2, 1000)

        error = caught.value
        assert (error.store, error.key, error.created_ms) == ("conformance", pointer.key, pointer.created_ms)

    @pytest.mark.parametrize("size", ["some", "segments"])
    @pytest.mark.parametrize("harm", payloads.HARMS)
    def test_damaged_payload_is_an_error(self, store: Store, harm: str, size: str) -> None:
        """A changed payload is never returned. A file raises before its end, and again, also after seeking."""
        expected = content(damaged_size(store, size))
        pointer = store.write(expected)
        self.damage(pointer, payloads.HARMS[harm](expected))

        with pytest.raises(_LOST) as caught:
            store.read(pointer)

        assert (caught.value.store, caught.value.key) == ("conformance", pointer.key)
        for start in (0, len(expected) // 2) if store.is_seekable else (0,):
            with store.open(pointer) as file:
                if start:
                    file.seek(start)
                with pytest.raises(_LOST):
                    while file.read(64 << 10):
                        pass
                with pytest.raises(_LOST):
                    file.read(1)

    # Pointers that must not be followed ------------------------------------------------------------------------

    @pytest.mark.parametrize("hostile", payloads.HOSTILE)
    def test_hostile_pointer_is_refused_before_any_io(
        self, store: Store, monkeypatch: pytest.MonkeyPatch, hostile: str
    ) -> None:
        """Pointers of other stores, keys out of scope, absurd sizes and unknown features cause no I/O."""
        good = as_if_written(store, store._new_key("orders", uuid.uuid4()), 100)
        pointer = payloads.hostile_pointer(good, hostile)
        forbid_io(store, monkeypatch)

        for operation in (store.read, store.open, store.rollback):
            with pytest.raises(PointerRejectedError):
                operation(pointer)
        if store.prefix and not pointer.key.startswith(store.prefix):
            with pytest.raises(PointerRejectedError):
                store.delete([StoreEntry(key=pointer.key)])

    # Concurrency, opening and closing --------------------------------------------------------------------------

    def test_threads_share_a_store(self, store: Store) -> None:
        def work(seed: int) -> bool:
            expected = content(piece_bytes(store) + seed)
            kept, undone = store.write(expected, destination="orders"), store.write(expected, destination="orders")
            store.rollback(undone)
            return store.read(kept) == expected and read_in_pieces(store, kept) == expected

        with ThreadPoolExecutor(8) as threads:
            assert all(threads.map(work, range(16)))

    def test_one_payload_may_have_many_readers(self, store: Store, events: list[OperationEvent]) -> None:
        """Interleaved readers of one payload each receive all of it; one that stops early is not a failure."""
        expected = content(3 * piece_bytes(store))
        pointer = store.write(expected)

        with store.open(pointer) as first, store.open(pointer) as second:
            pieces = [(first.read(300_000), second.read(300_000)) for _ in range(len(expected) // 300_000 + 1)]
        with store.open(pointer) as file:
            assert file.read(10) == expected[:10]

        assert b"".join(piece for piece, _ in pieces) == b"".join(piece for _, piece in pieces) == expected
        assert events[-1].phase == "completed"
        assert store.read(pointer)

    def test_close_keeps_payloads(self, config: StoreConfig, open_store: OpenStore, store: Store) -> None:
        """Closing can be repeated, and deletes nothing; a pickled configuration opens the same medium."""
        with store:
            pointer = store.write(b"payload")
        store.close()
        travelled: StoreConfig = pickle.loads(pickle.dumps(config))
        check_store(travelled, path="stores.conformance")

        assert travelled == config
        assert open_store().read(pointer) == self.peek(pointer) == b"payload"

    def test_repr_names_the_store_and_no_secret(self, config: StoreConfig, store: Store) -> None:
        urls = (text for text in config.options.values() if isinstance(text, str) and "://" in text)

        assert "conformance" in repr(store)
        for secret in [*self.secrets, *filter(None, (urlsplit(url).password for url in urls))]:
            assert secret not in repr(store)
            assert secret not in repr(config)

    # Ranges and files ------------------------------------------------------------------------------------------

    def test_ranges_are_those_of_the_payload(self, store: Store) -> None:
        """A range equals the slice of the payload, wherever it begins and ends; a short one is never returned."""
        piece = piece_bytes(store)
        expected = content(2 * piece + 1000)
        pointer = store.write(expected)
        places = {0, 1, 500, piece - 1, piece, piece + 1, 2 * piece - 1, 2 * piece, len(expected) - 1, len(expected)}

        for start in places | {len(expected) + 5}:
            for length in (0, 1, 700, piece, len(expected), 10 * len(expected)):
                assert store.read_range(pointer, start, length) == expected[start : start + length]
        self.damage(pointer, expected[: len(expected) // 2])
        with pytest.raises(_LOST):
            store.read_range(pointer, len(expected) - 1000, 1000)

    def test_file_seeks_as_files_do(self, store: Store) -> None:
        if not store.is_seekable:
            pytest.skip("this store cannot read from any position: it does not implement _open")
        expected = content(3 * piece_bytes(store) + 1000)
        pointer, model = store.write(expected), io.BytesIO(expected)
        places = [(0, 0), (-10, 2), (5, 0), (-3, 1), (len(expected) // 2, 0), (50, 1), (0, 2), (9, 2), (0, 0)]

        with store.open(pointer) as file:
            assert file.seekable()
            for offset, whence in places:
                assert file.seek(offset, whence) == model.seek(offset, whence)
                assert file.read(1234) == model.read(1234)
                assert file.tell() == model.tell()
            assert (file.seek(7), file.read()) == (7, expected[7:])

    # Listing and deleting: the medium may hold payloads of other tests --------------------------------------------

    def test_listing_has_every_payload(self, store: Store) -> None:
        """Each payload is listed, with what its pointer says about its lifetime and, if known, its size."""
        sizes = [0, 1, 2 * piece_bytes(store) + 1]
        pointers = [store.write(content(size), destination="orders") for size in sizes]

        entries = listed(store, pointers)

        assert set(entries) == {pointer.key for pointer in pointers}
        for pointer in pointers:
            entry = entries[pointer.key]
            assert (entry.kind, entry.has_lifetime) == ("payload", True)
            assert entry.size in (None, pointer.size)
            assert_not_earlier(entry, pointer)

    def test_parts_of_a_listing_have_every_entry_once(self, open_store: OpenStore) -> None:
        days = [open_store(clock=partial(later, n * _DAY)) for n in range(4)]
        pointers = [store.write(b"payload", destination=f"topic-{i}") for store in days for i in range(5)]
        store, keys = open_store(), {pointer.key for pointer in pointers}
        listed(store, [])

        for count in (1, 3, 50):
            parts = [{entry.key for entry in store.scan(partition=part)} & keys for part in store.partitions(count)]
            assert sorted(key for part in parts for key in part) == sorted(keys)

    def test_delete_deletes_exactly_its_entries(self, store: Store, open_store: OpenStore) -> None:
        """All parts of a payload are deleted, and nothing else; two may do it at a time, and it may be repeated."""
        gone = [store.write(content(n), destination="orders") for n in (0, 2 * piece_bytes(store) + 1, *range(1, 20))]
        kept = store.write(b"kept", destination="orders")
        entries = list(listed(store, gone).values())

        with ThreadPoolExecutor(2) as threads:
            results = list(threads.map(lambda each: each.delete(entries), [store, open_store()]))
        results.append(store.delete(entries))

        assert {each.outcome for result in results for each in result} <= {"deleted", "gone"}
        assert set(listed(store, [kept, *gone])) == {kept.key}
        assert store.read(kept) == self.peek(kept) == b"kept"
        for pointer in gone:
            assert self.peek(pointer) is None
            with pytest.raises(PayloadNotFoundError):
                store.read(pointer)

    # Longer lifetimes and copies -------------------------------------------------------------------------------

    def test_copy_is_a_payload_of_its_own(self, store: Store, open_store: OpenStore) -> None:
        """It has the other store's name and is readable; the original stays."""
        other, pointer = open_store(name="archive"), store.write(content(3000), destination="orders")

        copied = store.copy(pointer, to=other)

        assert copied.store == "archive"
        assert copied.key != pointer.key
        assert "orders" in copied.key
        assert other.read(copied) == store.read(pointer) == content(3000)
