"""Copies a stored payload, within a store or to another one: verified, in bounded memory."""

from __future__ import annotations

import mmap
import uuid
from dataclasses import replace
from typing import TYPE_CHECKING

from claimcheck._envelope import Buffer
from claimcheck._key_lifetime import destination_of
from claimcheck._payload import Payload
from claimcheck._pointer import Pointer
from claimcheck._store_write import StoreWrite
from claimcheck.errors import ClaimCheckError, PayloadError

if TYPE_CHECKING:
    from claimcheck._store import Store

_IN_MEMORY_BYTES = 8 << 20
_COPY_BYTES = 1 << 20


def copy(
    source: Store,
    pointer: Pointer,
    to: Store,
    *,
    destination: str | None,
    min_ttl_seconds: float | None,
    identity: uuid.UUID | None,
) -> Pointer:
    """Copy a payload; see `Store.copy`."""
    name = destination_of(pointer.key.removeprefix(source.prefix)) if destination is None else destination

    def written(payload: Payload) -> Pointer:
        """Write the copy, bound to the same destination."""
        bound = pointer.destination or ""
        write = StoreWrite(
            to, payload, destination=name, bound=bound, identity=identity, min_ttl_seconds=min_ttl_seconds
        )
        return replace(write.run(), destination=pointer.destination)

    if identity is not None:
        return written(_verified(source, pointer))
    with source.open(pointer) as file:
        try:
            return written(file)
        except PayloadError as error:  # of reading the copied payload, which for the write is only a file
            if isinstance(error.__cause__, ClaimCheckError):
                raise error.__cause__ from None
            raise


def _verified(source: Store, pointer: Pointer) -> Buffer:
    """Return the whole payload, verified before its first byte is written, because nothing can undo the write."""
    if pointer.size is not None and pointer.size <= _IN_MEMORY_BYTES:
        return source.read(pointer)
    import shutil
    import tempfile  # both are slow to import

    with tempfile.TemporaryFile() as temporary:
        with source.open(pointer) as file:
            shutil.copyfileobj(file, temporary, _COPY_BYTES)
        temporary.flush()
        if not temporary.tell():
            return b""
        return memoryview(mmap.mmap(temporary.fileno(), 0, access=mmap.ACCESS_READ))
