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
import zipfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from urllib.parse import urlsplit

import pytest

import claimcheck.testing._store_kit as payloads
from claimcheck._registry import check_store
from claimcheck._store.store import Store
from claimcheck._wire.digest import digest_of
from claimcheck._wire.pointer import Pointer, decode, encode
from claimcheck.config import StoreConfig
from claimcheck.errors import (
    IntegrityError,
    PayloadError,
    PayloadNotFoundError,
    PayloadTooLargeError,
    PointerRejectedError,
)
from claimcheck.hooks import OperationEvent
from claimcheck.testing._store_kit import (
    MIB,
    OpenStore,
    as_if_written,
    damaged_size,
    forbid_io,
    read_in_pieces,
)
from claimcheck.testing._store_lifecycle import LifetimeConformance, ScanConformance

_LOST = (IntegrityError, PayloadNotFoundError)
_NOW = 4_000_000_000.25  # in the year 2096, so that nothing written by this clock has expired already


class StoreConformance(LifetimeConformance, ScanConformance):
    """Subclass it under a name that begins with ``Test`` and override `options`, `peek` and `damage`.

    Declare tests that the store cannot pass in `skip`, with a reason; the report shows them as skipped.
    """

    # Round trips -----------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("shape", payloads.SHAPES)
    @pytest.mark.parametrize("size", payloads.SIZES)
    def test_round_trip(self, store: Store, size: str, shape: str) -> None:
        """Payloads of every size and type come back, as bytes and as a file, and are stored as they are."""
        expected = payloads.content(payloads.SIZES[size](store.segment_bytes or MIB))

        pointer = store.write(payloads.SHAPES[shape](expected), destination="orders")

        assert pointer.size == len(expected)
        assert store.read(pointer) == expected
        assert read_in_pieces(store, pointer) == expected
        with store.open(pointer) as file:
            assert file.read() == expected
        assert self.peek(pointer) == expected

    def test_pointer_says_what_readers_need(self, open_store: OpenStore, store: Store) -> None:
        """A pointer survives encoding, has times of the store's clock, and is all that a reader needs."""
        store.context = replace(store.context, clock=lambda: _NOW)
        pointer = store.write(b"payload", destination="orders")

        again = decode(encode(pointer))

        assert (pointer.store, pointer.created_ms) == ("conformance", int(_NOW * 1000))
        ttl = store.ttl_seconds
        assert pointer.expires_ms == (None if ttl is None else int(_NOW * 1000) + int(ttl * 1000))
        assert open_store().read(again) == b"payload"
        assert len(encode(pointer)) < 1024

    @pytest.mark.parametrize("algorithm", ["sha256", "xxh3-128"])
    def test_other_checksums_than_crc32(self, open_store: OpenStore, store: Store, algorithm: str) -> None:
        """Payloads are verified by the algorithm that their pointer names, whatever the store itself would use."""
        if algorithm == "xxh3-128":
            pytest.importorskip("xxhash")
        expected, writer = payloads.content(2 * (store.segment_bytes or MIB) + 4 * MIB), open_store(checksum=algorithm)

        pointer = writer.write(expected)
        small = writer.write(payloads.Unseekable(io.BytesIO(b"small")))

        assert (pointer.checksum, small.checksum) == (
            digest_of(expected, algorithm=algorithm),
            digest_of(b"small", algorithm=algorithm),
        )
        assert store.read(pointer) == read_in_pieces(store, pointer) == expected
        assert store.read(small) == b"small"
        self.damage(small, b"smalL")
        with pytest.raises(IntegrityError, match="checksum"):
            store.read(small)

    def test_caller_may_reuse_the_buffer(self, store: Store) -> None:
        """Changing the buffer after the write does not change the stored payload."""
        payload = bytearray(payloads.content(3000))
        expected = bytes(payload)

        pointer = store.write(payload)
        payload[:] = bytes(len(payload))

        assert store.read(pointer) == expected

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

    # Keys ------------------------------------------------------------------------------------------------------

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

        assert pointer.key.startswith(store._scope(pointer))
        assert pointer.key.isascii()
        assert pointer.key.isprintable()
        assert len(pointer.key) < 300
        assert self.peek(pointer) == store.read(pointer) == b"payload"

    def test_an_identity_leads_every_attempt_to_one_key(self, store: Store) -> None:
        """A task that runs again uses the same key; a medium with keys of its own may store a second copy."""
        identity, payload = uuid.uuid4(), payloads.content(3000)

        first = store.write(payload, destination="orders", identity=identity)
        second = store.write(payload, destination="orders", identity=identity)

        assert str(identity) in first.key
        assert replace(second, key=first.key, created_ms=first.created_ms, expires_ms=first.expires_ms) == first
        assert store.read(first) == store.read(second) == payload

    # Rollback --------------------------------------------------------------------------------------------------

    def test_rollback_leaves_nothing_and_may_be_repeated(self, store: Store) -> None:
        """A rollback deletes all segments and is idempotent; a read then raises `PayloadNotFoundError`."""
        pointer = store.write(payloads.content(2 * (store.segment_bytes or MIB) + 1))

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
        store.rollback(sibling(gone))

        assert store.read(kept) == b"kept"

    # Writes that fail ------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("broken", payloads.BROKEN)
    def test_failed_write_leaves_nothing(self, store: Store, events: list[OperationEvent], broken: str) -> None:
        """A payload that fails halfway leaves nothing and raises `PayloadError`; the store keeps working."""
        size = 3 * (store.segment_bytes or MIB)

        with pytest.raises((PayloadError, KeyboardInterrupt)):
            store.write(payloads.BROKEN[broken](size))

        assert [event.phase for event in events] == ["started", "failed"]
        assert self.peek(as_if_written(store, events[0].key, size)) is None
        assert store.read(store.write(b"next")) == b"next"

    @pytest.mark.parametrize("shape", payloads.SHAPES)
    def test_payload_over_the_limit_is_not_written(
        self, open_store: OpenStore, events: list[OperationEvent], shape: str
    ) -> None:
        """One byte over the limit leaves nothing, whether or not the size is known; the limit itself fits."""
        store = open_store(max_payload_bytes=5000)

        with pytest.raises(PayloadTooLargeError) as caught:
            store.write(payloads.SHAPES[shape](payloads.content(5001)))

        assert (caught.value.size, caught.value.limit) == (5001, 5000)
        assert all(self.peek(as_if_written(store, event.key, 5001)) is None for event in events)
        assert store.write(payloads.SHAPES[shape](payloads.content(5000))).size == 5000

    # Missing and damaged payloads ------------------------------------------------------------------------------

    @pytest.mark.parametrize("size", ["some", "segments"])
    def test_vanished_payload_is_not_found(self, store: Store, size: str) -> None:
        """The error names the payload and when it was written."""
        pointer = store.write(payloads.content(damaged_size(store, size)))
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
        """A truncated, changed or replaced payload is never returned. A file raises before its end, and again."""
        pointer, _ = self._damaged(store, harm, size)

        with pytest.raises(_LOST) as caught:
            store.read(pointer)

        assert (caught.value.store, caught.value.key) == ("conformance", pointer.key)
        with store.open(pointer) as file:
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
        pointer = payloads.HOSTILE[hostile](as_if_written(store, store._new_key("orders", uuid.uuid4()), 100))
        forbid_io(store, monkeypatch)

        with pytest.raises(PointerRejectedError):
            store.read(pointer)
        with pytest.raises(PointerRejectedError):
            store.open(pointer)
        with pytest.raises(PointerRejectedError):
            store.rollback(pointer)

    def test_key_out_of_the_prefix_is_refused(self, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        """The same for keys without the store's prefix."""
        if not store.prefix:
            pytest.skip("this store has no prefix")
        forbid_io(store, monkeypatch)

        for key in (f"other-{store.prefix}x", store.prefix[:-1] or "x", "other"):
            with pytest.raises(PointerRejectedError):
                store.read(as_if_written(store, key, 100))

    # Concurrency, opening and closing --------------------------------------------------------------------------

    def test_threads_share_a_store(self, store: Store) -> None:
        """Writes, reads and rollbacks of several threads do not disturb each other."""

        def work(seed: int) -> bool:
            expected = payloads.content((store.segment_bytes or MIB) + seed)
            kept, undone = store.write(expected, destination="orders"), store.write(expected, destination="orders")
            store.rollback(undone)
            return store.read(kept) == expected and read_in_pieces(store, kept) == expected

        with ThreadPoolExecutor(8) as threads:
            assert all(threads.map(work, range(16)))

    def test_one_payload_may_have_many_readers(self, store: Store) -> None:
        """Interleaved readers of one payload each receive all of it."""
        expected = payloads.content(3 * (store.segment_bytes or MIB))
        pointer = store.write(expected)

        with store.open(pointer) as first, store.open(pointer) as second:
            pieces = [(first.read(300_000), second.read(300_000)) for _ in range(len(expected) // 300_000 + 1)]

        assert b"".join(piece for piece, _ in pieces) == b"".join(piece for _, piece in pieces) == expected

    def test_reader_may_stop_early(self, store: Store, events: list[OperationEvent]) -> None:
        """Closing a half-read payload is not a failure; the store keeps working."""
        pointer = store.write(payloads.content(3 * (store.segment_bytes or MIB)))

        with store.open(pointer) as file:
            assert file.read(10) == payloads.content(10)

        assert events[-1].phase == "completed"
        assert store.read(pointer)

    def test_config_travels(self, config: StoreConfig, open_store: OpenStore, store: Store) -> None:
        """A pickled configuration opens the same medium."""
        pointer = store.write(b"payload")
        travelled: StoreConfig = pickle.loads(pickle.dumps(config))
        check_store(travelled, path="stores.conformance")

        assert travelled == config
        assert open_store().read(pointer) == b"payload"

    def test_close_keeps_payloads(self, open_store: OpenStore, store: Store) -> None:
        """Closing releases connections, can be repeated, and deletes nothing."""
        with store:
            pointer = store.write(b"payload")
        store.close()

        assert open_store().read(pointer) == b"payload"
        assert self.peek(pointer) == b"payload"

    # Events and repr -------------------------------------------------------------------------------------------

    def test_repr_names_the_store_and_no_secret(self, config: StoreConfig, store: Store) -> None:
        """The repr has the store's name and no password."""
        passwords = [urlsplit(text).password for text in config.options.values() if _is_url(text)]

        assert "conformance" in repr(store)
        for secret in [*self.secrets, *filter(None, passwords)]:
            assert secret not in repr(store)
            assert secret not in repr(config)

    # Into a buffer ---------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("room", [0, 1, 5000])
    @pytest.mark.parametrize("size", payloads.SIZES)
    def test_into_a_buffer(self, store: Store, size: str, room: int) -> None:
        """The payload fills the beginning of the buffer, and the rest is unchanged."""
        expected = payloads.content(payloads.SIZES[size](store.segment_bytes or MIB))
        pointer = store.write(expected)
        buffer = bytearray(b"?" * (len(expected) + room))

        assert store.read_into(pointer, buffer) == len(expected)

        assert buffer == expected + b"?" * room

    # Ranges ----------------------------------------------------------------------------------------------------

    def test_ranges_are_those_of_the_payload(self, store: Store) -> None:
        """A range equals the slice of the payload, wherever it begins and ends."""
        piece = store.segment_bytes or MIB
        expected = payloads.content(2 * piece + 1000)
        pointer = store.write(expected)
        places = {0, 1, 500, piece - 1, piece, piece + 1, 2 * piece - 1, 2 * piece, len(expected) - 1, len(expected)}

        for start in places | {len(expected) + 5}:
            for length in (0, 1, 700, piece, len(expected), 10 * len(expected)):
                assert store.read_range(pointer, start, length) == expected[start : start + length]

    def test_range_that_is_not_there_is_an_error(self, store: Store) -> None:
        """A short range is never returned: here one beyond the end of a truncated payload."""
        expected = payloads.content(damaged_size(store, "segments"))
        pointer = store.write(expected)
        self.damage(pointer, expected[: len(expected) // 2])

        with pytest.raises(_LOST):
            store.read_range(pointer, len(expected) - 1000, 1000)

    # Files -----------------------------------------------------------------------------------------------------

    def test_file_seeks_as_files_do(self, store: Store) -> None:
        """Seeking works from any position to any other, before and after the end was reached."""
        self._needs_ranges(store)
        expected = payloads.content(3 * (store.segment_bytes or MIB) + 1000)
        pointer, model = store.write(expected), io.BytesIO(expected)
        places = [(0, 0), (-10, 2), (5, 0), (-3, 1), (len(expected) // 2, 0), (50, 1), (0, 2), (9, 2), (0, 0)]

        with store.open(pointer) as file:
            assert file.seekable()
            for offset, whence in places:
                assert file.seek(offset, whence) == model.seek(offset, whence)
                assert file.read(1234) == model.read(1234)
                assert file.tell() == model.tell()
            assert (file.seek(7), file.read()) == (7, expected[7:])

    def test_file_opens_as_an_archive(self, store: Store) -> None:
        """Stores that can read from any position serve zip files, whose directory is at the end."""
        self._needs_ranges(store)
        archive = io.BytesIO()
        with zipfile.ZipFile(archive, "w") as entries:
            for i in range(20):
                entries.writestr(f"entry {i}", payloads.content(200_000 + i))

        with store.open(store.write(archive.getvalue())) as file, zipfile.ZipFile(file) as entries:
            assert entries.testzip() is None
            assert entries.read("entry 13") == payloads.content(200_013)

    @pytest.mark.parametrize("size", ["some", "segments"])
    @pytest.mark.parametrize("harm", payloads.HARMS)
    def test_damaged_payload_is_an_error_wherever_it_is_read(self, store: Store, harm: str, size: str) -> None:
        """Seeking does not bypass the check of the whole payload."""
        self._needs_ranges(store)
        pointer, expected = self._damaged(store, harm, size)

        with store.open(pointer) as file:
            file.seek(len(expected) // 2)
            for _ in range(2):
                with pytest.raises(_LOST):
                    file.read(1)

    def _damaged(self, store: Store, harm: str, size: str) -> tuple[Pointer, bytes]:
        """Write a payload and damage it; return its pointer and its original content."""
        expected = payloads.content(damaged_size(store, size))
        pointer = store.write(expected)
        self.damage(pointer, payloads.HARMS[harm](expected))
        return pointer, expected

    def _needs_ranges(self, store: Store) -> None:
        if not store.is_seekable:
            pytest.skip("this store cannot read from any position: it does not implement _open")


def sibling(pointer: Pointer) -> Pointer:
    """Return the pointer of a payload that was never written."""
    return replace(pointer, key=pointer.key.replace(pointer.key.strip("{}")[-36:], str(uuid.uuid4())))


def _is_url(value: object) -> bool:
    return isinstance(value, str) and "://" in value
