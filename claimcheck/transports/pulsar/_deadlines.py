"""Sends and flushes that end although the broker never answers: the client itself would wait for ever."""

from __future__ import annotations

import atexit
import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from claimcheck.transports.pulsar._errors import SendDeadlineError, vendor

__all__ = ["BoundedProducer", "Deadlines", "SendCallback", "Ticket", "no_id"]

_log = logging.getLogger(__name__)

_KEPT = 64  # called tickets that may stay in the queue: a check at each send would cost more
_EXIT_SECONDS = 5.0

_flushing: dict[threading.Thread, Any] = {}  # the native producers that threads are flushing

SendCallback = Callable[[Any, Any], object]
"""Receives a `pulsar.Result` and a message id."""


class Ticket:
    """A callback that is called once. Its exceptions are logged: in the client's thread they would end the process."""

    __slots__ = ("_callback", "due", "late")

    def __init__(self, callback: SendCallback) -> None:
        self._callback = [callback]  # the thread that pops it calls it
        self.due = 0.0
        self.late: Callable[[], None] | None = None

    @property
    def open(self) -> bool:
        """Whether the callback was not called yet."""
        return bool(self._callback)

    def expire(self, result: Any, message_id: Any) -> None:
        """Call ``late``, if it is set, and then the callback: its time is up."""
        if self.open and self.late is not None:
            self.late()
        self(result, message_id)

    def __call__(self, result: Any, message_id: Any) -> None:
        """Call the callback, unless it was called before."""
        try:
            callback = self._callback.pop()
        except IndexError:
            return
        try:
            callback(result, message_id)
        except Exception:
            _log.exception("the callback of a send failed")


class Deadlines:
    """Expires tickets, in a thread that the first ticket starts.

    Args:
        seconds: From `watch` until a ticket expires.
        overdue: Returns the result and the message id to call an expired ticket with.
        clock: Seconds, monotonic.
    """

    def __init__(
        self, seconds: float, overdue: Callable[[], tuple[Any, Any]], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._seconds = seconds
        self._overdue = overdue
        self._clock = clock
        self._watched: deque[Ticket] = deque()  # oldest first
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()

    def watch(self, ticket: Ticket) -> None:
        """Start the time of a ticket."""
        ticket.due = self._clock() + self._seconds
        watched = self._watched
        watched.append(ticket)
        if self._thread is None:
            self._start()
        elif len(watched) > _KEPT and not watched[0].open:
            self._forget_called()

    def close(self) -> None:
        """End the thread; open tickets do not expire any more."""
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
        while not self._stop.wait(self._pause()):
            self._forget_called()
            while (ticket := self._first()) is not None and ticket.due <= self._clock():
                ticket.expire(*self._overdue())
                self._forget_called()

    def _pause(self) -> float:
        ticket = self._first()
        return self._seconds if ticket is None else max(0.0, min(ticket.due - self._clock(), self._seconds))

    def _first(self) -> Ticket | None:
        try:
            return self._watched[0]
        except IndexError:
            return None

    def _forget_called(self) -> None:
        with self._lock:
            while self._watched and not self._watched[0].open:
                self._watched.popleft()


class BoundedProducer:
    """A native producer whose sends and flushes end. It is *lost* once a message has had no answer in time.

    Args:
        native: A native producer; its schema encodes what `send_async` sends.
        deadline_seconds: For the answer to one message.
    """

    def __init__(self, native: Any, deadline_seconds: float) -> None:
        self._native = native
        self._deadlines = Deadlines(deadline_seconds, self._overdue)
        self._changed = threading.Condition()
        self._lost = False
        self.watch = self._deadlines.watch

    def send_async(
        self,
        content: bytes | None,
        callback: SendCallback,
        properties: dict[str, str] | None = None,
        partition_key: str | None = None,
    ) -> None:
        """Send, and have the callback called once, with ``Result.Timeout`` if the broker does not answer in time."""
        ticket = Ticket(callback)
        self._native.send_async(content, ticket, properties=properties, partition_key=partition_key)
        self.watch(ticket)

    def lose(self) -> None:
        """Record that a message has had no answer in time: the client sends nothing after it."""
        with self._changed:
            self._lost = True
            self._changed.notify_all()

    def flush(self) -> None:
        """Wait until everything that was sent is in the topic.

        Raises:
            SendDeadlineError: The producer is lost.
            Exception: The client's own.
        """
        ended: list[Exception | None] = []
        if not self._lost:
            self._start_flush(ended)
        with self._changed:
            self._changed.wait_for(lambda: ended or self._lost)
        if not ended:
            raise SendDeadlineError(f"{self._native.topic()}: a message has no answer, and none can be sent after it")
        if ended[0] is not None:
            raise ended[0]

    def close(self) -> None:
        """Flush, unless the producer is lost, and close it. Errors of the flush were reported to the senders."""
        with contextlib.suppress(vendor().exceptions.PulsarException, SendDeadlineError):
            self.flush()
        try:
            self._native.close()
        finally:
            self._deadlines.close()

    def _start_flush(self, ended: list[Exception | None]) -> None:
        """Flush in a thread, which may have to be left behind.

        The client's ``flush_async`` would need no thread, but it waits for the producer's lock while it holds the GIL,
        and the thread that ends a batch holds that lock and waits for the GIL: a deadlock.
        """
        thread = threading.Thread(target=self._flush, args=(ended,), name="claimcheck-pulsar-flush", daemon=True)
        _flushing[thread] = self._native
        thread.start()

    def _flush(self, ended: list[Exception | None]) -> None:
        error: Exception | None = None
        try:
            self._native.flush()
        except Exception as caught:
            error = caught
        del _flushing[threading.current_thread()]
        with self._changed:
            ended.append(error)
            self._changed.notify_all()

    def _overdue(self) -> tuple[Any, Any]:
        self.lose()
        return vendor().Result.Timeout, no_id()


def no_id() -> Any:
    """The id of a message without a position."""
    return vendor().MessageId(-1, -1, -1, -1)._msg_id


@atexit.register
def _end_flushes() -> None:
    """End the flushes that still wait: the interpreter aborts if it ends while threads are within the client."""
    for thread, producer in list(_flushing.items()):
        if thread.is_alive():  # not so in a forked child, which has the entry only
            with contextlib.suppress(Exception):
                producer.close()
            thread.join(_EXIT_SECONDS)
