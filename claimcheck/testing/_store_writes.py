"""The promises of a store to those who write to it."""

from __future__ import annotations

import tracemalloc
import uuid
from dataclasses import replace

import pytest

from claimcheck._pointer import Pointer, decode, encode
from claimcheck._store import Store
from claimcheck.errors import (
    PayloadError,
    PayloadNotFoundError,
    PayloadTooLargeError,
    PayloadTypeError,
)
from claimcheck.hooks import OperationEvent
from claimcheck.testing import _payloads as payloads
from claimcheck.testing._store_hooks import MIB, OpenStore, StoreKit, as_if_written, read_in_pieces

__all__ = ["WritePromises"]

_NOW = 4_000_000_000.25  # in the year 2096, so that nothing written by this clock has expired already


class WritePromises(StoreKit):
    """Payloads of all kinds rest, under keys of their own, or leave nothing."""

    # Round trips -----------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("shape", payloads.SHAPES)
    @pytest.mark.parametrize("size", payloads.SIZES)
    def test_round_trip(self, store: Store, size: str, shape: str) -> None:
        """Every size in every shape comes back, whole and as a file, and is what rests in the medium."""
        expected = payloads.content(payloads.SIZES[size](store.segment_bytes or MIB))

        pointer = store.write(payloads.SHAPES[shape](expected), destination="orders")

        assert pointer.size == len(expected)
        assert store.read(pointer) == expected
        assert read_in_pieces(store, pointer) == expected
        with store.open(pointer) as file:
            assert file.read() == expected
        assert self.peek(pointer) == expected

    def test_pointer_says_what_readers_need(self, open_store: OpenStore, store: Store) -> None:
        """The pointer survives the wire, carries times by the store's clock, and is all that a reader needs."""
        store.context = replace(store.context, clock=lambda: _NOW)
        pointer = store.write(b"payload", destination="orders")

        again = decode(encode(pointer))

        assert (pointer.store, pointer.created_ms) == ("conformance", int(_NOW * 1000))
        ttl = store.ttl_seconds
        assert pointer.expires_ms == (None if ttl is None else int(_NOW * 1000) + int(ttl * 1000))
        assert open_store().read(again) == b"payload"
        assert len(encode(pointer)) < 1024

    def test_caller_may_reuse_the_buffer(self, store: Store) -> None:
        """What was written does not change with the caller's buffer, which is the caller's alone again."""
        payload = bytearray(payloads.content(3000))
        expected = bytes(payload)

        pointer = store.write(payload)
        payload[:] = bytes(len(payload))

        assert store.read(pointer) == expected

    def test_large_payload_in_bounded_memory(self, store: Store) -> None:
        """A payload passes through in less memory than it has bytes."""
        size = 2 * self.memory_bytes
        assert store.read(store.write(b"vendor and connections")), "which are not what is measured here"
        tracemalloc.start()
        try:
            pointer = store.write(payloads.Unseekable(payloads.Zeros(size)))
            with store.open(pointer) as file:
                assert sum(len(piece) for piece in iter(lambda: file.read(MIB), b"")) == size
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

        assert peak < self.memory_bytes

    # Keys ------------------------------------------------------------------------------------------------------

    def test_same_payload_twice_rests_twice(self, store: Store) -> None:
        """Keys are unique per write: undoing one write of a payload leaves the other alone."""
        first, second = store.write(b"same", destination="orders"), store.write(b"same", destination="orders")

        store.rollback(first)

        assert first.key != second.key
        assert (self.peek(first), self.peek(second)) == (None, b"same")
        assert store.read(second) == b"same"

    @pytest.mark.parametrize("destination", payloads.DESTINATIONS)
    def test_any_destination_makes_a_good_key(self, store: Store, destination: str) -> None:
        """A destination is a hint for humans and can lead nowhere else."""
        pointer = store.write(b"payload", destination=destination)

        assert pointer.key.startswith(store._scope(pointer))
        assert pointer.key.isascii()
        assert pointer.key.isprintable()
        assert len(pointer.key) < 300
        assert self.peek(pointer) == store.read(pointer) == b"payload"

    def test_an_identity_leads_every_attempt_to_one_key(self, store: Store) -> None:
        """A task that is run again writes nothing twice; a medium that numbers its payloads itself may."""
        identity, payload = uuid.uuid4(), payloads.content(3000)

        first = store.write(payload, destination="orders", identity=identity)
        second = store.write(payload, destination="orders", identity=identity)

        assert str(identity) in first.key
        assert replace(second, key=first.key, created_ms=first.created_ms, expires_ms=first.expires_ms) == first
        assert store.read(first) == store.read(second) == payload

    def test_a_file_has_no_identity(self, store: Store) -> None:
        """It could not be read a second time, where another attempt was quicker."""
        with pytest.raises(PayloadTypeError, match="identity"):
            store.write(payloads.Unseekable(payloads.Zeros(10)), identity=uuid.uuid4())

    # Rollback --------------------------------------------------------------------------------------------------

    def test_rollback_leaves_nothing_and_may_be_repeated(self, store: Store) -> None:
        """All segments go; a second time is harmless; reading says that the payload is gone."""
        pointer = store.write(payloads.content(2 * (store.segment_bytes or MIB) + 1))

        store.rollback(pointer)
        store.rollback(pointer)

        assert self.peek(pointer) is None
        with pytest.raises(PayloadNotFoundError):
            store.read(pointer)

    def test_rollback_of_what_never_was_is_harmless(self, store: Store) -> None:
        """The same for a payload that is gone, and for one that was never written."""
        gone, kept = store.write(b"gone"), store.write(b"kept")
        self.damage(gone, None)

        store.rollback(gone)
        store.rollback(sibling(gone))

        assert store.read(kept) == b"kept"

    # Writes that fail ------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("broken", payloads.BROKEN)
    def test_failed_write_leaves_nothing(self, store: Store, events: list[OperationEvent], broken: str) -> None:
        """A payload that fails half way leaves nothing, raises its own error, and the store goes on working."""
        size = 3 * (store.segment_bytes or MIB)

        with pytest.raises(PayloadError):
            store.write(payloads.BROKEN[broken](size))

        assert [event.phase for event in events] == ["started", "failed"]
        assert self.peek(as_if_written(store, events[0].key, size)) is None
        assert store.read(store.write(b"next")) == b"next"

    def test_interrupted_write_leaves_nothing(self, store: Store, events: list[OperationEvent]) -> None:
        """Control-C is no excuse."""
        size = 3 * (store.segment_bytes or MIB)

        with pytest.raises(KeyboardInterrupt):
            store.write(payloads.Breaking(size, KeyboardInterrupt()))

        assert self.peek(as_if_written(store, events[0].key, size)) is None

    @pytest.mark.parametrize("shape", payloads.SHAPES)
    def test_payload_over_the_limit_is_not_written(
        self, open_store: OpenStore, events: list[OperationEvent], shape: str
    ) -> None:
        """One byte too many and nothing is left, whether the size is known before or not; the limit itself fits."""
        store = open_store(max_payload_bytes=5000)

        with pytest.raises(PayloadTooLargeError) as caught:
            store.write(payloads.SHAPES[shape](payloads.content(5001)))

        assert (caught.value.size, caught.value.limit) == (5001, 5000)
        assert all(self.peek(as_if_written(store, event.key, 5001)) is None for event in events)
        assert store.write(payloads.SHAPES[shape](payloads.content(5000))).size == 5000

    @pytest.mark.parametrize("payload", payloads.REFUSED)
    def test_what_is_no_payload_is_refused(self, store: Store, events: list[OperationEvent], payload: str) -> None:
        """Text, None, generators and closed files are refused before the store hears of it."""
        make, error = payloads.REFUSED[payload]

        with pytest.raises(PayloadTypeError if error is TypeError else PayloadError):
            store.write(make())

        assert events == []


def sibling(pointer: Pointer) -> Pointer:
    """Make the pointer of a write that might have happened and did not."""
    return replace(pointer, key=pointer.key.replace(_last_uuid(pointer.key), str(uuid.uuid4())))


def _last_uuid(key: str) -> str:
    return key.strip("{}")[-36:]
