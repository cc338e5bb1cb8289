"""The promises of a store, as tests that any store can run.

A store author writes a fixture and two back doors, in a test file of about 15 lines::

    class TestTapeStore(StoreConformance):
        @pytest.fixture
        def options(self, tmp_path):                      # the store's entry in YAML
            self.tape = tmp_path / "tape"
            return {"type": "mypackage.stores:TapeStore", "path": str(self.tape)}

        def peek(self, pointer): ...                       # read the medium, without the store
        def damage(self, pointer, payload): ...            # break the medium, without the store
"""

from __future__ import annotations

import pickle
import tracemalloc
import uuid
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from typing import Any, ClassVar
from urllib.parse import urlsplit

import pytest

from claimcheck.config import StoreConfig
from claimcheck.errors import (
    IntegrityError,
    PayloadError,
    PayloadNotFoundError,
    PayloadTooLargeError,
    PayloadTypeError,
    PointerRejectedError,
)
from claimcheck.hooks import Event, Hooks, OperationEvent
from claimcheck.pointer import Pointer, decode, encode
from claimcheck.registry import build_store, check_store
from claimcheck.store import Store, StoreContext
from claimcheck.testing import payloads

__all__ = ["StoreConformance"]

OpenStore = Callable[..., Store]
_MIB = 1 << 20


