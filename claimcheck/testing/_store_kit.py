"""The hooks, fixtures and payloads of the conformance kit for stores: of every size and shape, broken and hostile."""

from __future__ import annotations

import io
import random
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, ClassVar

import pytest

from claimcheck._registry import build_store
from claimcheck._store.contract import StoreContext
from claimcheck._store.listing import StoreEntry
from claimcheck._store.store import Store
from claimcheck._wire.pointer import Pointer
from claimcheck.config import StoreConfig
from claimcheck.errors import ScanNotSupportedError
from claimcheck.hooks import Event, Hooks, OperationEvent

OpenStore = Callable[..., Store]
MIB = 1 << 20


class StoreKit:
    """The hooks that an author overrides, and the fixtures that the tests use.

    Attributes:
        skip: Tests that this store cannot pass, with the reason for each; the report shows them as skipped.
        secrets: Secret texts in the options, which must not appear in any repr; passwords in URLs are always checked.
        memory_bytes: The peak memory allowed for a payload of twice this size.
    """

    skip: ClassVar[Mapping[str, str]] = {}
    secrets: ClassVar[tuple[str, ...]] = ()
    memory_bytes: ClassVar[int] = 32 * MIB

    # Hooks -----------------------------------------------------------------------------------------------------

    @pytest.fixture
    def options(self) -> Mapping[str, Any]:
        """The store's entry in YAML, including ``type``. All stores opened with it must see the same payloads."""
        raise NotImplementedError("override the fixture `options`")

    def peek(self, pointer: Pointer) -> bytes | None:
        """Return what is stored under a key, without using the store; ``None`` only if nothing is left of it."""
        raise NotImplementedError

    def damage(self, pointer: Pointer, payload: bytes | None) -> None:
        """Replace the stored payload without using the store; ``None`` deletes it."""
        raise NotImplementedError

    # Fixtures --------------------------------------------------------------------------------------------------

    @pytest.fixture(autouse=True)
    def _declared_opt_outs(self, request: pytest.FixtureRequest) -> None:
        skip_opt_outs(self, self.skip, request.function.__name__)

    @pytest.fixture
    def config(self, options: Mapping[str, Any]) -> StoreConfig:
        return StoreConfig(type=options["type"], options={k: v for k, v in options.items() if k != "type"})

    @pytest.fixture
    def events(self) -> list[OperationEvent]:
        return []

    @pytest.fixture
    def open_store(self, config: StoreConfig, events: list[OperationEvent]) -> Iterator[OpenStore]:
        """A function that opens a store on the same medium with changes to its context."""
        opened: list[Store] = []

        def record(event: Event) -> None:
            assert isinstance(event, OperationEvent)
            events.append(event)

        def build(**context: Any) -> Store:
            store: Store = build_store(config, path="stores.conformance")
            store.context = StoreContext(**{"name": "conformance", "hooks": Hooks((record,)), **context})
            opened.append(store)
            return store

        yield build
        _delete_payloads(opened, events)
        for store in opened:
            store.close()

    @pytest.fixture
    def store(self, open_store: OpenStore) -> Store:
        return open_store()


def skip_opt_outs(kit: object, opt_outs: Mapping[str, str], test: str) -> None:
    """Skip a test that a kit's author has opted out of, and check all of the author's opt-outs."""
    for name, reason in opt_outs.items():
        assert reason, f"skip[{name!r}] needs a reason"
        assert hasattr(kit, name), f"skip names {name!r}, which is not a test of the kit"
    if test in opt_outs:
        pytest.skip(opt_outs[test])


def piece_bytes(store: Store) -> int:
    return store.segment_bytes or MIB


def damaged_size(store: Store, size: str) -> int:
    """Return the size of a payload to damage: ``some`` bytes, or several ``segments``."""
    return 1000 if size == "some" else 2 * piece_bytes(store) + 1000


def read_in_pieces(store: Store, pointer: Pointer) -> bytes:
    with store.open(pointer) as file:
        return b"".join(iter(lambda: file.read(100_000), b""))


