"""A payload in a store, or an encoded one, read or decoded on first access or ahead of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future

from claimcheck._threads import IoThreads, Join
from claimcheck._wire.pointer import Pointer
from claimcheck.errors import ClaimCheckError


class StoredPayload:
    """Reads a payload at the first `get`, and again after a retryable error."""

    __slots__ = (
        "_ahead",
        "_error",
        "_join",
        "_load",
        "_on_get",
        "_payload",
        "_pointer",
        "_read_for_event_loop",
        "_waited",
        "size",
    )

    def __init__(
        self,
        load: Callable[[], bytes],
        *,
        size: int = 0,
        pointer: Pointer | None = None,
        join: Callable[[Pointer], Join | None] = lambda _: None,
    ) -> None:
        self.size = size
        self._pointer = pointer
        self._join = join
        self._load: Callable[[], bytes] | None = load
        self._ahead: Future[bytes] | None = None
        self._payload: bytes | None = None
        self._error: ClaimCheckError | None = None
        self._read_for_event_loop = False
        self._waited: bool | None = None  # at the first `get`
        self._on_get: Callable[[bool], None] | None = None

    def get(self) -> bytes:
        """Return the payload; the first call reads it."""
        if self._payload is None:
            if self._error is not None and not self._may_read_again(self._error):
                raise self._error
            self._payload = self._read_now()
        return self._payload

    def read(self) -> None:
        """Read the payload in a thread; afterwards `get` does not wait on an event loop."""
        try:
            self.get()
        except ClaimCheckError:
            self._read_for_event_loop = True

    def prefetch(self, threads: IoThreads) -> None:
        """Start reading in another thread; `get` waits for the result."""
        if not self.is_read and self._load is not None:
            join = None if self._pointer is None else self._join(self._pointer)
            self._ahead = threads.submit(self._load, join=join, request=self._pointer)

    def watch(self, on_get: Callable[[bool], None]) -> None:
        """Call a function once the payload is requested, with whether that had to wait for the store."""
        if self._waited is None:
            self._on_get = on_get
        else:
            on_get(self._waited)

    @property
    def is_read(self) -> bool:
        """Whether `get` returns on an event loop without waiting for a store."""
        return self._payload is not None or (
            self._error is not None and (self._read_for_event_loop or not self._error.retryable)
        )

    def __repr__(self) -> str:
        if self._payload is not None:
            return f"<StoredPayload of {len(self._payload)} bytes, read>"
        state = "not read" if self._error is None else type(self._error).__name__
        return f"<StoredPayload of {self.size or 'unknown'} bytes, {state}>"

    # Internals -------------------------------------------------------------------------------------------------

    def _may_read_again(self, error: ClaimCheckError) -> bool:
        return error.retryable and not (self._read_for_event_loop and _is_on_event_loop())

    def _read_now(self) -> bytes:
        assert self._load is not None
        self._note_get()
        try:
            payload = self._prefetched()
            if payload is None:
                payload = self._load()
        except ClaimCheckError as error:
            self._error = error
            if not error.retryable:
                self._load = None  # it refers to the message
            raise
        self._load = self._error = None
        return payload

    def _note_get(self) -> None:
        if self._waited is None:
            self._waited = self._ahead is None or not self._ahead.done()
        on_get, self._on_get = self._on_get, None
        if on_get is not None:
            on_get(self._waited)

    def _prefetched(self) -> bytes | None:
        """Return the payload that was read ahead; ``None`` without one, or after an outage that may be over by now."""
        ahead, self._ahead = self._ahead, None
        if ahead is None or ahead.cancel():
            return None
        was_done = ahead.done()
        try:
            return ahead.result()
        except ClaimCheckError as error:
            if was_done and error.retryable:
                return None
            raise


def _is_on_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
