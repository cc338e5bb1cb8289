"""The built-in strategies: external, chunking, hybrid and inline. The configuration names them."""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from uuid import UUID, uuid4

from claimcheck._content.coder import Encoding
from claimcheck._content.source import Source, remaining_bytes
from claimcheck._send.outbound import Outbound
from claimcheck._send.strategy import Message, Strategy, StrategyContext, rewindable, spooled
from claimcheck._wire import headers as hints
from claimcheck._wire.digest import digest_of
from claimcheck._wire.envelope import (
    CHUNK_OVERHEAD_BYTES,
    Envelope,
    Kind,
    encode_abort,
    encode_chunk,
    encode_pointer,
    encoded_start,
)
from claimcheck.config import canonical
from claimcheck.errors import ClaimCheckError, PayloadTooLargeError, StoreError, StoreUnavailableError
from claimcheck.hooks import BreakerEvent, FallbackEvent

_log = logging.getLogger(__name__)
_WIDEST = 2**31 - 1
_WIDEST_SIZE = 2**50


class ExternalStrategy(Strategy):
    """Writes every payload that does not fit into its message to the store, and sends a pointer."""

    def __init__(self, context: StrategyContext) -> None:
        super().__init__(context)
        self._start = encode_pointer(b"", header=self._header)

    def _offload(self, message: Message) -> Outbound:
        store = self.context.store()
        limit = self.context.config.limits.max_payload_bytes
        pointer = store.write(
            message.payload,
            destination=message.destination,
            limit=limit,
            min_ttl_seconds=(store.ttl_seconds or 0) + message.delay_seconds,
        )
        undo = functools.partial(store.rollback, pointer)
        try:
            envelope = self._envelope(message, self.context.seal(pointer), pointer.size or 0)
        except BaseException as error:
            Outbound((), undo=undo).settle(error)
            raise
        return Outbound([envelope], undo=undo)

    def _envelope(self, message: Message, pointer: bytes, size: int) -> Envelope:
        data = self._start + pointer
        headers = message.hinted({hints.TYPE: "pointer", hints.SIZE: str(size)})
        needed, limit = len(data) + message.limit.overhead(message.key, headers), message.limit.max_message_bytes
        if needed > limit:
            text = f"key and headers leave too little space for a pointer: {needed} bytes needed, limit {limit}"
            raise PayloadTooLargeError(text, size=needed, limit=limit)
        limit = self.context.config.limits.max_pointer_bytes
        if len(pointer) > limit:
            text = f"the pointer has {len(pointer)} bytes, but limits.max_pointer_bytes is {limit}"
            raise PayloadTooLargeError(text, size=len(pointer), limit=limit)
        return Envelope(data, headers, message.key, Kind.POINTER)


