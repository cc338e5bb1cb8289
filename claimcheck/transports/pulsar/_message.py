"""Received messages: everything that a native message has, with the whole payload."""

from __future__ import annotations

from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any

from claimcheck import _hints as hints
from claimcheck._resolver import Outcome
from claimcheck.errors import ClaimCheckError, IncompletePayloadError
from claimcheck.transports._common.stored_payload import StoredPayload
from claimcheck.transports.pulsar._message_ids import WholeMessageId

__all__ = ["MessageMetadata", "PulsarMessage"]


@dataclass(frozen=True, slots=True)
class MessageMetadata:
    """The metadata of a native message, kept instead of it so that its data can be freed.

    Attributes:
        native: The message itself, if it may have to be sent on as a dead letter.
    """

    message_id: Any
    topic_name: str
    properties: dict[str, str]
    partition_key: str
    ordering_key: str
    publish_timestamp: int
    event_timestamp: int
    redelivery_count: int
    schema_version: bytes
    int_schema_version: int
    producer_name: str
    native: Any = None

    @classmethod
    def of(cls, native: Any, properties: dict[str, str], *, keep: bool = False) -> MessageMetadata:
        """Read the metadata of a message, with these properties; ``keep`` keeps the message, too."""
        return cls(
            message_id=native.message_id(),
            topic_name=native.topic_name(),
            properties=properties,
            partition_key=native.partition_key(),
            ordering_key=native.ordering_key(),
            publish_timestamp=native.publish_timestamp(),
            event_timestamp=native.event_timestamp(),
            redelivery_count=native.redelivery_count(),
            schema_version=native.schema_version(),
            int_schema_version=getattr(native._message, "int_schema_version", int)(),
            producer_name=native.producer_name(),
            native=native if keep else None,
        )


