"""Receives payloads of any size from a consumer or reader of `pulsar.asyncio`, without blocking the event loop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any, Protocol, Self, TypeVar

from claimcheck._threads import in_thread
from claimcheck.transports._common.claimcheck_types import Resolves
from claimcheck.transports.pulsar._async_client import as_asyncio_says_it, as_exception, blocking
from claimcheck.transports.pulsar._consumer import PulsarConsumer
from claimcheck.transports.pulsar._errors import vendor
from claimcheck.transports.pulsar._message import PulsarMessage
from claimcheck.transports.pulsar._reader import PulsarReader

__all__ = ["AsyncPulsarConsumer", "AsyncPulsarReader"]

_TICK_SECONDS = 1.0

T = TypeVar("T")


class _Resolves(Protocol):
    @property
    def pending_payloads(self) -> int: ...

    @property
    def tick_is_due(self) -> bool: ...

    def take(self, native: Any) -> None: ...

    def take_plain(self, native: Any) -> bool: ...

    def take_ready(self) -> PulsarMessage | None: ...

    def tick(self) -> None: ...


class _Receiving:
    """Receives natively, one message at a time; the blocking wrapper does the rest in a thread.

    Cancelling a receive of the client would lose its message: ours continues, and the next caller gets the message.
    """

    def __init__(self, blocking: _Resolves, receive: Callable[[], Awaitable[Any]]) -> None:
        self.blocking = blocking
        self._receive = receive
        self._coming: asyncio.Task[Any] | None = None
        self._one_at_a_time = asyncio.Lock()
        self._closed = False

    async def next(self) -> PulsarMessage:
        """Wait for a payload, and read it if it is stored."""
        async with self._one_at_a_time:
            while (message := self.blocking.take_ready()) is None:
                await self._step()
        if not message.is_read:
            await in_thread(message.read)
        return message

    async def close(self) -> None:
        """Stop waiting for a message: callers that wait get the client's ``AlreadyClosed``."""
        self._closed = True
        if self._coming is not None:
            self._coming.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await self._coming

    async def _step(self) -> None:
        if self._closed:
            raise as_exception(vendor().Result.AlreadyClosed)
        if self._coming is None:
            self._coming = asyncio.ensure_future(self._receive())
        timeout = _TICK_SECONDS if self.blocking.pending_payloads else None
        done, _ = await asyncio.wait({self._coming}, timeout=timeout)
        if not done:
            await asyncio.to_thread(self.blocking.tick)
            return
        coming, self._coming = self._coming, None
        if coming.cancelled():
            raise as_exception(vendor().Result.AlreadyClosed)
        native = coming.result()
        if not self.blocking.take_plain(native):
            await asyncio.to_thread(self.blocking.take, native)
        elif self.blocking.tick_is_due:
            await asyncio.to_thread(self.blocking.tick)


