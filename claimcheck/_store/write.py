"""One write to a store: limits, key, encoding, and what happens after a failure."""

from __future__ import annotations

import logging
from dataclasses import replace

from claimcheck._content.coder import Encoding, Stream, keyed_checksum
from claimcheck._content.header import AEAD, ALGORITHM
from claimcheck._content.source import Payload, Source
from claimcheck._store.contract import StoreContract, Translated
from claimcheck._validation import MAX_SECONDS, Seconds, check_value, fail
from claimcheck._wire.pointer import Pointer, changed, created
from claimcheck.config import canonical
from claimcheck.errors import PointerRejectedError, StoreError

_log = logging.getLogger(__name__)


class WritableStore(StoreContract):
    def write(
        self,
        payload: Payload,
        *,
        destination: str = "",
        limit: int | None = None,
        min_ttl_seconds: float | None = None,
    ) -> Pointer:
        """Store one payload and return a pointer to it.

        Args:
            payload: Bytes-like, or a readable binary file, which is read from its current position in bounded memory.
            destination: Topic or queue, as a readable part of the key. Where signing is configured, readers accept the
                pointer only from this destination.
            limit: The largest size of this payload in bytes, if smaller than ``limits.max_payload_bytes``.
            min_ttl_seconds: The lifetime of this payload, if longer than the store's ``ttl_seconds``.

        Returns:
            A pointer with the payload's size and checksum, readable at once by any reader.

        Raises:
            PayloadTypeError: Neither bytes-like nor a binary file; nothing was written.
            PayloadTooLargeError: Over the limit; nothing stays in the store.
            PayloadError: The file failed or shrank; nothing stays in the store.
            StoreUnavailableError: The store could not be reached; what was written was deleted if possible, otherwise
                it expires.
            StoreError: Any other failure of the store, such as a full disk, with the same effect. Also raised if the
                store would reject its own pointer; then nothing was written.
        """
        write = StoreWrite(self, payload, destination=destination, limit=limit, min_ttl_seconds=min_ttl_seconds)
        del payload  # error reports show local variables
        return write.run()

    def _limited(self, payload: Payload, limit: int | None) -> Source:
        """Limit the payload to the bytes and segments that `Store.check` accepts: a larger one could not be read."""
        maximum, checksum = self.context.max_payload_bytes, self.context.checksum
        limit = maximum if limit is None else min(limit, maximum)
        if self.segment_bytes is not None:
            segments = self._max_segments(self.pointer_version)
            if self.segment_bytes * segments < limit:
                what = f"{segments} segments of {self.segment_bytes} bytes"
                return Source(payload, limit=self.segment_bytes * segments, limit_name=what, checksum=checksum)
        return Source(payload, limit=limit, checksum=checksum)

    def _expires_ms(self, created_ms: int, min_ttl_seconds: float | None) -> int | None:
        if self.ttl_seconds is None:
            return None
        if not 0 <= self.ttl_seconds <= MAX_SECONDS:  # a third-party store may not check its option, and pass NaN
            expected = f"0 to {MAX_SECONDS} seconds"
            fail(f"stores.{self.name}.ttl_seconds", found=f"{self.ttl_seconds:g}", expected=expected)
        if min_ttl_seconds is not None:
            check_value("min_ttl_seconds", min_ttl_seconds, Seconds)
        return created_ms + int(max(self.ttl_seconds, min_ttl_seconds or 0) * 1000)

    def _undo(self, pointer: Pointer, error: BaseException) -> None:
        """Delete what a failed write may have left behind."""
        if self._wrote_nothing(error):
            return
        try:
            self._delete(pointer)
        except Exception as second:
            why = type(second).__name__
            _log.warning("store %r: could not delete the failed write of %r: %s", self.name, pointer.key, why)
            error.add_note(f"and what may have been written could not be deleted ({why}): it stays until it expires")


