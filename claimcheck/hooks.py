"""Events, for metrics and logs.

A hook is a callable that takes one event, a frozen dataclass. It runs in the thread that does the work, so it should be
quick. An exception in a hook is logged and never fails the operation.
"""

from __future__ import annotations

import functools
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
    "SweepEvent",
]

_log = logging.getLogger(__name__)

Operation = Literal["write", "read", "rollback"]
"""The operations of a store; ``rollback`` undoes a write."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Base class of all events."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationEvent(Event):
    """A store operation started, completed or failed.

    Attributes:
        operation: ``write``, ``read`` or ``rollback``.
        phase: ``started`` comes first, then exactly one of the others.
        store: The store's name in the configuration.
        key: The payload's key.
        size: Payload bytes, if known.
        duration_seconds: Time since ``started``.
        error: The error that will be raised; only for ``failed``.
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
    """The hybrid strategy sends a payload as chunks because the store failed.

    Attributes:
        destination: Topic or queue.
        size: Payload bytes.
        error: The store's error; ``None`` if the store was not tried because the breaker is open.
        store: The store's name in the configuration.
        duration_seconds: How long the store took to fail; 0.0 if it was not tried.
    """

    destination: str
    size: int
    error: BaseException | None
    store: str = ""
    duration_seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakerEvent(Event):
    """The hybrid strategy stopped using a store (``open``) or uses it again (``closed``)."""

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
            payload that is still incomplete after its last redelivery.
        messages: Number of messages.
    """

    source: object
    uuid: str
    reason: str
    action: str
    messages: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AssembledEvent(Event):
    """All chunks of a payload arrived, and it was assembled.

    Attributes:
        source: Where the chunks came from.
        uuid: The payload's identity.
        messages: Number of messages, duplicates included.
        size: Payload bytes.
    """

    source: object
    uuid: str
    messages: int
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SendEvent(Event):
    """The outcome of a send is known; emitted once for each payload that was offloaded or escaped.

    There is no event for payloads that are sent unchanged, and none if offloading fails, because the send never began.

    Attributes:
        destination: Topic or queue.
        outcome: ``sent``: the payload is in the topic. ``failed``: none of its messages is, definitely, and the stored
            payload is deleted. ``partial``: some of its chunks are in the topic, and not all are known to be.
            ``unknown``: no message is known to be in the topic, at least one may be, and the stored payload is kept.
        messages: Messages of the payload: 1, or the number of its chunks.
        uuid: The payload's identity, if it was sent as chunks.
        error: The error that ended the send, as the client raised or reported it, never a `PartialSendError`; ``None``
            for ``sent``, and if the caller ended the send early.
    """

    destination: str
    outcome: Literal["sent", "failed", "unknown", "partial"]
    messages: int
    uuid: str | None = None
    error: BaseException | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepEvent(Event):
    """A sweep or a garbage collection of one store ended.

    Attributes:
        store: The store's name in the configuration.
        dry_run: Whether nothing was deleted.
        scanned: Entries that were listed.
        expired: Payloads whose lifetime and grace period have passed; of a garbage collection, those that no message
            points at.
        expired_bytes: Bytes of these payloads and of the leftovers.
        leftovers: What interrupted writes left behind, older than the grace period.
        deleted: Entries that were deleted.
        failed: Entries that could not be deleted, and folders that could not be listed.
        duration_seconds: How long it took.
        error: The error that ended the sweep; ``None`` if it ended normally.
        kind: ``sweep``, or ``gc`` for a garbage collection.
    """

    store: str
    dry_run: bool
    scanned: int
    expired: int
    expired_bytes: int
    leftovers: int
    deleted: int
    failed: int
    duration_seconds: float
    error: BaseException | None = None
    kind: Literal["sweep", "gc"] = "sweep"


Hook = Callable[[Event], None]


@dataclass(frozen=True, slots=True)
class Hooks:
    """The registered hooks of a `ClaimCheck`; false if there are none, so that no events need to be created."""

    listeners: tuple[Hook, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.listeners)

    def emit(self, event: Event) -> None:
        """Call every hook with an event; an exception in one is logged, and the others are still called."""
        for listener in self.listeners:
            try:
                listener(event)
            except Exception:
                _log.exception("hook %r failed on %s", listener, type(event).__name__)

    @contextmanager
    def operation(self, operation: Operation, *, store: str, key: str, size: int | None = None) -> Iterator[None]:
        """Emit ``started``, then ``completed`` or ``failed``, around a block."""
        event = functools.partial(OperationEvent, operation=operation, store=store, key=key, size=size)
        begin = time.perf_counter()
        self.emit(event(phase="started"))
        try:
            yield
        except BaseException as error:
            self.emit(event(phase="failed", duration_seconds=time.perf_counter() - begin, error=error))
            raise
        self.emit(event(phase="completed", duration_seconds=time.perf_counter() - begin))
