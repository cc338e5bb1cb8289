"""Receiving of whole payloads: what a consumer and a reader share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable
from types import SimpleNamespace, TracebackType
from typing import Any, Self

from claimcheck._resolver import Dropped
from claimcheck.transports.pulsar._errors import vendor
from claimcheck.transports.pulsar._inbox import Arrival, Inbox
from claimcheck.transports.pulsar._message import PulsarMessage
from claimcheck.transports.pulsar._message_ids import WholeMessageId

__all__ = ["TICK_SECONDS", "Receiver", "blocking"]

TICK_SECONDS = 1.0  # how late chunks may expire
_BUSY_SECONDS = 1.0  # how long to go on beyond the timeout while messages come, but no payload
_NO_QUEUE = (
    "with receiver_queue_size=0 the client can wait for messages without end only, and not while chunks are held or "
    "payloads are read ahead: subscribe with receiver_queue_size=1 or more"
)


class Receiver(ABC):
    """Takes native messages until a payload is complete.

    Args:
        native: A native consumer or reader.
        receive: Waits for a native message, for a number of milliseconds or without end.
        inbox: Turns native messages into payloads.
        clock: Seconds, monotonic.
        inclusive: Whether a seek to a message makes that message the next one.
    """

    def __init__(
        self,
        native: Any,
        receive: Callable[..., Any],
        inbox: Inbox,
        clock: Callable[[], float],
        *,
        inclusive: bool = False,
    ) -> None:
        self._native = native
        self._receive = receive
        self._inbox = inbox
        self._clock = clock
        self._inclusive = inclusive
        self._ready: deque[PulsarMessage] = deque()
        self._ticked = clock()

    @abstractmethod
    def _drop(self, dropped: Dropped) -> None:
        """Acknowledge, redeliver, dead-letter or report messages that became no payload."""

    @property
    def pending_payloads(self) -> int:
        """Payloads of which some chunks are held."""
        return self._inbox.pending_payloads

    @property
    def pending_bytes(self) -> int:
        """Bytes of the chunks that are held."""
        return self._inbox.pending_bytes

    def topic(self) -> Any:
        """The topic's whole name."""
        return self._native.topic()

    def is_connected(self) -> Any:
        """Whether it is connected at the moment."""
        return self._native.is_connected()

    def close(self) -> None:
        """Close the wrapped object. Unacknowledged messages are redelivered, to other consumers."""
        self.forget()
        self._native.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # For other ways to receive ---------------------------------------------------------------------------------

    def take(self, native: Any) -> None:
        """Take a native message that was received elsewhere; `take_ready` returns the payloads that it completed."""
        self._act(self._inbox.take(native))
        if self.tick_is_due:
            self.tick()

    def take_plain(self, native: Any) -> bool:
        """Take a native message if it is its own payload, without any I/O; the caller calls `tick` when it is due."""
        plain = self._inbox.plain(native)
        if plain is not None:
            self._act((plain,))
        return plain is not None

    def take_ready(self) -> PulsarMessage | None:
        """Return the next payload that is complete; ``None`` without one."""
        return self._ready.popleft() if self._ready else None

    @property
    def tick_is_due(self) -> bool:
        """Whether chunks are held and their expiry was not checked for a while."""
        return self._inbox.pending_payloads > 0 and self._clock() - self._ticked >= TICK_SECONDS

    def tick(self) -> None:
        """Expire chunks that have waited too long."""
        self._ticked = self._clock()
        self._act(self._inbox.tick())

    def forget(self) -> None:
        """Forget everything that is held; what was not acknowledged is redelivered."""
        self._inbox.clear()
        self._ready.clear()

    # Within ----------------------------------------------------------------------------------------------------

    def _wait(self, timeout_millis: int | None) -> PulsarMessage:
        """Wait for a payload; while chunks keep coming, for up to a second longer than the timeout."""
        until = None if timeout_millis is None else self._clock() + timeout_millis / 1000
        while (message := self.take_ready()) is None:
            if until is not None and self._clock() > until + _BUSY_SECONDS:
                raise vendor().Timeout("messages came, but no whole payload")
            self._step(until)
        return message

    def _step(self, until: float | None) -> None:
        """Take one message, or wait for one; while chunks are held, no longer than until the next tick."""
        left = None if until is None else until - self._clock()
        if left is None and not self._inbox.pending_payloads:
            self.take(self._receive())
            return
        pause = TICK_SECONDS if left is None else max(0.0, min(left, TICK_SECONDS))
        try:
            native = self._receive_within(int(pause * 1000))
        except vendor().Timeout:
            self.tick()
            if until is not None and not self._ready and self._clock() >= until:
                raise
        else:
            self.take(native)

    def _receive_within(self, millis: int) -> Any:
        """Wait for a limited time, which a client without a receiver queue refuses."""
        try:
            return self._receive(millis)
        except vendor().InvalidConfiguration as error:
            error.add_note(_NO_QUEUE)
            raise

    def _act(self, arrivals: Iterable[Arrival]) -> None:
        for arrival in arrivals:
            if isinstance(arrival, Dropped):
                self._drop(arrival)
            else:
                self._keep(arrival)

    def _keep(self, message: PulsarMessage) -> None:
        self._ready.append(message)

    def _seek_target(self, target: Any) -> Any:
        """Return what the native object has to seek to, for a message, any id or a time in milliseconds."""
        if isinstance(target, PulsarMessage):
            target = target.message_id()
        if isinstance(target, WholeMessageId):
            return target.first if self._inclusive else target.last
        return target


def blocking(kind: str, native: Any) -> Any:
    """Wrap the inner object of an asyncio or listener object into the blocking client's class ``kind``.

    The blocking client removes a closed consumer from its list of consumers; here that list is empty.
    """
    made = getattr(vendor(), kind)()
    inner = f"_{kind.lower()}"
    setattr(made, inner, getattr(native, inner))
    made._schema = native._schema
    made._client = SimpleNamespace(_consumers=SimpleNamespace(remove=lambda _: None))
    return made
