"""The wrappers for `pulsar.asyncio`: the blocking wrappers do the work, in threads where they would block the loop."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

from claimcheck._send.outbound import in_background
from claimcheck._threads import in_thread, retrieved
from claimcheck._validation import check_type
from claimcheck.errors import ClaimCheckError
from claimcheck.transports._common.delegation import AsyncWrapper, off_the_loop
from claimcheck.transports.pulsar._consumer import ConsumerOptions, PulsarConsumer
from claimcheck.transports.pulsar._message import PulsarMessage, WholeMessageId
from claimcheck.transports.pulsar._producer import ProducerOptions, PulsarProducer, SendOptions, checked_options
from claimcheck.transports.pulsar._queries import vendor
from claimcheck.transports.pulsar._receiver import PulsarReader, ReaderOptions, Receiver, blocking
from claimcheck.transports.pulsar._send import PayloadSend

if TYPE_CHECKING:
    import pulsar
    import pulsar.asyncio

    from claimcheck._client import ClaimCheck

B = TypeVar("B", bound=PulsarConsumer | PulsarProducer | PulsarReader)
R = TypeVar("R", bound=PulsarConsumer | PulsarReader)
T = TypeVar("T")


class _AsyncWrapper(AsyncWrapper[B]):
    """Base of the three wrappers."""

    delegated = frozenset({"topic"})

    def __init__(self, wrapper: B) -> None:
        self._blocking = wrapper

    async def _call(self, work: Callable[[], T]) -> T:
        with _asyncio_errors():
            return await asyncio.to_thread(work)


# Receiving -------------------------------------------------------------------------------------------------------


class _AsyncReceiver(_AsyncWrapper[R]):
    """Receives native messages one at a time; the blocking wrapper turns them into payloads.

    What a call waits for continues when it is cancelled: the client would lose the message of a cancelled ``receive``.
    A payload stays in the queue of the blocking wrapper until a call returns it, in order, so that a cancelled call
    loses nothing and a cumulative acknowledgement never covers it.
    """

    delegated = _AsyncWrapper.delegated | {"pending_bytes", "pending_payloads"}

    def __init__(
        self,
        native: pulsar.asyncio.Consumer | pulsar.asyncio.Reader,
        wrapper: R,
        receive: Callable[[], Coroutine[Any, Any, pulsar.Message]],
    ) -> None:
        super().__init__(wrapper)
        self._native = native
        self._receive = receive
        self._receiving: asyncio.Task[pulsar.Message] | None = None
        self._taking: asyncio.Task[None] | None = None  # takes one message, or expires chunks
        self._reads: dict[PulsarMessage, asyncio.Task[None]] = {}  # of stored payloads in the queue
        self._calls = 0
        self._changed = asyncio.Event()  # a task has ended, or another call has begun
        self._one_at_a_time = asyncio.Lock()
        self._closed = False

    seek = off_the_loop(Receiver.seek)

    async def _close(self) -> None:
        await self._stop()
        self._blocking.forget()
        await self._native.close()

    async def _next(self) -> PulsarMessage:
        """Wait for a payload; as many stored payloads are read concurrently as calls wait."""
        self._calls += 1
        self._changed.set()
        try:
            async with self._one_at_a_time:
                while (message := self._blocking.take_read()) is None:
                    await self._step()
            return message
        finally:
            self._calls -= 1

    async def _step(self) -> None:
        """Raise the error of a task that has ended, start what the calls that wait need, and wait for a change."""
        self._check_open()
        self._changed.clear()
        if self._taking is not None and self._taking.done():
            taking, self._taking = self._taking, None
            taking.result()
        queue = self._blocking.waiting()
        if queue and queue[0] in self._reads and self._reads[queue[0]].done():
            self._reads.pop(queue[0]).result()
        for message in self._reads.keys() - set(queue):  # forgotten or returned
            self._reads.pop(message).cancel()
        for message in queue[: self._calls]:
            if message not in self._reads and (stored := message.stored) is not None and not stored.is_read:
                self._reads[message] = self._started(in_thread(stored.read))
        if self._taking is None and len(queue) < self._calls:
            self._taking = self._started(self._take())
        await self._changed.wait()

    def _started(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.ensure_future(work)
        task.add_done_callback(lambda _: self._changed.set())
        return task

    async def _take(self) -> None:
        """Take the next message, in a thread unless it is small; there chunks expire, too."""
        receiving = self._receiving = self._receiving or asyncio.ensure_future(self._receive())
        if (seconds := self._blocking.seconds_to_tick) is not None:
            await asyncio.wait({receiving}, timeout=seconds)
        if seconds is None or receiving.done():
            try:
                native = await receiving
            finally:
                self._receiving = None
            if not self._blocking.take_plain(native):
                await asyncio.to_thread(self._blocking.take, native)
        if self._blocking.seconds_to_tick == 0:
            await asyncio.to_thread(self._blocking.tick)

    def _check_open(self) -> None:
        if self._closed:
            raise _asyncio_error(vendor().Result.AlreadyClosed)

    async def _stop(self) -> None:
        """Stop receiving: callers that wait get the client's ``AlreadyClosed``."""
        self._closed = True
        self._changed.set()
        for each in (self._receiving, *self._reads.values()):
            if each is not None:
                each.cancel()
        if running := [each for each in (self._taking, *self._reads.values()) if each and not each.done()]:
            await asyncio.wait(running)


