"""Callbacks that are called in any case: by the client, or when its time is up."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

__all__ = ["Deadlines", "Ticket"]

_log = logging.getLogger(__name__)

_KEPT = 64  # that were called may stay for a while: to look at each send would cost more

Callback = Callable[[Any, Any], object]


class Ticket:
    """A callback, called once; what it raises is logged, since in the client's thread it would end the process."""

    __slots__ = ("_callback", "due", "late")

    def __init__(self, callback: Callback) -> None:
        self._callback = [callback]  # whoever takes it out calls it
        self.due = 0.0
        self.late: Callable[[], None] | None = None

    @property
    def open(self) -> bool:
        """Whether it was not called yet."""
        return bool(self._callback)

    def expire(self, result: Any, message_id: Any) -> None:
        """Its time is up: call ``late``, if there is one, and then the callback."""
        if self.open and self.late is not None:
            self.late()
        self(result, message_id)

    def __call__(self, result: Any, message_id: Any) -> None:
        """Call it, unless that was done."""
        try:
            callback = self._callback.pop()
        except IndexError:
            return
        try:
            callback(result, message_id)
        except Exception:
            _log.exception("the callback of a send failed")


class Deadlines:
    """Watches over tickets in a thread of its own, which is there from the first one on.

    Args:
        seconds: From `watch` to the end of patience.
        overdue: What a ticket is called with then.
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
        """Begin to count."""
        ticket.due = self._clock() + self._seconds
        watched = self._watched
        watched.append(ticket)
        if self._thread is None:
            self._start()
        elif len(watched) > _KEPT and not watched[0].open:
            self._forget_called()

    def close(self) -> None:
        """End the thread; tickets that are open stay so."""
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
