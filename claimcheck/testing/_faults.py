"""A store that fails on demand before, during or after an operation."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

from claimcheck._content.source import Source
from claimcheck._registry import build_store
from claimcheck._store.listing import Deletion, KeyLifetime, StoreEntry
from claimcheck._store.store import Store
from claimcheck._wire.buffers import Buffer
from claimcheck._wire.pointer import Pointer
from claimcheck.config import StoreConfig
from claimcheck.errors import StoreError

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

    def _now(self, entries: Sequence[StoreEntry]) -> Iterable[tuple[StoreEntry, StoreEntry | None]]:
        return self._store()._now(entries)

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
