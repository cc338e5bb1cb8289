"""The payload travels in pieces, each in a message of its own; no store is needed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from claimcheck import _hints as hints
from claimcheck._envelope import CHUNK_OVERHEAD_BYTES, Envelope, Kind, encode_abort, encode_chunk
from claimcheck._outbound import Outbound
from claimcheck._payload import Source
from claimcheck._strategy import Message, Strategy, rewindable
from claimcheck.errors import PayloadTooLargeError

__all__ = ["ChunkingStrategy"]

_WIDEST = 2**31 - 1


class ChunkingStrategy(Strategy):
    """Every payload that is too large for its broker is cut into chunks with one key and a fresh uuid4."""

    may_chunk = True
    needs_store = False

    def _offload(self, message: Message) -> Outbound:
        limits = self.context.config.chunking
        limit, name = self._limit()
        payload, _ = rewindable(message.payload, limit=limit)
        source = Source(payload, limit=limit, limit_name=name)
        uuid = str(message.identity or self.context.surroundings.new_uuid())
        message = self._with_key(message, uuid)
        room = self._room(message, uuid)
        size = source.size or 0
        count = max(1, -(-size // room))
        if count > limits.max_chunks:
            raise PayloadTooLargeError(
                f"{size} bytes need {count} chunks of {room} bytes, chunking.max_chunks is {limits.max_chunks}",
                size=size,
                limit=limits.max_chunks,
            )
        chunks = self._chunks(message, source, uuid, count, room)
        abort = self._abort(message, uuid)
        return Outbound(chunks, total=count, uuid=uuid, abort=abort, blocking=source.view is None)

    def _limit(self) -> tuple[int, str]:
        """The smaller one of the two."""
        every, chunked = self.context.config.limits.max_payload_bytes, self.context.config.chunking.max_payload_bytes
        return (every, "limits.max_payload_bytes") if every < chunked else (chunked, "chunking.max_payload_bytes")

    def _chunks(self, message: Message, source: Source, uuid: str, count: int, room: int) -> Iterator[Envelope]:
        total, header = source.size or 0, self._header
        for position, piece in enumerate(source.pieces(room)):
            ours = self._hints(message, uuid, position, count, total)
            if position == count - 1:
                ours[hints.CHECKSUM] = source.checksum  # known only now: a file is read once
            data = encode_chunk(uuid, position, count, piece, header=header)
            yield Envelope(data, message.hinted(ours), message.key, Kind.CHUNK)

    def _with_key(self, message: Message, uuid: str) -> Message:
        """A null key would let the broker spread the chunks over its partitions: the uuid becomes the key."""
        if message.key is not None:
            return message
        headers = message.hinted({hints.NULL_KEY: "1"})
        return replace(message, key=uuid if message.text_key else uuid.encode(), headers=headers)

    def _hints(self, message: Message, uuid: str, position: int, count: int, total: int) -> dict[str, str]:
        return hints.chunk_hints(message.headers, uuid, position, count, total)

    def _room(self, message: Message, uuid: str) -> int:
        """Bytes of payload per chunk, with the widest hints that any of them carries."""
        configured = self.context.config.chunking.max_message_bytes
        best = min(message.threshold, message.limit.chunk_message_bytes or message.threshold)
        limit = best if configured == "auto" else min(configured, message.limit.max_message_bytes)
        widest = self._hints(message, uuid, _WIDEST, _WIDEST, _WIDEST) | {hints.CHECKSUM: "crc32:00000000"}
        framing = message.limit.overhead(message.key, message.hinted(widest))
        overhead = framing + len(self._header) + CHUNK_OVERHEAD_BYTES
        if overhead >= limit:
            raise PayloadTooLargeError(
                f"key, headers and framing ({overhead} bytes) leave no room in a chunk of {limit} bytes",
                size=overhead,
                limit=limit,
            )
        return limit - overhead

    def _abort(self, message: Message, uuid: str) -> Envelope:
        data = encode_abort(uuid, header=self._header)
        return Envelope(data, message.hinted({hints.TYPE: "abort"}), message.key, Kind.ABORT)