class AsyncPulsarConsumer(_AsyncReceiver[PulsarConsumer]):
    """Wraps a `pulsar.asyncio.Consumer`: each message that it returns is a whole payload, already read.

    Several receives at once read their payloads concurrently and return them in the order of the topic. Cancelling a
    receive loses nothing: the next one returns its message.

    Args:
        consumer: A `pulsar.asyncio.Consumer`.
        cc: A `claimcheck.ClaimCheck` that knows the writers' stores.
        options: See `PulsarConsumer`. ``prefetch_bytes`` has no effect: start several receives to read payloads
            concurrently. ``dead_letter_producer`` is a blocking one.
    """

    delegated = _AsyncReceiver.delegated | {"consumer_name", "redeliver_unacknowledged_messages", "subscription_name"}

    def __init__(self, consumer: pulsar.asyncio.Consumer, cc: ClaimCheck, **options: Unpack[ConsumerOptions]) -> None:
        options = {**options, "prefetch_bytes": 0}  # it reads each payload before it returns the message
        super().__init__(consumer, PulsarConsumer(blocking("Consumer", consumer), cc, **options), consumer.receive)

    async def receive(self) -> PulsarMessage:
        """Wait for the next payload. If it cannot be delivered, the message's `data` raises the error."""
        return await self._next()

    async def get_last_message_id(self) -> pulsar.MessageId:
        """The native id of the last message in the topic, which may be a chunk."""
        return await self._native.get_last_message_id()

    async def unsubscribe(self) -> None:
        """Delete the subscription."""
        await self._call(self._blocking.unsubscribe)
        await self._stop()

    acknowledge = off_the_loop(PulsarConsumer.acknowledge)
    acknowledge_cumulative = off_the_loop(PulsarConsumer.acknowledge_cumulative)
    negative_acknowledge = off_the_loop(PulsarConsumer.negative_acknowledge)
    dead_letter = off_the_loop(PulsarConsumer.dead_letter)


class AsyncPulsarReader(_AsyncReceiver[PulsarReader]):
    """Wraps a `pulsar.asyncio.Reader`: each message that it returns is a whole payload, already read.

    Cancelling a call loses nothing: the next one returns its message.

    Args:
        reader: A `pulsar.asyncio.Reader`.
        cc: A `claimcheck.ClaimCheck` that knows the writers' stores.
        options: See `PulsarReader`.
    """

    delegated = _AsyncReceiver.delegated | {"is_connected"}

    def __init__(self, reader: pulsar.asyncio.Reader, cc: ClaimCheck, **options: Unpack[ReaderOptions]) -> None:
        super().__init__(reader, PulsarReader(blocking("Reader", reader), cc, **options), reader.read_next)

    async def read_next(self) -> PulsarMessage:
        """Wait for the next payload. If it cannot be delivered, the message's `data` raises the error."""
        return await self._next()

    has_message_available = off_the_loop(PulsarReader.has_message_available)


# Sending ---------------------------------------------------------------------------------------------------------


