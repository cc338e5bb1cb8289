"""Sends that end, whatever the broker answers: errors, deadlines, in-flight window, payloads of several messages."""

from __future__ import annotations

import atexit
import contextlib
import copy
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, InvalidStateError, wait
from typing import TYPE_CHECKING, Any

from claimcheck._send.classification import classifier
from claimcheck._send.outbound import Outbound, SendLedger
from claimcheck._validation import check_type
from claimcheck._wire.envelope import Envelope
from claimcheck.errors import TransportError
from claimcheck.transports._common.delegation import RollbackWorker
from claimcheck.transports.pulsar._message import WholeMessageId, nowhere
from claimcheck.transports.pulsar._queries import vendor

if TYPE_CHECKING:
    import pulsar

    SendCallback = Callable[[pulsar.Result, pulsar.MessageId], object]
    """Receives the result of a send and the message id."""

_log = logging.getLogger(__name__)
_QUEUE_IS_FULL = "ProducerQueueIsFull"
_ABORT_SECONDS = 5.0
_EXIT_SECONDS = 5.0
_KEPT = 64  # called tickets that may stay in the queue: a check at each send would cost more
_NOT_FOR_CHUNKS = ("sequence_id", "deliver_at", "deliver_after")

_flushing: dict[threading.Thread, pulsar.Producer] = {}  # the native producers that threads are flushing


# Errors --------------------------------------------------------------------------------------------------------------


# Raised before the message was stored. After timeouts, lost connections and on a closed producer, messages were found
# in the topic.
_REFUSALS = {
    "AuthenticationError", "AuthorizationError", "CryptoError", "IncompatibleSchema", "InvalidConfiguration",
    "InvalidMessage", "InvalidTopicName", "InvalidUrl", "MemoryBufferIsFull", "MessageTooBig", "NotAllowedError",
    "OperationNotSupported", "ProducerBlockedQuotaExceededError", "ProducerBlockedQuotaExceededException",
    "ProducerNotInitialized", "ProducerQueueIsFull", "TopicNotFound", "TopicTerminated", "UnsupportedVersionError",
}  # fmt: skip

classify = classifier(
    {
        ("pulsar", "PulsarException"): frozenset(_REFUSALS),
        **{("_pulsar", name): frozenset() for name in _REFUSALS},
        **{("builtins", name): frozenset() for name in ("TypeError", "ValueError")},  # about the arguments
    }
)


class SendDeadlineError(TransportError):
    """The broker did not answer in time; the message may be in the topic, and its stored payload is kept.

    The topic may have a lower limit than the producer knows about: the client retries forever then. Close the producer:
    until then the broker keeps dropping the connection that it shares with the client's other producers. For a payload
    in chunks this is the ``__cause__`` of a `PartialSendError`.
    """

    retryable = True


class ChunkArgumentError(TransportError, ValueError):
    """A payload in chunks was sent with an argument that chunks cannot have. Nothing was sent."""


def error_of(result: pulsar.Result) -> Exception:
    """Return the exception that a blocking call raises for a result that is not ``Ok``."""
    exceptions = vendor().exceptions
    error: Exception = getattr(exceptions, result.name, exceptions.PulsarException)(
        f"Pulsar error: Result{result.name}"
    )
    return error


# Deadlines -----------------------------------------------------------------------------------------------------------


class Ticket:
    """A callback that is called once. Its exceptions are logged: in the client's thread they would end the process."""

    __slots__ = ("_callback", "due")

    def __init__(self, callback: SendCallback) -> None:
        self._callback = [callback]  # the thread that pops it calls it
        self.due: float

    @property
    def open(self) -> bool:
        return bool(self._callback)

    def expire(self) -> None:
        """Call the callback with ``Result.Timeout``, unless it was called before."""
        self(vendor().Result.Timeout, nowhere())

    def __call__(self, result: pulsar.Result, message_id: pulsar.MessageId) -> None:
        """Call the callback, unless it was called before."""
        try:
            callback = self._callback.pop()
        except IndexError:
            return
        try:
            callback(result, message_id)
        except Exception:
            _log.exception("the callback of a send failed")


