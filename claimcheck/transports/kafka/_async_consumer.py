"""Receives payloads of any size from a consumer of `confluent_kafka.aio`; the event loop is never blocked."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, TypeVar

from claimcheck._threads import in_thread
from claimcheck.transports._common.delegation import AsyncClosing, off_the_loop
from claimcheck.transports.kafka._client import within
from claimcheck.transports.kafka._consumer import KafkaConsumer
from claimcheck.transports.kafka._message import KafkaMessage

if TYPE_CHECKING:
    from claimcheck._client import ClaimCheck

__all__ = ["AsyncKafkaConsumer", "OneAtATime"]

_STEP_SECONDS = 0.2
_FOREVER = float("inf")

AsyncRebalanceCallback = Callable[[Any, list[Any]], Awaitable[None]]


class AsyncKafkaConsumer(AsyncClosing):
    """Has the methods of a `confluent_kafka.aio.AIOConsumer`; each message that it returns is a whole payload, read.

    A receive that is cancelled loses nothing: the next receive returns its messages, which are not committed before
    that. Calls wait for each other, but for a receive at most a fraction of a second. Calls made by a rebalance
    callback do not wait.

    Args:
        consumer: An `AIOConsumer`, with ``enable.auto.offset.store`` set to ``False``.
        cc: A `claimcheck.ClaimCheck`.
        auto_offset_store: See `KafkaConsumer`, as for all other options.
        max_redeliveries: See `KafkaConsumer`.
        prefetch_bytes: See `KafkaConsumer`.
        prefetch_threads: See `KafkaConsumer`.
        clock: See `KafkaConsumer`.

    Raises:
        ConfigError: A number is out of range.
        OffsetStoreError: The consumer stores offsets itself.
        ArgumentTypeError: An object of the wrong type; a `ConfigError` that is also a `TypeError`.
    """

    def __init__(
        self,
        consumer: Any,
        cc: ClaimCheck,
        *,
        auto_offset_store: bool = False,
        max_redeliveries: int | None = None,
        prefetch_bytes: int = 0,
        prefetch_threads: int = 4,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._native = consumer
        self._blocking = KafkaConsumer(
            within(consumer, "Consumer"),
            cc,
            auto_offset_store=auto_offset_store,
            max_redeliveries=max_redeliveries,
            prefetch_bytes=prefetch_bytes,
            prefetch_threads=prefetch_threads,
            clock=clock,
        )
        self._receiver = self._blocking._receiver
        self._calls = OneAtATime(consumer._call)
        self._call = self._calls.call
        self._reading: tuple[Any, asyncio.Task[None]] | None = None

    # Receiving -------------------------------------------------------------------------------------------------

    async def poll(self, timeout: float = -1) -> Any:
        """Wait for the next payload; a bad one is returned, too, and its value raises the error.

        Args:
            timeout: Seconds; by default there is no limit. A later call returns a payload that takes longer to read.

        Returns:
            See `KafkaConsumer.poll`.

        Raises:
            KafkaException: The client's own.
        """
        found = await self._receive(1, timeout)
        return found[0] if found else None

    async def consume(self, num_messages: int = 1, timeout: float = -1) -> list[Any]:
        """Wait for up to ``num_messages`` payloads; returns those that came in time. Raises as `poll` does.

        Stored ones are read one after the other, and all are in memory together. With ``prefetch_bytes`` they are read
        several at once.
        """
        return await self._receive(num_messages, timeout)

    # Offsets ---------------------------------------------------------------------------------------------------

    commit = off_the_loop(KafkaConsumer.commit)
    store_offsets = off_the_loop(KafkaConsumer.store_offsets)
    position = off_the_loop(KafkaConsumer.position)
    committed = off_the_loop(KafkaConsumer.committed)
    seek = off_the_loop(KafkaConsumer.seek)

    # Assignment ------------------------------------------------------------------------------------------------

    async def subscribe(
        self,
        topics: list[str],
        on_assign: AsyncRebalanceCallback | None = None,
        on_revoke: AsyncRebalanceCallback | None = None,
        on_lost: AsyncRebalanceCallback | None = None,
    ) -> None:
        """Subscribe; callbacks are coroutine functions that receive this consumer, and may await its methods."""
        wrapped = [each and self._callback(each) for each in (on_assign, on_revoke, on_lost)]
        await self._call(lambda: self._blocking.subscribe(topics, *wrapped))

    unsubscribe = off_the_loop(KafkaConsumer.unsubscribe)
    assign = off_the_loop(KafkaConsumer.assign)
    incremental_assign = off_the_loop(KafkaConsumer.incremental_assign)
    unassign = off_the_loop(KafkaConsumer.unassign)
    incremental_unassign = off_the_loop(KafkaConsumer.incremental_unassign)
    assignment = off_the_loop(KafkaConsumer.assignment)
    pause = off_the_loop(KafkaConsumer.pause)
    resume = off_the_loop(KafkaConsumer.resume)

    async def close(self) -> None:
        """Close this and the `AIOConsumer`; messages that were not committed are redelivered to other members."""
        self._stop_reading()
        try:
            await self._call(self._blocking.close)
        finally:
            await self._native.close()

    # The rest of the client's consumer -------------------------------------------------------------------------

    consumer_group_metadata = off_the_loop(KafkaConsumer.consumer_group_metadata)
    get_watermark_offsets = off_the_loop(KafkaConsumer.get_watermark_offsets)
    offsets_for_times = off_the_loop(KafkaConsumer.offsets_for_times)
    list_topics = off_the_loop(KafkaConsumer.list_topics)
    cluster_id = off_the_loop(KafkaConsumer.cluster_id)
    set_sasl_credentials = off_the_loop(KafkaConsumer.set_sasl_credentials)

    @property
    def pending_payloads(self) -> int:
        """Payloads of which some chunks are held."""
        return self._blocking.pending_payloads

    @property
    def pending_bytes(self) -> int:
        """Bytes of the chunks that are held."""
        return self._blocking.pending_bytes

    def __repr__(self) -> str:
        return f"<AsyncKafkaConsumer{repr(self._blocking)[len('<KafkaConsumer') :]}"

    # Within ----------------------------------------------------------------------------------------------------

    def _callback(self, callback: AsyncRebalanceCallback) -> Any:
        """Wrap a coroutine function as the client does, to be called from one of its threads."""
        loop = asyncio.get_running_loop()
        return self._native._wrap_callback(loop, callback, lambda arguments: (self, *arguments[1:]))

    async def _receive(self, count: int, timeout: float) -> list[Any]:
        clock = asyncio.get_running_loop().time
        end = clock() + timeout if timeout is not None and timeout >= 0 else _FOREVER
        is_last = False
        if self._receiver.looks_ahead:
            await self._call(self._receiver.look_ahead)
        while True:
            async with self._calls.alone():  # nothing is awaited within: either the caller gets them, or they wait on
                waiting = self._receiver.waiting(count)
                unread = next((place for place, message in enumerate(waiting) if not _is_read(message)), None)
                there = len(waiting) if unread is None else unread
                if there == count or is_last:
                    return self._receiver.hand_out(there)
            left = max(0.0, end - clock())
            is_last = not left
            if unread is not None:
                await self._read(waiting[unread], left)
            else:
                gather = functools.partial(self._receiver.gather, count - there, min(_STEP_SECONDS, left))
                await self._call(gather)

    async def _read(self, message: Any, seconds: float) -> None:
        """Read a stored payload in a thread; after a time-out or a cancellation it continues for the next caller."""
        if self._reading is None or self._reading[0] is not message:
            self._stop_reading()
            self._reading = message, asyncio.ensure_future(in_thread(message.read))
        reading = self._reading[1]
        await asyncio.wait([reading], timeout=None if seconds == _FOREVER else seconds)
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


def _is_read(message: Any) -> bool:
    """Whether a message's value is there without a store."""
    return not isinstance(message, KafkaMessage) or message.is_read


class OneAtATime:
    """Runs one call of a consumer at a time, since it is not thread-safe, and meanwhile those of its callbacks.

    Args:
        call: Calls in the client's threads; `AIOConsumer._call`.
    """

    def __init__(self, call: Callable[..., Any]) -> None:
        self._call = call
        self._lock = asyncio.Lock()

    async def call(self, work: Callable[[], T]) -> T:
        """Call in a thread; if the task is cancelled the call continues, and the next call waits for it."""
        if self._is_within():
            result: T = await self._call(work)
            return result
        task = asyncio.ensure_future(self._locked(work))
        task.add_done_callback(lambda done: done.cancelled() or done.exception())  # retrieved, even if no task waits
        return await asyncio.shield(task)

    @contextlib.asynccontextmanager
    async def alone(self) -> AsyncIterator[None]:
        """Enter a block on the loop during which no call runs."""
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
        """Mark this context, which a callback's task inherits: its calls do not wait while this call runs."""
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