class ChunkingStrategy(Strategy):
    """Splits every payload that does not fit into its message into chunks with one key and one uuid. Needs no store."""

    may_chunk = True
    needs_store = False

    def _offload(self, message: Message) -> Outbound:
        config = self.context.config
        limit, name = min(
            (config.chunking.max_payload_bytes, "chunking.max_payload_bytes"),
            (config.limits.max_payload_bytes, "limits.max_payload_bytes"),
        )
        payload, _ = rewindable(message.payload, limit=limit)
        source = Source(payload, limit=limit, limit_name=name, checksum=self._algorithm)
        unique = uuid4()
        declared, uuid = source.size or 0, str(unique)
        source = self._encoded(message, source, unique)
        message = self._with_key(message, uuid)
        room, size = self._room(message, uuid), source.size or 0
        if size > limit:
            text = f"a payload of {size} bytes, encoded, is over {name} ({limit} bytes)"
            raise PayloadTooLargeError(text, size=size, limit=limit)
        count, most = max(1, -(-size // room)), config.chunking.max_chunks
        if count > most:
            text = f"{size} bytes need {count} chunks of {room} bytes, but chunking.max_chunks is {most}"
            raise PayloadTooLargeError(text, size=size, limit=most)
        chunks = self._chunks(message, source, uuid, count, room, declared)
        data = encode_abort(uuid, header=self._header)
        signed = self._signature(message, "abort", uuid=uuid)
        abort = Envelope(data, message.hinted({hints.TYPE: "abort", **signed}), message.key, Kind.ABORT)
        return Outbound(chunks, total=count, uuid=uuid, abort=abort, blocking=source.view is None)

    @property
    def _algorithm(self) -> str:
        return "sha256" if self.context.signer else self.context.config.content_checksum  # that of the signature

    def _encoded(self, message: Message, source: Source, unique: UUID) -> Source:
        """Return what is split into chunks: an encoded envelope, or the payload as it is."""
        start, encoding = encoded_start(header=self._header), self.context.content.encoding(source, message.destination)
        if encoding is None and source.peek(len(start)) == start:
            encoding = Encoding(canonical(message.destination))
        if encoding is None:
            return source
        source.skip_checksum()
        content = encoding.encode(source, unique=unique, before=start)
        if content.size is None:  # the number of chunks must be known
            content.skip_checksum()
            return Source(spooled(content), limit=1 << 62, checksum=content.algorithm)
        return content

    def _chunks(
        self, message: Message, source: Source, uuid: str, count: int, room: int, declared: int
    ) -> Iterator[Envelope]:
        total = source.size or 0
        with closing(source):
            for position, piece in enumerate(source.pieces(room)):
                ours = hints.chunk_hints(message.headers, uuid, position, count, total) | {hints.SIZE: str(declared)}
                if position == count - 1:  # the checksum is known only now: a file is read once
                    ours[hints.CHECKSUM] = checksum = source.checksum
                    ours |= self._signature(message, "chunks", uuid=uuid, chunks=count, size=total, checksum=checksum)
                data = encode_chunk(uuid, position, count, piece, header=self._header)
                yield Envelope(data, message.hinted(ours), message.key, Kind.CHUNK)

    def _with_key(self, message: Message, uuid: str) -> Message:
        """Use the uuid in place of a null key, which would let the broker spread the chunks over partitions."""
        if message.key is not None:
            return message
        headers = message.hinted({hints.NULL_KEY: "1"})
        return replace(message, key=uuid if message.text_key else uuid.encode(), headers=headers)

    def _room(self, message: Message, uuid: str) -> int:
        """Return the payload bytes per chunk, allowing for the longest hints that any chunk has."""
        configured = self.context.config.chunking.max_message_bytes
        best = min(message.threshold, message.limit.chunk_message_bytes or message.threshold)
        limit = best if configured == "auto" else min(configured, message.limit.max_message_bytes)
        widest = hints.chunk_hints(message.headers, uuid, _WIDEST, _WIDEST, _WIDEST)
        widest[hints.CHECKSUM] = checksum = digest_of(algorithm=self._algorithm)
        widest |= self._signature(message, "chunks", uuid=uuid, chunks=_WIDEST, size=_WIDEST_SIZE, checksum=checksum)
        framing = message.limit.overhead(message.key, message.hinted(widest))
        overhead = framing + len(self._header) + CHUNK_OVERHEAD_BYTES
        if overhead >= limit:
            text = f"key, headers and framing ({overhead} bytes) fill a chunk of {limit} bytes"
            raise PayloadTooLargeError(text, size=overhead, limit=limit)
        return limit - overhead


class HybridStrategy(Strategy):
    """Sends pointers while the store works, and chunks while it does not."""

    may_chunk = True

    def __init__(self, context: StrategyContext) -> None:
        super().__init__(context)
        self._external = ExternalStrategy(context)
        self._chunking = ChunkingStrategy(context)

    def _offload(self, message: Message) -> Outbound:
        payload, rewind = rewindable(message.payload, limit=self.context.config.limits.max_payload_bytes)
        message = replace(message, payload=payload)
        size, breaker = remaining_bytes(payload) or 0, self.context.breaker
        try:
            if size <= self.context.config.hybrid.chunk_below_bytes:
                return self._chunking._offload(message)
            if not breaker.allows():
                return self._fall_back(message, size)
        except PayloadTooLargeError:  # too large for chunks: only the store can take it
            rewind()
        begin = breaker.clock()
        try:
            outbound = self._external._offload(message)
        except StoreError as error:
            if isinstance(error, PayloadTooLargeError):
                raise
            if breaker.failed():
                self.context.hooks.emit(BreakerEvent(store=error.store or "", state="open"))
            rewind()
            return self._fall_back(message, size, error, breaker.clock() - begin)
        if breaker.succeeded():
            self.context.hooks.emit(BreakerEvent(store=self.context.config.store or "", state="closed"))
        return outbound

    def _fall_back(
        self, message: Message, size: int, error: StoreError | None = None, duration_seconds: float = 0.0
    ) -> Outbound:
        try:
            outbound = self._chunking._offload(message)
        except ClaimCheckError as second:
            if error is None:
                raise
            error.add_note(f"and the payload cannot be sent as chunks: {second}")
            raise error from second
        store = self.context.config.store or ""
        event = FallbackEvent(
            destination=message.destination, size=size, error=error, store=store, duration_seconds=duration_seconds
        )
        self.context.hooks.emit(event)
        _log_fallback(event)
        return outbound


def _log_fallback(event: FallbackEvent) -> None:
    """Log at WARNING once for each attempt that the store failed, not for each payload sent meanwhile."""
    facts = {
        "store": event.store,
        "destination": event.destination,
        "payload_bytes": event.size,
        "duration_seconds": event.duration_seconds,
    }
    sending = f"sending {event.size:,}-byte payload to topic {event.destination!r} as chunks"
    if event.error is None:
        _log.info("store %r not used after a recent failure, %s", event.store, sending, extra=facts)
        return
    what = "unavailable" if isinstance(event.error, StoreUnavailableError) else "failed"
    _log.warning(
        "store %r %s after %.1f s, %s: %s", event.store, what, event.duration_seconds, sending, event.error, extra=facts
    )


class InlineStrategy(Strategy):
    """Leaves every payload in its message, whatever its size, and only escapes those that look like envelopes."""

    needs_store = False
    keeps_all = True

    def _offload(self, message: Message) -> Outbound:
        """Read a file of unknown size into memory, up to ``limits.max_payload_bytes``; nothing else gets here."""
        whole = Source(message.payload, limit=self.context.config.limits.max_payload_bytes).take_all()
        return self.offload(replace(message, payload=bytes(whole)))
