"""The message of a payload that was offloaded: a `confluent_kafka.Message` whose value is the whole payload."""

from __future__ import annotations

import functools
from concurrent.futures import Executor
from typing import TYPE_CHECKING, Any

from claimcheck import _hints as hints
from claimcheck._envelope import Literal, Plain
from claimcheck._resolver import Failed, Outcome, Resolved
from claimcheck.errors import ClaimCheckError
from claimcheck.transports._common.stored_payload import StoredPayload
from claimcheck.transports.kafka._errors import vendor

if TYPE_CHECKING:
    from confluent_kafka import Message
else:
    Message = object

__all__ = [
    "KafkaMessage",
    "last_offset",
    "message_of",
    "of_chunks",
    "report_of",
]

_SLOTS = ("_problem", "_stored", "behind", "last_offset")


@functools.cache
def _kind() -> Any:
    """The class of received payloads: a subclass of `confluent_kafka.Message`, created once the client is needed."""
    return type("KafkaMessage", (KafkaMessage, vendor().Message), {"__slots__": _SLOTS})


class KafkaMessage(Message):
    """One payload that was offloaded, received. It is a `confluent_kafka.Message` and has all methods of one.

    `value` raises what is wrong with *this* payload, so that the receiver can skip the message or send it to a
    dead-letter topic; other messages are not affected. `offset` is the lowest offset of its records.

    Unlike one of the client's own messages it is always true, whatever its length. It pickles as a plain
    `confluent_kafka.Message` with the payload as its value, which is read for that.

    Attributes:
        last_offset: The highest offset of its records.
        behind: The offset behind everything that was handed out up to this.
    """

    __slots__ = ()

    last_offset: int | None
    behind: int
    _stored: StoredPayload | None
    _problem: ClaimCheckError | None

    def value(self, *_: Any) -> Any:
        """Return the payload, whole and verified; a stored one is read at the first call.

        After an error that is ``retryable`` another call reads again. On an event loop it does not, since it would
        block the loop: ``await asyncio.to_thread(message.value)`` does.

        Raises:
            ClaimCheckError: There is no payload; the error says why, and whether a later call may return it
                (``error.retryable``).
        """
        if self._problem is not None:
            raise self._problem
        if self._stored is not None:
            self.set_value(self._stored.get())
        return super().value()

    def set_value(self, value: Any) -> None:
        """Replace the value; from now on `value` returns this."""
        self._stored = self._problem = None
        super().set_value(value)

    @property
    def payload_error(self) -> ClaimCheckError | None:
        """What `value` raises; ``None`` when it returns the payload, which is read to find out."""
        try:
            self.value()
        except ClaimCheckError as error:
            return error
        return None

    @property
    def is_read(self) -> bool:
        """Whether `value` answers on an event loop without waiting for a store."""
        return self._problem is not None or self._stored is None or self._stored.is_read

    def read(self) -> None:
        """Read a stored payload in a thread, on behalf of an event loop, where `value` then answers at once."""
        if self._stored is not None:
            self._stored.read()

    def fetch(self, executor: Executor) -> None:
        """Start reading a stored payload in another thread; `value` waits for that."""
        if self._stored is not None:
            self._stored.prefetch(executor)

    @property
    def stored_bytes(self) -> int:
        """Size of a stored payload that was not asked for yet, where it is known; else 0."""
        return 0 if self._stored is None else self._stored.size

    def __len__(self) -> int:
        return super().__len__() if self._stored is None else self._stored.size

    def __bool__(self) -> bool:
        return True

    def __reduce__(self) -> Any:
        self.value()  # else it would come back as a tombstone
        return super().__reduce__()

    def __repr__(self) -> str:
        return f"<KafkaMessage {self.topic()}[{self.partition()}] at {self.offset()}>"


def last_offset(message: Any) -> Any:
    """The highest offset of a message's records: of chunks the last, of any other its own."""
    return message.last_offset if isinstance(message, KafkaMessage) else message.offset()


def message_of(native: Any, content: Plain | Literal | StoredPayload | ClaimCheckError) -> Any:
    """Return the message of a record that is neither a chunk nor an abort envelope.

    For a payload in a store, or an error in its place, that is a `KafkaMessage`; any other is the record itself.
    """
    if isinstance(content, Plain):
        return native
    if isinstance(content, Literal):
        native.set_value(bytes(content.payload))
        native.set_headers(hints.strip(native.headers()))
        return native
    if isinstance(content, ClaimCheckError):
        message = _like(native, native.headers(), native.key())
        message._problem = content
    else:
        message = _like(native, hints.strip(native.headers()), native.key())
        message._stored = content
    return message


def of_chunks(outcome: Outcome) -> KafkaMessage:
    """Make the message of a payload that came as chunks, or of one that never came whole."""
    native = min(outcome.handles, key=lambda handle: handle.offset())
    message = _like(native, outcome.headers, outcome.key)
    message.last_offset = outcome.positions[-1]
    if isinstance(outcome, Resolved):
        message.set_value(outcome.payload)
    else:
        message._problem = outcome.error or ClaimCheckError("the payload is incomplete")
    assert not isinstance(outcome, Failed) or message._problem
    return message


def report_of(native: Any, key: Any, last: int | None) -> KafkaMessage:
    """Make the report of a payload that went as chunks."""
    message = _like(native, None, key.encode() if isinstance(key, str) else key)
    message.last_offset = last
    return message


def _like(native: Any, headers: Any, key: Any) -> KafkaMessage:
    """The same record without its value."""
    facts = {"headers": headers or None, "key": key, "offset": native.offset()}
    facts |= {"latency": native.latency(), "leader_epoch": native.leader_epoch()}
    if hasattr(native, "delivery_count"):  # clients that know share groups
        facts["delivery_count"] = native.delivery_count()
    message: KafkaMessage = _kind()(
        topic=native.topic(), partition=native.partition(), timestamp=native.timestamp(),
        **{name: fact for name, fact in facts.items() if fact is not None},
    )  # fmt: skip
    message.last_offset, message.behind = native.offset(), (native.offset() or 0) + 1
    message._stored = message._problem = None
    return message
