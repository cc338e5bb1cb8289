"""Helpers for tests of applications, and a conformance kit for authors of stores.

Applications: `RecordingBroker`, `assert_offloaded`, `assert_inline`, `FaultyStore`, and the pytest fixture
``claimcheck_memory``. Authors: `StoreConformance`, which imports pytest at first use.
"""

from __future__ import annotations

import importlib
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from claimcheck._client import ClaimCheck
from claimcheck._content.source import Source
from claimcheck._receive.resolver import Failed, Resolved
from claimcheck._registry import build_store
from claimcheck._store.listing import Deletion, KeyLifetime, StoreEntry
from claimcheck._store.store import Store
from claimcheck._wire import pointer as pointers
from claimcheck._wire.buffers import Buffer
from claimcheck._wire.envelope import Abort, Chunk, Encoded, Plain, PointerData, decode
from claimcheck._wire.envelope import Literal as Escaped
from claimcheck._wire.pointer import Pointer
from claimcheck.config import HEADER, StoreConfig
from claimcheck.errors import IncompletePayloadError, StoreError

if TYPE_CHECKING:
    from claimcheck.testing._store_conformance import StoreConformance

__all__ = [
    "Fault",
    "FaultyStore",
    "RecordedMessage",
    "RecordingBroker",
    "StoreConformance",
    "assert_inline",
    "assert_offloaded",
]

_WITH_ASSERTIONS = ("_store_conformance", "_store_kit", "_store_lifecycle")

Headers = Mapping[str, str | bytes | None] | Sequence[tuple[str, str | bytes | None]]