class StoreConformance:
    """Subclass it under a name that begins with ``Test`` and give `options`, `peek` and `damage`.

    Attributes:
        skip: Tests that this store cannot pass, each with its reason; they show in the report as skipped.
        secrets: Texts among the options that must show up nowhere; passwords in URLs are known without.
        memory_bytes: What reading or writing a payload of twice this size may take at its peak.
    """

    skip: ClassVar[Mapping[str, str]] = {}
    secrets: ClassVar[tuple[str, ...]] = ()
    memory_bytes: ClassVar[int] = 32 * _MIB

    # What an author writes -------------------------------------------------------------------------------------

    @pytest.fixture
    def options(self) -> Mapping[str, Any]:
        """The store's entry in YAML, ``type`` included; every store opened with it must see the same payloads."""
        raise NotImplementedError("override the fixture `options`")

    def peek(self, pointer: Pointer) -> bytes | None:
        """Read what is stored under a key, behind the store's back; ``None`` only if nothing at all is left of it."""
        raise NotImplementedError

    def damage(self, pointer: Pointer, payload: bytes | None) -> None:
        """Put something else in the payload's place, behind the store's back; ``None`` removes it."""
        raise NotImplementedError

    # What the tests use ----------------------------------------------------------------------------------------

    @pytest.fixture(autouse=True)
    def _declared_opt_outs(self, request: pytest.FixtureRequest) -> None:
        for name, reason in self.skip.items():
            assert reason, f"skip[{name!r}] needs a reason"
            assert hasattr(self, name), f"skip names {name!r}, which is no test of the kit"
        if request.function.__name__ in self.skip:
            pytest.skip(self.skip[request.function.__name__])

    @pytest.fixture
    def config(self, options: Mapping[str, Any]) -> StoreConfig:
        """The options as the library holds them."""
        return StoreConfig(type=options["type"], options={k: v for k, v in options.items() if k != "type"})

    @pytest.fixture
    def events(self) -> list[OperationEvent]:
        """What the hooks of `store` heard."""
        return []

    @pytest.fixture
    def open_store(self, config: StoreConfig, events: list[OperationEvent]) -> Iterator[OpenStore]:
        """Opens stores in the same medium, with changes to their context; closes them at the end."""
        opened: list[Store] = []

        def hear(event: Event) -> None:
            assert isinstance(event, OperationEvent)
            events.append(event)

        def build(**context: Any) -> Store:
            store: Store = build_store(config, path="stores.conformance")
            store.context = StoreContext(**{"name": "conformance", "hooks": Hooks((hear,)), **context})
            opened.append(store)
            return store

        yield build
        _tidy_up(opened, events)
        for store in opened:
            store.close()

    @pytest.fixture
    def store(self, open_store: OpenStore) -> Store:
        """The store under test."""
        return open_store()

    # Round trips -----------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("shape", payloads.SHAPES)
    @pytest.mark.parametrize("size", payloads.SIZES)
    def test_round_trip(self, store: Store, size: str, shape: str) -> None:
        """Every size in every shape comes back, whole and as a file, and is what rests in the medium."""
        expected = payloads.content(payloads.SIZES[size](store.segment_bytes or _MIB))

        pointer = store.write(payloads.SHAPES[shape](expected), destination="orders")

        assert pointer.size == len(expected)
        assert store.read(pointer) == expected
        assert _read_in_pieces(store, pointer) == expected
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
                assert sum(len(piece) for piece in iter(lambda: file.read(_MIB), b"")) == size
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

    # Rollback --------------------------------------------------------------------------------------------------

    def test_rollback_leaves_nothing_and_may_be_repeated(self, store: Store) -> None:
        """All segments go; a second time is harmless; reading says that the payload is gone."""
        pointer = store.write(payloads.content(2 * (store.segment_bytes or _MIB) + 1))

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
        store.rollback(_sibling(gone))

        assert store.read(kept) == b"kept"

    # Writes that fail ------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("broken", payloads.BROKEN)
    def test_failed_write_leaves_nothing(self, store: Store, events: list[OperationEvent], broken: str) -> None:
        """A payload that fails half way leaves nothing, raises its own error, and the store goes on working."""
        size = 3 * (store.segment_bytes or _MIB)

        with pytest.raises(PayloadError):
            store.write(payloads.BROKEN[broken](size))

        assert [event.phase for event in events] == ["started", "failed"]
        assert self.peek(_as_if_written(store, events[0].key, size)) is None
        assert store.read(store.write(b"next")) == b"next"

    def test_interrupted_write_leaves_nothing(self, store: Store, events: list[OperationEvent]) -> None:
        """Control-C is no excuse."""
        size = 3 * (store.segment_bytes or _MIB)

        with pytest.raises(KeyboardInterrupt):
            store.write(payloads.Breaking(size, KeyboardInterrupt()))

        assert self.peek(_as_if_written(store, events[0].key, size)) is None

    @pytest.mark.parametrize("shape", payloads.SHAPES)
    def test_payload_over_the_limit_is_not_written(
        self, open_store: OpenStore, events: list[OperationEvent], shape: str
    ) -> None:
        """One byte too many and nothing is left, whether the size is known before or not; the limit itself fits."""
        store = open_store(max_payload_bytes=5000)

        with pytest.raises(PayloadTooLargeError) as caught:
            store.write(payloads.SHAPES[shape](payloads.content(5001)))

        assert (caught.value.size, caught.value.limit) == (5001, 5000)
        assert all(self.peek(_as_if_written(store, event.key, 5001)) is None for event in events)
        assert store.write(payloads.SHAPES[shape](payloads.content(5000))).size == 5000

    @pytest.mark.parametrize("payload", payloads.REFUSED)
    def test_what_is_no_payload_is_refused(self, store: Store, events: list[OperationEvent], payload: str) -> None:
        """Text, None, generators and closed files are refused before the store hears of it."""
        make, error = payloads.REFUSED[payload]

        with pytest.raises(PayloadTypeError if error is TypeError else PayloadError):
            store.write(make())

        assert events == []

    # What happened to the payload meanwhile --------------------------------------------------------------------

    @pytest.mark.parametrize("size", ["some", "segments"])
    def test_vanished_payload_is_not_found(self, store: Store, size: str) -> None:
        """The error says which payload, and when it was written."""
        pointer = store.write(payloads.content(_damaged_size(store, size)))
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
        expected = payloads.content(_damaged_size(store, size))
        pointer = store.write(expected)
        self.damage(pointer, payloads.HARMS[harm](expected))

        with pytest.raises((IntegrityError, PayloadNotFoundError)) as caught:
            store.read(pointer)

        assert (caught.value.store, caught.value.key) == ("conformance", pointer.key)

    @pytest.mark.parametrize("size", ["some", "segments"])
    @pytest.mark.parametrize("harm", payloads.HARMS)
    def test_damaged_payload_is_an_error_before_the_end_of_the_file(self, store: Store, harm: str, size: str) -> None:
        """A reader that goes piece by piece gets an error where the end would be, and again if it insists."""
        expected = payloads.content(_damaged_size(store, size))
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
        pointer = payloads.HOSTILE[hostile](_as_if_written(store, store._new_key("orders"), 100))
        _forbid_io(store, monkeypatch)

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
        _forbid_io(store, monkeypatch)

        for key in (f"other-{store.prefix}x", store.prefix[:-1] or "x", "other"):
            with pytest.raises(PointerRejectedError):
                store.read(_as_if_written(store, key, 100))

    def test_size_over_the_readers_limit_is_refused(
        self, open_store: OpenStore, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A reader's limit counts, whatever the writer's was."""
        pointer = store.write(payloads.content(5001))
        reader = open_store(max_payload_bytes=5000)
        _forbid_io(reader, monkeypatch)

        with pytest.raises(PointerRejectedError):
            reader.read(pointer)

    # Many at once, opening and closing -------------------------------------------------------------------------

    def test_threads_share_a_store(self, store: Store) -> None:
        """Writes, reads and rollbacks of several threads do not disturb each other."""

        def work(seed: int) -> bool:
            expected = payloads.content((store.segment_bytes or _MIB) + seed)
            kept, undone = store.write(expected, destination="orders"), store.write(expected, destination="orders")
            store.rollback(undone)
            return store.read(kept) == expected and _read_in_pieces(store, kept) == expected

        with ThreadPoolExecutor(8) as threads:
            assert all(threads.map(work, range(16)))

    def test_one_payload_may_have_many_readers(self, store: Store) -> None:
        """Interleaved readers of one payload each get all of it."""
        expected = payloads.content(3 * (store.segment_bytes or _MIB))
        pointer = store.write(expected)

        with store.open(pointer) as first, store.open(pointer) as second:
            pieces = [(first.read(300_000), second.read(300_000)) for _ in range(len(expected) // 300_000 + 1)]

        assert b"".join(piece for piece, _ in pieces) == b"".join(piece for _, piece in pieces) == expected

    def test_reader_may_stop_early(self, store: Store, events: list[OperationEvent]) -> None:
        """Closing a half-read payload is no failure, and the store goes on working."""
        pointer = store.write(payloads.content(3 * (store.segment_bytes or _MIB)))

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


_NOW = 4_000_000_000.25  # in the year 2096, so that nothing written by this clock has expired already


def _damaged_size(store: Store, size: str) -> int:
    return 1000 if size == "some" else 2 * (store.segment_bytes or _MIB) + 1000


def _read_in_pieces(store: Store, pointer: Pointer) -> bytes:
    with store.open(pointer) as file:
        return b"".join(iter(lambda: file.read(100_000), b""))


def _as_if_written(store: Store, key: str, size: int) -> Pointer:
    """The pointer that a write under this key would have returned."""
    piece = store.segment_bytes if store.segment_bytes and size > store.segment_bytes else None
    segments = -(-size // piece) if piece else 1
    return Pointer(
        key=key, store=store.name, size=size, segments=segments, segment_bytes=piece, version=store.pointer_version
    )


def _sibling(pointer: Pointer) -> Pointer:
    return replace(pointer, key=pointer.key.replace(_last_uuid(pointer.key), str(uuid.uuid4())))


def _last_uuid(key: str) -> str:
    return key.strip("{}")[-36:]


def _tidy_up(opened: list[Store], events: list[OperationEvent]) -> None:
    """A medium may be shared: what a test wrote, it takes away again."""
    for event in events:
        if not opened or (event.operation, event.phase) != ("write", "completed"):
            continue
        store = opened[0]
        with suppress(Exception):
            store.rollback(_as_if_written(store, event.key, event.size or 0))


def _forbid_io(store: Store, patch: pytest.MonkeyPatch) -> None:
    def touched(*_: Any) -> Any:
        pytest.fail("the medium was asked")

    for method in ("_write", "_read", "_delete"):
        patch.setattr(store, method, touched)


def _is_url(value: Any) -> bool:
    return isinstance(value, str) and "://" in value