class AsyncPulsarProducer(_AsyncWrapper[PulsarProducer]):
    """Wraps a `pulsar.asyncio.Producer`, and sends payloads of any size.

    Payloads are stored concurrently, but passed to the client in the order of the `send` calls.

    Args:
        producer: A `pulsar.asyncio.Producer`.
        cc: A `claimcheck.ClaimCheck`.
        options: See `PulsarProducer`, also for errors.
    """

    delegated = _AsyncWrapper.delegated | {"is_connected", "last_sequence_id", "producer_name"}

    def __init__(self, producer: pulsar.asyncio.Producer, cc: ClaimCheck, **options: Unpack[ProducerOptions]) -> None:
        check_type("producer", producer, valid=hasattr(producer, "_producer"), expected="a pulsar.asyncio.Producer")
        super().__init__(PulsarProducer(blocking("Producer", producer), cc, **options))
        self._last: asyncio.Future[None] | None = None  # done when the last payload was passed to the client

    async def send(
        self,
        content: object,
        properties: dict[str, str] | None = None,
        partition_key: str | None = None,
        **options: Unpack[SendOptions],
    ) -> pulsar.MessageId | WholeMessageId:
        """Send one payload; arguments and result as for `PulsarProducer.send`, with ``None`` for a tombstone.

        If the calling task is cancelled, it ends at once, but the payload is still sent.

        Raises:
            pulsar.asyncio.PulsarException: The client's own error; other errors as for `PulsarProducer.send`.
        """
        checked, arguments = checked_options(options), (content, properties, partition_key)
        with _asyncio_errors():
            plain = not checked and self._blocking.sends_plain(*arguments)
            if plain and self._is_idle:
                return await self._send_plain(*arguments)
            loop = asyncio.get_running_loop()
            before, self._last = None if self._is_idle else self._last, loop.create_future()
            sending = self._send_after(before, self._last, arguments, None if plain else checked)
            return await asyncio.shield(retrieved(in_background(loop, sending)))

    async def flush(self) -> None:
        """Wait until all sent messages are in the topic."""
        await self._wait_idle()
        await self._call(self._blocking.flush)

    async def _close(self) -> None:
        await self._wait_idle()
        await self._call(self._blocking.close)

    @property
    def _is_idle(self) -> bool:
        return self._last is None or self._last.done() or self._last.get_loop().is_closed()

    async def _wait_idle(self) -> None:
        if self._last is not None and not self._is_idle:
            await asyncio.wait({self._last})

    async def _send_after(
        self,
        before: asyncio.Future[None] | None,
        launched: asyncio.Future[None],
        arguments: tuple[object, dict[str, str] | None, str | None],
        options: dict[str, object] | None,
    ) -> pulsar.MessageId | WholeMessageId:
        """Store a payload now, launch it when the one before was launched or has failed, and return the result."""
        sending = None
        try:
            if options is not None:
                prepare = functools.partial(self._blocking.prepare, *arguments, options)
                sending = await in_thread(prepare, undo=PayloadSend.drop)
            try:
                if before is not None:
                    await asyncio.wait({before})
            except asyncio.CancelledError:  # the loop is being closed
                if sending is not None:
                    sending.drop()
                raise
            if sending is not None:
                await asyncio.to_thread(sending.launch_all)
            result = self._send_plain(*arguments) if sending is None else asyncio.to_thread(sending.finish)
        finally:
            if before is None or before.done():
                launched.set_result(None)
            else:
                before.add_done_callback(lambda _: launched.set_result(None))
        return await result

    def _send_plain(
        self, content: object, properties: dict[str, str] | None, partition_key: str | None
    ) -> Awaitable[pulsar.MessageId]:
        """Pass a plain message to the client now, and return a future for its id."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[pulsar.MessageId] = loop.create_future()

        def conclude(result: pulsar.Result, message_id: pulsar.MessageId) -> None:
            if future.done():
                return
            if result == vendor().Result.Ok:
                future.set_result(message_id)
            else:
                future.set_exception(_asyncio_error(result))

        def callback(result: pulsar.Result, message_id: pulsar.MessageId) -> None:
            with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile
                loop.call_soon_threadsafe(conclude, result, message_id)

        self._blocking.send_async(content, callback, properties, partition_key)
        return future


@contextlib.contextmanager
def _asyncio_errors() -> Iterator[None]:
    """Convert errors of the blocking client into the one exception class of the asyncio client."""
    try:
        yield
    except ClaimCheckError:
        raise
    except vendor().exceptions.PulsarException as error:
        raise _asyncio_error(getattr(vendor().Result, type(error).__name__, vendor().Result.UnknownError)) from error


def _asyncio_error(result: pulsar.Result) -> Exception:
    import pulsar.asyncio

    error: Exception = pulsar.asyncio.PulsarException(result)
    return error
