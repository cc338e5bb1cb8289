"""Reads payloads of any size through a reader of the Pulsar client; nothing is acknowledged."""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypedDict

from claimcheck._resolver import Dropped
from claimcheck._validation import check_cc, check_type
from claimcheck.transports.pulsar._inbox import Inbox
from claimcheck.transports.pulsar._message import PulsarMessage
from claimcheck.transports.pulsar._receiver import Receiver

if TYPE_CHECKING:
    from claimcheck._client import ClaimCheck

__all__ = ["PulsarReader", "ReaderOptions"]

_log = logging.getLogger(__name__)
_REMEMBERED = 10_000  # incomplete payloads that were reported


class ReaderOptions(TypedDict, total=False):
    """The options of a `PulsarReader`, which describes them."""

    start_message_id_inclusive: bool
    clock: Callable[[], float]


class PulsarReader(Receiver):
    """Wraps a `pulsar.Reader` and has its methods; each message that it returns is a whole payload.

    A reader that starts in the middle of a payload's chunks does not return that payload. A reader cannot have chunks
    redelivered: a payload that is still incomplete after ``chunking.expire_after_seconds``, or is evicted, is returned
    once, as a message whose data raises `IncompletePayloadError`, unless ``on_expire`` or ``on_evict`` is ``ack``.

    Args:
        reader: A `pulsar.Reader`, without a listener.
        cc: A `claimcheck.ClaimCheck` that knows the writers' stores.
        start_message_id_inclusive: As the reader was created with; decides where `seek` goes.
        clock: Seconds, monotonic.

    Raises:
        ConfigError: An argument is of the wrong type.
    """

    def __init__(
        self,
        reader: Any,
        cc: ClaimCheck,
        *,
        start_message_id_inclusive: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        check_type("reader", reader, valid=hasattr(reader, "_reader"), expected="a pulsar.Reader")
        check_cc(cc)
        self._reported: OrderedDict[Any, None] = OrderedDict()
        inbox = Inbox(cc, reader._schema, clock=clock)
        super().__init__(reader, reader.read_next, inbox, clock, inclusive=start_message_id_inclusive)

    def read_next(self, timeout_millis: int | None = None) -> PulsarMessage:
        """Wait for the next payload. The data of one that cannot be delivered raises the error.

        Args:
            timeout_millis: By default without end.

        Raises:
            pulsar.Timeout: No payload came in time.
        """
        return self._wait(timeout_millis)

    def has_message_available(self) -> bool:
        """Whether a whole payload is available; reads the chunks that are."""
        while not self._ready and self._native.has_message_available():
            self.take(self._native.read_next())
        return bool(self._ready)

    def seek(self, messageid: Any) -> None:
        """Go to a payload, or to a time in milliseconds; chunks from before never complete with chunks from after.

        With ``start_message_id_inclusive`` a `WholeMessageId` makes its payload the next one, else the one behind it.
        """
        self._native.seek(self._seek_target(messageid))
        self.forget()
        self._reported.clear()

    def __repr__(self) -> str:
        return f"<PulsarReader of {self.topic()}, {self.pending_payloads} payloads incomplete>"

    def _drop(self, dropped: Dropped) -> None:
        if dropped.action != "ack":
            self._keep(self._inbox.report(dropped))
            return
        level = logging.WARNING if dropped.reason in ("expired", "evicted") else logging.INFO
        _log.log(level, "%s: %d messages became no payload: %s", self.topic(), len(dropped.slots), dropped.reason)
        self._inbox.settle(dropped, acked=True)

    def _keep(self, message: PulsarMessage) -> None:
        self._inbox.settle(message.outcome, acked=True)
        if not message.is_incomplete or self._is_first_report(message.outcome):
            super()._keep(message)

    def _is_first_report(self, outcome: Any) -> bool:
        """Late chunks of an incomplete payload are not reported again."""
        known = outcome.identity in self._reported
        self._reported[outcome.identity] = None
        if len(self._reported) > _REMEMBERED:
            self._reported.popitem(last=False)
        return not known
