"""Received messages and delivery reports of offloaded payloads: `confluent_kafka.Message` objects of whole payloads."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from claimcheck._receive.resolver import Outcome, Resolved
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

_SLOTS = ("_problem", "_stored", "last_offset", "next_offset", "records")


@functools.cache
def _message_class() -> type[KafkaMessage]:
    """Return a subclass of `confluent_kafka.Message`, created at first use because the import of the client is lazy."""
    return type("KafkaMessage", (KafkaMessage, vendor().Message), {"__slots__": _SLOTS})


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
    _stored: StoredPayload | None
    _problem: ClaimCheckError | None

    def value(self, *_: object) -> Any:
        """Return the whole, verified payload; the first call reads a stored one, or decodes an encoded one.

        After an error that is ``retryable`` the next call reads again, except on an event loop, which it would block:
        use ``await asyncio.to_thread(message.value)`` there.

        Raises:
            ClaimCheckError: The payload cannot be delivered; a later call may return it if ``error.retryable``.
        """
        if self._problem is not None:
            raise self._problem
        if self._stored is not None:
            self.set_value(self._stored.get())
        return super().value()

    def set_value(self, value: object) -> None:
        """Replace the value; from now on `value` returns this one."""
        self._stored = self._problem = None
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
        return super().__len__() if self._stored is None else self._stored.size

    def __bool__(self) -> bool:
        return True

    def __reduce__(self) -> Any:
        self.value()  # otherwise it would be unpickled as a tombstone
        return super().__reduce__()

    def __repr__(self) -> str:
        return f"<KafkaMessage {self.topic()}[{self.partition()}] at {self.offset()}>"


def stored_of(message: Message) -> StoredPayload | None:
    """Return a message's payload if it is in a store until `KafkaMessage.value` has returned it."""
    return message._stored if isinstance(message, KafkaMessage) else None


def last_offset(message: Message) -> int | None:
    """Return the highest offset of a message's records: the last chunk's, or the offset of any other message."""
    return message.last_offset if isinstance(message, KafkaMessage) else message.offset()


def message_of(native: Record, content: Plain | Literal | StoredPayload | ClaimCheckError) -> Message:
    """Return the message for a record that is neither a chunk nor an abort envelope."""
    if isinstance(content, Plain):
        return native
    is_error = isinstance(content, ClaimCheckError)
    message = _like(native, native.headers() if is_error else hints.strip(native.headers()), native.key())
    if isinstance(content, ClaimCheckError):
        message._problem = content
    elif isinstance(content, Literal):
        message.set_value(bytes(content.payload))
    else:
        message._stored = content
    message.records = (native,)
    return message


def of_chunks(outcome: Outcome) -> KafkaMessage:
    """Return the message for a payload that arrived as chunks, or for one that stayed incomplete."""
    native = min(outcome.handles, key=lambda handle: handle.offset())
    message = _like(native, outcome.headers, outcome.key)
    message.last_offset = outcome.positions[-1]
    if native.value() is not None:  # the chunks were kept
        message.records = tuple(sorted(outcome.handles, key=lambda handle: handle.offset()))
    if isinstance(outcome, Resolved) and isinstance(outcome.payload, StoredPayload):
        message._stored = outcome.payload
    elif isinstance(outcome, Resolved):
        message.set_value(outcome.payload)
    else:
        message._problem = outcome.error or ClaimCheckError("the payload is incomplete")
    return message


def report_of(native: Record, key: str | bytes | None, last: int | None) -> KafkaMessage:
    """Return the delivery report for a payload that was sent as chunks."""
    message = _like(native, None, key.encode() if isinstance(key, str) else key)
    message.last_offset = last
    return message


def _like(native: Record, headers: object, key: object) -> KafkaMessage:
    """Return a message with a record's metadata and without its value."""
    optional: dict[str, Any] = {"headers": headers or None, "key": key, "offset": native.offset()}
    optional |= {"latency": native.latency(), "leader_epoch": native.leader_epoch()}
    if hasattr(native, "delivery_count"):  # clients that support share groups
        optional["delivery_count"] = native.delivery_count()
    message = _message_class()(
        topic=native.topic(), partition=native.partition(), timestamp=native.timestamp(),
        **{name: value for name, value in optional.items() if value is not None},
    )  # fmt: skip
    message.last_offset, message.next_offset = native.offset(), (native.offset() or 0) + 1
    message._stored = message._problem = None
    message.records = ()
    return message
