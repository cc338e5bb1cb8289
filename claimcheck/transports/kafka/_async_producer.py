"""Sends payloads of any size through a producer of `confluent_kafka.aio`; the event loop is never blocked."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from claimcheck._threads import in_thread
from claimcheck.transports.kafka._errors import exception_of, within
from claimcheck.transports.kafka._producer import ROOM_SECONDS, WINDOW_BYTES, KafkaProducer
from claimcheck.transports.kafka._topic_limits import MAX_MESSAGE_BYTES

if TYPE_CHECKING:
    from claimcheck._client import ClaimCheck

__all__ = [
    "AsyncKafkaProducer",
    "Reports",
]

_SERVE_SECONDS = 0.1
_ROOM_SECONDS = 0.01
_FOR_EVER = -1

T = TypeVar("T")


class AsyncKafkaProducer:
    """Has the methods of a `confluent_kafka.aio.AIOProducer`, and sends payloads that are too large for it.

    Small records go straight into the client's queue, from which it makes batches by its own ``linger.ms``: the buffer
    of the `AIOProducer`, with its ``batch_size`` and ``buffer_timeout``, is passed by. What has to be stored or cut
    into chunks goes in a thread.

    Records of one key keep their order when each `produce` is awaited before the next begins, large and small ones
    alike. Those of tasks that run at the same time have none.

    Args:
        producer: An `AIOProducer`. What is given to its own ``produce`` has no order with what is given to this. With
            ``delivery.report.only.error`` nobody would ever say that a record is there, and its future waits for ever.
        cc: A `claimcheck.ClaimCheck`.
        max_message_bytes: See `KafkaProducer`, as for all other options.
        admin: See `KafkaProducer`.
        window_bytes: See `KafkaProducer`.
        room_seconds: See `KafkaProducer`.

    Raises:
        ConfigError: An argument is out of range or of the wrong type; for an object also a `TypeError`.
    """

    def __init__(
        self,
        producer: Any,
        cc: ClaimCheck,
        *,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
        admin: Any = None,
        window_bytes: int = WINDOW_BYTES,
        room_seconds: float = ROOM_SECONDS,
    ) -> None:
        self._native = producer
        self._blocking = KafkaProducer(
            within(producer, "Producer"),
            cc,
            max_message_bytes=max_message_bytes,
            admin=admin,
            window_bytes=window_bytes,
            room_seconds=room_seconds,
        )
        self._reports = Reports(lambda: self._off(lambda: self._blocking.serve(_SERVE_SECONDS)))
        self._in_threads: set[asyncio.Task[None]] = set()

    async def produce(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        partition: int = -1,
        timestamp: int = 0,
        headers: Any = None,
    ) -> asyncio.Future[Any]:
        """Send one payload; arguments as of `KafkaProducer.produce`, and headers may be given.

        When this returns, what is to be stored is stored, and the record is in the client's queue; where that is full,
        this waits for room. A task that is cancelled meanwhile gives a payload up that is still being stored or cut;
        it is sent once and whole, or not at all. To cancel the future changes nothing: its record is on its way.

        Returns:
            A future of the delivered message: for a payload that went as chunks a `KafkaMessage` with the lowest
            offset and ``last_offset``. It raises what `KafkaProducer.produce` and delivery reports say.

        Raises:
            TypeError, ValueError, RuntimeError: The call is wrong, or the producer closed; nothing was sent.
        """
        value = value.encode() if isinstance(value, str) else value
        plain = self._blocking.sends_plain(topic, value, key, headers)
        future, delivered = self._reports.expect()

        def send() -> None:
            self._blocking.produce(
                topic, value, key, partition, on_delivery=delivered, timestamp=timestamp, headers=headers
            )

        await (self._send_plain(send, future) if plain else self._send_in_thread(send, future))
        return future

    async def poll(self, timeout: float = 0) -> int:
        """Serve delivery reports; futures need nobody to do so."""
        return await self._off(lambda: self._blocking.poll(timeout))

    async def flush(self, timeout: float = _FOR_EVER) -> int:
        """Wait until every record has its report, its future is done, and what failed is undone.

        Returns:
            The number of records left when time is up.
        """
        clock = asyncio.get_running_loop().time
        end = clock() + timeout

        def left() -> float:
            return _FOR_EVER if timeout < 0 else max(0.0, end - clock())

        await self._threads_done(left())
        seconds = left()
        await self._off(lambda: self._blocking.flush(seconds))
        return await self._reports.wait(left())

    async def purge(self, in_queue: bool = True, in_flight: bool = True, blocking: bool = True) -> None:
        """As `KafkaProducer.purge`; the futures say so."""
        await self._off(lambda: self._blocking.purge(in_queue=in_queue, in_flight=in_flight, blocking=blocking))

    async def close(self) -> None:
        """Flush and close, this and the `AIOProducer`."""
        try:
            await self.flush()
        finally:
            try:
                await self._native.close()
            finally:
                await asyncio.to_thread(self._blocking.close)

    # Transactions ----------------------------------------------------------------------------------------------

    async def init_transactions(self, timeout: float = _FOR_EVER) -> None:
        """As the client has it."""
        await self._off(lambda: self._blocking.init_transactions(timeout))

    async def begin_transaction(self) -> None:
        """As `KafkaProducer.begin_transaction`."""
        await self._off(self._blocking.begin_transaction)

    async def send_offsets_to_transaction(
        self, positions: list[Any], group_metadata: Any, timeout: float = _FOR_EVER
    ) -> None:
        """As the client has it; give it `AsyncKafkaConsumer.position`, which never passes an incomplete payload."""
        await self._off(lambda: self._blocking.send_offsets_to_transaction(positions, group_metadata, timeout))

    async def commit_transaction(self, timeout: float = _FOR_EVER) -> None:
        """Flush and commit; raises as `KafkaProducer.commit_transaction`."""
        await self._threads_done(_FOR_EVER)
        await self._off(lambda: self._blocking.commit_transaction(timeout))

    async def abort_transaction(self, timeout: float = _FOR_EVER) -> None:
        """As `KafkaProducer.abort_transaction`, once every record has its report.

        The client is at its end with ``INVALID_TXN_STATE`` when a transaction is aborted of which nothing was sent yet.
        """
        await self._reports.wait(timeout)
        await self._off(lambda: self._blocking.abort_transaction(timeout))

    # The rest of the client's producer -------------------------------------------------------------------------

    async def list_topics(self, topic: str | None = None, timeout: float = _FOR_EVER) -> Any:
        """As the client has it."""
        return await self._off(lambda: self._blocking.list_topics(topic, timeout))

    async def cluster_id(self, timeout: float = _FOR_EVER) -> Any:
        """As the client has it."""
        return await self._off(lambda: self._blocking.cluster_id(timeout))

    async def set_sasl_credentials(self, username: str, password: str) -> None:
        """As the client has it."""
        await self._off(lambda: self._blocking.set_sasl_credentials(username, password))

    def __len__(self) -> int:
        return len(self._blocking)

    def __bool__(self) -> bool:
        return True

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<Async{repr(self._blocking)[1:]}"

    # Within ----------------------------------------------------------------------------------------------------

    async def _send_plain(self, send: Callable[[], None], future: asyncio.Future[Any]) -> None:
        with self._reports.answering(future):
            while True:
                try:
                    send()
                    break
                except BufferError:
                    self._reports.serve()
                    await asyncio.sleep(_ROOM_SECONDS)
        self._reports.serve()

    async def _send_in_thread(self, send: Callable[[], None], future: asyncio.Future[Any]) -> None:
        def work() -> None:
            with self._reports.answering(future):
                send()

        task = asyncio.ensure_future(in_thread(work, to_the_end=True))
        self._in_threads.add(task)
        task.add_done_callback(self._sent_in_thread)
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            future.cancel()
            task.cancel()  # it looks between pieces of the payload, and `flush` waits for that
            raise

    def _sent_in_thread(self, task: asyncio.Task[None]) -> None:
        self._in_threads.discard(task)
        _ = task.cancelled() or task.exception()  # seen, even if nobody waits
        self._reports.serve()

    async def _threads_done(self, timeout: float) -> None:
        """Wait for what is still being stored or cut."""
        if self._in_threads:
            await asyncio.wait(self._in_threads, timeout=None if timeout < 0 else timeout)

    async def _off(self, work: Callable[[], T]) -> T:
        """Call in the client's own threads."""
        result: T = await self._native._call(work)
        return result


