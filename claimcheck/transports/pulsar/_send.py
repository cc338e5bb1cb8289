"""A payload that needs more than a message of its own: what was stored or cut for it, its flight, its failures."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from claimcheck._envelope import Envelope
from claimcheck._outbound import Outbound
from claimcheck._sending import SendLedger
from claimcheck.transports._common.rollback_worker import Undoing
from claimcheck.transports.pulsar._errors import SendDeadlineError, error_of, vendor
from claimcheck.transports.pulsar._message_ids import WholeMessageId
from claimcheck.transports.pulsar._send_deadlines import Ticket
from claimcheck.transports.pulsar._send_options import check_options, native_bytes

__all__ = [
    "Flight",
    "Line",
    "no_id",
    "Sending",
]

_QUEUE_IS_FULL = "ProducerQueueIsFull"


class Flight:
    """Sends messages and records in a ledger what becomes of them; one thread launches, the client's reports results.

    Args:
        send: Hands one envelope to the client, with a callback for the result and the id.
        topic: For error texts.
        window_bytes: On their way at once; one message always may be.
        deadline_seconds: For each message, from its launch.
        ledger: Of the payload; its results are message ids.
        landed: Called by the client's thread when the last message of a flight that was `closed` has landed.
        late: Called when the time of a message is up.
        clock: Seconds, monotonic.
    """

    def __init__(
        self,
        send: Callable[[Envelope, Callable[[Any, Any], None]], None],
        *,
        topic: str,
        window_bytes: int,
        deadline_seconds: float,
        ledger: SendLedger | None = None,
        landed: Callable[[Flight], None] | None = None,
        late: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._send = send
        self._ledger = ledger or SendLedger()
        self._topic = topic
        self._window_bytes = window_bytes
        self._deadline_seconds = deadline_seconds
        self._on_landed = landed
        self._on_late = late
        self._clock = clock
        self._changed = threading.Condition()
        self._flying: dict[int, tuple[float, int]] = {}  # launched when, and how large
        self._again: list[tuple[int, Envelope, int]] = []  # the client's queue was full, with so many of ours in it
        self._closed = False
        self.launched = 0  # that the client took
        self.result: Any = None  # of the first message that failed

    def launch(self, envelope: Envelope) -> None:
        """Send one message, when there is room for it.

        Raises:
            SendDeadlineError: An earlier message has no answer.
            Exception: The error of an earlier message, or of this one, which was not sent.
        """
        size = len(envelope.data or b"")
        with self._changed:
            self._wait(lambda: not self._flying or self._bytes() + size <= self._window_bytes)
            number = self._ledger.launched()
        self._launch(number, envelope)
        self.launched += 1

    def wait(self) -> list[Any]:
        """Wait until every message has landed, and return their ids in order.

        Raises:
            SendDeadlineError: One has no answer.
            Exception: The first error that one met; all others have landed, too, or their time is up.
        """
        with self._changed:
            self._wait(lambda: not self._flying)
        return self._ledger.results

    def drain(self) -> None:
        """Wait until the client has taken all of them. Raises as `launch` does."""
        with self._changed:
            self._wait(lambda: True)

    def settle(self) -> None:
        """After an error: wait for the messages that are still on their way, as long as they have time."""
        with self._changed:
            while self._flying and (left := self._left()) > 0:
                self._changed.wait(left)
            if self._flying:
                self._on_late()

    def close(self) -> None:
        """Say that nothing more will be launched: from now on it may have landed."""
        with self._changed:
            self._closed = True
            done = not self._flying
        if done and self._on_landed is not None:
            self._on_landed(self)

    # Within ----------------------------------------------------------------------------------------------------

    def _launch(self, number: int, envelope: Envelope) -> None:
        with self._changed:
            self._flying[number] = self._clock(), len(envelope.data or b"")
        try:
            self._send(envelope, lambda result, message_id: self._landed(number, envelope, result, message_id))
        except BaseException as error:
            with self._changed:
                self._flying.pop(number, None)
                self._ledger.failed(number, error)
            raise

    def _landed(self, number: int, envelope: Envelope, result: Any, message_id: Any) -> None:
        """In the client's own thread: an exception here would end the process."""
        with self._changed:
            self._flying.pop(number, None)
            if result.name == "Ok":  # several times as fast as to compare members
                self._ledger.acknowledged(number, message_id)
            elif result.name == _QUEUE_IS_FULL and self._flying and not self._closed:
                self._again.append((number, envelope, len(self._flying)))
                self._ledger.postponed(number)
            else:
                self.result = self.result or result
                self._ledger.failed(number, error_of(result))
            done = self._closed and not self._flying
            self._changed.notify_all()
        if done and self._on_landed is not None:
            self._on_landed(self)

    def _wait(self, ready: Callable[[], bool]) -> None:
        while True:
            if self._ledger.error is not None:
                raise self._ledger.error
            if self._again and len(self._flying) < self._again[0][2]:  # one of ours has landed: there is room
                self._retry()
            elif ready() and not self._again:
                return
            elif (left := self._left()) <= 0:
                self._on_late()
                raise SendDeadlineError(
                    f"{self._topic}: no answer in {self._deadline_seconds:g} s; is a limit of the topic's own below "
                    "what the producer was told (admin_url asks for it)?",
                    destination=self._topic,
                )
            else:
                self._changed.wait(left)

    def _retry(self) -> None:
        number, envelope, _ = self._again.pop(0)
        self._ledger.resumed(number)
        self._changed.release()  # the client may call back before it returns
        try:
            self._launch(number, envelope)
        finally:
            self._changed.acquire()

    def _left(self) -> float:
        """Seconds until the oldest message is overdue."""
        begun = min(when for when, _ in self._flying.values())
        return begun + self._deadline_seconds - self._clock()

    def _bytes(self) -> int:
        return sum(size for _, size in self._flying.values())


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
