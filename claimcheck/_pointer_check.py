"""Which pointers a store follows: decided before any I/O."""

from __future__ import annotations

from typing import TYPE_CHECKING

from claimcheck._content import encoding_problem
from claimcheck._pointer import Pointer, is_key
from claimcheck._store_errors import reject
from claimcheck.errors import PointerRejectedError

if TYPE_CHECKING:
    from claimcheck._store import Store


def check(store: Store, pointer: Pointer) -> None:
    """Reject a pointer that a store must not follow; see `Store.check`."""
    if not isinstance(pointer, Pointer):
        found = type(pointer).__name__  # type: ignore[unreachable]  # callers may have no type checker
        text = f"expected a claimcheck.Pointer, got {found}; ClaimCheck.resolve takes envelopes"
        raise PointerRejectedError(text, reason="type")
    limit = store.context.max_payload_bytes
    if pointer.store is not None and pointer.store != store.context.name:
        reject(store, pointer, "store", f"names the store {pointer.store!r}")
    if pointer.version == 1 and not store.reads_v1:
        reject(store, pointer, "version", "is of version 1, which this store does not read")
    if not is_key(pointer.key) or not pointer.key.startswith(store._scope(pointer)):
        reject(store, pointer, "scope", "has a key outside this store's prefix")
    if len(pointer.key.encode()) > store.max_key_bytes:
        reject(store, pointer, "scope", f"has a key of more than {store.max_key_bytes} bytes")
    if (pointer.size or 0) > limit:
        reject(store, pointer, "size", f"declares {pointer.size} bytes, but limits.max_payload_bytes is {limit}")
    if pointer.segments > store._max_segments(pointer.version) or pointer.segments != _segments_of(pointer):
        reject(store, pointer, "size", f"declares {pointer.segments} segments for {pointer.size} bytes")
    if (problem := encoding_problem(pointer)) is not None:
        reject(store, pointer, *problem)


def check_readable(store: Store, pointer: Pointer) -> None:
    """Reject what `Store.check` rejects, and what the configuration of encryption does not allow to read."""
    store.check(pointer)
    content = store.context.content
    if pointer.encryption is None and content.requires_encryption:
        reject(store, pointer, "encryption", "is not encrypted, but encryption.require is true")
    if pointer.encryption is not None and content.keys is None:
        reject(store, pointer, "encryption", "is encrypted, but encryption.keys is not set here")


def _segments_of(pointer: Pointer) -> int:
    if pointer.version == 1 and pointer.size is None:
        return pointer.segments
    size = pointer.size_in_store
    return -(-size // pointer.segment_bytes) if pointer.segment_bytes and size else 1
