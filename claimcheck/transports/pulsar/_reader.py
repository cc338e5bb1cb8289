"""Reads payloads of any size through a reader of the Pulsar client; nothing is acknowledged."""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from claimcheck._resolver import Dropped
from claimcheck._validation import check_cc, check_type
from claimcheck.transports._common.claimcheck_types import Resolves
from claimcheck.transports.pulsar._dispatch import Inbox
from claimcheck.transports.pulsar._message import PulsarMessage
from claimcheck.transports.pulsar._message_ids import WholeMessageId
from claimcheck.transports.pulsar._receiver import Receiving

__all__ = ["PulsarReader"]

_log = logging.getLogger(__name__)
_REMEMBERED = 10_000  # incomplete payloads that were reported


class PulsarReader(Receiving):
    """Has the methods of a `pulsar.Reader`; each message that it returns is a whole payload.

    Started in the middle of a payload's chunks it does not return that payload. A reader cannot give chunks back: a
    payload that is still incomplete after ``chunking.expire_after_seconds``, or is evicted, is returned once, as a
    message whose data raises `IncompletePayloadError`, unless ``on_expire`` or ``on_evict`` is ``ack``.

    Args:
        reader: A `pulsar.Reader`, without a listener.
        cc: A `claimcheck.ClaimCheck` that knows the writers' stores.
        start_message_id_inclusive: As it was created; decides where `seek` goes.
        clock: Seconds, monotonic.

    Raises:
        ConfigError: An argument is of the wrong type.
    """

    def __init__(
        self,
        reader: Any,
        cc: Resolves,
        *,
        start_message_id_inclusive: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        check_type("reader", reader, valid=hasattr(reader, "_reader"), expected="a pulsar.Reader")
        check_cc(cc)
        self._native = reader
        self._inclusive = start_message_id_inclusive
        self._reported: OrderedDict[Any, None] = OrderedDict()
        super().__init__(reader.read_next, Inbox(cc, reader._schema, clock=clock), clock)

    def read_next(self, timeout_millis: int | None = None) -> PulsarMessage:
        """Wait for the next payload. One that cannot be delivered is a message whose data raises the error.

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

        To a `WholeMessageId` it goes as the reader was created: so that this payload is the next, or the one behind its
        last message.
        """
        if isinstance(messageid, PulsarMessage):
            messageid = messageid.message_id()
        if isinstance(messageid, WholeMessageId):
            messageid = messageid.first if self._inclusive else messageid.last
        self._native.seek(messageid)
        self.forget()
        self._reported.clear()

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

    def __repr__(self) -> str:
        return f"<PulsarReader of {self.topic()}, {self._inbox.pending_payloads} payloads incomplete>"

    # Within ----------------------------------------------------------------------------------------------------

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
