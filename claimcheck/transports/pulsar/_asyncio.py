"""The wrappers for `pulsar.asyncio`: the blocking wrappers do the work, in threads where they would block the loop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar, Unpack

from claimcheck._outbound import in_background
from claimcheck._threads import in_thread
from claimcheck._validation import check_type
from claimcheck.errors import ClaimCheckError
from claimcheck.transports.pulsar._consumer import ConsumerOptions, PulsarConsumer
from claimcheck.transports.pulsar._errors import vendor
from claimcheck.transports.pulsar._message import PulsarMessage
from claimcheck.transports.pulsar._producer import ProducerOptions, PulsarProducer
from claimcheck.transports.pulsar._reader import PulsarReader, ReaderOptions
from claimcheck.transports.pulsar._receiver import TICK_SECONDS, blocking
from claimcheck.transports.pulsar._send import PayloadSend

if TYPE_CHECKING:
    from claimcheck._client import ClaimCheck

__all__ = ["AsyncPulsarConsumer", "AsyncPulsarProducer", "AsyncPulsarReader"]

B = TypeVar("B", bound=PulsarConsumer | PulsarProducer | PulsarReader)
R = TypeVar("R", bound=PulsarConsumer | PulsarReader)
T = TypeVar("T")


class _AsyncWrapper(Generic[B]):
    """What all three wrappers share."""

    def __init__(self, native: Any, wrapper: B) -> None:
        self._native = native
        self._blocking = wrapper

    async def close(self) -> None:
        """Close the wrapped object."""
        raise NotImplementedError

    def topic(self) -> Any:
        """The topic's whole name."""
        return self._native.topic()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<Async{repr(self._blocking)[1:]}"

    async def _in_thread(self, work: Callable[..., T], *arguments: Any) -> T:
        with _asyncio_errors():
            return await asyncio.to_thread(work, *arguments)


# Receiving -------------------------------------------------------------------------------------------------------


class _AsyncReceiver(_AsyncWrapper[R]):
    """Receives native messages one at a time; the blocking wrapper turns them into payloads.

    The client loses a message if its ``receive`` is cancelled. So a native receive goes on when the caller of `_next`
    is cancelled, and the next caller gets its message.
    """

    def __init__(self, native: Any, wrapper: R, receive: Callable[[], Awaitable[Any]]) -> None:
        super().__init__(native, wrapper)
        self._receive = receive
        self._receiving: asyncio.Task[Any] | None = None
        self._one_at_a_time = asyncio.Lock()
        self._closed = False

    async def seek(self, messageid: Any) -> None:
        """Seek as the blocking wrapper does."""
        await self._in_thread(self._blocking.seek, messageid)

    async def close(self) -> None:
        """Close the wrapped object. Unacknowledged messages are redelivered, to other consumers."""
        await self._stop()
        self._blocking.forget()
        await self._native.close()

    @property
    def pending_payloads(self) -> int:
        """Payloads of which some chunks are held."""
        return self._blocking.pending_payloads

    @property
    def pending_bytes(self) -> int:
        """Bytes of the chunks that are held."""
        return self._blocking.pending_bytes

    async def _next(self) -> PulsarMessage:
        """Wait for a payload, and read it if it is stored."""
        async with self._one_at_a_time:
            while (message := self._blocking.take_ready()) is None:
                await self._step()
        if not message.is_read:
            await in_thread(message.read)
        return message

    async def _step(self) -> None:
        if self._closed:
            raise _asyncio_error(vendor().Result.AlreadyClosed)
        if self._receiving is None:
            self._receiving = asyncio.ensure_future(self._receive())
        timeout = TICK_SECONDS if self._blocking.pending_payloads else None
        done, _ = await asyncio.wait({self._receiving}, timeout=timeout)
        if not done:
            await asyncio.to_thread(self._blocking.tick)
            return
        received, self._receiving = self._receiving, None
        if received.cancelled():
            raise _asyncio_error(vendor().Result.AlreadyClosed)
        native = received.result()
        if not self._blocking.take_plain(native):
            await asyncio.to_thread(self._blocking.take, native)
        elif self._blocking.tick_is_due:
            await asyncio.to_thread(self._blocking.tick)

    async def _stop(self) -> None:
        """Stop receiving: callers that wait get the client's ``AlreadyClosed``."""
        self._closed = True
        if self._receiving is not None:
            self._receiving.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await self._receiving


