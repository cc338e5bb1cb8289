"""The promises of a store to those who read from it, and to those who look after it."""

from __future__ import annotations

import pickle
import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit

import pytest

from claimcheck.config import StoreConfig
from claimcheck.errors import (
    IntegrityError,
    PayloadNotFoundError,
    PointerRejectedError,
)
from claimcheck.hooks import OperationEvent
from claimcheck.registry import check_store
from claimcheck.store import Store
from claimcheck.testing import payloads
from claimcheck.testing.kit import MIB, OpenStore, StoreKit, as_if_written, damaged_size, forbid_io, read_in_pieces

__all__ = ["ReadPromises"]


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
