"""The errors of stores: a medium's errors are translated, and describe the payload."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from claimcheck._texts import duration, time_text
from claimcheck._validation import without_secrets
from claimcheck.errors import (
    ClaimCheckError,
    IntegrityError,
    PayloadNotFoundError,
    PayloadTooLargeError,
    PointerRejectedError,
    ScanNotSupportedError,
    StoreError,
)

if TYPE_CHECKING:
    from claimcheck._pointer import Pointer
    from claimcheck._store import Store

_LARGE_BYTES = 64 << 20  # a smaller payload is not the reason why there is no memory


def missing(store: Store, pointer: Pointer, what: str) -> PayloadNotFoundError:
    """Return the error for a missing payload, or a missing part of one."""
    written = "" if pointer.created_ms is None else f" (written {time_text(pointer.created_ms / 1000)})"
    return PayloadNotFoundError(
        f"store {store.name!r}: {what} of {pointer.key!r} is gone{written}: {_reason(pointer, store.context.clock())}",
        store=store.name,
        key=pointer.key,
        created_ms=pointer.created_ms,
        expires_ms=pointer.expires_ms,
    )


def differs(pointer: Pointer, what: str, expected: int | str, actual: int | str, store: str) -> NoReturn:
    """Raise the error for a payload that differs from its pointer."""
    raise IntegrityError(
        f"store {store!r}: the {what} of {pointer.key!r} differs from its pointer: expected {expected}, found {actual}",
        store=store,
        key=pointer.key,
        expected=expected,
        actual=actual,
    )


def too_long(store: Store, pointer: Pointer, size: int) -> PayloadTooLargeError:
    """Return the error for a payload of unknown size that turned out to be over the limit after ``size`` bytes."""
    limit = store.context.max_payload_bytes
    text = f"store {store.name!r}: {pointer.key!r} is longer than limits.max_payload_bytes ({limit})"
    return PayloadTooLargeError(text, store=store.name, key=pointer.key, size=size, limit=limit)


def too_small(store: Store, pointer: Pointer, size: int) -> PayloadTooLargeError:
    """Return the error for a payload that is larger than a buffer of ``size`` bytes."""
    text = f"store {store.name!r}: {pointer.key!r} does not fit into a buffer of {size} bytes"
    return PayloadTooLargeError(text, store=store.name, key=pointer.key, size=pointer.size, limit=size)


def untrusted(store: Store, pointer: Pointer, why: str) -> IntegrityError:
    """Return the error for content that is damaged, or not authentic."""
    text = f"store {store.name!r}: the content of {pointer.key!r} cannot be trusted: {why}"
    return IntegrityError(text, store=store.name, key=pointer.key)


def reject(store: Store, pointer: Pointer, reason: str, why: str) -> NoReturn:
    """Raise the error for a pointer that is not followed; ``why`` continues a sentence about it."""
    raise PointerRejectedError(
        f"store {store.name!r} rejected the pointer to {pointer.key[:200]!r}: it {why}",
        reason=reason,
        store=pointer.store,
        key=pointer.key,
    )


def not_listed(store: Store) -> ScanNotSupportedError:
    """Return the error of a store that cannot list what it keeps."""
    text = f"store {store.name!r}: {type(store).__name__} cannot list its payloads"
    return ScanNotSupportedError(f"{text}: the medium has to delete them by age", store=store.name)


def translated(store: Store, error: Exception, pointer: Pointer, operation: str) -> StoreError:
    """Return the error of this library for a medium's error."""
    if isinstance(error, MemoryError) and operation == "read" and (pointer.size or 0) > _LARGE_BYTES:
        return _no_memory(store, pointer)
    kind = store._translate(error) or StoreError
    if kind is PayloadNotFoundError and operation == "read":
        return store.missing(pointer)
    if kind in (PayloadNotFoundError, PayloadTooLargeError) or (kind is IntegrityError and operation != "read"):
        kind = StoreError
    why = without_secrets(store._words(error))[:400]
    what = f"{operation} of {pointer.key!r}" if pointer.key else operation
    text = f"store {store.name!r}: {what} failed: {type(error).__name__}: {why}"
    return kind(text, store=store.name, key=pointer.key)


def _no_memory(store: Store, pointer: Pointer) -> PayloadTooLargeError:
    text = f"store {store.name!r}: {pointer.key!r} of {pointer.size} bytes does not fit into the memory of this process"
    return PayloadTooLargeError(
        f"{text}: open it as a file, or lower limits.max_payload_bytes",
        store=store.name,
        key=pointer.key,
        size=pointer.size,
        limit=store.context.max_payload_bytes,
    )


class Translated:
    """Translates the medium's errors; not a generator, which is measurably slower for small payloads."""

    __slots__ = ("_operation", "_pointer", "_store")

    def __init__(self, store: Store, pointer: Pointer, operation: str) -> None:
        self._store = store
        self._pointer = pointer
        self._operation = operation

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, StoreError):
            error.store, error.key = error.store or self._store.name, error.key or self._pointer.key
        elif isinstance(error, Exception) and not isinstance(error, ClaimCheckError):
            raise translated(self._store, error, self._pointer, self._operation) from error


def _reason(pointer: Pointer, now: float) -> str:
    """Return why a payload is gone, as far as its pointer tells."""
    if pointer.expires_ms is None:
        return "it expired, was evicted, was rolled back or was deleted"
    ends = time_text(pointer.expires_ms / 1000)
    if pointer.expires_ms / 1000 <= now:
        return f"it expired {duration(now - pointer.expires_ms / 1000)} ago, at {ends}"
    return f"it should be readable until {ends}: it was evicted, rolled back or deleted"
