"""The promises of a store to those who read into their own memory, only a part, or from one place and then another."""

from __future__ import annotations

import io
import shutil
import zipfile
from dataclasses import replace

import pytest

from claimcheck.errors import (
    IntegrityError,
    PayloadNotFoundError,
    PayloadTooLargeError,
    PayloadTypeError,
    PointerRejectedError,
)
from claimcheck.store import RangeStore, Store
from claimcheck.testing import payloads
from claimcheck.testing.kit import MIB, StoreKit, damaged_size

__all__ = ["RangePromises"]


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
        if isinstance(store, RangeStore):
            pytest.skip("this one can")
        with store.open(store.write(b"payload")) as file:
            assert not file.seekable()
            with pytest.raises(io.UnsupportedOperation):
                file.seek(3)

    def _needs_ranges(self, store: Store) -> None:
        if not isinstance(store, RangeStore):
            pytest.skip("this store cannot begin anywhere: it is no RangeStore")
