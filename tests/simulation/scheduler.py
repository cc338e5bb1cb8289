"""Runs everything in one thread: actors, callbacks, thread pools, event loops and time, in an order drawn from a seed.

Whatever blocks calls `Scheduler.wait`: other events run until it may go on, or the virtual clock reaches its timeout.
Models of clients and stores call `Scheduler.point` where a real one would let other threads run.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import functools
import gc
import heapq
import logging
import random
import threading
import types
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from claimcheck import _client, _opened, _registry, _threads, _validation
from claimcheck._send import strategies as _strategies
from claimcheck._store import contract as _store_contract
from claimcheck.transports._common import delegation
from claimcheck.transports.kafka import _producer as kafka_producer
from claimcheck.transports.pulsar import _producer, _send

Patch = tuple[Any, str, Any]
FOREVER = float("inf")
MOST_EVENTS = 20_000
DEEPEST = 6  # events inside of calls inside of events
_options_of = functools.cache(_validation.options_of)  # a configuration is checked once, and opened in each schedule


class HangError(BaseException):
    """Something waits for what will never happen."""


class CrashError(BaseException):
    """The process that makes this call has died; nothing that it does from now on has an effect."""


class Process:
    """A process with clients and stores, which may crash in any of their calls."""

    def __init__(self, scheduler: Scheduler, name: str, crashes: float) -> None:
        self.scheduler, self.name, self.crashes, self.alive = scheduler, name, crashes, True
        self._crash = f"crash of {name}"

    def check(self) -> None:
        """Raise if this process has died, or dies now."""
        if self.alive and self.crashes and self.scheduler.strikes(self._crash, self.crashes):
            self.alive = False
        if not self.alive:
            raise CrashError(self.name)


class Scheduler:
    """Draws every decision from one seed. ``dropped``: numbers of faults that do not happen in this run."""

    def __init__(self, seed: int, dropped: frozenset[int] = frozenset()) -> None:
        self.random = random.Random(seed)
        self._draw = self.random.random
        self.now = 1000.0
        self.is_faulty = True
        self.faults: list[str] = []
        self.violations: list[str] = []
        self._dropped = dropped
        self._events: list[tuple[float, Callable[[], object], bool]] = []
        self._count = self._depth = self._jobs = 0

    def clock(self) -> float:
        return self.now

    def chance(self, probability: float) -> bool:
        return self._draw() < probability

    def choice(self, values: Any) -> Any:
        return values[int(self._draw() * len(values))]

    def strikes(self, fault: str, probability: float) -> bool:
        """Whether a fault happens now. It is counted, and the minimizer drops those that are not needed."""
        if not (self.is_faulty and self._draw() < probability):
            return False
        self.faults.append(fault)
        return len(self.faults) - 1 not in self._dropped

    def violated(self, text: str) -> None:
        """Note what must not happen; raising it here would pass through the library."""
        self.violations.append(text)

    def later(self, event: Callable[[], object], seconds: float = 0.0) -> None:
        """Let an event happen after some time, in any order with the others that are due then."""
        self._events.append((self.now + seconds, event, False))

    def run_in_pool(
        self, begin: Callable[[], bool], work: Callable[[], Any], result: Callable[..., Any], error: Callable[..., Any]
    ) -> None:
        """Let a thread of a pool do something, unless it is cancelled before it begins."""

        def run() -> None:
            if not begin():
                return
            try:
                done = work()
            except HangError:
                raise
            except BaseException as failure:
                error(failure)
            else:
                result(done)

        self._events.append((self.now + self.choice((0.0, 0.0, 0.001, 0.02, 0.5)), run, True))

    def point(self) -> None:
        """Perhaps let one event happen here, inside a call of a client or a store.

        No job of a thread pool begins inside another one: it could wait for that one.
        """
        if self._events and self._depth < DEEPEST and self._draw() < 0.25:
            self._run_due(jobs=not self._jobs)

    def wait(self, ready: Callable[[], object], seconds: float | None = None) -> bool:
        """Let events happen until ``ready`` or for so long; returns whether it is ready."""
        end = FOREVER if seconds is None else self.now + seconds
        while not ready():
            if self.now >= end:
                return False
            if not self._run_due():
                due = min([end, *[due for due, _, _ in self._events]])
                if due == FOREVER:
                    raise HangError("nothing will happen any more")
                self.now = max(self.now, due)
        return True

    def _run_due(self, *, jobs: bool = True) -> bool:
        now = self.now
        due = [n for n, (at, _, is_job) in enumerate(self._events) if at <= now and (jobs or not is_job)]
        if not due:
            return False
        self._count += 1
        if self._count > MOST_EVENTS:
            raise HangError(f"{MOST_EVENTS} events, and no end")
        _, event, is_job = self._events.pop(self.choice(due))
        self._depth, self._jobs = self._depth + 1, self._jobs + is_job
        running = asyncio._get_running_loop()
        asyncio._set_running_loop(None)  # an event is not a part of the loop that waits for it
        try:
            event()
        finally:
            asyncio._set_running_loop(running)
            self._depth, self._jobs = self._depth - 1, self._jobs - is_job
        return True


# Threads, futures and event loops --------------------------------------------------------------------------------


class Executor:
    """Runs each call as an event."""

    def __init__(self, scheduler: Scheduler, *_: Any, **__: Any) -> None:
        self._scheduler, self._left = scheduler, 0

    def submit(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> concurrent.futures.Future[Any]:
        future: concurrent.futures.Future[Any] = concurrent.futures.Future()
        self._left += 1

        def begin() -> bool:
            self._left -= 1
            return future.set_running_or_notify_cancel()

        call = functools.partial(function, *args, **kwargs)
        self._scheduler.run_in_pool(begin, call, future.set_result, future.set_exception)
        return future

    def shutdown(self, wait: bool = True, **_: Any) -> None:
        if wait:
            self._scheduler.wait(lambda: not self._left)


class Loop(asyncio.BaseEventLoop):
    """An event loop that waits by letting events happen, without what takes asyncio's own time."""

    _ready: deque[asyncio.Handle]
    _scheduled: list[asyncio.TimerHandle]

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler, self.time = scheduler, scheduler.clock  # type: ignore[method-assign]
        super().__init__()

    def __del__(self, *_: Any) -> None:
        """Do not warn: it has nothing to close."""

    def call_soon(self, callback: Any, *args: Any, context: Any = None) -> Any:  # type: ignore[override]
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    def create_task(self, coroutine: Any, **options: Any) -> asyncio.Task[Any]:  # type: ignore[override]
        """Create a task about which nobody complains if its process dies."""
        task = asyncio.Task(coroutine, loop=self, **options)
        task._log_destroy_pending = False  # type: ignore[attr-defined]
        return task

    def run_in_executor(self, executor: Any, function: Any, *args: Any) -> asyncio.Future[Any]:  # type: ignore[override]
        future, ended = self.create_future(), list[Any]()
        future.add_done_callback(ended.append)
        results = (
            functools.partial(self.call_soon, settle, each) for each in (future.set_result, future.set_exception)
        )
        self.scheduler.run_in_pool(lambda: not ended, functools.partial(function, *args), *results)
        return future

    def run_until_complete(self, coroutine: Any) -> Any:
        done: list[Any] = []
        task = self.create_task(coroutine)
        task.add_done_callback(done.append)
        asyncio._set_running_loop(self)
        try:
            while not done:
                self._run_once()
        finally:
            asyncio._set_running_loop(None)
        return task.result()

    def _run_once(self) -> None:
        """Let other events happen, at least until a callback is due, and run those that are due now."""
        scheduler, ready, timers = self.scheduler, self._ready, self._scheduled
        while timers and timers[0].cancelled():
            heapq.heappop(timers)
        if ready or (timers and timers[0].when() <= scheduler.now):
            scheduler.point()
        else:
            scheduler.wait(lambda: ready, timers[0].when() - scheduler.now if timers else None)
        while timers and timers[0].when() < scheduler.now + 1e-9:
            ready.append(heapq.heappop(timers))
        for _ in range(len(ready)):
            handle = ready.popleft()
            if not handle.cancelled():
                handle._run()

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Note an exception that no task gets."""
        error = context.get("exception")
        if error is not None and not isinstance(error, CrashError):
            self.scheduler.violated(f"{context['message']}: {error!r}")

    def abandon(self) -> None:
        """Forget what is due, and errors that nobody gets: the process has died."""
        self._ready.clear()
        self.call_exception_handler = lambda context: None  # type: ignore[method-assign]


def settle(setter: Callable[[Any], None], result: Any) -> None:
    """Set a result or an exception of a future, unless that was cancelled."""
    with contextlib.suppress(asyncio.InvalidStateError):
        setter(result)


class _Event:
    """An event in one thread."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler, self._is_set = scheduler, False

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True

    def wait(self, timeout: float | None = None) -> bool:
        return self._scheduler.wait(self.is_set, timeout)


