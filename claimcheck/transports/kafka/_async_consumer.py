"""Receives payloads of any size from a consumer of `confluent_kafka.aio`; the event loop is never blocked."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextvars import ContextVar
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from claimcheck._threads import in_thread
from claimcheck.transports.kafka._consumer import KafkaConsumer
from claimcheck.transports.kafka._errors import within
from claimcheck.transports.kafka._message import KafkaMessage
from claimcheck.transports.kafka._partition import Partition

if TYPE_CHECKING:
    from claimcheck._client import ClaimCheck

__all__ = [
    "AsyncKafkaConsumer",
    "is_read",
    "OneAtATime",
    "StepwiseConsumer",
]

_STEP_SECONDS = 0.2
_FOR_EVER = float("inf")

AsyncRebalanceCallback = Callable[[Any, list[Any]], Awaitable[None]]


class AsyncKafkaConsumer:
    """Has the methods of a `confluent_kafka.aio.AIOConsumer`; a message that it gives is a whole payload, read already.

    A receive that is cancelled loses nothing: what it would have returned goes to the next, and is not committed before
    that. Calls wait for each other, but none waits longer for a receive than a fraction of a second. Calls of a
    callback's wait for nobody.

    Args:
        consumer: An `AIOConsumer`, with ``enable.auto.offset.store`` set to ``False``.
        cc: A `claimcheck.ClaimCheck` that knows the writers' stores.
        options: As of `KafkaConsumer`.

    Raises:
        OffsetStoreError: The consumer stores offsets itself.
        TypeError: It is no such consumer.
    """

    def __init__(self, consumer: Any, cc: ClaimCheck, **options: Any) -> None:
        self._native = consumer
        self._blocking = StepwiseConsumer(within(consumer, "Consumer"), cc, **options)
        self._calls = OneAtATime(consumer._call)
        self._reading: tuple[Any, asyncio.Task[None]] | None = None

    # Receiving -------------------------------------------------------------------------------------------------

    async def poll(self, timeout: float = -1) -> Any:
        """Wait for the next payload; a bad one is handed out, too, and says so when its value is asked for.

        Args:
            timeout: Seconds; by default for ever. A payload that takes longer to be read comes with a later call.

        Returns:
            As of `KafkaConsumer.poll`.

        Raises:
            KafkaException: The client's own.
        """
        found = await self._receive(1, timeout)
        return found[0] if found else None

    async def consume(self, num_messages: int = 1, timeout: float = -1) -> list[Any]:
        """Wait for several payloads: as many as asked for, or what came in time. Raises as `poll` does.

        Stored ones are read one after the other, and all are in memory together. With ``prefetch_bytes`` they are read
        several at once.
        """
        return await self._receive(num_messages, timeout)

    # Offsets ---------------------------------------------------------------------------------------------------

    async def commit(self, message: Any = None, offsets: Any = None, asynchronous: bool = True) -> Any:
        """As `KafkaConsumer.commit`."""
        return await self._calls.call(lambda: self._blocking.commit(message, offsets, asynchronous))

    async def store_offsets(self, message: Any = None, offsets: Any = None) -> None:
        """As `KafkaConsumer.store_offsets`."""
        await self._calls.call(lambda: self._blocking.store_offsets(message, offsets))

    async def position(self, partitions: list[Any]) -> list[Any]:
        """As `KafkaConsumer.position`."""
        return await self._calls.call(lambda: self._blocking.position(partitions))

    async def committed(self, partitions: list[Any], timeout: float = -1) -> Any:
        """As `KafkaConsumer.committed`."""
        return await self._calls.call(lambda: self._blocking.committed(partitions, timeout))

    async def seek(self, partition: Any) -> None:
        """As `KafkaConsumer.seek`."""
        await self._calls.call(lambda: self._blocking.seek(partition))

    # Assignment ------------------------------------------------------------------------------------------------

    async def subscribe(
        self,
        topics: list[str],
        on_assign: AsyncRebalanceCallback | None = None,
        on_revoke: AsyncRebalanceCallback | None = None,
        on_lost: AsyncRebalanceCallback | None = None,
    ) -> None:
        """Subscribe; callbacks are coroutine functions that get this consumer, and may await its methods."""
        wrapped = [each and self._callback(each) for each in (on_assign, on_revoke, on_lost)]
        await self._calls.call(lambda: self._blocking.subscribe(topics, *wrapped))

    async def unsubscribe(self) -> None:
        """As the client has it."""
        await self._calls.call(self._blocking.unsubscribe)

    async def assign(self, partitions: list[Any]) -> None:
        """As `KafkaConsumer.assign`."""
        await self._calls.call(lambda: self._blocking.assign(partitions))

    async def incremental_assign(self, partitions: list[Any]) -> None:
        """Take more partitions."""
        await self._calls.call(lambda: self._blocking.incremental_assign(partitions))

    async def unassign(self) -> None:
        """Give all partitions back; what is held is forgotten."""
        await self._calls.call(self._blocking.unassign)

    async def incremental_unassign(self, partitions: list[Any]) -> None:
        """Give some partitions back."""
        await self._calls.call(lambda: self._blocking.incremental_unassign(partitions))

    async def assignment(self) -> Any:
        """The partitions that this consumer has."""
        return await self._calls.call(self._blocking.assignment)

    async def pause(self, partitions: list[Any]) -> None:
        """As `KafkaConsumer.pause`."""
        await self._calls.call(lambda: self._blocking.pause(partitions))

    async def resume(self, partitions: list[Any]) -> None:
        """Go on with them."""
        await self._calls.call(lambda: self._blocking.resume(partitions))

    async def close(self) -> None:
        """Close, this and the `AIOConsumer`; what was not committed comes again, to others."""
        self._stop_reading()
        try:
            await self._calls.call(self._blocking.close)
        finally:
            await self._native.close()

    # The rest of the client's consumer -------------------------------------------------------------------------

    async def consumer_group_metadata(self) -> Any:
        """For `AsyncKafkaProducer.send_offsets_to_transaction`."""
        return await self._calls.call(self._blocking.consumer_group_metadata)

    async def get_watermark_offsets(self, partition: Any, timeout: float = -1, cached: bool = False) -> Any:
        """The lowest offset of a partition, and the one behind its highest."""
        return await self._calls.call(lambda: self._blocking.get_watermark_offsets(partition, timeout, cached))

    async def offsets_for_times(self, partitions: list[Any], timeout: float = -1) -> Any:
        """The first offsets at or after given times; a payload may begin before one."""
        return await self._calls.call(lambda: self._blocking.offsets_for_times(partitions, timeout))

    async def list_topics(self, topic: str | None = None, timeout: float = -1) -> Any:
        """What the cluster says of its topics."""
        return await self._calls.call(lambda: self._blocking.list_topics(topic, timeout))

    async def cluster_id(self, timeout: float = -1) -> Any:
        """The cluster's own name."""
        return await self._calls.call(lambda: self._blocking.cluster_id(timeout))

    async def set_sasl_credentials(self, username: str, password: str) -> None:
        """As the client has it."""
        await self._calls.call(lambda: self._blocking.set_sasl_credentials(username, password))

    @property
    def pending_payloads(self) -> int:
        """Payloads of which some chunks are held."""
        return self._blocking.pending_payloads

    @property
    def pending_bytes(self) -> int:
        """Bytes of the chunks that are held."""
        return self._blocking.pending_bytes

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<AsyncKafkaConsumer{repr(self._blocking)[len('<KafkaConsumer') :]}"

    # Within ----------------------------------------------------------------------------------------------------

    def _callback(self, callback: AsyncRebalanceCallback) -> Any:
        """The client's own way to call a coroutine function from one of its threads."""
        loop = asyncio.get_running_loop()
        return self._native._wrap_callback(loop, callback, lambda arguments: (self, *arguments[1:]))

    async def _receive(self, count: int, timeout: float) -> list[Any]:
        clock = asyncio.get_running_loop().time
        end = clock() + timeout if timeout is not None and timeout >= 0 else _FOR_EVER
        is_last = False
        if self._blocking.looks_ahead:
            await self._calls.call(self._blocking.look_ahead)
        while True:
            async with self._calls.alone():  # nothing is awaited within: either the caller gets them, or they wait on
                waiting = self._blocking.waiting(count)
                unread = next((place for place, message in enumerate(waiting) if not is_read(message)), None)
                there = len(waiting) if unread is None else unread
                if there == count or is_last:
                    return self._blocking.hand_out(there)
            left = max(0.0, end - clock())
            is_last = not left
            if unread is not None:
                await self._read(waiting[unread], left)
            else:
                gather = functools.partial(self._blocking.gather, count - there, min(_STEP_SECONDS, left))
                await self._calls.call(gather)

    async def _read(self, message: Any, seconds: float) -> None:
        """Have a stored payload read; it goes on when time is up, or the task is cancelled, for the next who asks."""
        if self._reading is None or self._reading[0] is not message:
            self._stop_reading()
            self._reading = message, asyncio.ensure_future(in_thread(message.read))
        reading = self._reading[1]
        await asyncio.wait([reading], timeout=None if seconds == _FOR_EVER else seconds)
        if reading.done():
            if self._reading is not None and self._reading[1] is reading:
                self._reading = None
            if not reading.cancelled():
                reading.result()

    def _stop_reading(self) -> None:
        if self._reading is not None:
            self._reading[1].cancel()
            self._reading = None


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
