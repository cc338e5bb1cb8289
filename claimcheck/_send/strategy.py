"""`Strategy`, the base class of the rules that turn a payload into envelopes.

`Strategy.offload` does the part that all strategies share: it passes envelopes through, keeps small and empty payloads
in their messages, and escapes payloads that look like envelopes. A payload that does not fit into its message goes to
``_offload``, which returns an `Outbound`.
"""

from __future__ import annotations

import contextlib
import functools
import io
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any, BinaryIO, NamedTuple, cast
from uuid import uuid4

from claimcheck._content.coder import ContentCoder, Encoding
from claimcheck._content.source import Payload, Readable, Source, is_file, remaining_bytes
from claimcheck._send.outbound import Outbound
from claimcheck._store.store import Store
from claimcheck._wire import headers as hints
from claimcheck._wire.buffers import Buffer, as_view
from claimcheck._wire.envelope import Envelope, FailedEnvelope, Kind, encode_literal, encoded_start, is_lookalike
from claimcheck._wire.headers import DEFAULT_LIMIT, Headers, WireLimit
from claimcheck._wire.pointer import Pointer
from claimcheck._wire.signing import Seal, StatementKind, sha256_of
from claimcheck.config import Config, canonical
from claimcheck.errors import ConfigError, PayloadError
from claimcheck.hooks import Hooks