class _Condition:
    """A condition in one thread: whoever waits goes on after a notification."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler, self._notified = scheduler, 0

    def __enter__(self) -> None:
        pass

    __exit__ = acquire = release = lambda *_: None

    def notify_all(self) -> None:
        self._notified += 1

    def wait(self, seconds: float | None = None) -> bool:
        before = self._notified
        return self._scheduler.wait(lambda: self._notified > before, seconds)


def _watch_deadlines(scheduler: Scheduler, bounded: Any) -> None:
    """Do what the thread of a `BoundedProducer` does, as a repeated event."""
    if bounded._thread is None:
        bounded._thread = types.SimpleNamespace(join=lambda: None)

        def look() -> None:
            while (ticket := bounded._oldest_open()) is not None and ticket.due <= scheduler.now:
                bounded.lose()
                ticket.expire()
            if not bounded._stop.is_set() and ticket is not None:
                scheduler.later(look, max(0.001, ticket.due - scheduler.now))
            else:
                bounded._thread = None

        scheduler.later(look, bounded._seconds)


@contextlib.contextmanager
def patched(patches: Sequence[Patch]) -> Iterator[None]:
    """Replace attributes of modules, classes and functions for a while."""
    before = [vars(owner).get(name, getattr(owner, name)) for owner, name, _ in patches]
    for owner, name, replacement in patches:
        setattr(owner, name, replacement)
    try:
        yield
    finally:
        for (owner, name, _), each in zip(patches, before, strict=True):
            setattr(owner, name, each)


@contextlib.contextmanager
def _without_gc() -> Iterator[None]:
    """For speed, and because what is finalized could run code of the library."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@contextlib.contextmanager
