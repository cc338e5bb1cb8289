"""What the wrappers of native clients share: delegated and closing methods, coroutines, and a thread for rollbacks."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor, wait
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Concatenate, Generic, ParamSpec, Self, TypeVar

B = TypeVar("B")
P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

_log = logging.getLogger(__name__)


class Delegated:
    """Has the methods and properties of a native object that are named in ``delegated``."""

    __slots__ = ()

    delegated: ClassVar[frozenset[str]] = frozenset()

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...

    def __init_subclass__(cls) -> None:
        """Add the properties; a method `__getattr__` would make every attribute of the wrappers slower."""
        super().__init_subclass__()
        for name in cls.delegated:
            if not hasattr(cls, name):
                setattr(cls, name, cls._delegating(name))

    @classmethod
    def _delegating(cls, name: str) -> property:
        return property(lambda self: getattr(self._delegate(), name))

    def _delegate(self) -> Any:
        return self._native


class Closing:
    """A context manager that calls `close` on exit."""

    def close(self) -> object:
        """Release all resources."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class AsyncWrapper(Delegated, Generic[B]):
    """The twin of a blocking wrapper on an event loop; an asynchronous context manager that awaits `close` on exit."""

    _blocking: B
    _closing: asyncio.Task[None] | None = None

    async def close(self) -> None:
        """Release all resources, after a flush if this is a producer. Closing a second time does nothing.

        If the calling task is cancelled, closing continues in the background; another call waits for it.
        """
        task = self._closing
        if task is None or (task.done() and (task.cancelled() or task.exception() is not None)):
            task = self._closing = asyncio.ensure_future(self._close())
        await asyncio.shield(task)

    async def _close(self) -> None:
        raise NotImplementedError

    def _call(self, work: Callable[[], T]) -> Awaitable[T]:
        """Call ``work`` in a thread."""
        raise NotImplementedError

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def _delegate(self) -> B:
        return self._blocking

    def __repr__(self) -> str:
        return f"<Async{repr(self._blocking)[1:]}"


def off_the_loop(method: Callable[Concatenate[Any, P], R]) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, R]]:
    """Return a coroutine method with the parameters and the docstring of a blocking one."""

    @functools.wraps(method)
    async def call(self: AsyncWrapper[Any], /, *args: P.args, **kwargs: P.kwargs) -> R:
        work: Callable[[], R] = functools.partial(getattr(self._blocking, method.__name__), *args, **kwargs)
        return await self._call(work)

    return call


class RollbackWorker:
    """A single thread for the work that follows a failed send; started at first use."""

    def __init__(self) -> None:
        self._thread = _one_thread()
        self._pending: set[Future[None]] = set()

    def submit(self, work: Callable[[], None]) -> None:
        """Run ``work`` in the thread; errors are logged."""
        future = self._thread.submit(_logged, work)
        self._pending.add(future)
        future.add_done_callback(self._pending.discard)

    def wait(self) -> None:
        wait(list(self._pending))

    def close(self) -> None:
        """Wait for submitted work, and stop the thread; work that is submitted later has another one."""
        thread, self._thread = self._thread, _one_thread()
        thread.shutdown()


def _one_thread() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, thread_name_prefix="claimcheck-rollback")


def _logged(work: Callable[[], None]) -> None:
    try:
        work()
    except Exception:
        _log.exception("cleanup after a failed send failed")
