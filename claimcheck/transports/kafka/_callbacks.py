"""Serves a producer's delivery reports, and loses none when the producer is at its end."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

__all__ = ["Serving"]

_STEP_SECONDS = 0.1


class Serving:
    """Polls a producer.

    What is raised there, by the client at its end or by a user's callback, is not lost: the next `poll` or `flush` of
    the user's raises it. The client's own ``flush`` calls callbacks with an exception pending, which breaks them: their
    reports are lost.

    Args:
        native: A `confluent_kafka.Producer`.
        clock: Seconds, monotonic.
    """

    def __init__(self, native: Any, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._native = native
        self._clock = clock
        self._raised: Exception | None = None

    def poll(self, seconds: float) -> int:
        """Serve what is there, or what comes within this time, negative for ever; gives the number of events.

        Raises:
            Exception: A callback's own, or the client's, for example at its end; once each.
        """
        count = self.quietly(seconds)
        self._say()
        return count

    def flush(self, seconds: float) -> int:
        """Serve until every record has its report, or time is up; gives the number of those without one.

        Raises:
            Exception: A callback's own, or the client's, for example at its end; once each.
        """
        end = None if seconds < 0 else self._clock() + seconds
        self.quietly(0)
        while (left := len(self._native)) and (end is None or self._clock() < end):
            self.quietly(_STEP_SECONDS if end is None else min(_STEP_SECONDS, max(0.0, end - self._clock())))
        self._say()
        return int(left)

    def quietly(self, seconds: float) -> int:
        """Serve, and keep what is raised for the user's own `poll` or `flush`.

        Raises:
            KeyboardInterrupt: The client was interrupted, of which it tells nothing but that it failed.
        """
        try:
            return int(self._native.poll(seconds))
        except Exception as error:
            if isinstance(error, SystemError) and "without setting an exception" in str(error):
                raise KeyboardInterrupt from error
            self._raised = self._raised or error
            return 0

    def _say(self) -> None:
        raised, self._raised = self._raised, None
        if raised is not None:
            raise raised
