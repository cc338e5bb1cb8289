"""Payloads of received messages that are read or decoded on access, and reading them ahead: for all transports."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Protocol

from claimcheck._threads import IoThreads, Pipelined
from claimcheck._validation import check_int
from claimcheck.errors import ClaimCheckError

DEFAULT_BYTES = 64 << 20
"""Bytes of payloads that are read ahead at most, unless the application sets a limit."""

DEFAULT_THREADS = 16
"""Payloads that are read concurrently."""

_MOST_AHEAD = 64  # messages, unless the application sets a limit


# Payloads on access --------------------------------------------------------------------------------------------------


@dataclass(slots=True, eq=False, repr=False)
class StoredPayload:
    """Reads or decodes a payload at the first `get`, and again after a retryable error."""

    _load: Callable[[], bytes] | None
    size: int = field(default=0, kw_only=True)
    pipelined: Callable[[], Pipelined | None] = field(default=lambda: None, kw_only=True)
    _ahead: Future[bytes] | None = field(default=None, init=False)
    _payload: bytes | None = field(default=None, init=False)
    _error: ClaimCheckError | None = field(default=None, init=False)
    _for_event_loop: bool = field(default=False, init=False)
    _on_get: Callable[[], None] | None = field(default=None, init=False)

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
            self._for_event_loop = True

    def prefetch(self, threads: IoThreads) -> None:
        """Start reading in another thread; `get` waits for the result."""
        if not self.is_read and self._load is not None:
            self._ahead = threads.submit(self._load, pipelined=self.pipelined())

    def watch(self, on_get: Callable[[], None]) -> None:
        """Call a function once the payload is requested, or now if it was."""
        if self._payload is not None or self._error is not None:
            on_get()
        else:
            self._on_get = on_get

    @property
    def is_read(self) -> bool:
        """Whether `get` returns on an event loop without waiting for a store."""
        return self._payload is not None or (
            self._error is not None and (self._for_event_loop or not self._error.retryable)
        )

    def __repr__(self) -> str:
        unread = "not read" if self._error is None else type(self._error).__name__
        state = unread if self._payload is None else "read"
        return f"<StoredPayload of {self.size or 'unknown'} bytes, {state}>"

    def _may_read_again(self, error: ClaimCheckError) -> bool:
        is_on_event_loop = asyncio._get_running_loop() is not None
        return error.retryable and not (self._for_event_loop and is_on_event_loop)

    def _read_now(self) -> bytes:
        assert self._load is not None
        on_get, self._on_get = self._on_get, None
        if on_get is not None:
            on_get()
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


# Read-ahead ----------------------------------------------------------------------------------------------------------


class Received(Protocol):
    """A message that waits to be delivered; compared by identity."""

    @property
    def held_bytes(self) -> int:
        """Bytes of its payload, in memory now or once it is read."""

    @property
    def stored(self) -> StoredPayload | None:
        """Its payload, if that is stored or encoded."""


class Prefetch:
    """Reads the payloads of waiting messages ahead, and bounds the memory that they use.

    Without ``max_bytes`` it begins when the application reads the payload of a message that it received.
    """

    def __init__(self, max_bytes: int | None, *, threads: int) -> None:
        check_int("prefetch_bytes", max_bytes or 0, minimum=0)
        check_int("prefetch_threads", threads, minimum=1)
        self.always = self._is_on = bool(max_bytes)
        self._may_begin = max_bytes is None
        self._max_bytes = DEFAULT_BYTES if max_bytes is None else max_bytes
        self._threads = threads
        self._held = 0
        self._counted: dict[Received, int] = {}  # as counted: some sizes are known only after the read
        self._later: deque[Received] = deque()  # not started: the limit is reached, or it is delivered next
        self._follows_pointer = False  # the message that was delivered last
        self._delivered = 0  # stored payloads, by the last receive call
        self._requested = False  # one of them
        self._pool: IoThreads | None = None

    @property
    def room(self) -> bool:
        """Whether another message may be received ahead."""
        if not self.always and not (self._is_on and self._follows_pointer and len(self._counted) < _MOST_AHEAD):
            return False
        return self._held < self._max_bytes and not self._later

    def add(self, message: Received) -> None:
        """Start reading a payload, now or once there is room for it; one that is delivered next is not read ahead."""
        if self._is_on:
            self._later.append(message)
            if self.always or self._delivered or self._counted or len(self._later) > 1:
                self._begin()

    def begin_receive(self) -> None:
        """The application calls again: it has requested the payloads of what it received before, or never will."""
        if self._delivered and not self._requested:
            self._is_on = self.always
        self._delivered, self._requested = 0, False

    def deliver(self, message: Received) -> None:
        stored = message.stored
        self._follows_pointer = stored is not None and stored.size > 0
        if self._may_begin and stored is not None and stored.size:
            self._delivered += 1
            stored.watch(self._note_request)
        self.remove(message)

    def remove(self, message: Received) -> None:
        """Stop counting a message that was delivered or dropped."""
        if (counted := self._counted.pop(message, None)) is not None:
            self._held -= counted
        elif message in self._later:
            self._later.remove(message)
        self._begin()

    def forget(self) -> None:
        """Stop counting all messages, and cancel reads that have not started."""
        pool, self._pool = self._pool, None
        self._held = 0
        self._counted.clear()
        self._later.clear()
        if pool is not None:
            pool.close()

    def _note_request(self) -> None:
        self._requested = self._is_on = True

    def _begin(self) -> None:
        while self._later and self._held + self._later[0].held_bytes <= self._max_bytes:
            message = self._later.popleft()
            self._counted[message] = message.held_bytes
            self._held += message.held_bytes
            if message.stored is not None and message.stored.size:
                if self._pool is None:
                    self._pool = IoThreads(self._threads, name="claimcheck-prefetch")
                message.stored.prefetch(self._pool)