Delivered = Callable[[Any, Any], None]


class Reports:
    """Keeps the futures, and has reports served as long as any of them is open.

    Args:
        serve: Serves the producer once, for a short while, off the loop.
    """

    def __init__(self, serve: Callable[[], Awaitable[Any]]) -> None:
        self._serve = serve
        self._loop = asyncio.get_running_loop()
        self._open = 0
        self._none_open = asyncio.Event()
        self._none_open.set()
        self._settled: deque[tuple[asyncio.Future[Any], Exception | None, Any]] = deque()
        self._awake = False
        self._pump: asyncio.Task[None] | None = None

    def expect(self) -> tuple[asyncio.Future[Any], Delivered]:
        """Open a future for one record; gives it, and what the client is to call with the record's report."""
        future = self._loop.create_future()
        self._open += 1
        self._none_open.clear()
        return future, functools.partial(self._delivered, future)

    @contextlib.contextmanager
    def answering(self, future: asyncio.Future[Any]) -> Iterator[None]:
        """What becomes of a record is said by its future; what is wrong with the call itself is raised. Any thread."""
        try:
            yield
        except (TypeError, ValueError, RuntimeError):
            self._settle(future, None, None)
            raise
        except Exception as error:
            self._settle(future, error, None)
        except BaseException:  # whoever waited for it is gone
            self._settle(future, None, None)
            raise

    def serve(self) -> None:
        """Have reports served from now on until no future is open."""
        if self._pump is None and self._open:
            self._pump = self._loop.create_task(self._serve_all())

    async def wait(self, timeout: float) -> int:
        """Wait until no future is open, or time is up, negative for never; gives how many are."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._none_open.wait(), None if timeout < 0 else timeout)
        return self._open

    # Within ----------------------------------------------------------------------------------------------------

    async def _serve_all(self) -> None:
        try:
            while self._open:
                await self._serve()
        finally:
            self._pump = None

    def _delivered(self, future: asyncio.Future[Any], error: Any, report: Any) -> None:
        self._settle(future, None if error is None else exception_of(error), report)

    def _settle(self, future: asyncio.Future[Any], error: Exception | None, report: Any) -> None:
        """In any thread; many reports wake the loop once."""
        self._settled.append((future, error, report))
        if not self._awake:
            self._awake = True
            with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile
                self._loop.call_soon_threadsafe(self._settle_all)

    def _settle_all(self) -> None:
        self._awake = False  # before the last look, so that what comes behind it wakes the loop again
        while self._settled:
            future, error, report = self._settled.popleft()
            self._open -= 1
            if future.done():  # its owner cancelled it
                continue
            if error is None:
                future.set_result(report)
            else:
                future.set_exception(error)
        if not self._open:
            self._none_open.set()
