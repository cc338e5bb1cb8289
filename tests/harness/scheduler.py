"""Runs threads, locks, pools, event loops and time of any code in one thread, in an order drawn from a seed.

Each thread is a greenlet. Whatever blocks it ends in `Scheduler.wait`, which lets other threads run; models of clients
and stores call `Scheduler.point` where a real one would let other threads run.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import functools
import gc
import logging
import random
import sys
import threading
import traceback
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextvars import Context, ContextVar
from pathlib import Path
from typing import Any

from greenlet import GreenletExit, getcurrent, greenlet

from claimcheck import _client, _opened, _registry, _threads, _validation
from claimcheck._receive import messages as _messages
from claimcheck._send import outbound as _outbound
from claimcheck._send import strategies as _strategies
from claimcheck._store import contract as _store_contract
from claimcheck.transports._common import delegation
from claimcheck.transports.kafka import _producer as kafka_producer
from claimcheck.transports.pulsar import _producer, _send

Patch = tuple[Any, str, Any]
FOREVER = float("inf")
MOST_SWITCHES = 50_000
_options_of = functools.cache(_validation.options_of)  # a configuration is checked once, and opened in each schedule

OWNER: ContextVar[int] = ContextVar("owner", default=-1)
"""What a thread works for; the threads that it starts work for the same."""


class HangError(BaseException):
    """Something waits for what will never happen."""


class Process:
    """A process with clients and stores, which may crash in any of their calls: none of its threads runs again."""

    def __init__(self, scheduler: Scheduler, name: str, ended: Callable[[], object] = lambda: None) -> None:
        self.scheduler, self.name, self.ended = scheduler, name, ended
        self.alive, self.crashes = True, 0.0
        self.skew = 0.0  # of its clock
        self.io_threads: Any = None

    def check(self) -> None:
        """Let this process crash, perhaps; the calls of one that has crashed never return."""
        if self.alive and self.crashes and self.scheduler.strikes(f"crash of {self.name}", self.crashes):
            self.alive = False
            self.scheduler.spawn(self.ended, None)
        if not self.alive:
            self.scheduler.stop()

    def reach(self) -> None:
        """A call gets to a broker or a store, perhaps after other threads have run."""
        self.check()
        self.scheduler.point()
        self.check()


class Scheduler:
    """Draws every decision from one seed. ``dropped``: numbers of faults that do not happen in this run."""

    def __init__(self, seed: int, dropped: frozenset[int] = frozenset()) -> None:
        self.random = random.Random(seed)
        self._draw = self.random.random
        self.now = 1000.0
        self.is_faulty, self._is_over = True, False
        self.faults: list[str] = []
        self.violations: list[str] = []
        self._dropped, self._switches = dropped, 0
        self._waiting: list[tuple[float, Callable[[], object], Any]] = []  # threads, until when and for what
        self._hub = getcurrent()

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
        if not self._is_over:
            self.violations.append(text)

    def spawn(self, work: Callable[[], object], process: Process | None, seconds: float = 0.0) -> Any:
        """Start a thread of a process, or of a broker, after some time."""
        thread: Any = greenlet(work, self._hub)
        thread.process, thread.gr_context = process, _inherited()
        self._waiting.append((self.now + seconds, bool, thread))
        return thread

    def point(self) -> None:
        """Perhaps let others run here, inside a call of a client or a store."""
        if self._draw() < 0.25:
            self.pause(0.0)

    def wait(self, ready: Callable[[], object], seconds: float | None = None) -> bool:
        """Let others run until ``ready`` or for so long; returns whether it is ready."""
        if not ready():
            self._switch(FOREVER if seconds is None else self.now + seconds, ready)
        return bool(ready())

    def pause(self, seconds: float) -> None:
        self._switch(self.now + seconds, bool)

    def stop(self) -> None:
        """End the calling thread here, without what would clean up after it."""
        self._switch(None, bool)

    def run(self, work: Callable[[], object], process: Process | None = None) -> None:
        """Run a thread to its end, and all others meanwhile; ends those that are left."""
        main = self.spawn(work, process)
        threads = {main: None}  # in an order that each run has
        try:
            while not main.dead:
                threads[self._run_one()] = None
        finally:
            self._is_over = True
            for thread in threads:
                with contextlib.suppress(Exception):
                    thread.throw()

    def _switch(self, end: float | None, ready: Callable[[], object]) -> None:
        thread, loop, hooks = getcurrent(), asyncio._get_running_loop(), sys.get_asyncgen_hooks()
        if thread is self._hub:  # nothing is scheduled, but the time passes
            self.now = max(self.now, end or 0.0)
            return
        if end is not None:
            self._waiting.append((end, ready, thread))
        if not self._is_over:
            asyncio._set_running_loop(None)
            sys.set_asyncgen_hooks(None, None)
            self._hub.switch()
            sys.set_asyncgen_hooks(*hooks)
            asyncio._set_running_loop(loop)
        if self._is_over:
            raise GreenletExit

    def _run_one(self) -> Any:
        """Let one of the threads run that can, or the time pass until one can."""
        self._switches += 1
        if self._switches > MOST_SWITCHES:
            raise HangError(f"it does not end: {self._stacks()}")
        while True:
            now = self.now
            due = [n for n, (end, ready, _) in enumerate(self._waiting) if end <= now or ready()]
            if due:
                thread = self._waiting.pop(self.choice(due))[2]
                if thread.process is None or thread.process.alive:
                    thread.switch()
                return thread
            self.now = min((end for end, _, _ in self._waiting), default=FOREVER)
            if self.now == FOREVER:
                raise HangError(f"nothing will happen any more: {self._stacks()}")

    def _stacks(self) -> str:
        """Return where the threads of living processes wait."""
        frames = [each.gr_frame for *_, each in self._waiting if each.process is None or each.process.alive]
        stacks = [traceback.extract_stack(frame) for frame in frames if frame is not None]
        return "; ".join(" > ".join(f"{Path(at.filename).name}:{at.lineno}" for at in stack[-8:-2]) for stack in stacks)


# Threads, locks, pools and event loops ---------------------------------------------------------------------------


class Lock:
    """A lock of greenlets; with it, conditions, events and futures wait for other greenlets, too."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler, self._count = scheduler, 0
        self._owner: object = None

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        if self._count and not self._is_mine():
            seconds = None if timeout < 0 else timeout
            if not blocking or not self._scheduler.wait(lambda: not self._count, seconds):
                return False
        self._owner, self._count = getcurrent(), self._count + 1
        return True

    def release(self) -> None:
        if not self._count:
            raise RuntimeError("release unlocked lock")
        self._count -= 1

    def locked(self) -> bool:
        return bool(self._count)

    def _is_mine(self) -> bool:
        return False

    __enter__ = acquire

    def __exit__(self, *_: Any) -> None:
        self.release()


