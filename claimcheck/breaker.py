"""A circuit breaker for one store, with an injected clock.

Ours and not a library's because two things matter that those we know do not give: a clock that tests can turn, and a
single probe after the pause while all other threads go on without the store.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

__all__ = ["Breaker"]


class Breaker:
    """Closed: the store is asked. Open: it is not, until ``retry_after_seconds`` have passed; then one caller tries.

    Args:
        retry_after_seconds: The pause after a failure.
        clock: Seconds, monotonic.
    """

    def __init__(self, *, retry_after_seconds: float = 30.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._pause = retry_after_seconds
        self._clock = clock
        self._lock = threading.Lock()
        self._retry_at: float | None = None
        self._probe: int | None = None  # the thread that tries after the pause

    @property
    def is_open(self) -> bool:
        """Whether the last attempt failed."""
        return self._retry_at is not None

    def allows(self) -> bool:
        """Whether the caller may ask the store now; of several callers after the pause only one is told yes."""
        with self._lock:
            if self._retry_at is None:
                return True
            if self._clock() < self._retry_at:
                return False
            self._retry_at = self._clock() + self._pause
            self._probe = threading.get_ident()
            return True

    def give_back(self) -> None:
        """The single attempt after the pause, if this thread made it, said nothing: the next caller may try at once."""
        with self._lock:
            if self._retry_at is not None and self._probe == threading.get_ident():
                self._retry_at, self._probe = self._clock(), None

    def failed(self) -> bool:
        """Open; returns whether it was closed before."""
        with self._lock:
            was_closed = self._retry_at is None
            self._retry_at, self._probe = self._clock() + self._pause, None
            return was_closed

    def succeeded(self) -> bool:
        """Close; returns whether it was open before."""
        with self._lock:
            was_open, self._retry_at, self._probe = self._retry_at is not None, None, None
            return was_open
