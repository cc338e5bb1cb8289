"""Cancels a coroutine at each of its suspensions, and checks what holds afterwards.

`faults` runs a subject again and again: the first time its call is cancelled at its first suspension, then at its
second, until the call ends before that. It does so with a fast and with a slow store, and once at the moment of the
suspension, once when what the call waits for has just come. Threads run in an order that the scheduler draws.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import threading
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any

import claimcheck
from claimcheck import _threads
from tests.harness import kafka_model
from tests.harness.scheduler import Loop, Process, Scheduler, scheduled
from tests.harness.topic import Topic

HANGS_SECONDS = 30.0  # of virtual time
MOST_SUSPENSIONS = 100
ORDERS = 5  # of threads
PAYLOAD = b"payload " * 500


class Gate:
    """What a slow store waits for: it goes on while the call is suspended, unless that is where it is cancelled."""

    def __init__(self, *, is_slow: bool) -> None:
        self._is_open = threading.Event()
        self._is_slow = is_slow
        if not is_slow:
            self._is_open.set()

    def wait(self) -> None:
        assert self._is_open.wait(HANGS_SECONDS)

    def open(self) -> None:
        self._is_open.set()

    def close(self) -> None:
        if self._is_slow:
            self._is_open.clear()

    def stay_open(self) -> None:
        self._is_slow = False
        self.open()


@dataclass
class Lab:
    """A `ClaimCheck` with one store, and a topic, which one process uses for one subject."""

    gate: Gate
    process: Process
    cc: claimcheck.ClaimCheck = field(init=False)
    store: Any = field(init=False)

    def __post_init__(self) -> None:
        self.topic = Topic(self.process.scheduler)
        self.use("external")

    def use(self, strategy: str, **more: Any) -> None:
        store = {"type": "memory", "space": uuid.uuid4().hex}
        options = {"strategy": strategy, "threshold_bytes": 1000, "stores": {"m": store}, **more}
        self.cc = claimcheck.from_dict(options)
        self.store = self.cc.store("m")
        for name in ("_write", "_open", "_delete"):
            setattr(self.store, name, self._gated(getattr(self.store, name)))

    def _gated(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            self.gate.wait()
            return method(*args, **kwargs)

        return call

    @property
    def stored(self) -> int:
        """How many payloads the store has."""
        return len(self.store._payloads)

    def envelope(self, payload: bytes = PAYLOAD) -> bytes:
        """Store a payload; returns its envelope."""
        self.gate.open()
        with self.cc.outbound(payload, destination="t") as out:
            (envelope,) = out.envelopes
        self.gate.close()
        return bytes(envelope.data or b"")


@dataclass
class Ending:
    """How the call ended: with a result, or with an error, which is a `CancelledError` if it was cancelled."""

    result: Any = None
    error: BaseException | None = None


@dataclass
class Subject:
    """A call to cancel.

    Attributes:
        call: Begins it.
        finish: Uses what the call was made on, closes it, and returns what is wrong.
        raises: What it raises, if it is not cancelled before.
    """

    call: Callable[[], Coroutine[Any, Any, Any]]
    finish: Callable[[Ending], Awaitable[list[str]]]
    raises: tuple[type[BaseException], ...] = ()


Make = Callable[[Lab], AbstractAsyncContextManager[Subject]]


def faults(make: Make) -> Iterator[str]:
    """Yield what is wrong after a cancellation of a subject's call, anywhere."""
    for seed, is_slow, is_late in itertools.product(range(ORDERS), (False, True), (False, True)):
        for number in range(1, MOST_SUSPENSIONS):
            once = functools.partial(_once, make, number, is_slow=is_slow, is_late=is_late)
            reached, wrong = _in_one_thread(seed, once)
            store, moment = "slow" if is_slow else "fast", "late" if is_late else "early"
            where = f"{store} store, {moment} at suspension {number}, order {seed}"
            yield from (f"{each} ({where})" for each in wrong)
            if not reached:
                break