class Breaker:
    """A circuit breaker for one store; thread-safe."""

    def __init__(self, *, retry_after_seconds: float = 30.0, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self._pause = retry_after_seconds
        self._lock = threading.Lock()
        self._retry_at: float | None = None

    def allows(self) -> bool:
        """Whether the caller may use the store now; after the pause, true for one caller only."""
        with self._lock:
            if self._retry_at is None:
                return True
            if self.clock() < self._retry_at:
                return False
            self._retry_at = self.clock() + self._pause
            return True

    def failed(self) -> bool:
        """Open the breaker; returns whether it was closed."""
        with self._lock:
            was_closed = self._retry_at is None
            self._retry_at = self.clock() + self._pause
            return was_closed

    def succeeded(self) -> bool:
        """Close the breaker; returns whether it was open."""
        with self._lock:
            was_open, self._retry_at = self._retry_at is not None, None
            return was_open


_WHOLE_BYTES = 1 << 20


@dataclass(frozen=True, kw_only=True)  # without slots: `of` sets all attributes at once
class Message:
    """One message that a caller wants to send.

    Attributes:
        payload: Bytes-like, a readable binary file, ``None`` for a tombstone, or an `Envelope`.
        destination: Topic or queue.
        key: The message key, of any type that the produce call takes.
        headers: A mapping, a list of pairs, or ``None``.
        threshold: Size on the wire in bytes above which the payload is offloaded.
        limit: The transport's size limit, and how it counts.
        takes_headers: Whether the produce call takes headers, so that hints can be added.
        text_key: Whether a generated key is ``str``; otherwise it is ``bytes``.
        delay_seconds: How long the broker holds the message back; a stored payload lives that much longer.
    """

    payload: Any = field(repr=False)
    destination: str
    key: object = None
    headers: Headers = field(default=None, repr=False)
    threshold: int = DEFAULT_LIMIT.max_message_bytes
    limit: WireLimit = DEFAULT_LIMIT
    takes_headers: bool = True
    text_key: bool = False
    delay_seconds: float = 0

    @classmethod
    def of(cls, **attributes: object) -> Message:
        """Same as ``Message(...)`` in half the time, for every call of a decorated function. Names are not checked."""
        message = object.__new__(cls)
        vars(message).update(attributes)
        return message

    def fits(self, size: int) -> bool:
        """Whether a message with a value of ``size`` bytes stays within the threshold."""
        return size <= self.threshold and size + self.limit.overhead(self.key, self.headers) <= self.threshold

    def hinted(self, ours: dict[str, str]) -> Headers:
        """Return the headers with hints added, if the produce call takes headers."""
        return hints.add(self.headers, ours) if self.takes_headers else self.headers


@dataclass(frozen=True, slots=True)
class StrategyContext:
    """What a strategy works with.

    Attributes:
        config: The destination's configuration.
        store: Returns the store to write to; opens it at first use.
        seal: Encodes a pointer, signed where signing is configured.
        signer: Signs messages without a pointer; ``None`` where signing is not configured.
        breaker: The circuit breaker of that store.
        hooks: Receives fallback events.
        content: Compresses and encrypts payloads that travel in messages.
    """

    config: Config
    store: Callable[[], Store]
    seal: Callable[[Pointer], bytes]
    signer: Seal | None = None
    breaker: Breaker = field(default_factory=Breaker)
    hooks: Hooks = field(default_factory=Hooks)
    content: ContentCoder = field(default_factory=ContentCoder, repr=False)


class Strategy(ABC):
    """Base class of all strategies; thread-safe.

    Attributes:
        may_chunk: Whether one payload can become several messages, which need a key to stay together.
        needs_store: Whether the configuration must name a store.
        keeps_all: Whether payloads stay in their messages, whatever their size.
    """

    may_chunk: bool = False
    needs_store: bool = True
    keeps_all: bool = False

    def __init__(self, context: StrategyContext) -> None:
        self.context = context
        self._header = context.config.header

    @abstractmethod
    def _offload(self, message: Message) -> Outbound:
        """Return the envelopes for a payload that does not fit into its message."""

    def offload(self, message: Message) -> Outbound:
        """Return the envelopes for a message.

        Args:
            message: Its payload may be read, never changed. After an error a seekable file is rewound.

        Raises:
            PayloadTypeError: The payload is neither bytes-like nor a binary file. Nothing was written or sent.
            PayloadTooLargeError: A limit of the configuration is exceeded. Nothing was sent, and nothing remains
                stored.
            StoreError: The store failed, and the strategy has no alternative. Nothing was sent, and nothing remains
                stored.
        """
        out = self.shortcut(message)
        if out is not None:
            return out
        payload = message.payload
        if message.headers is not None:  # readers would take those with reserved names for hints
            message = replace(message, headers=hints.without_reserved(message.headers))
        if not is_file(payload):
            return self._offload(message)
        rewind = _rewinder(payload)
        try:
            out = self._offload_file(message, payload)
        except BaseException:
            with contextlib.suppress(OSError, ValueError):  # the file may be what failed
                rewind()
            raise
        out.rewind = rewind
        return out

    def shortcut(self, message: Message) -> Outbound | None:
        """Return the envelope of a message that needs no I/O and no copy, safe on an event loop; else ``None``.

        Raises:
            PayloadTypeError: The payload is neither bytes-like nor a binary file.
            PayloadError: The payload is the envelope of a failed send.
        """
        payload = message.payload
        if isinstance(payload, Envelope):
            key = message.key if payload.key is None else payload.key
            headers = message.headers if payload.headers is None else payload.headers
            return Outbound([replace(payload, key=key, headers=headers)], as_is=True)
        if payload is None:
            return Outbound([Envelope(None, message.headers, message.key)], as_is=True)
        if isinstance(payload, FailedEnvelope):
            raise PayloadError(
                "this value comes from the report of a failed send: an envelope whose stored payload was deleted or "
                "will expire; send the payload itself again"
            )
        if is_file(payload):
            return None
        if message.headers is not None and hints.is_ours(message.headers):
            if is_lookalike(payload, header=self._header):  # the headers call it an envelope, and its bytes agree
                return Outbound([Envelope(payload, message.headers, message.key)], as_is=True)
            message = replace(message, headers=hints.strip(message.headers))  # copied from a received message
        plain = self._as_plain(message, payload)
        return Outbound([plain], as_is=plain.kind is None) if plain else None

    def _offload_file(self, message: Message, file: Readable) -> Outbound:
        """Read a small file into memory; of a file of unknown size, enough to know whether it is small."""
        size = remaining_bytes(file)
        if size is not None and size > 0 and not (self.keeps_all or message.fits(size)):
            return self._offload(message)
        if size is None:
            payload = _peeked(file, message.threshold)
        else:
            payload = bytes(Source(file, limit=self.context.config.limits.max_payload_bytes).take_all())
        message = replace(message, payload=payload)
        small = self._as_plain(message, payload) if isinstance(payload, bytes) else None
        return Outbound([small], as_is=small.kind is None) if small else self._offload(message)

    @functools.cached_property
    def escapes_all(self) -> bool:
        """Whether small payloads are sent as signed envelopes, too, because readers require them."""
        return self.context.signer is not None and self.context.config.signing.require_envelope

    def _signature(self, message: Message, kind: StatementKind, **facts: str | int) -> dict[str, str]:
        """Return the header with the signature of a message without a pointer; none where signing is not configured."""
        signer = self.context.signer
        if signer is None:
            return {}
        if not message.takes_headers:
            what = {"literal": "an escaped payload", "encoded": "an encrypted message"}.get(kind, "a payload in chunks")
            raise ConfigError(
                f"{what} cannot be signed, because the produce call takes no headers: name its parameter with "
                "headers=..., or configure no signing.key_id",
                path="signing.key_id",
            )
        return {hints.SIGNATURE: signer.statement(kind, message.destination, **facts)}

    def _as_plain(self, message: Message, payload: Buffer) -> Envelope | None:
        size = len(payload) if type(payload) is bytes else len(as_view(payload))
        if size > 0 and not (self.keeps_all or message.fits(size)):
            return None
        if size > 0 and self.context.content.encrypts_inline:
            return self._encrypted(message, payload)
        if not self.escapes_all and not is_lookalike(payload, header=self._header):
            return Envelope(payload, message.headers, message.key)
        return self._wrapped(message, "literal", encode_literal(payload, header=self._header), Kind.LITERAL)

    def _encrypted(self, message: Message, payload: Buffer) -> Envelope | None:
        """Return the envelope of an encrypted payload."""
        encoding = Encoding(canonical(message.destination), keys=self.context.content.keys)
        source = Source(payload, limit=self.context.config.limits.max_payload_bytes)
        data = encoding.encode(source, unique=uuid4(), before=encoded_start(header=self._header)).take_all()
        return self._wrapped(message, "encoded", bytes(data), Kind.ENCODED)

    def _wrapped(self, message: Message, name: StatementKind, data: bytes, kind: Kind) -> Envelope | None:
        """Return the envelope of a payload that stays in its message; ``None`` if it does not fit."""
        content = memoryview(data)[len(self._header) + 1 :]
        checksum = sha256_of(content) if self.context.signer else ""
        signed = self._signature(message, name, size=len(content), checksum=checksum)
        hinted = message.hinted({hints.TYPE: name, **signed})
        fits = self.keeps_all or replace(message, headers=hinted).fits(len(data))
        return Envelope(data, hinted, message.key, kind) if fits else None


class Plan(NamedTuple):
    """How messages for one destination are sent."""

    strategy: Strategy
    threshold: int
    limit: WireLimit
    unchanged_bytes: int

    def passes(self, payload: object, key: object, headers: object) -> bool:
        """Whether to pass a call on unchanged: its payload is small and does not look like an envelope."""
        most = self.unchanged_bytes
        if type(payload) is not bytes or len(payload) > most or payload.startswith(self.strategy._header):
            return False
        if headers is not None and hints.is_ours(headers):
            return False
        return len(payload) + self.limit.overhead(key, headers) <= most


def rewindable(payload: Payload, *, limit: int) -> tuple[Payload, Callable[[], None]]:
    """Return a payload that can be read twice, and a function that rewinds it."""
    if not is_file(payload):
        return payload, lambda: None
    if remaining_bytes(payload) is None:
        payload = spooled(Source(payload, limit=limit))
    return payload, _rewinder(payload)


def spooled(pieces: Iterable[Buffer]) -> BinaryIO:
    """Return a temporary file, in memory up to 8 MiB, that is deleted with the last reference to it."""
    from tempfile import SpooledTemporaryFile  # slow to import

    class Spool(SpooledTemporaryFile[bytes]):
        def __del__(self) -> None:
            self.close()

    spool = cast(BinaryIO, Spool(max_size=8 << 20))
    spool.writelines(pieces)
    spool.seek(0)
    return spool


def _rewinder(file: Readable) -> Callable[[], None]:
    """Return a function that seeks a file back to its current position, so that a retry sends it whole."""
    if remaining_bytes(file) is None:
        return lambda: None
    seekable = cast(BinaryIO, file)
    start = seekable.tell()

    def rewind() -> None:
        seekable.seek(start)

    return rewind


def _peeked(file: Readable, threshold: int) -> bytes | _Rejoined:
    """Read up to the threshold and one byte more; returns the payload if that is all of it, else a file."""
    head = bytes(next(Source(file, limit=1 << 62).pieces(threshold + 1), b""))
    return head if len(head) <= threshold else _Rejoined(head, file)


class _Rejoined(io.RawIOBase):
    """A file whose first bytes have been read already."""

    def __init__(self, head: bytes, rest: Readable) -> None:
        self._head = memoryview(head)
        self._rest = rest

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1, /) -> bytes | None:
        if size < 0:
            return b"".join(iter(lambda: self.read(_WHOLE_BYTES) or b"", b""))
        if len(self._head):
            part, self._head = self._head[:size], self._head[size:]
            return bytes(part)
        return self._rest.read(size)
