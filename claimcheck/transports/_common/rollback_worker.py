"""Runs rollbacks and abort envelopes off the client's callback thread, which must neither block nor raise."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait

_log = logging.getLogger(__name__)


class RollbackWorker:
    """A single thread for the work that follows a failed send; started at first use."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._thread: ThreadPoolExecutor | None = None
        self._pending: set[Future[None]] = set()

    def submit(self, work: Callable[[], None]) -> None:
        """Run ``work`` in the thread; errors are logged."""
        with self._lock:
            if self._thread is None:
                self._thread = ThreadPoolExecutor(1, thread_name_prefix="claimcheck-rollback")
            future = self._thread.submit(_logged, work)
            self._pending.add(future)
        future.add_done_callback(self._pending.discard)

    def wait(self) -> None:
        """Wait until all submitted work is done."""
        wait(list(self._pending))

    def close(self) -> None:
        """Wait for submitted work, and stop the thread."""
        with self._lock:
            thread, self._thread = self._thread, None
        if thread is not None:
            thread.shutdown()


def _logged(work: Callable[[], None]) -> None:
    try:
        work()
    except Exception:
        _log.exception("cleanup after a failed send failed")
