"""Receives payloads of any size from a consumer of `confluent_kafka.aio`; the event loop is never blocked."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, Self

from claimcheck.interrupt import in_thread
from claimcheck.transports.kafka.aio_receiving import OneAtATime, StepwiseConsumer, is_read
from claimcheck.transports.kafka.errors import within
from claimcheck.transports.needs import Resolves

__all__ = ["AsyncKafkaConsumer"]

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

    def __init__(self, consumer: Any, cc: Resolves, **options: Any) -> None:
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
