"""Sends a payload that was stored or cut into chunks: in-flight window, results, failures."""

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
from claimcheck._validation import check_type
from claimcheck.transports._common.rollback_worker import RollbackWorker
from claimcheck.transports.pulsar._deadlines import SendCallback, Ticket, no_id
from claimcheck.transports.pulsar._errors import SendDeadlineError, error_of, vendor
from claimcheck.transports.pulsar._message_ids import WholeMessageId
from claimcheck.transports.pulsar._send_options import check_options

__all__ = ["InFlightWindow", "PayloadSend", "SendSettings", "without_schema"]

_log = logging.getLogger(__name__)
_QUEUE_IS_FULL = "ProducerQueueIsFull"
_ABORT_SECONDS = 5.0


class InFlightWindow:
    """Sends messages and records their results in a ledger. One thread launches; the client's thread reports results.

    Args:
        send: Passes one envelope to the client, with a callback for the result and the id.
        topic: For error texts.
        window_bytes: The most bytes in flight at once; one message is always allowed.
        deadline_seconds: For each message, from its launch.
        ledger: Of the payload; its results are message ids.
        landed: Called by the client's thread when the last message has its result, after `close`.
        late: Called when a message has had no answer in time.
        clock: Seconds, monotonic.
    """

    def __init__(
        self,
        send: Callable[[Envelope, SendCallback], None],
        *,
        topic: str,
        window_bytes: int,
        deadline_seconds: float,
        ledger: SendLedger | None = None,
        landed: Callable[[], None] | None = None,
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
        self._flying: dict[int, tuple[float, int]] = {}  # launch time and size
        self._again: list[tuple[int, Envelope, int]] = []  # refused: the client's queue was full, with so many of ours
        self._closed = False
        self.launched = 0  # messages that the client accepted
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
        """Wait until every message is in the topic, and return their ids in order.

        Raises:
            SendDeadlineError: One has no answer.
            Exception: The first error of a message; all others have their results, too, or are overdue.
        """
        with self._changed:
            self._wait(lambda: not self._flying)
        return self._ledger.results

    def drain(self) -> None:
        """Wait until the client has accepted all messages. Raises as `launch` does."""
        with self._changed:
            self._wait(lambda: True)

    def settle(self) -> None:
        """After an error: wait for the results of the messages in flight, until they are overdue."""
        with self._changed:
            while self._flying and (left := self._left()) > 0:
                self._changed.wait(left)
            if self._flying:
                self._on_late()

    def close(self) -> None:
        """Declare that nothing more will be launched; ``landed`` may be called from now on."""
        with self._changed:
            self._closed = True
            done = not self._flying
        if done and self._on_landed is not None:
            self._on_landed()

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
        """Record a result, in the client's thread: an exception here would end the process."""
        with self._changed:
            self._flying.pop(number, None)
            if result.name == "Ok":  # several times as fast as a comparison of the members
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
            self._on_landed()

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
        return min(when for when, _ in self._flying.values()) + self._deadline_seconds - self._clock()

    def _bytes(self) -> int:
        return sum(size for _, size in self._flying.values())


@dataclass(frozen=True, slots=True)
class SendSettings:
    """What all sends of one producer have in common.

    Attributes:
        raw: The native producer without its schema.
        topic: Its topic.
        window_bytes: The most bytes of one payload's chunks that are in flight at once.
        deadline_seconds: For the answer to one message.
        undoing: Runs what the client's thread must not run.
        late: Called when a message has had no answer in time.
    """

    raw: Any
    topic: str
    window_bytes: int
    deadline_seconds: float
    undoing: RollbackWorker
    late: Callable[[], None]

    def window(
        self,
        options: Mapping[str, Any],
        ledger: SendLedger | None = None,
        landed: Callable[[], None] | None = None,
    ) -> InFlightWindow:
        """Open the window for one payload, whose messages are sent with these options."""
        return InFlightWindow(
            lambda envelope, callback: self.send_native(envelope, callback, options),
            topic=self.topic,
            window_bytes=self.window_bytes,
            deadline_seconds=self.deadline_seconds,
            ledger=ledger,
            landed=landed,
            late=self.late,
        )

    def send_native(self, envelope: Envelope, callback: SendCallback, options: Mapping[str, Any]) -> None:
        """Pass one message to the client, which accepts no other bytes-like objects than ``bytes``."""
        data = envelope.data
        if data is not None and type(data) is not bytes:
            data = bytes(data)
        self.raw.send_async(data, callback, properties=envelope.headers, partition_key=envelope.key, **options)


class PayloadSend:
    """One payload. Call either `launch` and `wait`, or `launch_for`, once.

    Args:
        settings: Of the producer.
        out: The payload's messages, as the strategy made them.
        options: Of the send.
    """

    def __init__(self, settings: SendSettings, out: Outbound, options: Mapping[str, Any]) -> None:
        self._settings = settings
        self._out = out
        self._options = options
        self._window = settings.window(options, out.ledger)

    def launch(self) -> None:
        """Pass all messages to the client, chunks one by one as earlier ones land. Raises as `wait`."""
        with self._breaking_off():
            self._launch_all()

    def wait(self) -> Any:
        """Wait until all messages are in the topic, and return the payload's id.

        Raises:
            PartialSendError: Some chunks are or may be in the topic; an abort envelope followed if it could be sent.
            Exception: The client's own; what was stored is deleted if the send definitely failed.
        """
        with self._breaking_off():
            ids = self._window.wait()
        self._out.finish()
        return self._id(ids)

    def drop(self) -> None:
        """Delete what was stored, instead of launching it."""
        with contextlib.suppress(Exception):  # was logged; the stored payload expires
            self._out.settle(None)

    def launch_for(self, ticket: Ticket) -> None:
        """Pass all messages to the client; the ticket is called when the last of them has its result.

        Raises:
            Exception: Nothing was launched, and the ticket is not called; nor is it after a `KeyboardInterrupt`.
        """
        window = self._window = self._settings.window(
            self._options, self._out.ledger, landed=lambda: self._landed(ticket)
        )
        ticket.late = self._late
        try:
            self._launch_all()
        except BaseException as error:
            if not window.launched or not isinstance(error, Exception):  # the ticket will not be called
                self._break_off(error)
                raise
            self._out.ledger.stopped(error)
        window.close()

    def _launch_all(self) -> None:
        check_options(self._out, self._options)
        for envelope in self._out.messages:
            self._window.launch(envelope)
        self._window.drain()

    @contextlib.contextmanager
    def _breaking_off(self) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            self._break_off(error)
            raise

    def _break_off(self, error: BaseException) -> None:
        if isinstance(error, Exception):
            self._window.settle()
        # After an interrupt the program is to end, and a lost producer gets no answer to the abort envelope either.
        waits = isinstance(error, Exception) and not isinstance(error, SendDeadlineError)
        self._out.break_off(error, lambda abort: self._send_abort(abort, _ABORT_SECONDS if waits else 0))

    def _send_abort(self, abort: Envelope, seconds: float = _ABORT_SECONDS) -> None:
        answered = threading.Event()
        self._settings.send_native(abort, lambda result, message_id: answered.set(), self._options)
        answered.wait(seconds)

    def _landed(self, ticket: Ticket) -> None:
        """Finish, in the client's thread, which must neither wait nor see an exception."""
        if self._out.ledger.error is None:
            self._out.finish()
            ticket(vendor().Result.Ok, self._id(self._out.ledger.results))
            return
        self._settings.undoing.submit(self._failed)
        ticket(self._window.result or vendor().Result.UnknownError, no_id())

    def _failed(self) -> None:
        self._out.tell_readers(self._send_abort)
        self._out.finish()

    def _late(self) -> None:
        """Finish in the thread of the deadlines: the ticket expired."""
        text = f"{self._settings.topic}: no answer in {self._settings.deadline_seconds:g} s"
        self._out.ledger.stopped(SendDeadlineError(text, destination=self._settings.topic))
        self._out.finish()

    def _id(self, ids: list[Any]) -> Any:
        topic = self._settings.topic
        if any(message_id.ledger_id() < 0 for message_id in ids):
            _log.warning("%s: stored, but the broker's deduplication did not say where; the id has no place", topic)
        return ids[0] if self._out.uuid is None else WholeMessageId.of_sent(tuple(ids), topic)


def without_schema(producer: Any) -> Any:
    """Return the same native producer for bytes that are encoded already."""
    pulsar = vendor()
    check_type("producer", producer, valid=hasattr(producer, "_producer"), expected="a pulsar.Producer")
    raw = pulsar.Producer()
    raw._producer, raw._schema, raw._client = producer._producer, pulsar.schema.BytesSchema(), producer._client
    return raw
