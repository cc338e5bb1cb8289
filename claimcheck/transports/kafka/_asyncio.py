"""Producer and consumer of `confluent_kafka.aio`, for payloads of any size; the event loop is never blocked."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import threading
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextvars import ContextVar
from itertools import takewhile
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

from claimcheck._threads import in_thread, retrieved
from claimcheck.transports._common.delegation import AsyncWrapper, off_the_loop
from claimcheck.transports._common.received import StoredPayload
from claimcheck.transports.kafka._client import exception_of, native_client
from claimcheck.transports.kafka._consumer import ConsumerOptions, KafkaConsumer
from claimcheck.transports.kafka._producer import DeliveryCallback, KafkaProducer, ProducerOptions

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message
    from confluent_kafka.aio import AIOConsumer, AIOProducer

    from claimcheck._client import ClaimCheck

_SERVE_SECONDS = 0.1
_ROOM_SECONDS = 0.01
_STEP_SECONDS = 0.2
_NO_LIMIT = -1.0
_FOREVER = float("inf")

B = TypeVar("B", KafkaConsumer, KafkaProducer)
T = TypeVar("T")

AsyncRebalanceCallback = Callable[[Any, list[Any]], Awaitable[object]]


class _AsyncWrapper(AsyncWrapper[B]):
    """Base of both wrappers; the methods in ``delegated`` are coroutine functions here."""

    _call: Any

    @classmethod
    def _delegating(cls, name: str) -> property:
        return property(lambda self: self._later(getattr(self._blocking, name)))

    def _later(self, found: Any) -> Any:
        """Return the coroutine function for a method; anything else as it is."""

        async def method(*args: Any, **kwargs: Any) -> Any:
            return await self._call(functools.partial(found, *args, **kwargs))

        return method if callable(found) else found


class AsyncKafkaConsumer(_AsyncWrapper[KafkaConsumer]):
    """Wraps a `confluent_kafka.aio.AIOConsumer` and has its methods; each message that it returns is a whole payload.

    Stored payloads are read before a message is returned. Cancelling a receive loses nothing: the next receive returns
    its messages, and they are not committed before that. Calls wait for each other, except those of a rebalance
    callback; a receive makes other calls wait a fraction of a second at most.

    Args:
        consumer: An `AIOConsumer`, with ``enable.auto.offset.store`` set to ``False``.
        cc: A `claimcheck.ClaimCheck` with the writers' stores.
        options: See `KafkaConsumer`, also for errors; ``dead_letter_producer`` is a blocking one.
    """

    delegated = KafkaConsumer.delegated | {"pending_bytes", "pending_payloads"}

    def __init__(self, consumer: AIOConsumer, cc: ClaimCheck, **options: Unpack[ConsumerOptions]) -> None:
        self._native: Any = consumer
        self._blocking = KafkaConsumer(native_client(consumer, "Consumer"), cc, **options)
        self._receiver = self._blocking._receiver
        self._calls = CallSerializer(self._native._call)
        self._call = self._calls.call
        self._reading: tuple[StoredPayload, asyncio.Task[None]] | None = None

    async def poll(self, timeout: float = -1) -> Any:
        """Wait for the next payload; arguments, result and errors are those of `KafkaConsumer.poll`.

        If reading a payload takes longer than ``timeout`` seconds, a later call returns it.
        """
        messages = await self._receive(1, timeout)
        return messages[0] if messages else None

    async def consume(self, num_messages: int = 1, timeout: float = -1) -> list[Any]:
        """Wait for up to ``num_messages`` payloads; returns those that came in time, all of them in memory together."""
        return await self._receive(num_messages, timeout)

    commit = off_the_loop(KafkaConsumer.commit)
    store_offsets = off_the_loop(KafkaConsumer.store_offsets)
    dead_letter = off_the_loop(KafkaConsumer.dead_letter)
    position = off_the_loop(KafkaConsumer.position)
    seek = off_the_loop(KafkaConsumer.seek)

    async def subscribe(
        self,
        topics: list[str],
        on_assign: AsyncRebalanceCallback | None = None,
        on_revoke: AsyncRebalanceCallback | None = None,
        on_lost: AsyncRebalanceCallback | None = None,
    ) -> None:
        """Subscribe; callbacks are coroutine functions that receive this consumer, and may await its methods."""
        callbacks = [each and self._callback(each) for each in (on_assign, on_revoke, on_lost)]
        await self._call(lambda: self._blocking.subscribe(topics, *callbacks))

    unsubscribe = off_the_loop(KafkaConsumer.unsubscribe)
    assign = off_the_loop(KafkaConsumer.assign)
    incremental_assign = off_the_loop(KafkaConsumer.incremental_assign)
    unassign = off_the_loop(KafkaConsumer.unassign)
    incremental_unassign = off_the_loop(KafkaConsumer.incremental_unassign)
    pause = off_the_loop(KafkaConsumer.pause)
    resume = off_the_loop(KafkaConsumer.resume)

    async def close(self) -> None:
        """Close the consumer as `KafkaConsumer.close` does; if the task is cancelled, closing continues."""
        self._blocking.stop_storing_after_error()  # here: another task closes
        await super().close()

    async def _close(self) -> None:
        self._stop_reading()
        try:
            await self._call(self._blocking.close)
        finally:
            await self._native.close()

    def _callback(self, callback: AsyncRebalanceCallback) -> Callable[[Any, list[Any]], object]:
        """Wrap a coroutine function like the client does, to be called from one of its threads."""
        loop = asyncio.get_running_loop()
        wrapped: Callable[[Any, list[Any]], object]
        wrapped = self._native._wrap_callback(loop, callback, lambda arguments: (self, *arguments[1:]))
        return wrapped

    async def _receive(self, count: int, timeout: float | None) -> list[Any]:
        clock = asyncio.get_running_loop().time
        end = clock() + timeout if timeout is not None and timeout >= 0 else _FOREVER
        is_last = False
        receiver = self._receiver
        if receiver.prefetch.always or receiver.prefetch.room:
            await self._call(receiver.look_ahead)
        while True:
            async with self._calls.exclusive():  # without an await: the caller gets the messages, or they stay queued
                waiting = receiver.waiting(count)
                ready = len(list(takewhile(lambda each: each.stored is None or each.stored.is_read, waiting)))
                if ready == count or is_last:
                    receiver.begin_call()
                    return receiver.hand_out(ready)
            left = max(0.0, end - clock())
            is_last = not left
            if ready < len(waiting) and (stored := waiting[ready].stored) is not None:
                await self._read(stored, left)
            else:
                gather = functools.partial(receiver.gather, count - ready, min(_STEP_SECONDS, left))
                await self._call(gather)

    async def _read(self, stored: StoredPayload, seconds: float) -> None:
        """Read a stored payload in a thread; after a timeout or a cancellation the read continues."""
        if self._reading is None or self._reading[0] is not stored:
            self._stop_reading()
            self._reading = stored, asyncio.ensure_future(in_thread(stored.read))
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


class CallSerializer:
    """Runs one call of a consumer at a time, because it is not thread-safe, and with it the calls of its callbacks."""

    def __init__(self, call: Callable[..., Any]) -> None:
        self._call = call
        self._lock = asyncio.Lock()

    async def call(self, work: Callable[[], T]) -> T:
        """Call ``work`` in a thread. If the task is cancelled, the call continues, and the next call waits for it."""
        if self._is_nested():
            result: T = await self._call(work)
            return result
        return await asyncio.shield(retrieved(asyncio.ensure_future(self._locked(work))))

    @contextlib.asynccontextmanager
    async def exclusive(self) -> AsyncIterator[None]:
        """Enter a block on the event loop during which no call runs."""
        if self._is_nested():
            yield
        else:
            async with self._lock:
                yield

    async def _locked(self, work: Callable[[], T]) -> T:
        async with self._lock:
            result: T = await self._call(self._marked, work)
            return result

    def _marked(self, work: Callable[[], T]) -> T:
        """Mark this context, which the task of a callback inherits: its calls do not wait while this call runs."""
        running = {self}
        token = _running_calls.set((*_running_calls.get(), running))
        try:
            return work()
        finally:
            running.clear()
            _running_calls.reset(token)

    def _is_nested(self) -> bool:
        return any(self in running for running in _running_calls.get())


_running_calls: ContextVar[tuple[set[CallSerializer], ...]] = ContextVar("claimcheck_kafka_calls", default=())


class AsyncKafkaProducer(_AsyncWrapper[KafkaProducer]):
    """Wraps a `confluent_kafka.aio.AIOProducer`, has its methods, and sends payloads that are too large for it.

    Small records go directly into the client's queue, which batches them by its own ``linger.ms``; the buffer of the
    `AIOProducer` is not used. Records of one key keep their order if each `produce` is awaited before the next begins.
    Records of concurrent tasks have no order.

    Args:
        producer: An `AIOProducer`, without ``delivery.report.only.error``: futures of delivered records would never
            complete.
        cc: A `claimcheck.ClaimCheck`.
        options: See `KafkaProducer`, also for errors.
    """

    delegated = KafkaProducer.delegated

    def __init__(self, producer: AIOProducer, cc: ClaimCheck, **options: Unpack[ProducerOptions]) -> None:
        self._native: Any = producer
        self._blocking = KafkaProducer(native_client(producer, "Producer"), cc, **options)
        self._call = self._native._call  # in one of the client's threads
        self._futures = DeliveryFutures(lambda: self._call(lambda: self._blocking.serve(_SERVE_SECONDS)))
        self._in_threads: set[asyncio.Task[None]] = set()

    async def produce(
        self,
        topic: str,
        value: Any = None,
        key: str | bytes | None = None,
        partition: int = -1,
        timestamp: int = 0,
        headers: Any = None,
    ) -> asyncio.Future[Any]:
        """Send one payload; takes the arguments of `KafkaProducer.produce` except the callbacks.

        When this returns, the payload is stored if necessary, and the record is in the client's queue; if that is full,
        this waits for room. Cancelling the task abandons a payload that is still being stored or split: it is sent
        completely, once, or not at all. Cancelling the future changes nothing.

        Returns:
            A future of the delivered message; for chunks a `KafkaMessage` with the lowest offset and ``last_offset``.
            It raises the errors of `KafkaProducer.produce` and of delivery reports.

        Raises:
            TypeError, ValueError, RuntimeError: An argument is wrong, or the producer is closed; nothing was sent.
        """
        value = value.encode() if isinstance(value, str) else value
        plain = self._blocking.sends_plain(topic, value, key, headers)
        future, delivered = self._futures.expect()

        def send() -> None:
            self._blocking.produce(
                topic, value, key, partition, on_delivery=delivered, timestamp=timestamp, headers=headers
            )

        await (self._send_plain(send, future) if plain else self._send_in_thread(send, future))
        return future

    async def poll(self, timeout: float = 0) -> int:
        """Serve delivery reports; not needed for futures."""
        return int(await self._call(lambda: self._blocking.poll(timeout)))

    async def flush(self, timeout: float = _NO_LIMIT) -> int:
        """Wait until every record has its report, its future is done, and failed sends are rolled back.

        Returns the number of records without a report on timeout.
        """
        clock = asyncio.get_running_loop().time
        end = clock() + timeout

        def left() -> float:
            return _NO_LIMIT if timeout < 0 else max(0.0, end - clock())

        await self._threads_done(left())
        seconds = left()
        await self._call(lambda: self._blocking.flush(seconds))
        return await self._futures.wait(left())

    async def _close(self) -> None:
        async with contextlib.AsyncExitStack() as closing:
            closing.push_async_callback(asyncio.to_thread, self._blocking.close)
            closing.push_async_callback(self._native.close)
            await self.flush()

    begin_transaction = off_the_loop(KafkaProducer.begin_transaction)

    async def commit_transaction(self, timeout: float = _NO_LIMIT) -> None:
        """Flush and commit; raises as `KafkaProducer.commit_transaction`."""
        await self._threads_done(_NO_LIMIT)
        await self._call(lambda: self._blocking.commit_transaction(timeout))

    async def abort_transaction(self, timeout: float = _NO_LIMIT) -> None:
        """Abort like `KafkaProducer.abort_transaction`, once every record has its report.

        If nothing was sent in the transaction, aborting it is a fatal error of the client, ``INVALID_TXN_STATE``.
        """
        await self._futures.wait(timeout)
        await self._call(lambda: self._blocking.abort_transaction(timeout))

    def __len__(self) -> int:
        return len(self._blocking)

    def __bool__(self) -> bool:
        return True

    async def _send_plain(self, send: Callable[[], None], future: asyncio.Future[Any]) -> None:
        with self._futures.failing(future):
            while True:
                try:
                    send()
                    break
                except BufferError:
                    self._futures.serve()
                    await asyncio.sleep(_ROOM_SECONDS)
        self._futures.serve()

    async def _send_in_thread(self, send: Callable[[], None], future: asyncio.Future[Any]) -> None:
        begun = threading.Event()

        def work() -> None:
            begun.set()
            with self._futures.failing(future):
                send()

        def done(task: asyncio.Task[None]) -> None:
            self._in_threads.discard(task)
            if task.cancelled() and not begun.is_set():  # no thread settles the future
                self._futures.close(future)
            _ = task.cancelled() or task.exception()  # retrieved, even if no task waits
            self._futures.serve()

        task = asyncio.ensure_future(in_thread(work, to_the_end=True))
        self._in_threads.add(task)
        task.add_done_callback(done)
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            future.cancel()
            task.cancel()  # checked between pieces of the payload; `flush` waits for the task
            raise

    async def _threads_done(self, timeout: float) -> None:
        """Wait for payloads that are still being stored or split."""
        if self._in_threads:
            await asyncio.wait(self._in_threads, timeout=None if timeout < 0 else timeout)


class DeliveryFutures:
    """The futures of records in flight; serves delivery reports while any of them is open."""

    def __init__(self, serve: Callable[[], Awaitable[object]]) -> None:
        self._serve = serve
        self._loop = asyncio.get_running_loop()
        self._open: set[asyncio.Future[Any]] = set()
        self._none_open = asyncio.Event()
        self._none_open.set()
        self._settled: deque[tuple[asyncio.Future[Any], Exception | None, Message | None]] = deque()
        self._is_scheduled = False
        self._server: asyncio.Task[None] | None = None

    def expect(self) -> tuple[asyncio.Future[Any], DeliveryCallback]:
        """Open a future for one record; returns it with the delivery callback that settles it."""
        future = self._loop.create_future()
        self._open.add(future)
        self._none_open.clear()

        def delivered(error: KafkaError | None, report: Message) -> None:
            self._settle(future, None if error is None else exception_of(error), report)

        return future, delivered

    @contextlib.contextmanager
    def failing(self, future: asyncio.Future[Any]) -> Iterator[None]:
        """Settle the future with an error of the record; raise errors of the call itself. For any thread."""
        try:
            yield
        except (TypeError, ValueError, RuntimeError):
            self.close(future)
            raise
        except Exception as error:
            self._settle(future, error, None)
        except BaseException:  # its task was cancelled
            self.close(future)
            raise

    def close(self, future: asyncio.Future[Any]) -> None:
        """Give up a future whose record was not sent. For any thread."""
        self._settle(future, None, None)

    def serve(self) -> None:
        """Serve delivery reports in the background until no future is open."""
        if self._server is None and self._open:
            self._server = self._loop.create_task(self._serve_all())

    async def wait(self, timeout: float) -> int:
        """Wait until no future is open or time is up (negative: no limit); returns the number of open futures."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._none_open.wait(), None if timeout < 0 else timeout)
        return len(self._open)

    async def _serve_all(self) -> None:
        try:
            while self._open:
                await self._serve()
        finally:
            self._server = None

    def _settle(self, future: asyncio.Future[Any], error: Exception | None, report: Message | None) -> None:
        """Settle a future from any thread; many reports wake the loop once."""
        self._settled.append((future, error, report))
        if not self._is_scheduled:
            self._is_scheduled = True
            with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile
                self._loop.call_soon_threadsafe(self._settle_all)

    def _settle_all(self) -> None:
        self._is_scheduled = False  # first, so that reports added from here on wake the loop again
        while self._settled:
            future, error, report = self._settled.popleft()
            self._open.discard(future)
            if not future.done():  # its owner has not cancelled it
                future.set_result(report) if error is None else future.set_exception(error)
        if not self._open:
            self._none_open.set()
