"""Events as data: what claimcheck does, told to whoever listens.

A hook is any callable that takes one frozen dataclass. It is called in the thread that does the work, so it should
be quick. A hook that raises is logged and never fails the operation that it watches.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

__all__ = [
    "AssembledEvent",
    "BreakerEvent",
    "DropEvent",
    "Event",
    "FallbackEvent",
    "Hook",
    "Hooks",
    "OperationEvent",
    "SendEvent",
]

_log = logging.getLogger(__name__)

Operation = Literal["write", "read", "rollback"]
"""What a store does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Base of all events."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationEvent(Event):
    """One store operation began, completed or failed.

    Attributes:
        operation: What is being done.
        phase: ``started`` comes first, then exactly one of the others.
        store: The store's name in the configuration.
        key: The payload's key; on ``started`` of a write it is already final.
        size: Payload bytes, where known.
        duration_seconds: Since ``started``; 0.0 there.
        error: The error that will be raised, on ``failed`` only.
    """

    operation: Operation
    phase: Literal["started", "completed", "failed"]
    store: str
    key: str
    size: int | None = None
    duration_seconds: float = 0.0
    error: BaseException | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FallbackEvent(Event):
    """The hybrid strategy sends a payload as chunks because its store cannot take it.

    Attributes:
        destination: Topic or queue.
        size: Payload bytes.
        error: Why the store was not used; ``None`` while the breaker is open.
    """

    destination: str
    size: int
    error: BaseException | None


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakerEvent(Event):
    """The hybrid strategy stopped asking a store (``open``) or uses it again (``closed``)."""

    store: str
    state: Literal["open", "closed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DropEvent(Event):
    """Chunks that did not become a payload were dropped, or reported to the application.

    Attributes:
        source: Where the chunks came from.
        uuid: The payload's identity.
        reason: One word: ``expired``, ``evicted``, ``aborted``, ``duplicate`` or ``stray``.
        action: What the transport does with the messages: ``redeliver``, ``dead_letter``, ``ack``, or ``report`` for a
            payload that stays incomplete after its last redelivery.
        messages: The number of messages.
    """

    source: object
    uuid: str
    reason: str
    action: str
    messages: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AssembledEvent(Event):
    """The reassembly has a payload whole.

    Attributes:
        source: Where the chunks came from.
        uuid: The payload's identity.
        messages: How many messages brought it, duplicates included.
        size: Payload bytes.
    """

    source: object
    uuid: str
    messages: int
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SendEvent(Event):
    """The outcome of a send is known: once for each payload that did not go as it was, from all ways of sending.

    Payloads that go as they are, which most do, have no event. One that cannot be offloaded has none either: its send
    never began.

    Attributes:
        destination: Topic or queue.
        outcome: ``sent``: the payload is in the topic. ``failed``: none of its messages is, for certain, and what was
            stored is deleted. ``partial``: some of its chunks are, and not all are known to be. ``unknown``: no
            message is known to be in the topic, and at least one may be; what was stored stays.
        messages: Messages that the payload has: 1 or, for chunks, their number.
        uuid: The payload's identity, if it goes as chunks.
        error: What ended the send, as the client raised or reported it, never a `PartialSendError`; ``None`` for
            ``sent``, and where the caller ended the send before everything was sent.
    """

    destination: str
    outcome: Literal["sent", "failed", "unknown", "partial"]
    messages: int
    uuid: str | None = None
    error: BaseException | None = None


Hook = Callable[[Event], None]


@dataclass(frozen=True, slots=True)
class Hooks:
    """The listeners of one `ClaimCheck`; falsy when nobody listens, so that events need not be built."""

    listeners: tuple[Hook, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.listeners)

    def emit(self, event: Event) -> None:
        """Tell every listener; one that raises is logged and the others still hear."""
        for listener in self.listeners:
            try:
                listener(event)
            except Exception:
                _log.exception("hook %r failed on %s", listener, type(event).__name__)

    @contextmanager
    def operation(self, operation: Operation, *, store: str, key: str, size: int | None = None) -> Iterator[None]:
        """Emit ``started``, then ``completed`` or ``failed``, around a block."""
        begin = time.perf_counter()
        self.emit(OperationEvent(operation=operation, phase="started", store=store, key=key, size=size))
        error: BaseException | None = None
        try:
            yield
        except BaseException as exc:
            error = exc
            raise
        finally:
            self.emit(
                OperationEvent(
                    operation=operation,
                    phase="failed" if error else "completed",
                    store=store,
                    key=key,
                    size=size,
                    duration_seconds=time.perf_counter() - begin,
                    error=error,
                )
            )