class PulsarMessage:
    """One received payload. Its methods are those of `pulsar.Message`.

    `data` and `value` raise the error of *this* payload, so that the receiver can acknowledge it, negatively
    acknowledge it or dead-letter it; other messages are not affected.

    Args:
        native: The native message; ``None`` for chunks, which are in the outcome.
        schema: The consumer's.
        payload: The payload, if it is known: for a plain message its own data.
        stored: A payload in a store.
        outcome: Of a payload in chunks.
        error: Why there is no payload.
    """

    __slots__ = ("_error", "_first", "_native", "_payload", "_schema", "_stored", "outcome")

    def __init__(
        self,
        native: Any,
        schema: Any,
        payload: bytes | None = None,
        *,
        stored: StoredPayload | None = None,
        outcome: Outcome | None = None,
        error: ClaimCheckError | None = None,
    ) -> None:
        self._native = native
        self._schema = schema
        self._payload = payload
        self._stored = stored
        self._error = error
        self._first: MessageMetadata | None = None
        self.outcome = outcome

    def data(self) -> bytes:
        """Return the payload, whole and verified; a stored one is read at the first call.

        After an error that is ``retryable`` another call reads again. On an event loop it does not, since it would
        block the loop: ``await asyncio.to_thread(message.data)`` does.

        Raises:
            ClaimCheckError: There is no payload; the error says why, and whether a later call may return it
                (``error.retryable``). The message still has to be acknowledged, or negatively acknowledged.
        """
        if self._payload is not None:
            return self._payload
        if self._stored is not None:
            return self._stored.get()
        raise self._error or ClaimCheckError("this message has no payload")

    def value(self) -> Any:
        """The payload, decoded by the consumer's schema. Raises as `data` does, and as the schema does."""
        if self.has_null_value():
            return self._native.value()
        return self._schema.decode_message(self)

    @property
    def error(self) -> ClaimCheckError | None:
        """What `data` raises; ``None`` when it returns the payload, which is read for this answer."""
        try:
            self.data()
        except ClaimCheckError as error:
            return error
        return None

    def message_id(self) -> Any:
        """The native id; a `WholeMessageId` for chunks."""
        if self.outcome is None:
            return self._native.message_id()
        return WholeMessageId(tuple(handle.message_id for handle in self.outcome.handles), self.topic_name())

    def properties(self) -> dict[str, str]:
        """The sender's properties, without our hints."""
        if self.outcome is None:
            return dict(hints.strip(self._native.properties()))
        return dict(hints.strip(self._metadata.properties, uuid=self.outcome.uuid))

    def partition_key(self) -> str:
        """The sender's key, empty without one."""
        if self.outcome is None:
            return str(self._native.partition_key())
        key = self._metadata.partition_key
        return "" if key == self.outcome.uuid else key

    def ordering_key(self) -> str:
        """The ordering key, empty without one."""
        return self._metadata.ordering_key

    def publish_timestamp(self) -> int:
        """When it was sent, in milliseconds since 1970; for chunks, the first."""
        return self._metadata.publish_timestamp

    def event_timestamp(self) -> int:
        """The sender's event time, in milliseconds since 1970; 0 without one."""
        return self._metadata.event_timestamp

    def topic_name(self) -> str:
        """The topic's whole name, with its partition."""
        return str(self._native.topic_name()) if self.outcome is None else self._metadata.topic_name

    def redelivery_count(self) -> int:
        """How often it was redelivered, by the broker's count; for chunks, the highest."""
        if self.outcome is None:
            return int(self._native.redelivery_count())
        counts: list[int] = [handle.redelivery_count for handle in self.outcome.handles]
        return max(counts)

    def schema_version(self) -> bytes:
        """The version of the schema that it was sent with."""
        return self._metadata.schema_version

    def int_schema_version(self) -> int:
        """The same as a number, for schemas that decode this message."""
        return self._metadata.int_schema_version

    def producer_name(self) -> str:
        """The name of the producer that sent it."""
        return self._metadata.producer_name

    def has_null_value(self) -> bool:
        """Whether it is a tombstone."""
        return self.outcome is None and bool(self._native.has_null_value())

    def encryption_context(self) -> Any:
        """The native message's; ``None`` for chunks."""
        return None if self.outcome is not None else self._native.encryption_context()

    @property
    def is_incomplete(self) -> bool:
        """Whether it stands for messages that did not become a payload and will not be redelivered again."""
        return self.outcome is not None and isinstance(self._error, IncompletePayloadError)

    @property
    def is_read(self) -> bool:
        """Whether `data` returns on an event loop without waiting for a store."""
        return self._stored is None or self._stored.is_read

    @property
    def stored_bytes(self) -> int:
        """Size of a stored payload, if it is known; else 0."""
        return 0 if self._stored is None else self._stored.size

    @property
    def held_bytes(self) -> int:
        """Bytes of its payload, in memory now or once it is read."""
        return self.stored_bytes or len(self._payload or b"")

    def fetch(self, executor: Executor) -> None:
        """Start reading a stored payload in another thread; `data` waits for the result."""
        if self._stored is not None:
            self._stored.prefetch(executor)

    def read(self) -> None:
        """Read a stored payload for an event loop, on which `data` then returns at once; call it in a thread."""
        if self._stored is not None:
            self._stored.read()

    @property
    def native(self) -> Any:
        """The native message; ``None`` for chunks."""
        return self._native

    @property
    def natives(self) -> tuple[Any, ...]:
        """The native messages, to be sent on unchanged; ``None`` for chunks that were not kept."""
        return (self._native,) if self.outcome is None else tuple(handle.native for handle in self.outcome.handles)

    def __repr__(self) -> str:
        state = f"failed: {type(self._error).__name__}" if self._error else "received"
        return f"<PulsarMessage {self.message_id()} of {self.topic_name()}, {state}>"

    @property
    def _metadata(self) -> MessageMetadata:
        """The native message's metadata; for chunks, that of the first."""
        if self._first is None:
            if self.outcome is None:
                self._first = MessageMetadata.of(self._native, self._native.properties())
            else:
                slots = sorted(self.outcome.slots, key=lambda slot: slot.position)
                self._first = next((s for s in slots if s.handle.properties), slots[0]).handle
        return self._first
