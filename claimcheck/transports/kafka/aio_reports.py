"""The futures of records that are on their way, whichever thread brings their delivery reports."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

from claimcheck.transports.kafka.errors import exception_of

__all__ = ["Reports"]

Delivered = Callable[[Any, Any], None]


class Reports:
    """Keeps the futures, and has reports served as long as any of them is open.

    Args:
        serve: Serves the producer once, for a short while, off the loop.
    """

    def __init__(self, serve: Callable[[], Awaitable[Any]]) -> None:
        self._serve = serve
        self._loop = asyncio.get_running_loop()
        self._open = 0
        self._none_open = asyncio.Event()
        self._none_open.set()
        self._settled: deque[tuple[asyncio.Future[Any], Exception | None, Any]] = deque()
        self._awake = False
        self._pump: asyncio.Task[None] | None = None

    def expect(self) -> tuple[asyncio.Future[Any], Delivered]:
        """Open a future for one record; gives it, and what the client is to call with the record's report."""
        future = self._loop.create_future()
        self._open += 1
        self._none_open.clear()
        return future, functools.partial(self._delivered, future)

    @contextlib.contextmanager
    def answering(self, future: asyncio.Future[Any]) -> Iterator[None]:
        """What becomes of a record is said by its future; what is wrong with the call itself is raised. Any thread."""
        try:
            yield
        except (TypeError, ValueError, RuntimeError):
            self._settle(future, None, None)
            raise
        except Exception as error:
            self._settle(future, error, None)
        except BaseException:  # whoever waited for it is gone
            self._settle(future, None, None)
            raise

    def serve(self) -> None:
        """Have reports served from now on until no future is open."""
        if self._pump is None and self._open:
            self._pump = self._loop.create_task(self._serve_all())

    async def wait(self, timeout: float) -> int:
        """Wait until no future is open, or time is up, negative for never; gives how many are."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._none_open.wait(), None if timeout < 0 else timeout)
        return self._open

    # Within ----------------------------------------------------------------------------------------------------

    async def _serve_all(self) -> None:
        try:
            while self._open:
                await self._serve()
        finally:
            self._pump = None

    def _delivered(self, future: asyncio.Future[Any], error: Any, report: Any) -> None:
        self._settle(future, None if error is None else exception_of(error), report)

    def _settle(self, future: asyncio.Future[Any], error: Exception | None, report: Any) -> None:
        """In any thread; many reports wake the loop once."""
        self._settled.append((future, error, report))
        if not self._awake:
            self._awake = True
            with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile
                self._loop.call_soon_threadsafe(self._settle_all)

    def _settle_all(self) -> None:
        self._awake = False  # before the last look, so that what comes behind it wakes the loop again
        while self._settled:
            future, error, report = self._settled.popleft()
            self._open -= 1
            if future.done():  # its owner cancelled it
                continue
            if error is None:
                future.set_result(report)
            else:
                future.set_exception(error)
        if not self._open:
            self._none_open.set()
