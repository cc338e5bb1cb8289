"""Reads payloads of any size through a reader of the Pulsar client; nothing is acknowledged."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any, Self

from claimcheck.resolver import Dropped
from claimcheck.transports.pulsar.errors import vendor
from claimcheck.transports.pulsar.ids import WholeMessageId
from claimcheck.transports.pulsar.inbox import Arrival, Inbox
from claimcheck.transports.pulsar.message import PulsarMessage
from claimcheck.transports.pulsar.needs import Resolves

__all__ = ["PulsarReader"]

_log = logging.getLogger(__name__)
_TICK_SECONDS = 1.0


class PulsarReader:
    """Has the methods of a `pulsar.Reader`; a message that it gives is a whole payload.

    Begun in the middle of a payload's chunks it does not give that payload. Chunks that never become one are dropped
    after ``chunking.expire_after_seconds``, with a line in the log.

    Args:
        reader: A `pulsar.Reader`, without a listener.
        cc: A `claimcheck.ClaimCheck` that knows the writers' stores.
        start_message_id_inclusive: As it was created; decides where `seek` goes.
        clock: Seconds, monotonic.
    """

    def __init__(
        self,
        reader: Any,
        cc: Resolves,
        *,
        start_message_id_inclusive: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if not hasattr(reader, "_reader"):
            raise TypeError(f"a reader of pulsar-client is wanted, not {type(reader).__name__}")
        self._native = reader
        self._inclusive = start_message_id_inclusive
        self._clock = clock
        self._inbox = Inbox(cc, reader._schema, clock=clock)
        self._ready: deque[PulsarMessage] = deque()

    def read_next(self, timeout_millis: int | None = None) -> PulsarMessage:
        """Wait for the next payload; a bad one is handed out, too, and says so when its data is asked for.

        Args:
            timeout_millis: By default for ever.

        Raises:
            pulsar.Timeout: No payload came in time.
        """
        until = None if timeout_millis is None else self._clock() + timeout_millis / 1000
        while not self._ready:
            self._step(until)
        return self._ready.popleft()

    def has_message_available(self) -> bool:
        """Whether a whole payload is there: chunks are read on, as far as there are any."""
        while not self._ready and self._native.has_message_available():
            self.take(self._native.read_next())
        return bool(self._ready)

    def seek(self, messageid: Any) -> None:
        """Go to a payload, or to a time in milliseconds; chunks from before never complete with chunks from after.

        To a `WholeMessageId` it goes as the reader was created: so that this payload is the next, or the one behind its
        last message.
        """
        if isinstance(messageid, PulsarMessage):
            messageid = messageid.message_id()
        if isinstance(messageid, WholeMessageId):
            messageid = messageid.first if self._inclusive else messageid.last
        self._native.seek(messageid)
        self.forget()

    def close(self) -> None:
        """Close the reader."""
        self.forget()
        self._native.close()

    def topic(self) -> Any:
        """The topic's whole name."""
        return self._native.topic()

    def is_connected(self) -> Any:
        """Whether it is connected just now."""
        return self._native.is_connected()

    @property
    def pending_payloads(self) -> int:
        """Payloads of which some chunks are held."""
        return self._inbox.pending_payloads

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<PulsarReader of {self.topic()}, {self._inbox.pending_payloads} payloads incomplete>"

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

    def _step(self, until: float | None) -> None:
        left = None if until is None else until - self._clock()
        if left is None and not self._inbox.pending_payloads:
            self.take(self._native.read_next())
            return
        pause = _TICK_SECONDS if left is None else max(0.0, min(left, _TICK_SECONDS))
        try:
            native = self._native.read_next(int(pause * 1000))
        except vendor().Timeout:
            self.tick()
            if until is not None and not self._ready and self._clock() >= until:
                raise
        else:
            self.take(native)

    def _act(self, arrivals: Iterable[Arrival]) -> None:
        for arrival in arrivals:
            if isinstance(arrival, Dropped):
                _log.info("%s: %d messages became no payload: %s", self.topic(), len(arrival.slots), arrival.reason)
                self._inbox.settle(arrival, acked=True)
                continue
            self._inbox.settle(arrival.outcome, acked=True)
            self._ready.append(arrival)
