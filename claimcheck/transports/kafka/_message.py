"""Received messages and delivery reports of offloaded payloads: `confluent_kafka.Message` objects of whole payloads."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from claimcheck._receive.resolver import Failed, Resolved
from claimcheck._wire import headers as hints
from claimcheck._wire.envelope import Literal, Plain
from claimcheck.errors import ClaimCheckError
from claimcheck.transports._common.received import StoredPayload
from claimcheck.transports.kafka._client import vendor

if TYPE_CHECKING:
    from confluent_kafka import Message

    from claimcheck.transports.kafka._client import Record
else:
    Message = object


@functools.cache
def _message_class() -> type[KafkaMessage]:
    """Return a subclass of `confluent_kafka.Message`, created at first use because the import of the client is lazy."""
    slots = ("_content", "last_offset", "next_offset", "records")
    return type("KafkaMessage", (KafkaMessage, vendor().Message), {"__slots__": slots})


class KafkaMessage(Message):
    """A received payload that was offloaded. It is a `confluent_kafka.Message` and has all of its methods.

    `value` raises the error of *this* payload, so that the consumer can skip the message or send it to a dead-letter
    topic; other messages are not affected. `offset` returns the lowest offset of its records.

    Unlike the client's own messages, it is always truthy, whatever its length. It pickles as a plain
    `confluent_kafka.Message` with the payload as its value; pickling reads a stored payload.

    Attributes:
        last_offset: The highest offset of its records.
        next_offset: The offset after everything that was returned up to and including this message.
        records: The records as they were received, for a dead-letter topic; of chunks only if they were kept.
    """

    __slots__ = ()

    last_offset: int | None
    next_offset: int
    records: tuple[Record, ...]
    _content: StoredPayload | ClaimCheckError | None  # in place of a value

    def value(self, *_: object) -> Any:
        """Return the whole, verified payload; the first call reads a stored one, or decodes an encoded one.

        After an error that is ``retryable`` the next call reads again, except on an event loop, which it would block:
        use ``await asyncio.to_thread(message.value)`` there.

        Raises:
            ClaimCheckError: The payload cannot be delivered; a later call may return it if ``error.retryable``.
        """
        if isinstance(self._content, ClaimCheckError):
            raise self._content
        if self._content is not None:
            self.set_value(self._content.get())
        return super().value()

    def set_value(self, value: object) -> None:
        """Replace the value; from now on `value` returns this one."""
        self._content = None
        super().set_value(value)

    @property
    def payload_error(self) -> ClaimCheckError | None:
        """The error that `value` raises, or ``None`` if it returns the payload; reads a stored payload."""
        try:
            self.value()
        except ClaimCheckError as error:
            return error
        return None

    def __len__(self) -> int:
        return self._content.size if isinstance(self._content, StoredPayload) else super().__len__()

    def __bool__(self) -> bool:
        return True

    def __reduce__(self) -> Any:
        self.value()  # otherwise it would be unpickled as a tombstone
        return super().__reduce__()

    def __repr__(self) -> str:
        return f"<KafkaMessage {self.topic()}[{self.partition()}] at {self.offset()}>"


def stored_of(message: Message) -> StoredPayload | None:
    """Return a message's payload if it is in a store until `KafkaMessage.value` has returned it."""
    content = message._content if isinstance(message, KafkaMessage) else None
    return content if isinstance(content, StoredPayload) else None


def last_offset(message: Message) -> int | None:
    """Return the highest offset of a message's records: the last chunk's, or the offset of any other message."""
    return message.last_offset if isinstance(message, KafkaMessage) else message.offset()


def message_of(native: Record, content: Plain | Literal | StoredPayload | ClaimCheckError) -> Message:
    """Return the message for a record that is neither a chunk nor an abort envelope."""
    if isinstance(content, Plain):
        return native
    headers = native.headers() if isinstance(content, ClaimCheckError) else hints.strip(native.headers())
    return _like(native, headers, native.key(), content, (native,))


def of_chunks(outcome: Resolved | Failed) -> KafkaMessage:
    """Return the message for a payload that arrived as chunks, or for one that stayed incomplete."""
    records = sorted(outcome.handles, key=lambda handle: handle.offset())
    content = outcome.error if isinstance(outcome, Failed) else outcome.payload
    kept = records if records[0].value() is not None else ()
    message = _like(records[0], outcome.headers, outcome.key, content, kept)
    message.last_offset = outcome.positions[-1]
    return message


def report_of(reports: list[Any], key: str | bytes | None) -> KafkaMessage:
    """Return the delivery report for a payload that was sent as chunks; offsets are unknown with ``acks=0``."""
    reports = sorted(reports, key=lambda each: -1 if each.offset() is None else each.offset())
    message = _like(reports[0], None, key.encode() if isinstance(key, str) else key, None)
    message.last_offset = reports[-1].offset()
    return message


def _like(native: Record, headers: object, key: object, content: Any, records: Iterable[Record] = ()) -> KafkaMessage:
    """Return a message with a record's metadata, and with a payload, an error, or nothing as its content."""
    optional: dict[str, Any] = {"headers": headers or None, "key": key, "offset": native.offset()}
    optional |= {"latency": native.latency(), "leader_epoch": native.leader_epoch()}
    message = _message_class()(
        topic=native.topic(), partition=native.partition(), timestamp=native.timestamp(),
        **{name: value for name, value in optional.items() if value is not None},
    )  # fmt: skip
    message.last_offset, message.next_offset = native.offset(), (native.offset() or 0) + 1
    message.records, message._content = tuple(records), None
    if isinstance(content, StoredPayload | ClaimCheckError):
        message._content = content
    elif content is not None:
        message.set_value(bytes(content.payload) if isinstance(content, Literal) else content)
    return message