class BoundedProducer:
    """A native producer whose sends and flushes end. It is *lost* once a message has had no answer in time."""

    window_bytes = 16 << 20  # of one payload's chunks in flight; one message is always allowed

    def __init__(
        self, native: pulsar.Producer, deadline_seconds: float, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.topic: str = native.topic()
        self._native = native
        self._seconds = deadline_seconds
        self._clock = clock
        self._lost: Future[None] = Future()
        self._watched: deque[Ticket] = deque()  # oldest first
        self._forget_at = _KEPT
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()

    def send_async(
        self,
        content: bytes | None,
        callback: SendCallback,
        properties: dict[str, str] | None = None,
        partition_key: str | None = None,
        **options: Any,
    ) -> None:
        """Send; the callback is called once, with ``Result.Timeout`` if the broker does not answer in time."""
        ticket = Ticket(callback)
        self._native.send_async(content, ticket, properties=properties, partition_key=partition_key, **options)
        self.watch(ticket)

    def watch(self, ticket: Ticket) -> None:
        """Start the time of a ticket, which expires after ``deadline_seconds``."""
        ticket.due = self._clock() + self._seconds
        watched = self._watched
        watched.append(ticket)
        if self._thread is None:
            self._start()
        elif len(watched) > self._forget_at:
            self._oldest_open()
            self._forget_at = len(watched) + _KEPT

    def lose(self) -> None:
        """Record that a message has had no answer in time: the client sends nothing after it."""
        with contextlib.suppress(InvalidStateError):  # already lost
            self._lost.set_result(None)

    @property
    def is_lost(self) -> bool:
        return self._lost.done()

    def error_of(self, result: pulsar.Result) -> Exception:
        """Return the exception for a result that is not ``Ok``."""
        if not self.is_lost or result.name != "Timeout":
            return error_of(result)
        advice = "the topic may have a lower limit than the producer: set max_message_bytes, see ask_limit"
        return SendDeadlineError(f"{self.topic}: no answer in {self._seconds:g} s; {advice}", destination=self.topic)

    def flush(self) -> None:
        """Wait until all sent messages are in the topic."""
        if not self._lost.done():
            flushed = _flush_in_thread(self._native)
            wait((flushed, self._lost), return_when=FIRST_COMPLETED)
            if flushed.done():
                flushed.result()
                return
        raise SendDeadlineError(f"{self.topic}: a message has no answer, and none can be sent after it")

    def close(self) -> None:
        """Flush, unless the producer is lost, and close it. Errors of the flush were reported to the senders."""
        with contextlib.suppress(vendor().exceptions.PulsarException, SendDeadlineError):
            self.flush()
        try:
            self._native.close()
        finally:
            with self._lock:
                thread, self._thread = self._thread, None
            self._stop.set()
            if thread is not None and thread is not threading.current_thread():
                thread.join()
            for ticket in tuple(self._watched):
                ticket.expire()

    def _start(self) -> None:
        with self._lock:
            if self._thread is None and not self._stop.is_set():
                self._thread = threading.Thread(target=self._run, name="claimcheck-pulsar-deadlines", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        pause = self._seconds
        while not self._stop.wait(pause):
            while (ticket := self._oldest_open()) is not None and ticket.due <= self._clock():
                self.lose()
                ticket.expire()
            pause = self._seconds if ticket is None else max(0.0, min(ticket.due - self._clock(), self._seconds))

    def _oldest_open(self) -> Ticket | None:
        """Return the oldest ticket that was not called, and forget those before it."""
        with self._lock:
            while self._watched and not self._watched[0].open:
                self._watched.popleft()
            return self._watched[0] if self._watched else None


def _flush_in_thread(producer: pulsar.Producer) -> Future[None]:
    """Start to flush in a thread, which is abandoned if the producer gets lost."""
    flushed: Future[None] = Future()

    def flush() -> None:
        error: Exception | None = None
        try:
            producer.flush()
        except Exception as caught:
            error = caught
        del _flushing[threading.current_thread()]
        flushed.set_exception(error) if error is not None else flushed.set_result(None)

    thread = threading.Thread(target=flush, name="claimcheck-pulsar-flush", daemon=True)
    _flushing[thread] = producer
    thread.start()
    return flushed


@atexit.register
def _end_flushes() -> None:
    """End the flushes that still wait: the interpreter aborts if it exits while threads are inside the client."""
    for thread, producer in list(_flushing.items()):
        if thread.is_alive():  # a forked child has the entry, but not the thread
            with contextlib.suppress(Exception):
                producer.close()
            thread.join(_EXIT_SECONDS)


# Payloads ------------------------------------------------------------------------------------------------------------


class InFlightWindow:
    """Sends messages and records their results in a ledger."""

    def __init__(
        self, producer: BoundedProducer, options: Mapping[str, object] | None = None, ledger: SendLedger | None = None
    ) -> None:
        self._producer = producer
        self._options = options or {}
        self._ledger = ledger or SendLedger()
        self._changed = threading.Condition()
        self._in_flight: dict[int, int] = {}  # sizes
        self._closed = False
        self.on_finished: Callable[[], None] = lambda: None
        self.launched = 0
        self.result: pulsar.Result | None = None

    def launch(self, envelope: Envelope) -> None:
        room = self._producer.window_bytes - len(envelope.data or b"")
        with self._changed:
            self._wait(lambda: not self._in_flight or sum(self._in_flight.values()) <= room)
            number = self._ledger.launched()
        while not self._is_passed(number, envelope):
            continue
        self.launched += 1

    def wait(self) -> list[pulsar.MessageId]:
        """Wait until every message is in the topic, and return their ids in order."""
        with self._changed:
            self._wait(lambda: not self._in_flight)
        return self._ledger.results

    def settle(self) -> None:
        """After an error, wait for the results of the messages in flight, which a lost producer does not get."""
        with self._changed:
            while self._in_flight and not self._producer.is_lost:
                self._changed.wait()

    def close(self) -> None:
        """Stop launching; ``on_finished`` may be called from now on."""
        with self._changed:
            self._closed = True
            done = not self._in_flight
        if done:
            self.on_finished()

    def _is_passed(self, number: int, envelope: Envelope) -> bool:
        """Pass a message to the client; returns false once there is room again in a queue that was full of ours."""
        is_passing, is_rejected = True, False

        def callback(result: pulsar.Result, message_id: pulsar.MessageId) -> None:
            nonlocal is_rejected  # reported before the client's call returns
            is_rejected = is_passing and others > 0 and result.name == _QUEUE_IS_FULL
            if not is_rejected:
                self._record(number, result, message_id)

        with self._changed:
            others = len(self._in_flight)
            self._in_flight[number] = len(envelope.data or b"")
        try:
            self._send(envelope, callback)
        except BaseException as error:
            with self._changed:
                self._in_flight.pop(number, None)
                self._ledger.failed(number, error)
            raise
        is_passing = False
        if is_rejected:
            with self._changed:
                del self._in_flight[number]
                self._ledger.postponed(number)
                self._wait(lambda: len(self._in_flight) < others)
                self._ledger.resumed(number)
        return not is_rejected

    def _send(self, envelope: Envelope, callback: SendCallback) -> None:
        """Pass one message to the client, which accepts only ``bytes``."""
        data = envelope.data
        if data is not None and type(data) is not bytes:
            data = bytes(data)
        self._producer.send_async(data, callback, envelope.headers, envelope.key, **self._options)

    def _record(self, number: int, result: pulsar.Result, message_id: pulsar.MessageId) -> None:
        """Record a result, in the client's thread: an exception here would end the process."""
        with self._changed:
            self._in_flight.pop(number, None)
            if result.name == "Ok":  # several times as fast as a comparison of the members
                self._ledger.acknowledged(number, message_id)
            else:
                self.result = self.result or result
                self._ledger.failed(number, self._producer.error_of(result))
            done = self._closed and not self._in_flight
            self._changed.notify_all()
        if done:
            self.on_finished()

    def _wait(self, ready: Callable[[], bool]) -> None:
        while self._ledger.error is None and not ready():
            self._changed.wait()
        if self._ledger.error is not None:
            raise self._ledger.error


class PayloadSend(InFlightWindow):
    """One payload. Call either `launch_all` and `finish`, or `launch_for`, once."""

    def __init__(
        self, producer: BoundedProducer, rollbacks: RollbackWorker, out: Outbound, options: Mapping[str, object]
    ) -> None:
        super().__init__(producer, options, out.ledger)
        self._rollbacks = rollbacks
        self._out = out

    def launch_all(self) -> None:
        """Pass all messages to the client, each when there is room for it. Raises as `finish`."""
        with self._breaking_off():
            self._launch_all()

    def finish(self) -> pulsar.MessageId | WholeMessageId:
        """Wait until all messages are in the topic, and return the payload's id."""
        with self._breaking_off():
            ids = self.wait()
        self._out.finish()
        return self._id(ids)

    def drop(self) -> None:
        """Delete the stored payload instead of launching it."""
        with contextlib.suppress(Exception):  # was logged; the stored payload expires
            self._out.settle(None)

    def launch_for(self, callback: SendCallback) -> None:
        """Pass all messages to the client; the callback is called when the last of them has its result."""
        self.on_finished = lambda: self._finish(Ticket(callback))
        try:
            self._launch_all()
        except BaseException as error:
            if not self.launched or not isinstance(error, Exception):  # the callback will not be called
                self._break_off(error)
                raise
            self._out.ledger.stopped(error)
        self.close()

    def _launch_all(self) -> None:
        refused = [name for name in _NOT_FOR_CHUNKS if name in self._options]
        if refused and self._out.uuid is not None:
            text = f"{', '.join(refused)}: not possible for a payload in {self._out.total} chunks"
            raise ChunkArgumentError(f"{text}; use strategy external")
        for envelope in self._out.messages:
            self.launch(envelope)

    @contextlib.contextmanager
    def _breaking_off(self) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            self._break_off(error)
            raise

    def _break_off(self, error: BaseException) -> None:
        if isinstance(error, Exception):
            self.settle()
        self._out.break_off(error, lambda abort: self._send_abort(abort, error))

    def _send_abort(self, abort: Envelope, error: BaseException | None) -> None:
        """Send an abort envelope, and wait for the broker for a short time."""
        answered = threading.Event()
        self._send(abort, lambda result, message_id: answered.set())
        # After an interrupt the program should end, and a lost producer gets no answer.
        if isinstance(error, Exception) and not isinstance(error, SendDeadlineError):
            answered.wait(_ABORT_SECONDS)

    def _finish(self, ticket: Ticket) -> None:
        """Finish in the client's thread, which must neither wait nor raise."""
        if self._out.ledger.error is None:
            self._out.finish()
            ticket(vendor().Result.Ok, self._id(self._out.ledger.results))
            return
        if isinstance(self._out.ledger.error, SendDeadlineError):
            self._out.finish()  # nothing is deleted, and a lost producer sends no abort envelope
        else:
            self._rollbacks.submit(self._failed)
        ticket(self.result or vendor().Result.UnknownError, nowhere())

    def _failed(self) -> None:
        self._out.tell_readers(lambda abort: self._send_abort(abort, self._out.ledger.error))
        self._out.finish()

    def _id(self, ids: list[pulsar.MessageId]) -> pulsar.MessageId | WholeMessageId:
        topic = self._producer.topic
        if any(message_id.ledger_id() < 0 for message_id in ids):
            _log.warning("%s: stored, but the broker's deduplication returned no position; the id has none", topic)
        return ids[0] if self._out.uuid is None else WholeMessageId.of_sent(ids, topic)


def without_schema(producer: pulsar.Producer) -> pulsar.Producer:
    """Return a native producer that sends encoded bytes through the same connection."""
    check_type("producer", producer, valid=hasattr(producer, "_producer"), expected="a pulsar.Producer")
    raw = copy.copy(producer)
    raw._schema = vendor().schema.BytesSchema()
    return raw
