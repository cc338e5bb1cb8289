"""The contract of a transport for asyncio: tasks may be cancelled at any await, and the event loop is never blocked."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Iterator
from typing import Any

import pytest

from tests.kit.transport_harness import Harness, TransportKit, content, faulty

RUN_SECONDS = 60


class AsyncioConformance(TransportKit):
    """For transports with coroutines, in addition to the rest of the kit."""

    has_lazy_payloads = False  # the event loop would wait for the store

    async def sending(self, producer: Any, topic: str, payload: Any, *, key: Any = None, headers: Any = None) -> None:
        """Send one payload as `TransportKit.send` does."""
        raise NotImplementedError

    async def receiving(self, consumer: Any) -> Any:
        """Wait for the next message, without a time limit."""
        raise NotImplementedError

    # The blocking hooks ----------------------------------------------------------------------------------------

    def run(self, result: Any) -> Any:
        """Run a coroutine on the event loop, and wait for its result."""
        return asyncio.run_coroutine_threadsafe(result, self._loop).result(RUN_SECONDS)

    def send(self, producer: Any, topic: str, payload: Any, *, key: Any = None, headers: Any = None) -> None:
        self.run(self.sending(producer, topic, payload, key=key, headers=headers))

    def begin(self, producer: Any, topic: str, payload: Any) -> None:
        async def begin() -> asyncio.Task[None]:
            task = asyncio.ensure_future(self.sending(producer, topic, payload))
            await asyncio.sleep(0)
            return task

        self._begun.append(self.run(begin()))

    def flush(self, producer: Any) -> None:
        async def flush() -> None:
            await producer.flush()
            await asyncio.gather(*self._begun)

        self.run(flush())

    def receive(self, consumer: Any, seconds: float) -> Any:
        async def receive() -> Any:
            with contextlib.suppress(TimeoutError):
                return await asyncio.wait_for(self.receiving(consumer), seconds)

        return self.run(receive())

    @pytest.fixture(autouse=True)
    def _running_loop(self) -> Iterator[None]:
        """An event loop in its own thread."""
        self._begun: list[Awaitable[Any]] = []
        self._loop = asyncio.new_event_loop()
        thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        thread.start()
        yield
        self._loop.call_soon_threadsafe(self._loop.stop)
        thread.join(RUN_SECONDS)
        self._loop.close()

    # Receiving -------------------------------------------------------------------------------------------------

    def test_a_cancelled_receive_loses_nothing(self, harness: Harness) -> None:
        """Cancelled at another of its steps each time; the message comes with a later call, in order."""
        sent = [content([20, self.limit_bytes, 3 * self.limit_bytes][seed % 3], seed) for seed in range(30)]
        harness.send(*sent, strategy="chunking")
        consumer, found = harness.consumer, list[Any]()

        async def receive_and_cancel(steps: int) -> None:
            task = asyncio.ensure_future(self.receiving(consumer))
            for _ in range(steps):
                await asyncio.wait({task}, timeout=0.0005)
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                found.append(await task)

        turn = 0
        while len(found) < len(sent):
            turn += 1
            assert turn < 100_000, f"only {len(found)} of {len(sent)} arrived"
            self.run(receive_and_cancel(turn % 7))
        assert [harness.payload(message) for message in found] == sent
        for message in found:
            harness.acknowledge(message)
        harness.assert_finished()

    def test_tasks_that_receive_get_each_payload_once(self, harness: Harness) -> None:
        sent = [content([5, 3 * self.limit_bytes][seed % 2], seed) for seed in range(20)]
        harness.send(*sent)
        consumer = harness.consumer

        async def some() -> list[Any]:
            return [await self.receiving(consumer) for _ in range(10)]

        async def both() -> Any:
            return await asyncio.wait_for(asyncio.gather(some(), some()), 3 * self.patience_seconds)

        found = [message for messages in self.run(both()) for message in messages]
        assert sorted(map(harness.payload, found)) == sorted(sent)

    # Sending ---------------------------------------------------------------------------------------------------

    def test_the_event_loop_is_not_blocked_by_the_store(self, harness: Harness) -> None:
        producer = harness.producer()
        self._check_loop(faulty(harness.writer("external")), "write")
        self._check_loop(harness.reader_store, "read")
        harness.send(content(3 * self.limit_bytes))
        message = harness.receive()
        assert harness.payload(message) == content(3 * self.limit_bytes)
        assert producer is harness.producer()

    @pytest.mark.parametrize("end", ["flush", "close"])
    def test_flush_and_close_wait_for_what_is_still_being_stored(self, harness: Harness, end: str) -> None:
        producer, payload = harness.producer(), content(2 * self.limit_bytes)
        store, entered, may_go = faulty(harness.writer("external")), threading.Event(), threading.Event()
        write = store.write

        def held(*args: Any, **options: Any) -> Any:
            entered.set()
            assert may_go.wait(self.patience_seconds)
            return write(*args, **options)

        store.write = held  # type: ignore[method-assign]

        async def send_and_end() -> None:
            sending = asyncio.ensure_future(self.sending(producer, harness.topic, payload))
            assert await asyncio.to_thread(entered.wait, self.patience_seconds)
            ending = asyncio.ensure_future(getattr(producer, end)())
            done, _ = await asyncio.wait({ending}, timeout=0.2)
            assert not done
            may_go.set()
            await asyncio.wait_for(ending, self.patience_seconds)
            await asyncio.wait_for(sending, self.patience_seconds)

        self.run(send_and_end())
        assert harness.take() == [payload]

    def _check_loop(self, store: Any, name: str) -> None:
        """Let a method of the store wait for the event loop, which would never end if it were blocked."""
        call = getattr(store, name)

        def checked(*args: Any, **options: Any) -> Any:
            self.run(asyncio.sleep(0))
            return call(*args, **options)

        setattr(store, name, checked)
