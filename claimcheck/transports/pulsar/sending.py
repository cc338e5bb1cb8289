"""A payload that needs more than a message of its own: what was stored or cut for it, its flight, its failures."""

from __future__ import annotations

import contextlib
import itertools
import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from claimcheck.envelope import Envelope
from claimcheck.hooks import Hooks, SendEvent
from claimcheck.outbound import Outbound
from claimcheck.transports.pulsar.deadlines import Ticket
from claimcheck.transports.pulsar.errors import classify, vendor
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
        hooks: Who hears of what is sent.
        undoing: Where the client's thread leaves what it must not do.
        late: Called when a message has had no answer in time.
    """

    raw: Any
    topic: str
    window_bytes: int
    deadline_seconds: float
    hooks: Hooks
    undoing: Undoing
    late: Callable[[], None]

    def flight(self, options: Mapping[str, Any], landed: Callable[[Flight], None] | None = None) -> Flight:
        """Begin one."""

        def send(envelope: Envelope, callback: Callable[[Any, Any], None]) -> None:
            self.give(envelope, callback, options)

        return Flight(
            send,
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
        self._flight = line.flight(options)

    def launch(self) -> None:
        """Give all messages to the client, chunks one by one as those before them land. Raises as `wait` does."""
        with self._settled_if_it_fails():
            # Never beyond the last: with that one not known to be sent, an error still undoes what was stored.
            for envelope in itertools.islice(self._out.envelopes, self._out.total):
                check_options(self._out, self._options)
                self._flight.launch(envelope)
            self._flight.drain()

    def wait(self) -> Any:
        """Wait until everything that was launched is in the topic.

        Returns:
            The id.

        Raises:
            PartialSendError: Chunks broke off.
            Exception: The client's own; what was stored is removed where it was definitely not sent.
        """
        with self._settled_if_it_fails():
            ids = self._flight.wait()
        self._out.settle(None)
        self._say("sent")
        return self._id(ids)

    def drop(self) -> None:
        """Instead of launching it: undo what was stored."""
        with contextlib.suppress(Exception):  # it is in the log, and expires
            self._out.settle(None)

    def launch_for(self, ticket: Ticket) -> None:
        """Give all messages to the client, and have the ticket called when the last of them has landed.

        Raises:
            Exception: Nothing was launched, and the ticket is not called; nor is it after a `KeyboardInterrupt`.
        """
        flight = self._flight = self._line.flight(self._options, landed=lambda _: self._landed(ticket))
        try:
            for envelope in self._out.envelopes:
                check_options(self._out, self._options)
                flight.launch(envelope)
            flight.drain()
        except Exception as error:
            if not flight.launched:  # nobody knows of the callback yet
                self._out.settle(error)
                raise
            flight.error = flight.error or error
        except BaseException as error:
            self._interrupt()
            self._out.settle(error)
            raise
        flight.close()

    # Within ----------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _settled_if_it_fails(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            try:
                self._break_off(error)
            except Exception as partial:
                self._out.settle(partial)
                raise
            self._out.settle(error)
            raise
        except BaseException as error:
            self._interrupt()
            self._out.settle(error)
            raise

    def _interrupt(self) -> None:
        """Chunks end here, for the program is to end: tell readers, and wait for nothing."""
        if self._out.abort is not None and self._flight.launched < self._out.total:
            self._send_abort(self._out.abort, wait_seconds=0)

    def _break_off(self, error: Exception) -> None:
        """Of chunks of which some may be in the topic, tell readers, and raise an error that says how many."""
        out, flight = self._out, self._flight
        if out.abort is not None:
            flight.settle()
            if flight.ids or classify(error) == "unknown":
                self._send_abort(out.abort)
                self._say("partial", error)
                raise out.partial([flight.ids[number] for number in sorted(flight.ids)], error) from error
        self._say(classify(error), error)

    def _send_abort(self, abort: Envelope, *, wait_seconds: float = _ABORT_SECONDS) -> None:
        heard = threading.Event()
        try:
            self._line.give(abort, lambda result, message_id: heard.set(), self._options)
            heard.wait(wait_seconds)
        except Exception as error:
            _log.warning("could not send the abort envelope: %s", type(error).__name__)

    def _landed(self, ticket: Ticket) -> None:
        """In the client's thread, which must neither wait nor see an exception."""
        flight, error = self._flight, self._flight.error
        if error is None:
            self._out.keep()
            self._say("sent")
            ticket(vendor().Result.Ok, self._id([flight.ids[number] for number in range(flight.launched)]))
            return
        self._line.undoing.submit(lambda: self._undo(error))
        ticket(flight.result or vendor().Result.UnknownError, no_id())

    def _undo(self, error: Exception) -> None:
        out = self._out
        partial = out.abort is not None and (self._flight.ids or classify(error) == "unknown")
        self._say("partial" if partial else classify(error), error)
        if out.abort is None:
            out.conclude(error)
        elif partial:
            self._send_abort(out.abort)

    def _say(self, outcome: Literal["sent", "failed", "unknown", "partial"], error: Exception | None = None) -> None:
        if self._line.hooks:
            facts: dict[str, Any] = {"messages": self._out.total, "uuid": self._out.uuid, "error": error}
            self._line.hooks.emit(SendEvent(destination=self._line.topic, outcome=outcome, **facts))

    def _id(self, ids: list[Any]) -> Any:
        if any(message_id.ledger_id() < 0 for message_id in ids):
            _log.warning(
                "%s: stored, but the broker's deduplication did not say where; the id has no place", self._line.topic
            )
        return ids[0] if self._out.uuid is None else WholeMessageId.of_sent(tuple(ids), self._line.topic)


def no_id() -> Any:
    """The id of a message that has no place."""
    return vendor().MessageId(-1, -1, -1, -1)._msg_id
