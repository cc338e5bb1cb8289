"""What the base class does in the same way for every store; the conformance kit has what stores do themselves."""

from __future__ import annotations

import io
import shutil
import uuid
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

import claimcheck.testing._store_kit as payloads
from claimcheck._store.store import Store
from claimcheck._wire.digest import digest_of
from claimcheck._wire.pointer import Pointer, decode, encode
from claimcheck.errors import (
    IntegrityError,
    PayloadError,
    PayloadNotFoundError,
    PayloadTooLargeError,
    PayloadTypeError,
    PointerRejectedError,
)
from claimcheck.hooks import OperationEvent
from claimcheck.stores.memory import MemoryStore
from claimcheck.testing._store_kit import OpenStore, StoreKit, damaged_size, forbid_io

_NOW = 4_000_000_000.25  # in the year 2096, so that nothing written by this clock has expired already


def _closed(file: io.BytesIO) -> io.BytesIO:
    file.close()
    return file


REFUSED: dict[str, tuple[Callable[[], Any], type[Exception]]] = {
    "str": (lambda: "text", TypeError),
    "None": (lambda: None, TypeError),
    "int": (lambda: 5, TypeError),
    "list of ints": (lambda: [1, 2], TypeError),
    "generator": (lambda: (piece for piece in [b"a"]), TypeError),
    "text file": (lambda: io.StringIO("text"), TypeError),
    "closed file": (lambda: _closed(io.BytesIO(b"payload")), ValueError),
}


