"""A payload that needs more than a message of its own: what was stored or cut for it, its flight, its failures."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from claimcheck.envelope import Envelope
from claimcheck.outbound import Outbound
from claimcheck.sending import SendLedger
from claimcheck.transports.pulsar.deadlines import Ticket
from claimcheck.transports.pulsar.errors import SendDeadlineError, vendor
from claimcheck.transports.pulsar.flight import Flight
from claimcheck.transports.pulsar.ids import WholeMessageId
from claimcheck.transports.pulsar.options import check_options, native_bytes
from claimcheck.transports.undoing import Undoing

__all__ = ["Line", "Sending", "no_id"]

_log = logging.getLogger(__name__)
_ABORT_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Line:
    """What all sends of one producer have in common.

    Attributes:
        raw: The native producer, for bytes as they are.
        topic: Its topic.
        window_bytes: Of the chunks of one payload, on their way at once.
        deadline_seconds: For the answer to one message.
        undoing: Where the client's thread leaves what it must not do.
        late: Called when a message has had no answer in time.
    """

    raw: Any
    topic: str
    window_bytes: int
    deadline_seconds: float
    undoing: Undoing
    late: Callable[[], None]

    def flight(
        self,
        options: Mapping[str, Any],
        ledger: SendLedger | None = None,
        landed: Callable[[Flight], None] | None = None,
    ) -> Flight:
        """Begin one."""

        def send(envelope: Envelope, callback: Callable[[Any, Any], None]) -> None:
            self.give(envelope, callback, options)

        return Flight(
            send,
            ledger=ledger,
            topic=self.topic,
            window_bytes=self.window_bytes,
            deadline_seconds=self.deadline_seconds,
            landed=landed,
            late=self.late,
        )

    def give(self, envelope: Envelope, callback: Callable[[Any, Any], None], options: Mapping[str, Any]) -> None:
        """Give one message to the client."""
        self.raw.send_async(
            native_bytes(envelope), callback, properties=envelope.headers, partition_key=envelope.key, **options
        )


class Sending:
    """Either `launch` and `wait`, or `launch_for` a ticket, once.

    Args:
        line: Of the producer.
        out: What the strategy made of the payload.
        options: Of the send.
    """

    def __init__(self, line: Line, out: Outbound, options: Mapping[str, Any]) -> None:
        self._line = line
        self._out = out
        self._options = options
        self._flight = line.flight(options, out.ledger)

    def launch(self) -> None:
        """Hand all messages to the client, chunks one by one as earlier ones are answered. Raises as `wait`."""
        with self._breaking_off():
            self._launch_all()

    def wait(self) -> Any:
        """Wait until everything that was launched is in the topic.

        Returns:
            The id.

        Raises:
            PartialSendError: Some chunks are or may be in the topic; an abort envelope followed where it could.
            Exception: The client's own; what was stored is deleted if it was definitely not sent.
        """
        with self._breaking_off():
            ids = self._flight.wait()
        self._out.finish()
        return self._id(ids)

    def drop(self) -> None:
        """Instead of launching it: delete what was stored."""
        with contextlib.suppress(Exception):  # it is in the log, and expires
            self._out.settle(None)

    def launch_for(self, ticket: Ticket) -> None:
        """Hand all messages to the client; the ticket is called when the last of them has its answer.

        Raises:
            Exception: Nothing was launched, and the ticket is not called; nor is it after a `KeyboardInterrupt`.
        """
        flight = self._flight = self._line.flight(
            self._options, self._out.ledger, landed=lambda _: self._landed(ticket)
        )
        ticket.late = self._late
        try:
            self._launch_all()
        except BaseException as error:
            if not flight.launched or not isinstance(error, Exception):  # nobody will call the ticket
                self._break_off(error)
                raise
            self._out.ledger.stopped(error)
        flight.close()

    # Within ----------------------------------------------------------------------------------------------------

    def _launch_all(self) -> None:
        check_options(self._out, self._options)
        for envelope in self._out.messages:
            self._flight.launch(envelope)
        self._flight.drain()

    @contextlib.contextmanager
    def _breaking_off(self) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            self._break_off(error)
            raise

    def _break_off(self, error: BaseException) -> None:
        if isinstance(error, Exception):
            self._flight.settle()
        # After an interrupt the program is to end, and a producer without answers answers this neither.
        waits = isinstance(error, Exception) and not isinstance(error, SendDeadlineError)
        self._out.break_off(error, lambda abort: self._send_abort(abort, _ABORT_SECONDS if waits else 0))

    def _send_abort(self, abort: Envelope, seconds: float = _ABORT_SECONDS) -> None:
        heard = threading.Event()
        self._line.give(abort, lambda result, message_id: heard.set(), self._options)
        heard.wait(seconds)

    def _landed(self, ticket: Ticket) -> None:
        """In the client's thread, which must neither wait nor see an exception."""
        if self._out.ledger.error is None:
            self._out.finish()
            ticket(vendor().Result.Ok, self._id(self._out.ledger.results))
            return
        self._line.undoing.submit(self._failed)
        ticket(self._flight.result or vendor().Result.UnknownError, no_id())

    def _failed(self) -> None:
        self._out.tell_readers(self._send_abort)
        self._out.finish()

    def _late(self) -> None:
        """The ticket's time is up; in the thread of the deadlines."""
        text = f"{self._line.topic}: no answer in {self._line.deadline_seconds:g} s"
        self._out.ledger.stopped(SendDeadlineError(text, destination=self._line.topic))
        self._out.finish()

    def _id(self, ids: list[Any]) -> Any:
        if any(message_id.ledger_id() < 0 for message_id in ids):
            _log.warning(
                "%s: stored, but the broker's deduplication did not say where; the id has no place", self._line.topic
            )
        return ids[0] if self._out.uuid is None else WholeMessageId.of_sent(tuple(ids), self._line.topic)


def no_id() -> Any:
    """The id of a message that has no place."""
    return vendor().MessageId(-1, -1, -1, -1)._msg_id
