"""What a reader of payloads is given: the client's own messages, and for what was offloaded one more kind of them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from concurrent.futures import Executor
from typing import TYPE_CHECKING, Any

from claimcheck import hints
from claimcheck.errors import ClaimCheckError
from claimcheck.resolver import Failed, Outcome, Resolved
from claimcheck.transports.kafka.errors import vendor

if TYPE_CHECKING:
    from confluent_kafka import Message
else:
    Message = object

__all__ = ["KafkaMessage", "failed", "last_offset", "of_chunks", "report_of", "stored"]

_SLOTS = ("_load", "_problem", "behind", "last_offset", "stored_bytes")


@functools.cache
def _kind() -> Any:
    """A `confluent_kafka.Message` that is ours, too; made at first use, since it takes the client to make it."""
    return type("KafkaMessage", (KafkaMessage, vendor().Message), {"__slots__": _SLOTS})


class KafkaMessage(Message):
    """One payload that was offloaded, received. It is a `confluent_kafka.Message`, and has all that one has.

    `value` raises what is wrong with *this* payload, so that it can be skipped or put aside by whoever received it; no
    other message is stopped by it. `offset` is the lowest of its records.

    Attributes:
        last_offset: The highest offset of its records.
        behind: The offset behind everything that was handed out up to this.
        stored_bytes: Size of a stored payload that is not read yet, where it is known.
    """

    __slots__ = ()

    last_offset: int | None
    behind: int
    stored_bytes: int
    _load: Callable[[], bytes] | None
    _problem: ClaimCheckError | None

    def value(self, *_: Any) -> Any:
        """The payload, whole and verified; a stored one is read at the first call.

        Raises:
            ClaimCheckError: It cannot be had; the error says why, and whether a later try may bring it
                (``error.retryable``).
        """
        if self._problem is not None:
            raise self._problem
        if self._load is not None:
            self.set_value(self._load())
            self._load = None
        return super().value()

    @property
    def payload_error(self) -> ClaimCheckError | None:
        """What `value` raises; ``None`` when it returns the payload, which is read for this answer."""
        try:
            self.value()
        except ClaimCheckError as error:
            return error
        return None

    @property
    def is_read(self) -> bool:
        """Whether `value` answers without a store."""
        return self._load is None or self._problem is not None

    def read(self) -> None:
        """Read a stored payload now, once: from now on `value` answers at once, be it with what is wrong."""
        self._problem = self.payload_error

    def fetch(self, executor: Executor) -> None:
        """Begin to read a stored payload in another thread; `value` waits for that."""
        if self._load is not None:
            self._load = executor.submit(self._load).result

    @property
    def held_bytes(self) -> int:
        """What it holds in memory, or will hold when its payload is read."""
        return self.stored_bytes or len(self)

    def __len__(self) -> int:
        return self.stored_bytes if self._load is not None else super().__len__()

    def __repr__(self) -> str:
        return f"<KafkaMessage {self.topic()}[{self.partition()}] at {self.offset()}>"


def last_offset(message: Any) -> Any:
    """The highest offset of a message's records: of chunks the last, of any other its own."""
    return message.last_offset if isinstance(message, KafkaMessage) else message.offset()


def stored(native: Any, load: Callable[[], bytes], *, size: int) -> KafkaMessage:
    """Stand in for the record of a pointer.

    Args:
        native: The record.
        load: Gives the payload.
        size: Its bytes, where they are known, or 0.
    """
    message = _like(native, hints.strip(native.headers()), native.key())
    message._load, message.stored_bytes = load, size
    return message


def failed(native: Any, error: ClaimCheckError) -> KafkaMessage:
    """Stand in for a record of which the payload cannot be had."""
    message = _like(native, native.headers(), native.key())
    message._problem = error
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
    message.last_offset, message.behind, message.stored_bytes = native.offset(), (native.offset() or 0) + 1, 0
    message._load = message._problem = None
    return message
