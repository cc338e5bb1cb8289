"""What the asyncio consumer does in the client's threads, and how a callback's calls are told from everybody else's."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextvars import ContextVar
from typing import Any, TypeVar

from claimcheck.transports.kafka.consumer import KafkaConsumer
from claimcheck.transports.kafka.message import KafkaMessage
from claimcheck.transports.kafka.partition import Partition

__all__ = ["OneAtATime", "StepwiseConsumer", "is_read"]

T = TypeVar("T")


def is_read(message: Any) -> bool:
    """Whether a message's value is there without a store."""
    return not isinstance(message, KafkaMessage) or message.is_read


class StepwiseConsumer(KafkaConsumer):
    """A `KafkaConsumer` that receives in two steps: what `gather` brought is nobody's until `hand_out`.

    Between them a receiver may go away: what waits is not committed, is dropped by a seek or when its partition is
    revoked, and goes to the next who asks.
    """

    def gather(self, count: int, seconds: float) -> None:
        """Wait for so many records, or for what comes in time. It blocks, and may call the user's callbacks."""
        self._between()
        self._do_chores()
        stale: set[Partition] = set()
        for native in self._native.consume(count, seconds):
            partition = self._take(native, stale)
            if partition is not None and partition.went_back:
                stale.add(partition)  # the rest of it comes again
        self._rebalances.raise_kept()
        self._look_ahead()

    @property
    def looks_ahead(self) -> bool:
        """Whether records are taken before anybody asks for them."""
        return self._looks_ahead

    def look_ahead(self) -> None:
        """Take what there is room for; incomplete payloads expire here, too, since `gather` may not be called."""
        self._do_chores()
        self._look_ahead()

    def waiting(self, count: int) -> list[Any]:
        """The next messages, at most so many; they are still nobody's."""
        found: list[Any] = []
        for arrival in self._ready:
            if len(found) == count:
                break
            if arrival.partition is None or arrival.partition.source not in self._paused:
                found.append(arrival.message)
        return found

    def hand_out(self, count: int) -> list[Any]:
        """Take these; they count as delivered."""
        self._between()
        return [self._hand_out() for _ in range(count)]


class OneAtATime:
    """Lets one call at a time into a consumer, which is not safe under threads, and those of its callbacks meanwhile.

    Args:
        call: Calls in the client's threads; `AIOConsumer._call`.
    """

    def __init__(self, call: Callable[..., Any]) -> None:
        self._call = call
        self._lock = asyncio.Lock()

    async def call(self, work: Callable[[], T]) -> T:
        """Call off the loop; for a task that is cancelled meanwhile it goes on, and whoever comes next waits for it."""
        if self._is_within():
            result: T = await self._call(work)
            return result
        task = asyncio.ensure_future(self._locked(work))
        task.add_done_callback(lambda done: done.cancelled() or done.exception())  # seen, even if nobody waits
        return await asyncio.shield(task)

    @contextlib.asynccontextmanager
    async def alone(self) -> AsyncIterator[None]:
        """Do something on the loop while no call goes on."""
        if self._is_within():
            yield
        else:
            async with self._lock:
                yield

    async def _locked(self, work: Callable[[], T]) -> T:
        async with self._lock:
            result: T = await self._call(self._marked, work)
            return result

    def _marked(self, work: Callable[[], T]) -> T:
        """A callback's task inherits the mark, and is within for as long as the call goes on that called it."""
        calls = _calls.get()
        going_on = {self}
        token = _calls.set((*calls, going_on))
        try:
            return work()
        finally:
            going_on.clear()
            _calls.reset(token)

    def _is_within(self) -> bool:
        return any(self in going_on for going_on in _calls.get())


_calls: ContextVar[tuple[set[OneAtATime], ...]] = ContextVar("claimcheck_kafka_calls", default=())
