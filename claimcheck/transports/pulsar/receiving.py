"""Waiting for whole payloads: what a consumer and a reader do alike."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any, Self

from claimcheck.resolver import Dropped
from claimcheck.transports.pulsar.errors import vendor
from claimcheck.transports.pulsar.inbox import Arrival, Inbox
from claimcheck.transports.pulsar.message import PulsarMessage

__all__ = ["Receiving"]

_TICK_SECONDS = 1.0  # how long chunks that wait too long may go unnoticed while nothing comes
_BUSY_SECONDS = 1.0  # how long to go on beyond the timeout while messages come, but no payload
_NO_QUEUE = (
    "with receiver_queue_size=0 the client can wait for messages without end only, and not while chunks are held or "
    "payloads are read ahead: subscribe with receiver_queue_size=1 or more"
)


class Receiving(ABC):
    """Takes native messages until a payload is there.

    Args:
        receive: Waits for a native message, so many milliseconds or for ever.
        inbox: Makes payloads of them.
        clock: Seconds, monotonic.
    """

    def __init__(self, receive: Callable[..., Any], inbox: Inbox, clock: Callable[[], float]) -> None:
        self._receive = receive
        self._inbox = inbox
        self._clock = clock
        self._ready: deque[PulsarMessage] = deque()

    @abstractmethod
    def close(self) -> None:
        """Close what was wrapped."""

    @abstractmethod
    def _let_go(self, dropped: Dropped) -> None:
        """Do what is to be done with messages that became no payload."""

    @property
    def pending_payloads(self) -> int:
        """Payloads of which some chunks are held."""
        return self._inbox.pending_payloads

    @property
    def pending_bytes(self) -> int:
        """Bytes of the chunks that are held."""
        return self._inbox.pending_bytes

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # For whoever receives in another way -----------------------------------------------------------------------

    def take(self, native: Any) -> None:
        """Take a native message that was received elsewhere; what came of it is `take_ready`'s."""
        self._act(self._inbox.take(native))

    def take_plain(self, native: Any) -> bool:
        """Take a native message if it is its own payload, which asks nobody and waits for nothing."""
        plain = self._inbox.plain(native)
        if plain is not None:
            self._act((plain,))
        return plain is not None

    def take_ready(self) -> PulsarMessage | None:
        """Give a payload that is there; ``None`` where none is."""
        return self._ready.popleft() if self._ready else None

    def tick(self) -> None:
        """Let go of chunks whose time is over."""
        self._act(self._inbox.tick())

    def forget(self) -> None:
        """Forget everything that is held; what was not acknowledged comes again."""
        self._inbox.clear()
        self._ready.clear()

    # Within ----------------------------------------------------------------------------------------------------

    def _wait(self, timeout_millis: int | None) -> PulsarMessage:
        """Wait for a payload; chunks that are there are read on for a while after the time is up."""
        until = None if timeout_millis is None else self._clock() + timeout_millis / 1000
        while (message := self.take_ready()) is None:
            if until is not None and self._clock() > until + _BUSY_SECONDS:
                raise vendor().Timeout("messages came, but no whole payload")
            self._step(until)
        return message

    def _step(self, until: float | None) -> None:
        """Take one message, or wait for one; while chunks are held, no longer than they may go unnoticed."""
        left = None if until is None else until - self._clock()
        if left is None and not self._inbox.pending_payloads:
            self.take(self._receive())
            return
        pause = _TICK_SECONDS if left is None else max(0.0, min(left, _TICK_SECONDS))
        try:
            native = self._receive_within(int(pause * 1000))
        except vendor().Timeout:
            self.tick()
            if until is not None and not self._ready and self._clock() >= until:
                raise
        else:
            self.take(native)

    def _receive_within(self, millis: int) -> Any:
        """Wait no longer than that, which a client without a receiver queue cannot."""
        try:
            return self._receive(millis)
        except vendor().InvalidConfiguration as error:
            error.add_note(_NO_QUEUE)
            raise

    def _act(self, arrivals: Iterable[Arrival]) -> None:
        for arrival in arrivals:
            if isinstance(arrival, Dropped):
                self._let_go(arrival)
            else:
                self._keep(arrival)

    def _keep(self, message: PulsarMessage) -> None:
        self._ready.append(message)
