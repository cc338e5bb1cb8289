"""The rule that turns a payload into envelopes; what a strategy author subclasses.

`Strategy.offload` does what every strategy must do alike: an envelope goes through untouched, small and empty
payloads stay plain messages, look-alikes are escaped. What is left, a payload that is too large for its broker,
reaches ``_offload``, which returns an `Outbound`.
"""

from __future__ import annotations

import contextlib
import io
import threading
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, BinaryIO, cast

from claimcheck import _hints as hints
from claimcheck._envelope import Envelope, Kind, encode_literal, is_lookalike
from claimcheck._outbound import Outbound
from claimcheck._payload import Payload, Source, as_view, is_file, remaining_bytes
from claimcheck._pointer import Pointer
from claimcheck._store import Store, StoreContext
from claimcheck._wire_size import DEFAULT_LIMIT, WireLimit
from claimcheck.config import Config
from claimcheck.hooks import Hooks

__all__ = [
    "Breaker",
    "Message",
    "rewindable",
    "Strategy",
    "StrategyContext",
]


class Breaker:
    """Closed: the store is asked. Open: it is not, until ``retry_after_seconds`` have passed; then one caller tries.

    Args:
        retry_after_seconds: The pause after a failure.
        clock: Seconds, monotonic.
    """

    def __init__(self, *, retry_after_seconds: float = 30.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._pause = retry_after_seconds
        self._clock = clock
        self._lock = threading.Lock()
        self._retry_at: float | None = None
        self._probe: int | None = None  # the thread that tries after the pause

    @property
    def is_open(self) -> bool:
        """Whether the last attempt failed."""
        return self._retry_at is not None

    def allows(self) -> bool:
        """Whether the caller may ask the store now; of several callers after the pause only one is told yes."""
        with self._lock:
            if self._retry_at is None:
                return True
            if self._clock() < self._retry_at:
                return False
            self._retry_at = self._clock() + self._pause
            self._probe = threading.get_ident()
            return True

    def give_back(self) -> None:
        """The single attempt after the pause, if this thread made it, said nothing: the next caller may try at once."""
        with self._lock:
            if self._retry_at is not None and self._probe == threading.get_ident():
                self._retry_at, self._probe = self._clock(), None

    def failed(self) -> bool:
        """Open; returns whether it was closed before."""
        with self._lock:
            was_closed = self._retry_at is None
            self._retry_at, self._probe = self._clock() + self._pause, None
            return was_closed

    def succeeded(self) -> bool:
        """Close; returns whether it was open before."""
        with self._lock:
            was_open, self._retry_at, self._probe = self._retry_at is not None, None, None
            return was_open


_WHOLE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """What a caller wants delivered.

    Attributes:
        payload: Bytes-like, a readable binary file, ``None`` for a tombstone, or an `Envelope`.
        destination: Topic or queue.
        key: The message key, in whatever type the produce call takes.
        headers: A mapping, a list of pairs, or ``None``.
        threshold: Bytes on the wire above which the payload is offloaded.
        limit: What the transport takes, and how it counts.
        takes_headers: Whether hints can be sent along.
        text_key: Whether a key that we make up is ``str``, not ``bytes``.
        identity: Stands for this payload in every attempt to send it; ``None`` for a fresh one in each.
    """

    payload: Any = field(repr=False)
    destination: str
    key: Any = None
    headers: Any = field(default=None, repr=False)
    threshold: int = DEFAULT_LIMIT.max_message_bytes
    limit: WireLimit = DEFAULT_LIMIT
    takes_headers: bool = True
    text_key: bool = False
    identity: uuid.UUID | None = None

    def fits(self, size: int) -> bool:
        """Whether a value of ``size`` bytes stays within the threshold on the wire."""
        return size <= self.threshold and size + self.limit.overhead(self.key, self.headers) <= self.threshold

    def hinted(self, ours: dict[str, str]) -> Any:
        """The headers with our hints, where the produce call takes headers."""
        return hints.add(self.headers, ours) if self.takes_headers else self.headers


@dataclass(frozen=True, slots=True)
class StrategyContext:
    """What a strategy works with.

    Attributes:
        config: What holds for the destination.
        store: Opens the store that writers use.
        seal: Signs a pointer where signing is configured, and encodes it.
        breaker: Guards that store.
        hooks: Who hears of fallbacks.
        surroundings: Clock and uuids, as the stores have them.
    """

    config: Config
    store: Callable[[], Store]
    seal: Callable[[Pointer], bytes]
    breaker: Breaker = field(default_factory=Breaker)
    hooks: Hooks = field(default_factory=Hooks)
    surroundings: StoreContext = field(default_factory=StoreContext)


class Strategy(ABC):
    """Base of all strategies; safe under threads.

    Attributes:
        may_chunk: Whether one payload can become several messages, which must then be kept together by a key.
        needs_store: Whether the configuration has to name a store.
    """

    may_chunk: bool = False
    needs_store: bool = True

    def __init__(self, context: StrategyContext) -> None:
        self.context = context
        self._header = context.config.header

    @abstractmethod
    def _offload(self, message: Message) -> Outbound:
        """Turn a payload that is too large for its broker into envelopes."""

    def offload(self, message: Message) -> Outbound:
        """Turn a payload into envelopes.

        Args:
            message: What is to be delivered; its payload may be read, never changed.

        Raises:
            PayloadTypeError: The payload is neither bytes-like nor a binary file. Nothing was written or sent.
            PayloadTooLargeError: Over a limit of the configuration. Nothing was sent, nothing is left.
            StoreError: The store failed, and the strategy has no other way. Nothing was sent, nothing is left.
        """
        out = self.shortcut(message)
        if out is not None:
            return out
        if not is_file(message.payload):
            return self._offload(_without_reserved(message))
        rewind = _way_back(message.payload)
        try:
            return self._offload_file(_without_reserved(message)).rewinding(rewind)
        except BaseException:
            with contextlib.suppress(OSError, ValueError):  # the file may be what failed
                rewind()
            raise

    def shortcut(self, message: Message) -> Outbound | None:
        """Pass on what needs no work: no I/O and no copy, so safe on an event loop; ``None`` for anything else.

        Raises:
            PayloadTypeError: The payload is neither bytes-like nor a binary file.
        """
        payload = message.payload
        if isinstance(payload, Envelope):
            key, headers = _first(payload.key, message.key), _first(payload.headers, message.headers)
            return Outbound([replace(payload, key=key, headers=headers)], as_is=True)
        if payload is None:
            return Outbound([Envelope(None, message.headers, message.key)], as_is=True)
        if is_file(payload):
            return None
        if message.headers is not None and hints.is_ours(message.headers):
            if is_lookalike(payload, header=self._header):  # the headers call it an envelope, and its bytes agree
                return Outbound([Envelope(payload, message.headers, message.key)], as_is=True)
            message = replace(message, headers=hints.strip(message.headers))  # copied from a message that was received
        plain = self._as_plain(message)
        return _in_place(plain) if plain else None

    def _offload_file(self, message: Message) -> Outbound:
        message = self._load_if_small(message)
        if not is_file(message.payload) and (small := self._as_plain(message)):
            return _in_place(small)
        return self._offload(message)

    def _fits(self, message: Message, size: int) -> bool:
        """Whether the payload may stay in its message; the inline strategy says yes to all."""
        return message.fits(size)

    def _as_plain(self, message: Message) -> Envelope | None:
        payload, header = message.payload, self._header
        size = len(as_view(payload))
        if size > 0 and not self._fits(message, size):
            return None
        if not is_lookalike(payload, header=header):
            return Envelope(payload, message.headers, message.key)
        data = encode_literal(payload, header=header)
        hinted = message.hinted({hints.TYPE: "literal"})
        if self._fits(replace(message, headers=hinted), len(data)):
            return Envelope(data, hinted, message.key, Kind.LITERAL)
        return None

    def _load_if_small(self, message: Message) -> Message:
        """Read a small file into memory; of a file of unknown size, as much as it takes to know."""
        file = message.payload
        size = remaining_bytes(file)
        if size is None:
            return replace(message, payload=_peeked(file, message.threshold))
        if size > 0 and not self._fits(message, size):
            return message
        source = Source(file, limit=self.context.config.limits.max_payload_bytes)
        return replace(message, payload=bytes(source.take_all()))


def _in_place(envelope: Envelope) -> Outbound:
    """A payload that stays in its message, escaped or as it is."""
    return Outbound([envelope], as_is=envelope.kind is None)


def rewindable(payload: Payload, *, limit: int) -> tuple[Payload, Callable[[], None]]:
    """Return a payload that can be read twice, and the way back to its start.

    A file that cannot seek is spooled: in memory up to 8 MiB, beyond that in a temporary file.
    """
    if not is_file(payload):
        return payload, lambda: None
    file = cast(BinaryIO, payload)
    if remaining_bytes(file) is None:
        spool = _spool()
        spool.writelines(Source(file, limit=limit))
        spool.seek(0)
        file = spool
    return file, _way_back(file)


def _spool() -> BinaryIO:
    """A temporary file, in memory up to 8 MiB; it is removed with the last reference to it."""
    from tempfile import SpooledTemporaryFile  # slow to import

    class Spool(SpooledTemporaryFile[bytes]):
        def __del__(self) -> None:
            self.close()

    return cast(BinaryIO, Spool(max_size=8 << 20))


def _way_back(payload: Any) -> Callable[[], None]:
    """What puts a file back where it stands now: a caller who tries again must not send an empty payload."""
    if not is_file(payload) or remaining_bytes(payload) is None:
        return lambda: None
    start = payload.tell()

    def rewind() -> None:
        payload.seek(start)

    return rewind


def _without_reserved(message: Message) -> Message:
    """Drop the caller's headers under names that are ours: readers would take them for hints."""
    if message.headers is None:
        return message
    return replace(message, headers=hints.without_reserved(message.headers))


def _first(*values: Any) -> Any:
    return next((value for value in values if value is not None), None)


def _peeked(file: Any, threshold: int) -> Any:
    head = b"".join(_take(file, threshold + 1))
    return head if len(head) <= threshold else _Rejoined(head, file)


def _take(file: Any, size: int) -> Any:
    for piece in Source(file, limit=1 << 62).pieces(size):
        yield piece
        return


class _Rejoined(io.RawIOBase):
    """A file whose first bytes were read already."""

    def __init__(self, head: bytes, rest: Any) -> None:
        self._head = memoryview(head)
        self._rest = rest

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1, /) -> bytes:
        if size < 0:
            return b"".join(iter(lambda: self.read(_WHOLE_BYTES), b""))
        if len(self._head):
            part, self._head = self._head[:size], self._head[size:]
            return bytes(part)
        return cast(bytes, self._rest.read(size))
