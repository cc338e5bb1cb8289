"""Sends and flushes that end even if the broker never answers; those of the client would wait forever."""

from __future__ import annotations

import atexit
import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, InvalidStateError, wait
from typing import TYPE_CHECKING

from claimcheck.transports.pulsar._errors import SendDeadlineError, vendor

if TYPE_CHECKING:
    import pulsar

    SendCallback = Callable[[pulsar.Result, pulsar.MessageId], object]
    """Receives the result of a send and the message id."""

_log = logging.getLogger(__name__)

_KEPT = 64  # called tickets that may stay in the queue: a check at each send would cost more
_EXIT_SECONDS = 5.0

_flushing: dict[threading.Thread, pulsar.Producer] = {}  # the native producers that threads are flushing


class Ticket:
    """A callback that is called once. Its exceptions are logged: in the client's thread they would end the process."""

    __slots__ = ("_callback", "due", "late")

    def __init__(self, callback: SendCallback) -> None:
        self._callback = [callback]  # the thread that pops it calls it
        self.late: Callable[[], None] | None = None  # called before the callback if the ticket expires
        self.due: float

    @property
    def open(self) -> bool:
        """Whether the callback was not called yet."""
        return bool(self._callback)

    def expire(self) -> None:
        """Call the callback with ``Result.Timeout``, unless it was called before."""
        if self.open and self.late is not None:
            self.late()
        self(vendor().Result.Timeout, no_id())

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

    def __init__(
        self, native: pulsar.Producer, deadline_seconds: float, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
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
    ) -> None:
        """Send; the callback is called once, with ``Result.Timeout`` if the broker does not answer in time."""
        ticket = Ticket(callback)
        self._native.send_async(content, ticket, properties=properties, partition_key=partition_key)
        self.watch(ticket)

    def watch(self, ticket: Ticket) -> None:
        """Start the time of a ticket, which expires after ``deadline_seconds``."""
        ticket.due = self._clock() + self._seconds
        watched = self._watched
        watched.append(ticket)
        if self._thread is None:
            self._start()
        elif len(watched) > self._forget_at:
            self._forget_called()
            self._forget_at = len(watched) + _KEPT

    def lose(self) -> None:
        """Record that a message has had no answer in time: the client sends nothing after it."""
        with contextlib.suppress(InvalidStateError):  # already lost
            self._lost.set_result(None)

    def flush(self) -> None:
        """Wait until all sent messages are in the topic."""
        if not self._lost.done():
            flushed = _flush_in_thread(self._native)
            wait((flushed, self._lost), return_when=FIRST_COMPLETED)
            if flushed.done():
                flushed.result()
                return
        raise SendDeadlineError(f"{self._native.topic()}: a message has no answer, and none can be sent after it")

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
        self._forget_called()
        try:
            return self._watched[0]
        except IndexError:
            return None

    def _forget_called(self) -> None:
        with self._lock:
            while self._watched and not self._watched[0].open:
                self._watched.popleft()


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


def no_id() -> pulsar.MessageId:
    """Return an id without a position."""
    return vendor().MessageId(-1, -1, -1, -1)._msg_id


@atexit.register
def _end_flushes() -> None:
    """End the flushes that still wait: the interpreter aborts if it exits while threads are inside the client."""
    for thread, producer in list(_flushing.items()):
        if thread.is_alive():  # a forked child has the entry, but not the thread
            with contextlib.suppress(Exception):
                producer.close()
            thread.join(_EXIT_SECONDS)