def as_if_written(store: Store, key: str, size: int) -> Pointer:
    """Return the pointer that a write under this key would return."""
    piece = store.segment_bytes if store.segment_bytes and size > store.segment_bytes else None
    segments = -(-size // piece) if piece else 1
    return Pointer(
        key=key, store=store.name, size=size, segments=segments, segment_bytes=piece, version=store.pointer_version
    )


def _delete_payloads(opened: list[Store], events: list[OperationEvent]) -> None:
    """Delete what a test wrote, since the medium may be shared."""
    for event in events:
        if opened and (event.operation, event.phase) == ("write", "completed"):
            with suppress(Exception):
                opened[0].rollback(as_if_written(opened[0], event.key, event.size or 0))


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


def later(seconds: float) -> float:
    return time.time() + seconds


def forbid_io(store: Store, patch: pytest.MonkeyPatch) -> None:
    """Fail the test if the store uses its medium from now on."""

    def touched(*_: Any) -> Any:
        pytest.fail("the store used its medium")

    for method in ("_write", "_read", "_open", "_delete"):
        patch.setattr(store, method, touched)


def content(size: int) -> bytes:
    """Return bytes without repetition; a shorter payload is a prefix of a longer one."""
    return random.Random(4711).randbytes(-(-size // 4) * 4)[:size]


class Unseekable(io.RawIOBase):
    """A file that can be read only once, at most 300,000 bytes at a time, like a pipe."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1, /) -> bytes:
        data: bytes = self._inner.read(size if size < 0 else min(size, 300_000))
        return data


class Zeros(io.RawIOBase):
    """A seekable file of zeros that uses no memory."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        self._position = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence] + offset
        return self._position

    def read(self, size: int = -1, /) -> bytes:
        left = self._size - self._position
        count = left if size < 0 else min(size, left)
        self._position += count
        return bytes(count)


class Breaking(Zeros):
    """A file that raises, or ends, after half of its bytes."""

    def __init__(self, size: int, error: BaseException | None) -> None:
        super().__init__(size)
        self._error = error

    def read(self, size: int = -1, /) -> bytes:
        if self._position < self._size // 2:
            return super().read(min(size, self._size // 2 - self._position))
        if self._error is not None:
            raise self._error
        return b""


SIZES: dict[str, Callable[[int], int]] = {
    "empty": lambda segment: 0,
    "one byte": lambda segment: 1,
    "segment-1": lambda segment: segment - 1,
    "segment": lambda segment: segment,
    "segment+1": lambda segment: segment + 1,
    "several MiB": lambda segment: 2 * segment + 7 * MIB + 17,
}

SHAPES: dict[str, Callable[[bytes], Any]] = {
    "bytes": lambda data: data,
    "bytearray": bytearray,
    "memoryview": memoryview,
    "non-contiguous view": lambda data: memoryview(_spread(data))[::2],
    "file at an offset": lambda data: _at(io.BytesIO(b"before" + data), 6),
    "unseekable file": lambda data: Unseekable(io.BytesIO(data)),
}

BROKEN: dict[str, Callable[[int], Any]] = {
    "raises": lambda size: Breaking(size, OSError("the disk is on fire")),
    "raises its own error": lambda size: Breaking(size, RuntimeError("not an OSError")),
    "shrinks": lambda size: Breaking(size, None),
    "is interrupted": lambda size: Breaking(size, KeyboardInterrupt()),
    "cannot seek and raises": lambda size: Unseekable(Breaking(size, OSError("connection lost"))),
}

DESTINATIONS = [
    *("orders", "", ".", "..", "../../etc/passwd", "/etc/passwd", "persistent://tenant/namespace/orders", "a\\b"),
    *("nul\0nul", "line\nbreak", "{tag}", "übergrößen-注文", "%2e%2e", "a" * 1000),
]

HARMS: dict[str, Callable[[bytes], bytes]] = {
    "emptied": lambda data: b"",
    "truncated by one": lambda data: data[:-1],
    "truncated by half": lambda data: data[: len(data) // 2],
    "first byte changed": lambda data: bytes([data[0] ^ 1]) + data[1:],
    "last byte changed": lambda data: data[:-1] + bytes([data[-1] ^ 1]),
    "longer by one": lambda data: data + b"x",
    "replaced by a longer one": lambda data: data[::-1] + data,
}

HOSTILE: dict[str, dict[str, Any]] = {
    "another store": {"store": "other"},
    "no key": {"key": ""},
    "parent": {"key": "{key}/../../secret"},
    "parent first": {"key": "../{key}"},
    "parent, backslashes": {"key": "{key}\\..\\secret"},
    "absolute path": {"key": "/etc/passwd"},
    "absolute in the key": {"key": "/{key}"},
    "NUL": {"key": "{key}\0"},
    "line break": {"key": "{key}\r\nDEL x"},
    "endless key": {"key": "{key}" + "x" * 5000},
    "2**31 segments": {"segments": 2**31, "segment_bytes": 1, "size": 2**31},
    "2**31 segments, small": {"segments": 2**31},
    "2**31 segments, version 1": {"segments": 2**31 - 1, "version": 1, "size": None, "store": None},
    "size of 2**62": {"size": 2**62},
    "segments that do not add up": {"segments": 3, "segment_bytes": 10},
    "version 1, foreign key": {"key": "another-stores-key", "version": 1, "size": None, "store": None},
    "unknown codec": {"codec": "lz77"},
    "unknown encryption": {"encryption": "rot13"},
    "unknown checksum": {"checksum": "sha999:00"},
}
"""Fields of a good pointer that are replaced; ``{key}`` is its key."""


def hostile_pointer(good: Pointer, kind: str) -> Pointer:
    fields = dict(HOSTILE[kind])
    if "key" in fields:
        fields["key"] = fields["key"].replace("{key}", good.key)
    return replace(good, **fields)


def _spread(data: bytes) -> bytearray:
    spread = bytearray(2 * len(data))
    spread[::2] = data
    return spread


def _at(file: io.BytesIO, position: int) -> io.BytesIO:
    file.seek(position)
    return file