class RLock(Lock):
    def _is_mine(self) -> bool:
        return self._owner is getcurrent()

    def _is_owned(self) -> bool:
        return bool(self._count and self._is_mine())

    def _release_save(self) -> int:
        count, self._count = self._count, 0
        return count

    def _acquire_restore(self, count: int) -> None:
        self.acquire()
        self._count = count


class Thread:
    """A thread of the process that starts it."""

    def __init__(self, scheduler: Scheduler, target: Callable[[], object], **_: Any) -> None:
        self._scheduler, self._target, self._ended = scheduler, target, False

    def start(self) -> None:
        self._scheduler.spawn(self._run, process_of(getcurrent())).thread = self

    def join(self, timeout: float | None = None) -> None:
        self._scheduler.wait(lambda: self._ended, timeout)

    def _run(self) -> None:
        self._target()
        self._ended = True


class Executor:
    """A pool of threads, which begin what it does in order, each after a moment."""

    def __init__(self, scheduler: Scheduler, max_workers: int = 32, **_: Any) -> None:
        self._scheduler, self._free, self._is_open = scheduler, max_workers, True
        self._jobs: deque[tuple[concurrent.futures.Future[Any], Callable[[], Any]]] = deque()
        self._left = 0

    def submit(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> concurrent.futures.Future[Any]:
        if not self._is_open:
            raise RuntimeError("cannot schedule new futures after shutdown")
        future: concurrent.futures.Future[Any] = concurrent.futures.Future()
        self._jobs.append((future, functools.partial(_inherited().run, function, *args, **kwargs)))
        self._left += 1
        seconds = self._scheduler.choice((0.0, 0.0, 0.001, 0.02, 0.5))
        self._scheduler.spawn(self._work, process_of(getcurrent()), seconds)
        return future

    def _work(self) -> None:
        self._scheduler.wait(lambda: self._free)
        self._free -= 1
        future, call = self._jobs.popleft()
        if future.set_running_or_notify_cancel():
            try:
                result = call()
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(result)
        self._free, self._left = self._free + 1, self._left - 1

    def shutdown(self, wait: bool = True, **_: Any) -> None:
        self._is_open = False
        if wait:
            self._scheduler.wait(lambda: not self._left)


class Loop(asyncio.BaseEventLoop):
    """An event loop of a process, which waits by letting others run."""

    _ready: deque[asyncio.Handle]

    def __init__(self, process: Process) -> None:
        self._process, self._selector = process, self
        self.time = process.scheduler.clock  # type: ignore[method-assign]
        super().__init__()

    def __del__(self, *_: Any) -> None:
        """Do not warn: it has nothing to close."""

    def select(self, timeout: float | None) -> tuple[()]:
        scheduler = self._process.scheduler
        scheduler.point() if timeout == 0 else scheduler.wait(lambda: self._ready, timeout)
        return ()

    def _process_events(self, events: Any) -> None:
        pass

    def _write_to_self(self) -> None:
        pass

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Note an exception that no task gets, unless the process has died."""
        error = context.get("exception")
        if error is not None and self._process.alive and not isinstance(error, GreenletExit):
            self._process.scheduler.violated(f"{context['message']}: {error!r}")


def _inherited() -> Context:
    context = Context()
    context.run(OWNER.set, OWNER.get())
    return context


def process_of(thread: Any) -> Any:
    return getattr(thread, "process", None)


def io_threads() -> Any:
    """The threads of the calling process."""
    process = process_of(getcurrent())
    process.io_threads = process.io_threads or _threads.IoThreads()
    return process.io_threads


def settle(setter: Callable[[Any], None], result: Any) -> None:
    """Set a result or an exception of a future, unless that was cancelled."""
    with contextlib.suppress(asyncio.InvalidStateError):
        setter(result)


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
def scheduled(scheduler: Scheduler, clients: Sequence[Patch]) -> Iterator[None]:
    """Let all threads, locks, clocks and uuids of the library be those of a scheduler."""
    executor, clock, us = functools.partial(Executor, scheduler), scheduler.clock, threading.get_ident()

    def ours(kind: Callable[..., Any], real: Callable[..., Any]) -> Callable[..., Any]:
        """Let threads that another test has left have what is real."""
        return lambda *args, **options: (kind if threading.get_ident() == us else real)(*args, **options)

    lock = ours(functools.partial(Lock, scheduler), threading.Lock)
    wall_clock = lambda: scheduler.now + getattr(process_of(getcurrent()), "skew", 0.0)  # noqa: E731
    new_uuid = lambda: uuid.UUID(int=scheduler.random.getrandbits(128), version=4)  # noqa: E731
    context: Any = _store_contract.StoreContext
    opened: Any = _opened
    strategies: Any = _strategies
    kafka: Any = kafka_producer
    *defaults, _, _, binds = context.__init__.__defaults__
    patches = [
        *clients,
        (threading, "Lock", lock),
        (threading, "_allocate_lock", lock),
        (threading, "RLock", ours(functools.partial(RLock, scheduler), threading.RLock)),
        (threading, "Thread", functools.partial(Thread, scheduler)),
        (threading, "current_thread", ours(lambda: getattr(getcurrent(), "thread", None), threading.current_thread)),
        (concurrent.futures, "ThreadPoolExecutor", executor),
        (logging.Logger, "isEnabledFor", lambda logger, level: False),
        (_outbound, "_running", set()),
        (_threads, "io_threads", io_threads),
        (_messages, "io_threads", io_threads),
        (_client, "check_classes", lambda config: None),
        (_registry, "options_of", _options_of),
        (delegation, "ThreadPoolExecutor", executor),
        (context.__init__, "__defaults__", (*defaults, wall_clock, new_uuid, binds)),
        (strategies, "uuid4", new_uuid),
        (opened, "Breaker", functools.partial(opened.Breaker, clock=clock)),
        (kafka, "Poller", functools.partial(kafka.Poller, clock=clock)),
        (kafka, "InFlightWindow", functools.partial(kafka.InFlightWindow, clock=clock)),
        (_send, "_flushing", {}),
        (_producer, "BoundedProducer", functools.partial(_send.BoundedProducer, clock=clock)),
    ]
    gc.disable()  # for speed, and because what is finalized could run code of the library
    try:
        with patched(patches):
            yield
    finally:
        gc.enable()