class AsyncPulsarConsumer(_AsyncReceiver[PulsarConsumer]):
    """Wraps a `pulsar.asyncio.Consumer`: each message that it returns is a whole payload, already read.

    Usable with ``async with``, which closes it.

    Args:
        consumer: A `pulsar.asyncio.Consumer`.
        cc: A `claimcheck.ClaimCheck` that knows the writers' stores.
        options: See `PulsarConsumer`; ``dead_letter_producer`` is a blocking one, from a `pulsar.Client`.
    """

    def __init__(self, consumer: Any, cc: ClaimCheck, **options: Unpack[ConsumerOptions]) -> None:
        wrapper = PulsarConsumer(blocking("Consumer", consumer), cc, **options)
        super().__init__(consumer, wrapper, consumer.receive)

    async def receive(self) -> PulsarMessage:
        """Wait for the next payload. The data of one that cannot be delivered raises the error."""
        return await self._next()

    async def acknowledge(self, message: Any) -> None:
        """See `PulsarConsumer.acknowledge`."""
        await self._in_thread(self._blocking.acknowledge, message)

    async def acknowledge_cumulative(self, message: Any) -> None:
        """See `PulsarConsumer.acknowledge_cumulative`."""
        await self._in_thread(self._blocking.acknowledge_cumulative, message)

    async def negative_acknowledge(self, message: Any) -> None:
        """See `PulsarConsumer.negative_acknowledge`."""
        await self._in_thread(self._blocking.negative_acknowledge, message)

    async def dead_letter(self, message: PulsarMessage, *, reason: str = "rejected") -> None:
        """See `PulsarConsumer.dead_letter`."""
        await self._in_thread(lambda: self._blocking.dead_letter(message, reason=reason))

    def redeliver_unacknowledged_messages(self) -> None:
        """See `PulsarConsumer.redeliver_unacknowledged_messages`."""
        self._blocking.redeliver_unacknowledged_messages()

    async def get_last_message_id(self) -> Any:
        """The native id of the last message in the topic, which may be a chunk."""
        return await self._native.get_last_message_id()

    async def unsubscribe(self) -> None:
        """Delete the subscription."""
        await self._in_thread(self._blocking.unsubscribe)
        await self._stop()

    def subscription_name(self) -> Any:
        """The subscription's name."""
        return self._native.subscription_name()

    def consumer_name(self) -> Any:
        """The consumer's name."""
        return self._native.consumer_name()


class AsyncPulsarReader(_AsyncReceiver[PulsarReader]):
    """Wraps a `pulsar.asyncio.Reader`: each message that it returns is a whole payload, already read.

    Usable with ``async with``, which closes it.

    Args:
        reader: A `pulsar.asyncio.Reader`.
        cc: A `claimcheck.ClaimCheck` that knows the writers' stores.
        options: See `PulsarReader`.
    """

    def __init__(self, reader: Any, cc: ClaimCheck, **options: Unpack[ReaderOptions]) -> None:
        super().__init__(reader, PulsarReader(blocking("Reader", reader), cc, **options), reader.read_next)

    async def read_next(self) -> PulsarMessage:
        """Wait for the next payload. The data of one that cannot be delivered raises the error."""
        return await self._next()

    async def has_message_available(self) -> bool:
        """Whether a whole payload is available."""
        return await self._in_thread(self._blocking.has_message_available)

    def is_connected(self) -> Any:
        """Whether the reader is connected at the moment."""
        return self._native.is_connected()


# Sending ---------------------------------------------------------------------------------------------------------


class _SendOrder:
    """Turns in the order in which they were taken: one begins when the one before has ended, failed or not."""

    def __init__(self) -> None:
        self._last: asyncio.Future[None] | None = None

    @property
    def is_idle(self) -> bool:
        """Whether all turns have ended."""
        return self._last is None or self._last.done() or self._last.get_loop().is_closed()

    def take(self) -> _Turn:
        """Take the turn after all others."""
        before = None if self.is_idle else self._last
        self._last = asyncio.get_running_loop().create_future()
        return _Turn(before, self._last)

    async def wait_idle(self) -> None:
        """Wait until every turn that was taken so far has ended."""
        if self._last is not None and not self.is_idle:
            await asyncio.wait({self._last})


class _Turn:
    """One turn; its owner must call `end`."""

    def __init__(self, before: asyncio.Future[None] | None, ended: asyncio.Future[None]) -> None:
        self._before = before
        self._ended = ended

    async def begin(self) -> None:
        """Wait until the turn before has ended."""
        if self._before is not None and not self._before.done():
            await asyncio.wait({self._before})  # does not cancel it when the waiting is cancelled

    def end(self) -> None:
        """End this turn; if it has not begun, the next one begins after the one before."""
        if self._before is None or self._before.done():
            self._ended.set_result(None)
        else:
            self._before.add_done_callback(lambda _: self._ended.set_result(None))


_Launch = Callable[[_Turn, tuple[Any, ...]], Awaitable[Awaitable[Any]]]
"""Passes a payload to the client in its turn, and returns what to await for the result."""