def _in_one_thread(seed: int, once: Callable[[Process], Coroutine[Any, Any, tuple[bool, list[str]]]]) -> Any:
    """Run what a new process does, in one thread."""
    scheduler, results = Scheduler(seed), list[Any]()
    scheduler.is_faulty = False
    process = Process(scheduler, "subject")

    def run() -> None:
        loop = Loop(process)
        results.append(loop.run_until_complete(once(process)))
        loop.run_until_complete(loop.shutdown_asyncgens())

    with scheduled(scheduler, kafka_model.CLIENTS):
        scheduler.run(run, process)
    reached, wrong = results[0]
    return reached, wrong + scheduler.violations


async def _once(make: Make, number: int, process: Process, *, is_slow: bool, is_late: bool) -> tuple[bool, list[str]]:
    gate = Gate(is_slow=is_slow)
    lab = Lab(gate, process)
    async with make(lab) as subject:
        cancelled = _CancelAt(subject.call(), number, gate, is_late=is_late)
        task = asyncio.create_task(cancelled.run())
        await asyncio.wait({task}, timeout=HANGS_SECONDS)
        gate.stay_open()
        if not task.done():
            return False, ["the call hangs"]
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        ending = Ending(None if error else task.result(), error)
        if error is not None and not isinstance(error, (asyncio.CancelledError, *subject.raises)):
            return cancelled.is_reached, [f"the call raised {error!r}"]
        try:
            wrong = await asyncio.wait_for(subject.finish(ending), HANGS_SECONDS)
        except TimeoutError:
            return cancelled.is_reached, ["a later call hangs"]
        wrong += await _left_over()
    lab.cc.close()
    return cancelled.is_reached, wrong


async def _left_over() -> list[str]:
    """Return the tasks and threads that still work for somebody."""

    def tasks() -> set[asyncio.Task[Any]]:
        return asyncio.all_tasks() - {asyncio.current_task()}

    await eventually(lambda: not tasks())  # one may wait for a thread that has still to answer
    wrong = [f"a task is left: {each.get_coro()}" for each in tasks()]
    if not await eventually(lambda: not _threads.io_threads()._running):
        wrong.append("a thread is left")
    return wrong


async def eventually(condition: Callable[[], bool]) -> bool:
    """Wait until threads have brought a condition about; returns whether they have."""
    end = asyncio.get_running_loop().time() + HANGS_SECONDS / 2
    while not condition():
        if asyncio.get_running_loop().time() > end:
            return False
        await asyncio.sleep(0.001)
    return True


class _CancelAt:
    """Runs a coroutine in a task, and cancels that at one of its suspensions.

    Args:
        coroutine: What to run.
        number: The number of the suspension, from 1.
        gate: Of the store.
        is_late: Whether to cancel it when what it waits for is done, and the task is about to resume.
    """

    def __init__(self, coroutine: Coroutine[Any, Any, Any], number: int, gate: Gate, *, is_late: bool) -> None:
        self._coroutine, self._number, self._gate, self._is_late = coroutine, number, gate, is_late
        self._suspensions = 0
        self.is_reached = False

    async def run(self) -> Any:
        return await self

    def __await__(self) -> Generator[Any, Any, Any]:
        steps, error = self._coroutine.__await__(), None
        while True:
            try:
                waiting = steps.send(None) if error is None else steps.throw(error)
            except StopIteration as end:
                return end.value
            self._suspend(waiting)
            error = None
            try:
                yield waiting
            except BaseException as thrown:
                error = thrown
            self._gate.close()

    def _suspend(self, waiting: Any) -> None:
        self._suspensions += 1
        task = asyncio.current_task()
        assert task is not None
        if self._suspensions != self._number:
            self._gate.open()
            return
        self.is_reached = True
        if self._is_late and waiting is not None:
            self._gate.open()
            waiting.add_done_callback(lambda _: task.cancel())
        else:
            task.cancel()  # takes effect when the task suspends, which is now
