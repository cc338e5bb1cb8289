"""The promises of a store to those who read from it, and to those who look after it."""

from __future__ import annotations

import io
import pickle
import shutil
import uuid
import zipfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

import pytest

from claimcheck._registry import check_store
from claimcheck._store import Store
from claimcheck.config import StoreConfig
from claimcheck.errors import (
    IntegrityError,
    PayloadNotFoundError,
    PayloadTooLargeError,
    PayloadTypeError,
    PointerRejectedError,
)
from claimcheck.hooks import OperationEvent
from claimcheck.testing import _payloads as payloads
from claimcheck.testing._store_hooks import (
    MIB,
    OpenStore,
    StoreKit,
    as_if_written,
    damaged_size,
    forbid_io,
    read_in_pieces,
)

__all__ = [
    "RangePromises",
    "ReadPromises",
]


class ReadPromises(StoreKit):
    """Payloads come back whole and verified, or not at all, to any number of readers."""

    # What happened to the payload meanwhile --------------------------------------------------------------------

    @pytest.mark.parametrize("size", ["some", "segments"])
    def test_vanished_payload_is_not_found(self, store: Store, size: str) -> None:
        """The error says which payload, and when it was written."""
        pointer = store.write(payloads.content(damaged_size(store, size)))
        self.damage(pointer, None)

        with pytest.raises(PayloadNotFoundError) as caught:
            store.read(pointer)
        with pytest.raises(PayloadNotFoundError), store.open(pointer) as file:
            file.read(1)

        error = caught.value
        assert (error.store, error.key, error.created_ms) == ("conformance", pointer.key, pointer.created_ms)

    @pytest.mark.parametrize("size", ["some", "segments"])
    @pytest.mark.parametrize("harm", payloads.HARMS)
    def test_damaged_payload_is_an_error(self, store: Store, harm: str, size: str) -> None:
        """Truncated, changed or replaced: never handed out as if it were the payload."""
        expected = payloads.content(damaged_size(store, size))
        pointer = store.write(expected)
        self.damage(pointer, payloads.HARMS[harm](expected))

        with pytest.raises((IntegrityError, PayloadNotFoundError)) as caught:
            store.read(pointer)

        assert (caught.value.store, caught.value.key) == ("conformance", pointer.key)

    @pytest.mark.parametrize("size", ["some", "segments"])
    @pytest.mark.parametrize("harm", payloads.HARMS)
    def test_damaged_payload_is_an_error_before_the_end_of_the_file(self, store: Store, harm: str, size: str) -> None:
        """A reader that goes piece by piece gets an error where the end would be, and again if it insists."""
        expected = payloads.content(damaged_size(store, size))
        pointer = store.write(expected)
        self.damage(pointer, payloads.HARMS[harm](expected))

        with store.open(pointer) as file:
            with pytest.raises((IntegrityError, PayloadNotFoundError)):
                while file.read(64 << 10):
                    pass
            with pytest.raises((IntegrityError, PayloadNotFoundError)):
                file.read(1)

    # Pointers that must not be followed ------------------------------------------------------------------------

    @pytest.mark.parametrize("hostile", payloads.HOSTILE)
    def test_hostile_pointer_is_refused_before_any_io(
        self, store: Store, monkeypatch: pytest.MonkeyPatch, hostile: str
    ) -> None:
        """Other stores' pointers, keys out of scope, absurd sizes, unknown features: the medium is never asked."""
        pointer = payloads.HOSTILE[hostile](as_if_written(store, store._new_key("orders", uuid.uuid4()), 100))
        forbid_io(store, monkeypatch)

        with pytest.raises(PointerRejectedError):
            store.read(pointer)
        with pytest.raises(PointerRejectedError):
            store.open(pointer)
        with pytest.raises(PointerRejectedError):
            store.rollback(pointer)

    def test_key_out_of_the_prefix_is_refused(self, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        """The same for keys that do not begin with the store's prefix, if it has one."""
        if not store.prefix:
            pytest.skip("this store has no prefix")
        forbid_io(store, monkeypatch)

        for key in (f"other-{store.prefix}x", store.prefix[:-1] or "x", "other"):
            with pytest.raises(PointerRejectedError):
                store.read(as_if_written(store, key, 100))

    def test_size_over_the_readers_limit_is_refused(
        self, open_store: OpenStore, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A reader's limit counts, whatever the writer's was."""
        pointer = store.write(payloads.content(5001))
        reader = open_store(max_payload_bytes=5000)
        forbid_io(reader, monkeypatch)

        with pytest.raises(PointerRejectedError):
            reader.read(pointer)

    # Many at once, opening and closing -------------------------------------------------------------------------

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
        """Interleaved readers of one payload each get all of it."""
        expected = payloads.content(3 * (store.segment_bytes or MIB))
        pointer = store.write(expected)

        with store.open(pointer) as first, store.open(pointer) as second:
            pieces = [(first.read(300_000), second.read(300_000)) for _ in range(len(expected) // 300_000 + 1)]

        assert b"".join(piece for piece, _ in pieces) == b"".join(piece for _, piece in pieces) == expected

    def test_reader_may_stop_early(self, store: Store, events: list[OperationEvent]) -> None:
        """Closing a half-read payload is no failure, and the store goes on working."""
        pointer = store.write(payloads.content(3 * (store.segment_bytes or MIB)))

        with store.open(pointer) as file:
            assert file.read(10) == payloads.content(10)

        assert events[-1].phase == "completed"
        assert store.read(pointer)

    def test_config_travels(self, config: StoreConfig, open_store: OpenStore, store: Store) -> None:
        """A pickled configuration opens the same medium; checking it opens nothing."""
        pointer = store.write(b"payload")
        travelled: StoreConfig = pickle.loads(pickle.dumps(config))
        check_store(travelled, path="stores.conformance")

        assert travelled == config
        assert open_store().read(pointer) == b"payload"

    def test_close_keeps_payloads(self, open_store: OpenStore, store: Store) -> None:
        """Closing releases connections, twice if need be, and deletes nothing."""
        with store:
            pointer = store.write(b"payload")
        store.close()

        assert open_store().read(pointer) == b"payload"
        assert self.peek(pointer) == b"payload"

    # What people see -------------------------------------------------------------------------------------------

    def test_hooks_hear_of_every_operation(self, store: Store, events: list[OperationEvent]) -> None:
        """Each operation is told twice, with its key and size."""
        pointer = store.write(b"payload")
        store.read(pointer)
        store.rollback(pointer)

        heard = [(event.operation, event.phase) for event in events]
        assert heard == [(op, phase) for op in ("write", "read", "rollback") for phase in ("started", "completed")]
        assert {(event.store, event.key, event.size) for event in events} == {("conformance", pointer.key, 7)}

    def test_repr_names_the_store_and_no_secret(self, config: StoreConfig, store: Store) -> None:
        """For humans: the store's name, and nothing that opens doors."""
        passwords = [urlsplit(text).password for text in config.options.values() if _is_url(text)]

        assert "conformance" in repr(store)
        for secret in [*self.secrets, *filter(None, passwords)]:
            assert secret not in repr(store)
            assert secret not in repr(config)


def _is_url(value: Any) -> bool:
    return isinstance(value, str) and "://" in value


class RangePromises(StoreKit):
    """Payloads come into buffers, in ranges, and as files that can seek where the medium can begin anywhere."""

    # Into a buffer ---------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("room", [0, 1, 5000])
    @pytest.mark.parametrize("size", payloads.SIZES)
    def test_into_a_buffer(self, store: Store, size: str, room: int) -> None:
        """The payload fills the beginning of the buffer, exactly as large or larger, and nothing else of it."""
        expected = payloads.content(payloads.SIZES[size](store.segment_bytes or MIB))
        pointer = store.write(expected)
        buffer = bytearray(b"?" * (len(expected) + room))

        assert store.read_into(pointer, buffer) == len(expected)

        assert buffer == expected + b"?" * room

    def test_into_a_buffer_that_is_too_small(self, store: Store) -> None:
        """A payload is never cut; nothing was read where its size is known."""
        pointer = store.write(b"payload")
        buffer = bytearray(6)

        with pytest.raises(PayloadTooLargeError) as caught:
            store.read_into(pointer, buffer)

        assert (caught.value.limit, caught.value.size) == (6, pointer.size)
        assert buffer == bytes(6)

    def test_into_what_is_no_buffer(self, store: Store) -> None:
        """What cannot be written to is refused before any I/O."""
        pointer = store.write(b"payload")

        for wrong in (bytes(7), memoryview(bytes(7)), "payload", None, io.BytesIO()):
            with pytest.raises(PayloadTypeError):
                store.read_into(pointer, wrong)  # type: ignore[arg-type]

    @pytest.mark.parametrize("size", ["some", "segments"])
    @pytest.mark.parametrize("harm", payloads.HARMS)
    def test_damaged_payload_into_a_buffer_is_an_error(self, store: Store, harm: str, size: str) -> None:
        """The same as anywhere else."""
        expected = payloads.content(damaged_size(store, size))
        pointer = store.write(expected)
        self.damage(pointer, payloads.HARMS[harm](expected))

        with pytest.raises((IntegrityError, PayloadNotFoundError)):
            store.read_into(pointer, bytearray(2 * len(expected)))

    # Ranges ----------------------------------------------------------------------------------------------------

    def test_ranges_are_those_of_the_payload(self, store: Store) -> None:
        """As a slice of the payload would be, wherever it begins and ends."""
        piece = store.segment_bytes or MIB
        expected = payloads.content(2 * piece + 1000)
        pointer = store.write(expected)
        places = {0, 1, 500, piece - 1, piece, piece + 1, 2 * piece - 1, 2 * piece, len(expected) - 1, len(expected)}

        for start in places | {len(expected) + 5}:
            for length in (0, 1, 700, piece, len(expected), 10 * len(expected)):
                assert store.read_range(pointer, start, length) == expected[start : start + length]

    @pytest.mark.parametrize(("start", "length"), [(-1, 1), (0, -1)])
    def test_negative_ranges_are_refused(self, store: Store, start: int, length: int) -> None:
        """Python's slices count from the end then; here it is a mistake."""
        with pytest.raises(ValueError, match="cannot read"):
            store.read_range(store.write(b"payload"), start, length)

    def test_range_of_a_vanished_payload_is_not_found(self, store: Store) -> None:
        """Never a short range."""
        pointer = store.write(payloads.content(damaged_size(store, "segments")))
        self.damage(pointer, None)

        with pytest.raises(PayloadNotFoundError):
            store.read_range(pointer, (pointer.size or 0) // 2, 1000)

    def test_range_that_is_not_there_is_an_error(self, store: Store) -> None:
        """Nor a short range of a payload that was cut."""
        expected = payloads.content(damaged_size(store, "segments"))
        pointer = store.write(expected)
        self.damage(pointer, expected[: len(expected) // 2])

        with pytest.raises((IntegrityError, PayloadNotFoundError)):
            store.read_range(pointer, len(expected) - 1000, 1000)

    def test_hostile_ranges_are_refused(self, store: Store) -> None:
        """A pointer is as untrusted here as anywhere."""
        pointer = replace(store.write(b"payload"), store="other")

        with pytest.raises(PointerRejectedError):
            store.read_range(pointer, 0, 1)
        with pytest.raises(PointerRejectedError):
            store.read_into(pointer, bytearray(100))

    # Files -----------------------------------------------------------------------------------------------------

    def test_file_can_be_copied(self, store: Store) -> None:
        """By what copies files, and line by line."""
        expected = b"".join(b"line %d\n" % i for i in range(50_000))
        pointer = store.write(expected)
        copy = io.BytesIO()

        with store.open(pointer) as file:
            shutil.copyfileobj(file, copy)
        with store.open(pointer) as file:
            lines = list(file)

        assert copy.getvalue() == b"".join(lines) == expected

    def test_file_seeks_as_files_do(self, store: Store) -> None:
        """From anywhere to anywhere, before and after the end was seen."""
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
        """Where the medium can begin anywhere: its directory stands at the end."""
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
        """Going to another place first does not get around the check of the whole."""
        self._needs_ranges(store)
        expected = payloads.content(damaged_size(store, size))
        pointer = store.write(expected)
        self.damage(pointer, payloads.HARMS[harm](expected))

        with store.open(pointer) as file:
            file.seek(len(expected) // 2)
            for _ in range(2):
                with pytest.raises((IntegrityError, PayloadNotFoundError)):
                    file.read(1)

    def test_file_that_cannot_seek_says_so(self, store: Store) -> None:
        """Before anybody relies on it."""
        if store._seekable:
            pytest.skip("the files of this store can seek")
        with store.open(store.write(b"payload")) as file:
            assert not file.seekable()
            with pytest.raises(io.UnsupportedOperation):
                file.seek(3)

    def _needs_ranges(self, store: Store) -> None:
        if not store._seekable:
            pytest.skip("this store cannot read from any position: it does not implement _open")