class AsyncPulsarConsumer:
    """Has the methods of a `pulsar.asyncio.Consumer`; each message that it returns is a whole payload, already read.

    Usable with ``async with``, which closes it.

    Args:
        consumer: A `pulsar.asyncio.Consumer`.
        cc: A `claimcheck.ClaimCheck` that knows the writers' stores.
        options: As of `PulsarConsumer`; ``dead_letter_producer`` is a blocking one, of a `pulsar.Client`.
    """

    def __init__(self, consumer: Any, cc: Resolves, **options: Any) -> None:
        self._native = consumer
        self._blocking = PulsarConsumer(blocking("Consumer", consumer), cc, **options)
        self._receiving = _Receiving(self._blocking, consumer.receive)

    async def receive(self) -> PulsarMessage:
        """Wait for the next payload. One that cannot be delivered is a message whose data raises the error."""
        return await self._receiving.next()

    async def acknowledge(self, message: Any) -> None:
        """As `PulsarConsumer.acknowledge`."""
        await self._off(lambda: self._blocking.acknowledge(message))

    async def acknowledge_cumulative(self, message: Any) -> None:
        """As `PulsarConsumer.acknowledge_cumulative`."""
        await self._off(lambda: self._blocking.acknowledge_cumulative(message))

    async def negative_acknowledge(self, message: Any) -> None:
        """As `PulsarConsumer.negative_acknowledge`."""
        await self._off(lambda: self._blocking.negative_acknowledge(message))

    async def dead_letter(self, message: PulsarMessage, *, reason: str = "rejected") -> None:
        """As `PulsarConsumer.dead_letter`."""
        await self._off(lambda: self._blocking.dead_letter(message, reason=reason))

    def redeliver_unacknowledged_messages(self) -> None:
        """As `PulsarConsumer.redeliver_unacknowledged_messages`."""
        self._blocking.redeliver_unacknowledged_messages()

    async def seek(self, messageid: Any) -> None:
        """As `PulsarConsumer.seek`."""
        await self._off(lambda: self._blocking.seek(messageid))

    async def get_last_message_id(self) -> Any:
        """The native id of the last message in the topic, which may be a chunk."""
        return await self._native.get_last_message_id()

    async def unsubscribe(self) -> None:
        """End the subscription."""
        await self._off(self._blocking.unsubscribe)
        await self._receiving.close()

    async def close(self) -> None:
        """Close the consumer; what was not acknowledged comes again, to others."""
        await self._receiving.close()
        self._blocking.forget()
        await self._native.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def topic(self) -> Any:
        """The topic's whole name."""
        return self._native.topic()

    def subscription_name(self) -> Any:
        """As it was subscribed."""
        return self._native.subscription_name()

    def consumer_name(self) -> Any:
        """Given by its user or by the client."""
        return self._native.consumer_name()

    @property
    def pending_payloads(self) -> int:
        """Payloads of which some chunks are held."""
        return self._blocking.pending_payloads

    @property
    def pending_bytes(self) -> int:
        """Bytes of the chunks that are held."""
        return self._blocking.pending_bytes

    def __repr__(self) -> str:
        return f"<Async{repr(self._blocking)[1:]}"

    async def _off(self, work: Callable[[], T]) -> T:
        with as_asyncio_says_it():
            return await asyncio.to_thread(work)


class AsyncPulsarReader:
    """Has the methods of a `pulsar.asyncio.Reader`; each message that it returns is a whole payload, already read.

    Usable with ``async with``, which closes it.

    Args:
        reader: A `pulsar.asyncio.Reader`.
        cc: A `claimcheck.ClaimCheck` that knows the writers' stores.
        options: As of `PulsarReader`.
    """

    def __init__(self, reader: Any, cc: Resolves, **options: Any) -> None:
        self._native = reader
        self._blocking = PulsarReader(blocking("Reader", reader), cc, **options)
        self._receiving = _Receiving(self._blocking, reader.read_next)

    async def read_next(self) -> PulsarMessage:
        """Wait for the next payload. One that cannot be delivered is a message whose data raises the error."""
        return await self._receiving.next()

    async def has_message_available(self) -> bool:
        """Whether a whole payload is there."""
        with as_asyncio_says_it():
            return await asyncio.to_thread(self._blocking.has_message_available)

    async def seek(self, messageid: Any) -> None:
        """As `PulsarReader.seek`."""
        with as_asyncio_says_it():
            await asyncio.to_thread(self._blocking.seek, messageid)

    async def close(self) -> None:
        """Close the reader."""
        await self._receiving.close()
        self._blocking.forget()
        await self._native.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def topic(self) -> Any:
        """The topic's whole name."""
        return self._native.topic()

    def is_connected(self) -> Any:
        """Whether it is connected just now."""
        return self._native.is_connected()

    @property
    def pending_payloads(self) -> int:
        """Payloads of which some chunks are held."""
        return self._blocking.pending_payloads

    @property
    def pending_bytes(self) -> int:
        """Bytes of the chunks that are held."""
        return self._blocking.pending_bytes

    def __repr__(self) -> str:
        return f"<Async{repr(self._blocking)[1:]}"