class Operations(StoreKit):
    @pytest.fixture
    def space(self) -> str:
        return f"operations-{uuid.uuid4()}"

    @pytest.fixture(autouse=True)
    def medium(self, space: str) -> None:
        self.entries = MemoryStore(space=space)._payloads

    def peek(self, pointer: Pointer) -> bytes | None:
        return self.entries.get(pointer.key)

    def damage(self, pointer: Pointer, payload: bytes | None) -> None:
        assert payload is not None
        self.entries[pointer.key] = payload

    @pytest.mark.parametrize("payload", REFUSED)
    def test_what_is_no_payload_is_refused(self, store: Store, events: list[OperationEvent], payload: str) -> None:
        """Text, ``None``, generators and closed files are refused before any I/O."""
        make, error = REFUSED[payload]

        with pytest.raises(PayloadTypeError if error is TypeError else PayloadError):
            store.write(make())

        assert events == []

    def test_size_over_the_readers_limit_is_refused(
        self, open_store: OpenStore, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The reader's limit applies, whatever the writer's was."""
        pointer = store.write(payloads.content(5001))
        reader = open_store(max_payload_bytes=5000)
        forbid_io(reader, monkeypatch)

        with pytest.raises(PointerRejectedError):
            reader.read(pointer)

    def test_into_a_buffer_that_is_too_small(self, store: Store) -> None:
        """A payload is never truncated; the error has its size."""
        pointer = store.write(b"payload")
        buffer = bytearray(6)

        with pytest.raises(PayloadTooLargeError) as caught:
            store.read_into(pointer, buffer)

        assert (caught.value.limit, caught.value.size) == (6, pointer.size)
        assert buffer == bytes(6)

    def test_into_what_is_no_buffer(self, store: Store) -> None:
        """Objects that are not writable buffers are refused before any I/O."""
        pointer = store.write(b"payload")

        for wrong in (bytes(7), memoryview(bytes(7)), "payload", None, io.BytesIO()):
            with pytest.raises(PayloadTypeError):
                store.read_into(pointer, wrong)  # type: ignore[arg-type]

    @pytest.mark.parametrize("size", ["some", "segments"])
    @pytest.mark.parametrize("harm", payloads.HARMS)
    def test_damaged_payload_into_a_buffer_is_an_error(self, store: Store, harm: str, size: str) -> None:
        """A damaged payload is an error here, too."""
        pointer, expected = self._damaged(store, harm, size)

        with pytest.raises((IntegrityError, PayloadNotFoundError)):
            store.read_into(pointer, bytearray(2 * len(expected)))

    @pytest.mark.parametrize(("start", "length"), [(-1, 1), (0, -1)])
    def test_negative_ranges_are_refused(self, store: Store, start: int, length: int) -> None:
        """Negative offsets do not count from the end."""
        with pytest.raises(ValueError, match="cannot read"):
            store.read_range(store.write(b"payload"), start, length)

    def test_hostile_ranges_are_refused(self, store: Store) -> None:
        """Ranges and buffers check pointers, too."""
        pointer = replace(store.write(b"payload"), store="other")

        with pytest.raises(PointerRejectedError):
            store.read_range(pointer, 0, 1)
        with pytest.raises(PointerRejectedError):
            store.read_into(pointer, bytearray(100))

    def test_file_can_be_copied(self, store: Store) -> None:
        """With `shutil.copyfileobj`, and line by line."""
        expected = b"".join(b"line %d\n" % i for i in range(50_000))
        pointer = store.write(expected)
        copy = io.BytesIO()

        with store.open(pointer) as file:
            shutil.copyfileobj(file, copy)
        with store.open(pointer) as file:
            lines = list(file)

        assert copy.getvalue() == b"".join(lines) == expected

    def test_file_that_cannot_seek_says_so(self, store: Store) -> None:
        """`seekable` is false, and `seek` raises."""
        if store.is_seekable:
            pytest.skip("the files of this store can seek")
        with store.open(store.write(b"payload")) as file:
            assert not file.seekable()
            with pytest.raises(io.UnsupportedOperation):
                file.seek(3)

    def test_pointer_says_what_readers_need(self, open_store: OpenStore, store: Store) -> None:
        """A pointer survives encoding, has times of the store's clock, and is all that a reader needs."""
        store.context = replace(store.context, clock=lambda: _NOW)
        pointer, ttl = store.write(b"payload", destination="orders"), store.ttl_seconds

        assert (pointer.store, pointer.created_ms) == ("conformance", int(_NOW * 1000))
        assert pointer.expires_ms == (None if ttl is None else int(_NOW * 1000) + int(ttl * 1000))
        assert open_store().read(decode(encode(pointer))) == b"payload"
        assert len(encode(pointer)) < 1024

    @pytest.mark.parametrize("algorithm", ["sha256", "xxh3-128"])
    def test_other_checksums_than_crc32(self, open_store: OpenStore, store: Store, algorithm: str) -> None:
        """Payloads are verified by the algorithm that their pointer names, whatever the store itself would use."""
        if algorithm == "xxh3-128":
            pytest.importorskip("xxhash")
        expected, writer = (
            payloads.content(2 * payloads.piece_bytes(store) + 4 * payloads.MIB),
            open_store(checksum=algorithm),
        )

        pointer = writer.write(expected)
        small = writer.write(payloads.Unseekable(io.BytesIO(b"small")))

        assert pointer.checksum == digest_of(expected, algorithm=algorithm)
        assert small.checksum == digest_of(b"small", algorithm=algorithm)
        assert store.read(pointer) == payloads.read_in_pieces(store, pointer) == expected
        self.damage(small, b"smalL")
        with pytest.raises(IntegrityError, match="checksum"):
            store.read(small)

    @pytest.mark.parametrize("shape", payloads.SHAPES)
    def test_payload_over_the_limit_is_not_written(
        self, open_store: OpenStore, events: list[OperationEvent], shape: str
    ) -> None:
        """One byte over the limit leaves nothing, whether or not the size is known; the limit itself fits."""
        store = open_store(max_payload_bytes=5000)

        with pytest.raises(PayloadTooLargeError) as caught:
            store.write(payloads.SHAPES[shape](payloads.content(5001)))

        assert (caught.value.size, caught.value.limit) == (5001, 5000)
        assert all(self.peek(payloads.as_if_written(store, event.key, 5001)) is None for event in events)
        assert store.write(payloads.SHAPES[shape](payloads.content(5000))).size == 5000

    def _damaged(self, store: Store, harm: str, size: str) -> tuple[Pointer, bytes]:
        expected = payloads.content(damaged_size(store, size))
        pointer = store.write(expected)
        self.damage(pointer, payloads.HARMS[harm](expected))
        return pointer, expected


class TestOfAMediumThatIsReadFromAnywhere(Operations):
    @pytest.fixture
    def options(self, space: str) -> dict[str, Any]:
        return {"type": "memory", "space": space}


class TestOfAMediumThatIsReadInSequence(Operations):
    @pytest.fixture
    def options(self, space: str) -> dict[str, Any]:
        return {"type": "claimcheck.testing:FaultyStore", "store": {"type": "memory", "space": space}}