@dataclass(frozen=True, slots=True)
class RecordedMessage:
    """One message that an application sent to a `RecordingBroker`.

    Attributes:
        topic: The topic.
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

    Example::

        def test_large_orders_are_offloaded(claimcheck_memory):
            broker = RecordingBroker()
            offload = claimcheck_memory.offload(destination="topic", key="key", headers="headers")
            publish = offload(broker.send)

            publish("orders", b"x" * 2_000_000, key="customer-1")

            assert_offloaded(broker.messages[0])
            assert broker.payloads(claimcheck_memory) == [b"x" * 2_000_000]

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

    def clear(self) -> None:
        """Forget all messages."""
        self.messages.clear()

    def __repr__(self) -> str:
        return f"<RecordingBroker with {len(self.messages)} messages>"


def assert_offloaded(
    message: RecordedMessage | bytes | None, *, store: str | None = None, cc: ClaimCheck | None = None
) -> None:
    """Assert that a message is a pointer to a stored payload, or a chunk.

    Example::

        assert_offloaded(broker.messages[0])                     # stored, or in chunks
        assert_offloaded(broker.messages[0], store="payloads")   # in this store

    Args:
        message: A recorded message, or its value.
        store: The store that a pointer must name; a chunk then fails the assertion.
        cc: Needed where the configuration changes ``envelope.header``.

    Raises:
        AssertionError: It is neither, or the payload is in another store.
    """
    envelope = _decoded(message, cc)
    if not isinstance(envelope, (PointerData, Chunk)):
        raise AssertionError(f"expected an offloaded payload, got {_description(message, envelope)}")
    if store is None:
        return
    if isinstance(envelope, Chunk):
        raise AssertionError(f"expected a payload in the store {store!r}, got {_description(message, envelope)}")
    name = pointers.decode(envelope.data).store
    if name != store:
        raise AssertionError(f"expected a payload in the store {store!r}, got one in {name!r}")


def assert_inline(message: RecordedMessage | bytes | None, *, cc: ClaimCheck | None = None) -> None:
    """Assert that a message carries its whole payload.

    Example::

        publish("orders", b"small")
        assert_inline(broker.messages[-1])

    Args:
        message: A recorded message, or its value.
        cc: Needed where the configuration changes ``envelope.header``.

    Raises:
        AssertionError: The payload was offloaded.
    """
    envelope = _decoded(message, cc)
    if not isinstance(envelope, (Plain, Escaped, Encoded, type(None))):
        raise AssertionError(f"expected a payload sent inline, got {_description(message, envelope)}")


def _value(message: RecordedMessage | bytes | None) -> bytes | None:
    return message.value if isinstance(message, RecordedMessage) else message


def _decoded(message: RecordedMessage | bytes | None, cc: ClaimCheck | None) -> object:
    value = _value(message)
    return None if value is None else decode(value, header=cc.config.header if cc else HEADER)


def _description(message: RecordedMessage | bytes | None, envelope: object) -> str:
    value = _value(message)
    if value is None:
        return "a message without a value"
    kinds: dict[type[object], str] = {
        PointerData: "a pointer",
        Chunk: "a chunk",
        Abort: "an abort marker",
        Escaped: "an escaped payload",
        Encoded: "a compressed or encrypted payload",
    }
    return f"{kinds.get(type(envelope), 'a plain message')} of {len(value):,} bytes"


Operation = Literal["write", "read", "rollback"]
When = Literal["before", "during", "after"]


@dataclass(slots=True)
class Fault:
    """A failure of one operation.

    Attributes:
        operation: The operation that fails; the cleanup of a failed write counts as ``rollback``.
        when: ``before`` the inner store is called; ``during`` the operation, after half of the pieces (after a single
            piece); ``after`` the inner store succeeded, as if only its response were lost.
        error: The exception. A `ConnectionError` becomes `StoreUnavailableError`, as in any store.
        times: How often it fails; ``None`` for always.
    """

    operation: Operation
    when: When = "before"
    error: BaseException = field(default_factory=lambda: ConnectionError("injected fault"))
    times: int | None = None

    def strikes(self, operation: Operation, when: When) -> bool:
        """Return whether the operation fails now, and count it if so."""
        if (self.operation, self.when) != (operation, when) or self.times == 0:
            return False
        if self.times is not None:
            self.times -= 1
        return True


class FaultyStore(Store):
    """Wraps a store and fails on demand.

    In YAML: ``{type: "claimcheck.testing:FaultyStore", store: {type: memory}}``.

    Example::

        store = FaultyStore(store=MemoryStore())
        store.fail("write", times=1)
        with pytest.raises(StoreUnavailableError):
            store.write(b"payload")
        store.write(b"payload")

    Args:
        store: The store to wrap, or its configuration as in YAML.

    Attributes:
        calls: The number of calls by operation, including those that failed on demand.
    """

    def __init__(self, *, store: Any) -> None:
        self.inner: Store = _build(store) if isinstance(store, Mapping) else store
        self.calls: Counter[str] = Counter()
        self._faults: list[Fault] = []
        self.prefix = self.inner.prefix
        self.segment_bytes = self.inner.segment_bytes
        self.ttl_seconds = self.inner.ttl_seconds
        self.max_key_bytes = self.inner.max_key_bytes
        self.pointer_version = self.inner.pointer_version
        self.reads_v1 = self.inner.reads_v1

    def fail(
        self,
        operation: Operation,
        *,
        when: When = "before",
        error: BaseException | None = None,
        times: int | None = None,
    ) -> None:
        """Fail from now on; see `Fault`."""
        cause = ConnectionError("injected fault") if error is None else error
        self._faults.append(Fault(operation, when, cause, times))

    def heal(self) -> None:
        """Stop failing."""
        self._faults.clear()

    def close(self) -> None:
        """Close the inner store."""
        self.inner.close()

    def check(self, pointer: Pointer) -> None:
        """Reject the pointers that the inner store rejects."""
        self._store().check(pointer)

    def _scope(self, pointer: Pointer) -> str:
        return self._store()._scope(pointer)

    def _new_key(self, destination: str, unique: uuid.UUID) -> str:
        return self._store()._new_key(destination, unique)

    def _key(self, destination: str, unique: uuid.UUID, *, created_ms: int, expires_ms: int | None, fresh: bool) -> str:
        store = self._store()
        return store._key(destination, unique, created_ms=created_ms, expires_ms=expires_ms, fresh=fresh)

    def _lifetime_of(self, key: str) -> KeyLifetime | None:
        return self._store()._lifetime_of(key)

    def _scan(self, after: str | None) -> Iterable[StoreEntry]:
        return self._store()._scan(after)

    def _stat(self, entry: StoreEntry) -> StoreEntry | None:
        return self._store()._stat(entry)

    def _discard(self, entries: Sequence[StoreEntry]) -> Iterable[Deletion]:
        for entry in entries:
            with self._around("rollback"):
                self._strike("rollback", "during")
                yield from self._store()._discard([entry])

    def _rewrite(self, pointer: Pointer, source: Source) -> str | None:
        return self._store()._rewrite(pointer, source)

    def _translate(self, error: Exception) -> type[StoreError] | None:
        return self._store()._translate(error)

    def _reach(self) -> None:
        self.calls["write"] += 1
        self._strike("write", "before")
        self._store()._reach()

    def _wrote_nothing(self, error: BaseException) -> bool:
        return self._store()._wrote_nothing(error)

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
            if fault.strikes(operation, when):
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