class StoreWrite:
    """Writes one payload; see `Store.write`."""

    def __init__(
        self,
        store: WritableStore,
        payload: Payload,
        *,
        destination: str,
        limit: int | None = None,
        min_ttl_seconds: float | None = None,
        bound: str | None = None,
    ) -> None:
        self._store = store
        self._payload = store._limited(payload, limit)
        content, self._bound, self._encoding = store.context.content, "", None
        if content.encodes or store.context.binds:
            self._bound = canonical(destination if bound is None else bound)
        if content.encodes and (encoding := content.encoding(self._payload, destination)) is not None:
            self._encoding = replace(encoding, destination=self._bound)
        self._unique = store.context.new_uuid()
        self._encrypted_as: Stream | None = None
        self._is_reached = False
        self._draft = self._drafted(destination, min_ttl_seconds)
        self._content = self._payload
        self._check_draft()

    @property
    def request(self) -> tuple[Pointer, memoryview] | None:
        """What `StoreContract._pipelined` may send of a payload that is in memory and stored as it is."""
        view = self._payload.view
        return None if view is None or self._encoding is not None else (self._draft, view)

    def run(self) -> Pointer:
        store = self._store
        try:
            with store.operation("write", self._draft, self._payload.size):
                return self._write_or_undo()
        finally:
            self._payload.close()

    def _drafted(self, destination: str, min_ttl_seconds: float | None) -> Pointer:
        store, encoding = self._store, self._encoding
        written = int(store.context.clock() * 1000)
        expires = store._expires_ms(written, min_ttl_seconds)
        key = store._key(destination, self._unique, created_ms=written, expires_ms=expires)
        encrypts = encoding is not None and encoding.keys is not None
        bound = self._bound and store.pointer_version != 1 and (encrypts or store.context.binds)
        return created(
            key=key,
            store=store.context.name,
            version=store.pointer_version,
            created_ms=written,
            expires_ms=expires,
            destination=self._bound if bound else None,
            codec=encoding.compression.codec if encoding and encoding.compression else None,
            encryption=ALGORITHM if encrypts else None,
        )

    def _check_draft(self) -> None:
        """Refuse to write what this store would not read."""
        store, draft = self._store, self._draft
        try:
            store.check(draft if self._encoding is None else replace(draft, codec=None, encryption=None))
        except PointerRejectedError as error:
            text = f"store {store.name!r} would reject its own pointer, so nothing was written: {error}"
            raise StoreError(text, store=store.name, key=draft.key) from error

    def _write_or_undo(self) -> Pointer:
        try:
            return self._pointer(self._written())
        except BaseException as error:
            if self._is_reached:
                self._store._undo(_stored(self._store, self._draft, self._content.taken), error)
            raise

    def _written(self) -> str:
        store, draft = self._store, self._draft
        with Translated(store, draft, "write"):
            store._reach()
            self._is_reached = True
            content = self._content = self._payload if self._encoding is None else self._encoded(self._encoding)
            key = store._write(draft, content)
            if content.taken != content.size:
                text = f"{type(store).__name__}._write is broken: it read {content.taken} of {content.size} bytes"
                raise StoreError(f"store {store.name!r}: {text} of the payload")
        return key if isinstance(key, str) else draft.key

    def _encoded(self, encoding: Encoding) -> Source:
        draft = self._draft
        if encoding.keys is not None and not self._is_bound:
            self._payload.skip_checksum()
        content = encoding.encode(self._payload, unique=self._unique, store=draft.store or "", stored_as=draft.key)
        content.skip_checksum()
        self._encrypted_as = content.stream
        return content

    def _pointer(self, key: str) -> Pointer:
        payload, stored = self._payload, self._content.taken
        if self._encoding is None:
            return _stored(self._store, self._draft, stored, key=key, checksum=payload.checksum)
        pointer = _stored(self._store, self._draft, stored, key=key, checksum=self._checksum())
        return replace(pointer, size=payload.taken, stored_bytes=stored)

    def _checksum(self) -> str:
        """Return the checksum of an encoded payload; that of an encrypted one says nothing about it without its key."""
        stream = self._encrypted_as
        if stream is None:
            return self._payload.checksum
        if self._is_bound:
            return keyed_checksum(self._payload.checksum, stream.key, stream.header)
        return f"{AEAD}{self._unique.hex}"

    @property
    def _is_bound(self) -> bool:
        """Whether the pointer of an encrypted payload has a checksum of it, for a signature that covers the content."""
        return self._store.context.binds and self._store.context.checksum == "sha256"


def _stored(
    store: StoreContract, draft: Pointer, size: int, *, key: str | None = None, checksum: str | None = None
) -> Pointer:
    piece = store.segment_bytes if store.segment_bytes and size > store.segment_bytes else None
    segments = -(-size // piece) if piece else 1
    return changed(draft, key=key or draft.key, size=size, segments=segments, segment_bytes=piece, checksum=checksum)
