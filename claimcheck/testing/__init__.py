"""Helpers for tests of applications, and a conformance kit for authors of stores.

Applications: `RecordingBroker`, `assert_offloaded`, `assert_inline`, `FaultyStore`, and the pytest fixture
``claimcheck_memory``. Authors: `StoreConformance`, which imports pytest at first use.
"""

from __future__ import annotations

import importlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from claimcheck._client import ClaimCheck
from claimcheck._content.source import Source
from claimcheck._receive.resolver import Failed, Resolved
from claimcheck._registry import build_store
from claimcheck._store.listing import Deletion, StoreEntry
from claimcheck._store.store import Store
from claimcheck._wire import pointer as pointers
from claimcheck._wire.buffers import Buffer
from claimcheck._wire.envelope import Chunk, Encoded, Plain, PointerData, decode
from claimcheck._wire.envelope import Literal as Escaped
from claimcheck._wire.pointer import Pointer
from claimcheck.config import HEADER, StoreConfig
from claimcheck.errors import IncompletePayloadError

if TYPE_CHECKING:
    from claimcheck.testing._store_conformance import StoreConformance

__all__ = [
    "FaultyStore",
    "RecordedMessage",
    "RecordingBroker",
    "StoreConformance",
    "assert_inline",
    "assert_offloaded",
]

_WITH_ASSERTIONS = ("_store_conformance", "_store_kit")

Headers = Mapping[str, str | bytes | None] | Sequence[tuple[str, str | bytes | None]]


@dataclass(frozen=True, slots=True)
class RecordedMessage:
    """One message that an application sent to a `RecordingBroker`.

    Attributes:
        topic: Where it was sent.
        value: The message as it would travel through the broker: an envelope, or a payload sent unchanged.
        key: The message key.
        headers: The headers, as the application's function received them.
    """

    topic: str
    value: bytes | None
    key: str | bytes | None = None
    headers: Headers | None = None


class RecordingBroker:
    """A broker stub that keeps the messages it receives.

    Attributes:
        messages: Every message, in the order of sending.
    """

    def __init__(self) -> None:
        self.messages: list[RecordedMessage] = []

    def send(
        self, topic: str, value: bytes | None, key: str | bytes | None = None, headers: Headers | None = None
    ) -> int:
        """Record one message and return its position, from 0."""
        self.messages.append(RecordedMessage(topic, None if value is None else bytes(value), key, headers))
        return len(self.messages) - 1

    def payloads(self, cc: ClaimCheck, *, topic: str | None = None) -> list[bytes | None]:
        """Return the payload of every message, as a consumer receives them; chunks are reassembled.

        Args:
            cc: Resolves the messages.
            topic: Only the messages of this topic; by default those of all topics.

        Raises:
            ClaimCheckError: The first message that cannot be resolved; `IncompletePayloadError` if chunks are missing.
        """
        resolver = cc.resolver()
        payloads: list[bytes | None] = []
        for position, message in enumerate(self.messages):
            if topic not in (None, message.topic):
                continue
            outcomes = resolver.feed(
                message.topic,
                position,
                message.value,
                headers=message.headers,
                key=message.key,
                destination=message.topic,
            )
            for outcome in outcomes:
                if isinstance(outcome, Failed):
                    raise outcome.error
                if isinstance(outcome, Resolved):
                    payloads.append(outcome.payload)
        if resolver.pending_payloads:
            raise IncompletePayloadError(f"chunks of {resolver.pending_payloads} payloads are missing")
        return payloads

    def __repr__(self) -> str:
        return f"<RecordingBroker with {len(self.messages)} messages>"


def assert_offloaded(
    message: RecordedMessage | bytes | None, *, store: str | None = None, cc: ClaimCheck | None = None
) -> None:
    """Assert that a message is a pointer to a stored payload, or a chunk.

    Args:
        message: A recorded message, or its value.
        store: The store that a pointer must name; a chunk then fails the assertion.
        cc: Needed where the configuration changes ``envelope.header``.

    Raises:
        AssertionError: It is neither, or the payload is in another store.
    """
    envelope = _decoded(message, cc)
    if not isinstance(envelope, (PointerData, Chunk)):
        raise AssertionError(f"expected an offloaded payload, got {_described(envelope)}")
    if store is None:
        return
    if isinstance(envelope, Chunk):
        raise AssertionError(f"expected a payload in the store {store!r}, got {_described(envelope)}")
    name = pointers.decode(envelope.data).store
    if name != store:
        raise AssertionError(f"expected a payload in the store {store!r}, got one in {name!r}")


def assert_inline(message: RecordedMessage | bytes | None, *, cc: ClaimCheck | None = None) -> None:
    """Assert that a message carries its whole payload.

    Args:
        message: A recorded message, or its value.
        cc: Needed where the configuration changes ``envelope.header``.

    Raises:
        AssertionError: The payload was offloaded.
    """
    envelope = _decoded(message, cc)
    if not isinstance(envelope, (Plain, Escaped, Encoded, type(None))):
        raise AssertionError(f"expected a payload sent inline, got {_described(envelope)}")


def _described(envelope: object) -> str:
    return "a message without a value" if envelope is None else f"an envelope of type {type(envelope).__name__}"


