"""Waiting for everything that is on its way, which the client would do for ever where a message gets no answer."""

from __future__ import annotations

import threading
from typing import Any

from claimcheck.transports.pulsar.errors import SendDeadlineError, error_of, vendor

__all__ = ["Flushing"]


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
        heard: list[Any] = []
        if not self._lost:
            self._native._producer.flush_async(lambda result: self._hear(heard, result))
        with self._changed:
            self._changed.wait_for(lambda: heard or self._lost)
        if not heard:
            raise SendDeadlineError(f"{self._native.topic()}: a message has no answer, and nothing passes it")
        if heard[0] != vendor().Result.Ok:
            raise error_of(heard[0])

    def _hear(self, heard: list[Any], result: Any) -> None:
        with self._changed:
            heard.append(result)
            self._changed.notify_all()
