"""Receives whole payloads: the base of consumers and readers, and the wrapper for readers."""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from claimcheck._receive.resolver import Dropped, Outcome
from claimcheck._validation import check_cc, check_type
from claimcheck.transports._common.delegation import Closing
from claimcheck.transports.pulsar._inbox import Arrival, Inbox
from claimcheck.transports.pulsar._message import AnyMessageId, PulsarMessage, WholeMessageId
from claimcheck.transports.pulsar._queries import vendor

if TYPE_CHECKING:
    import pulsar

    from claimcheck._client import ClaimCheck

_log = logging.getLogger(__name__)

TICK_SECONDS = 1.0  # how late chunks may expire
_BUSY_SECONDS = 1.0  # how long to exceed the timeout while messages are received, but no payload
_REMEMBERED = 10_000  # incomplete payloads that a reader reported
_NO_QUEUE = (
    "with receiver_queue_size=0 the client cannot wait with a timeout, which it has to while chunks are held or "
    "payloads are read ahead: subscribe with receiver_queue_size=1 or more"
)


class Receiver(Closing, ABC):
    """Takes native messages until a payload is complete.

    Args:
        native: A native consumer or reader.
        receive: Waits for a native message, for a number of milliseconds or without a time limit.
        inbox: Turns native messages into payloads.
        clock: Seconds, monotonic.
        inclusive: Whether a seek to a message makes that message the next one.
    """

    def __init__(
        self,
        native: pulsar.Consumer | pulsar.Reader,
        receive: Callable[..., pulsar.Message],
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
        self.epoch = 0  # ends with each `forget`

    @abstractmethod
    def _drop(self, dropped: Dropped) -> None:
        """Acknowledge, redeliver, dead-letter or report messages that became no payload."""

    @abstractmethod
    def _forget_history(self) -> None:
        """Forget the payloads that were redelivered or reported before a seek."""

    @property
    def pending_payloads(self) -> int:
        """Payloads of which some chunks are held."""
        return self._inbox.resolver.pending_payloads

    @property
    def pending_bytes(self) -> int:
        """Bytes of the chunks that are held."""
        return self._inbox.resolver.pending_bytes

    def topic(self) -> str:
        """The topic's full name."""
        return str(self._native.topic())

    def is_connected(self) -> bool:
        """Whether it is connected at the moment."""
        return bool(self._native.is_connected())

    def close(self) -> None:
        """Close the wrapped object. Unacknowledged messages are redelivered, to other consumers."""
        self.forget()
        self._native.close()

    def seek(self, messageid: PulsarMessage | AnyMessageId | int) -> None:
        """Go to a payload, or to a time in milliseconds; chunks from before never complete with chunks from after.

        With ``start_message_id_inclusive`` a `WholeMessageId` makes its payload the next one, else the one after it.
        """
        target = messageid.message_id() if isinstance(messageid, PulsarMessage) else messageid
        if isinstance(target, WholeMessageId):
            target = target.first if self._inclusive else target.last
        self.forget()
        self._native.seek(target)
        self.forget()
        self._forget_history()

    # For listeners and asyncio ---------------------------------------------------------------------------------

    def take(self, native: pulsar.Message) -> None:
        """Take a native message; `take_ready` returns the payloads that it completed."""
        self._act(self._inbox.take(native))
        if self.tick_is_due:
            self.tick()

    def take_plain(self, native: pulsar.Message) -> bool:
        """Take a small native message that is its own payload, without I/O; the caller calls `tick` when it is due."""
        plain = self._inbox.plain(native)
        if plain is not None:
            self._act((plain,))
        return plain is not None

    def take_ready(self) -> PulsarMessage | None:
        """Return the next payload that is complete, or ``None``."""
        return self._ready.popleft() if self._ready else None

    @property
    def tick_is_due(self) -> bool:
        """Whether chunks are held and their expiry was not checked for a while."""
        return self.seconds_to_tick == 0

    @property
    def seconds_to_tick(self) -> float | None:
        """Seconds until the expiry of the chunks that are held has to be checked; ``None`` without chunks."""
        return max(0.0, self._ticked + TICK_SECONDS - self._clock()) if self.pending_payloads else None

    def tick(self) -> None:
        """Expire chunks that have waited too long."""
        self._ticked = self._clock()
        self._act(self._inbox.tick())

    def forget(self) -> None:
        """Forget all messages that are held; those that were not acknowledged are redelivered."""
        self.epoch += 1
        self._inbox.clear()
        self._ready.clear()

    # Internals -------------------------------------------------------------------------------------------------

    def _wait(self, timeout_millis: int | None) -> PulsarMessage:
        """Wait for a payload; while chunks keep coming, for up to a second longer than the timeout."""
        until = None if timeout_millis is None else self._clock() + timeout_millis / 1000
        while (message := self.take_ready()) is None:
            if until is not None and self._clock() > until + _BUSY_SECONDS:
                raise vendor().Timeout("messages were received, but no whole payload")
            self._step(until)
        return message

    def _step(self, until: float | None) -> None:
        """Take one message, or wait for one; while chunks are held, no longer than until the next tick."""
        left = None if until is None else until - self._clock()
        if left is None and not self.pending_payloads:
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

    def _receive_within(self, millis: int) -> pulsar.Message:
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


class ReaderOptions(TypedDict, total=False):
    """The options of a `PulsarReader`; see there."""

    start_message_id_inclusive: bool
    clock: Callable[[], float]


class PulsarReader(Receiver):
    """Wraps a `pulsar.Reader` and has its methods; each message that it returns is a whole payload.

    A reader that starts in the middle of a payload's chunks does not return that payload. Readers cannot have chunks
    redelivered: a payload that is still incomplete after ``chunking.expire_after_seconds``, or is evicted, is returned
    once, as a message whose data raises `IncompletePayloadError`, unless ``on_expire`` or ``on_evict`` is ``ack``.

    Args:
        reader: A `pulsar.Reader`, without a listener.
        cc: A `claimcheck.ClaimCheck` that knows the writers' stores.
        start_message_id_inclusive: The value that the reader was created with; determines where `seek` goes.
        clock: Seconds, monotonic.

    Raises:
        ConfigError: An argument is of the wrong type.
    """

    def __init__(
        self,
        reader: pulsar.Reader,
        cc: ClaimCheck,
        *,
        start_message_id_inclusive: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        check_type("reader", reader, valid=hasattr(reader, "_reader"), expected="a pulsar.Reader")
        check_cc(cc)
        self._reported: OrderedDict[object, None] = OrderedDict()
        inbox = Inbox(cc, reader._schema, clock=clock)
        super().__init__(reader, reader.read_next, inbox, clock, inclusive=start_message_id_inclusive)

    def read_next(self, timeout_millis: int | None = None) -> PulsarMessage:
        """Wait for the next payload. If it cannot be delivered, the message's `data` raises the error.

        Args:
            timeout_millis: By default there is no limit.

        Raises:
            pulsar.Timeout: No payload was received in time.
        """
        return self._wait(timeout_millis)

    def has_message_available(self) -> bool:
        """Whether a whole payload is available; reads the chunks in the topic."""
        while not self._ready and self._native.has_message_available():
            self.take(self._native.read_next())
        return bool(self._ready)

    def __repr__(self) -> str:
        return f"<PulsarReader of {self.topic()}, {self.pending_payloads} payloads incomplete>"

    def _forget_history(self) -> None:
        self._reported.clear()

    def _drop(self, dropped: Dropped) -> None:
        if dropped.action != "ack":
            self._keep(self._inbox.report(dropped))
            return
        level = logging.WARNING if dropped.reason in ("expired", "evicted") else logging.INFO
        _log.log(level, "%s: dropped %d chunks without a payload: %s", self.topic(), len(dropped.slots), dropped.reason)
        self._inbox.settle(dropped, acked=True)

    def _keep(self, message: PulsarMessage) -> None:
        self._inbox.settle(message.outcome, acked=True)
        if not message.is_incomplete or message.outcome is None or self._is_first_report(message.outcome):
            super()._keep(message)

    def _is_first_report(self, outcome: Outcome) -> bool:
        """Return whether this incomplete payload was not reported before; its late chunks are not reported again."""
        known = outcome.identity in self._reported
        self._reported[outcome.identity] = None
        if len(self._reported) > _REMEMBERED:
            self._reported.popitem(last=False)
        return not known


def blocking(kind: Literal["Consumer", "Producer", "Reader"], native: Any) -> Any:
    """Wrap the inner object of an asyncio or listener object into the blocking client's class ``kind``."""
    blocking = getattr(vendor(), kind)()
    inner = f"_{kind.lower()}"
    setattr(blocking, inner, getattr(native, inner))
    blocking._schema = native._schema
    blocking._client = SimpleNamespace(_consumers=SimpleNamespace(remove=lambda _: None))
    return blocking