def _decoded(message: RecordedMessage | bytes | None, cc: ClaimCheck | None) -> object:
    value = message.value if isinstance(message, RecordedMessage) else message
    return None if value is None else decode(value, header=cc.config.header if cc else HEADER)


Operation = Literal["write", "read", "rollback"]
When = Literal["before", "during", "after"]


@dataclass(slots=True)
class _Fault:
    operation: Operation
    when: When
    error: BaseException
    times: int | None


def _inner(name: str) -> Any:
    """Return a method that calls the one of the wrapped store."""

    def call(self: FaultyStore, *args: Any, **options: Any) -> Any:
        return getattr(self._store(), name)(*args, **options)

    return call


class FaultyStore(Store):
    """Wraps a store and fails on demand.

    In YAML: ``{type: "claimcheck.testing:FaultyStore", store: {type: memory}}``.

    Args:
        store: The store to wrap, or its configuration as in YAML.

    Attributes:
        calls: The number of calls by operation, including those that failed on demand.
    """

    def __init__(self, *, store: Any) -> None:
        self.inner: Store = _build(store) if isinstance(store, Mapping) else store
        self.calls: Counter[str] = Counter()
        self._faults: list[_Fault] = []
        for name in ("prefix", "segment_bytes", "ttl_seconds", "max_key_bytes", "pointer_version", "reads_v1"):
            setattr(self, name, getattr(self.inner, name))

    def fail(
        self,
        operation: Operation,
        *,
        when: When = "before",
        error: BaseException | None = None,
        times: int | None = None,
    ) -> None:
        """Fail from now on.

        Args:
            operation: The operation that fails; the cleanup of a failed write counts as ``rollback``.
            when: ``before`` the inner store is called; ``during`` the operation, after half of the pieces (after a
                single piece); ``after`` the inner store succeeded, as if only its response were lost.
            error: The exception; by default a `ConnectionError`, which becomes `StoreUnavailableError` as in any store.
            times: How often it fails; ``None`` for always.
        """
        cause = ConnectionError("injected fault") if error is None else error
        self._faults.append(_Fault(operation, when, cause, times))

    def heal(self) -> None:
        """Stop failing."""
        self._faults.clear()

    def close(self) -> None:
        """Close the inner store."""
        self.inner.close()

    check = _inner("check")
    _scope = _inner("_scope")
    _new_key = _inner("_new_key")
    _key = _inner("_key")
    _lifetime_of = _inner("_lifetime_of")
    _scan = _inner("_scan")
    _translate = _inner("_translate")
    _wrote_nothing = _inner("_wrote_nothing")

    def _discard(self, entries: Sequence[StoreEntry]) -> Iterable[Deletion]:
        for entry in entries:
            with self._around("rollback"):
                self._strike("rollback", "during")
                yield from self._store()._discard([entry])

    def _reach(self) -> None:
        self.calls["write"] += 1
        self._strike("write", "before")
        self._store()._reach()

    def _write(self, pointer: Pointer, source: Source) -> None:
        setattr(source, "pieces", self._breaking_pieces(source))  # noqa: B010 - one object, not its class
        self._store()._write(pointer, source)
        self._strike("write", "after")

    def _read(self, pointer: Pointer) -> Iterable[Buffer]:
        with self._around("read"):
            pieces = -(-(pointer.size or 0) // (1 << 20))
            yield from self._breaking("read", self._store()._read(pointer), after=max(1, pieces // 2))

    def _delete(self, pointer: Pointer) -> None:
        with self._around("rollback"):
            self._strike("rollback", "during")
            self._store()._delete(pointer)

    def _store(self) -> Store:
        """The inner store, with this store's context."""
        self.inner.context = self.context
        return self.inner

    @contextmanager
    def _around(self, operation: Operation) -> Iterator[None]:
        self.calls[operation] += 1
        self._strike(operation, "before")
        yield
        self._strike(operation, "after")

    def _strike(self, operation: Operation, when: When) -> None:
        for fault in self._faults:
            if (fault.operation, fault.when) == (operation, when) and fault.times != 0:
                fault.times = None if fault.times is None else fault.times - 1
                raise fault.error

    def _breaking_pieces(self, source: Source) -> Any:
        original = source.pieces

        def pieces(piece_bytes: int) -> Iterator[memoryview]:
            count = -(-(source.size or 0) // piece_bytes)
            return self._breaking("write", original(piece_bytes), after=max(1, count // 2))

        return pieces

    def _breaking(self, operation: Operation, pieces: Iterable[Any], *, after: int) -> Iterator[Any]:
        passed = 0
        for passed, piece in enumerate(pieces, 1):
            yield piece
            if passed == after:
                self._strike(operation, "during")
        if passed < after:
            self._strike(operation, "during")


def _build(raw: Mapping[str, Any]) -> Store:
    options = {name: value for name, value in raw.items() if name != "type"}
    store: Store = build_store(StoreConfig(type=raw.get("type", ""), options=options), path="store")
    return store


def __getattr__(name: str) -> type:
    if name != "StoreConformance":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import pytest

    for module in _WITH_ASSERTIONS:  # so that a failing assertion shows its values
        pytest.register_assert_rewrite(f"{__name__}.{module}")
    kit: type = importlib.import_module(f"{__name__}._store_conformance").StoreConformance
    return kit