def scheduled(scheduler: Scheduler, clients: Sequence[Patch]) -> Iterator[None]:
    """Let all threads, futures, clocks and uuids of the library be those of a scheduler."""
    future: Any = concurrent.futures.Future
    result, exception = future.result, future.exception

    def wait(futures: Any, timeout: float | None = None, return_when: str = "ALL_COMPLETED") -> Any:
        needed = any if return_when == concurrent.futures.FIRST_COMPLETED else all
        scheduler.wait(lambda: needed(each.done() for each in futures), timeout)

    def waited(read: Callable[..., Any]) -> Callable[..., Any]:
        def call(self: Any, timeout: float | None = None) -> Any:
            scheduler.wait(self.done, timeout)
            return read(self, 0)

        return call

    executor, clock = functools.partial(Executor, scheduler), scheduler.clock
    waiting = {"Event": lambda: _Event(scheduler), "Condition": lambda: _Condition(scheduler)}
    threads = types.SimpleNamespace(**{**vars(threading), **waiting})
    new_uuid = lambda: uuid.UUID(int=scheduler.random.getrandbits(128), version=4)  # noqa: E731
    context: Any = _store_contract.StoreContext
    opened: Any = _opened
    strategies: Any = _strategies
    kafka: Any = kafka_producer
    *defaults, _, _, binds = context.__init__.__defaults__
    patches = [
        *clients,
        (future, "result", waited(result)),
        (future, "exception", waited(exception)),
        (concurrent.futures, "ThreadPoolExecutor", executor),
        (concurrent.futures, "wait", wait),
        (logging.Logger, "isEnabledFor", lambda logger, level: False),
        (_threads, "_io", []),
        (_client, "check_classes", lambda config: None),
        (_registry, "options_of", _options_of),
        (delegation, "ThreadPoolExecutor", executor),
        (delegation, "wait", wait),
        (_send, "wait", wait),
        (_send.BoundedProducer, "_start", lambda self: _watch_deadlines(scheduler, self)),
        (_send, "threading", threads),
        (context.__init__, "__defaults__", (*defaults, clock, new_uuid, binds)),
        (strategies, "uuid4", new_uuid),
        (opened, "Breaker", functools.partial(opened.Breaker, clock=clock)),
        (kafka, "Poller", functools.partial(kafka.Poller, clock=clock)),
        (kafka, "InFlightWindow", functools.partial(kafka.InFlightWindow, clock=clock)),
        (_producer, "BoundedProducer", functools.partial(_send.BoundedProducer, clock=clock)),
    ]
    with _without_gc(), patched(patches):
        yield
