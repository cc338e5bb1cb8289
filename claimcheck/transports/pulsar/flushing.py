"""Waiting for everything that is on its way, which the client would do for ever where a message gets no answer."""

from __future__ import annotations

import atexit
import contextlib
import threading
from typing import Any

from claimcheck.transports.pulsar.errors import SendDeadlineError

__all__ = ["Flushing"]

_LEAVE_SECONDS = 5.0

_waiting: dict[threading.Thread, Any] = {}  # on the client, for what was sent with these producers


class Flushing:
    """Flushes one producer, until it is lost.

    Args:
        producer: A native producer.
    """

    def __init__(self, producer: Any) -> None:
        self._native = producer
        self._changed = threading.Condition()
        self._lost = False

    def lose(self) -> None:
        """Say that a message has had no answer in time: the client will not get beyond it."""
        with self._changed:
            self._lost = True
            self._changed.notify_all()

    def wait(self) -> None:
        """Wait until everything that was sent is in the topic.

        Raises:
            SendDeadlineError: The producer is lost, or was lost meanwhile.
            Exception: The client's own.
        """
        heard: list[Exception | None] = []
        if not self._lost:
            self._start(heard)
        with self._changed:
            self._changed.wait_for(lambda: heard or self._lost)
        if not heard:
            raise SendDeadlineError(f"{self._native.topic()}: a message has no answer, and nothing passes it")
        if heard[0] is not None:
            raise heard[0]

    def _start(self, heard: list[Exception | None]) -> None:
        """Flush in a thread of its own, which may be left waiting.

        The client's ``flush_async`` needs none, but it waits for the producer's lock with the GIL in its hands, while
        the thread that ends a batch has that lock and waits for the GIL: the whole process stands still.
        """
        thread = threading.Thread(target=self._flush, args=(heard,), name="claimcheck-pulsar-flush", daemon=True)
        _waiting[thread] = self._native
        thread.start()

    def _flush(self, heard: list[Exception | None]) -> None:
        error: Exception | None = None
        try:
            self._native.flush()
        except Exception as caught:
            error = caught
        del _waiting[threading.current_thread()]
        with self._changed:
            heard.append(error)
            self._changed.notify_all()


@atexit.register
def _leave() -> None:
    """End what is still waited for: the interpreter aborts if it ends while threads are within the client."""
    for thread, producer in list(_waiting.items()):
        if thread.is_alive():  # not so in a forked child, which has the entry only
            with contextlib.suppress(Exception):
                producer.close()
            thread.join(_LEAVE_SECONDS)