class AsyncPulsarProducer(_AsyncWrapper[PulsarProducer]):
    """Wraps a `pulsar.asyncio.Producer`, and sends payloads of any size.

    Small messages go straight to the client; payloads that are stored or cut into chunks go through a thread. Payloads
    are stored concurrently, but go to the client in the order of the `send` calls. Usable with ``async with``, which
    closes it.

    Args:
        producer: A `pulsar.asyncio.Producer`.
        cc: A `claimcheck.ClaimCheck`.
        options: See `PulsarProducer`. With ``admin_url`` the constructor blocks during the request.

    Raises:
        TransportError: The web service did not answer.
        ConfigError: An argument is out of range or of the wrong type; for an object also a `TypeError`.
    """

    def __init__(self, producer: Any, cc: ClaimCheck, **options: Unpack[ProducerOptions]) -> None:
        check_type("producer", producer, valid=hasattr(producer, "_producer"), expected="a pulsar.asyncio.Producer")
        super().__init__(producer, PulsarProducer(blocking("Producer", producer), cc, **options))
        self._order = _SendOrder()

    async def send(
        self,
        content: Any,
        properties: dict[str, str] | None = None,
        partition_key: str | None = None,
        ordering_key: str | None = None,
        sequence_id: int | None = None,
        replication_clusters: list[str] | None = None,
        disable_replication: bool | None = None,
        event_timestamp: int | None = None,
        deliver_at: int | None = None,
        deliver_after: timedelta | None = None,
    ) -> Any:
        """Send one payload; arguments and result as for `PulsarProducer.send`, with ``None`` for a tombstone.

        If the calling task is cancelled, it ends at once, and the payload is sent all the same.

        Raises:
            pulsar.asyncio.PulsarException: The client's own error; other errors as for `PulsarProducer.send`.
        """
        options = (
            ordering_key, sequence_id, replication_clusters, bool(disable_replication), event_timestamp, deliver_at,
            deliver_after,
        )  # fmt: skip
        producer = self._blocking
        with _asyncio_errors():
            plain = not any(options) and producer.sends_plain(content, properties, partition_key)
            if plain and self._order.is_idle:
                return await _result_of(lambda call: producer.send_async(content, call, properties, partition_key))
            launch = self._launch_plain if plain else self._launch
            sending = self._in_turn(launch, (content, properties, partition_key, *options))
            return await asyncio.shield(in_background(asyncio.get_running_loop(), sending))

    async def flush(self) -> None:
        """Wait until everything that was sent is in the topic."""
        await self._order.wait_idle()
        await self._in_thread(self._blocking.flush)

    async def close(self) -> None:
        """Flush and close."""
        await self._order.wait_idle()
        await self._in_thread(self._blocking.close)

    def producer_name(self) -> Any:
        """The producer's name."""
        return self._blocking.producer_name()

    def last_sequence_id(self) -> Any:
        """The sequence id of the last message in the topic; each chunk has one."""
        return self._native.last_sequence_id()

    def is_connected(self) -> Any:
        """Whether the producer is connected at the moment."""
        return self._native.is_connected()

    def _in_turn(self, launch: _Launch, arguments: tuple[Any, ...]) -> Coroutine[Any, Any, Any]:
        """Take a turn now, and send when it begins."""
        turn = self._order.take()

        async def send() -> Any:
            try:
                result = await launch(turn, arguments)
            finally:
                turn.end()
            return await result

        return send()

    async def _launch(self, turn: _Turn, arguments: tuple[Any, ...]) -> Awaitable[Any]:
        sending = await in_thread(lambda: self._blocking.prepare(*arguments), undo=PayloadSend.drop)
        try:
            await turn.begin()
        except asyncio.CancelledError:  # the loop is being closed
            sending.drop()
            raise
        await asyncio.to_thread(sending.launch)
        return asyncio.to_thread(sending.wait)

    async def _launch_plain(self, turn: _Turn, arguments: tuple[Any, ...]) -> Awaitable[Any]:
        content, properties, key, *_ = arguments
        await turn.begin()
        return _result_of(lambda call: self._blocking.send_async(content, call, properties, key))


def _result_of(send: Callable[[Callable[[Any, Any], None]], None]) -> asyncio.Future[Any]:
    """Call ``send`` with a callback now, and return a future for what the callback receives."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Any] = loop.create_future()

    def call(result: Any, message_id: Any) -> None:
        with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile
            loop.call_soon_threadsafe(conclude, result, message_id)

    def conclude(result: Any, message_id: Any) -> None:
        if future.done():
            return
        if result == vendor().Result.Ok:
            future.set_result(message_id)
        else:
            future.set_exception(_asyncio_error(result))

    send(call)
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


def _asyncio_error(result: Any) -> Exception:
    import pulsar.asyncio

    error: Exception = pulsar.asyncio.PulsarException(result)
    return error
