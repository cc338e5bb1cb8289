"""Sends payloads of any size through a producer of `pulsar.asyncio`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from datetime import timedelta
from typing import Any, Self

from claimcheck._outbound import in_background
from claimcheck._threads import in_thread
from claimcheck._validation import check_type
from claimcheck.transports._common.claimcheck_types import Offloads
from claimcheck.transports.pulsar._admin import MAX_MESSAGE_BYTES
from claimcheck.transports.pulsar._async_client import as_asyncio_says_it, blocking, called_back
from claimcheck.transports.pulsar._producer import DEADLINE_SECONDS, WINDOW_BYTES, PulsarProducer
from claimcheck.transports.pulsar._send import Sending

__all__ = [
    "AsyncPulsarProducer",
    "Order",
    "Turn",
]


class Order:
    """A chain of turns: each comes when the one before has ended, whether that one failed or not."""

    def __init__(self) -> None:
        self._last: asyncio.Future[None] | None = None

    @property
    def at_rest(self) -> bool:
        """Whether nobody has a turn, or waits for one."""
        return self._last is None or self._last.done() or self._last.get_loop().is_closed()

    def take(self) -> Turn:
        """Take the place behind all others."""
        before = None if self.at_rest else self._last
        self._last = asyncio.get_running_loop().create_future()
        return Turn(before, self._last)

    async def rest(self) -> None:
        """Wait for everybody who has a place now."""
        if self._last is not None and not self.at_rest:
            await asyncio.wait({self._last})


class Turn:
    """One place in the chain; whoever took it must `end` it."""

    def __init__(self, before: asyncio.Future[None] | None, mine: asyncio.Future[None]) -> None:
        self._before = before
        self._mine = mine

    async def come(self) -> None:
        """Wait for it."""
        if self._before is not None and not self._before.done():
            await asyncio.wait({self._before})  # which leaves it alone when the waiting is cancelled

    def end(self) -> None:
        """It is over; one that ends before it came leaves its place to the one before."""
        if self._before is None or self._before.done():
            self._mine.set_result(None)
        else:
            self._before.add_done_callback(lambda _: self._mine.set_result(None))


Launch = Callable[[Turn, tuple[Any, ...]], Awaitable[Awaitable[Any]]]
"""Gives a payload to the client when its turn has come; what it gives is to be awaited for the answer."""


class AsyncPulsarProducer:
    """Has the methods of a `pulsar.asyncio.Producer`, and sends payloads that are too large for it.

    Small messages go straight to the client; what has to be stored or cut into chunks goes in a thread. Payloads are
    stored side by side, but go to the client in the order in which they were sent. Usable with ``async with``, which
    closes it.

    Args:
        producer: A `pulsar.asyncio.Producer`.
        cc: A `claimcheck.ClaimCheck`.
        max_message_bytes: See `PulsarProducer`, as for all other options.
        admin_url: The constructor blocks while the broker is asked.
        admin_headers: See `PulsarProducer`.
        admin_ca_file: See `PulsarProducer`.
        window_bytes: See `PulsarProducer`.
        deadline_seconds: See `PulsarProducer`.

    Raises:
        TransportError: The web service did not answer.
        ConfigError: An argument is out of range or of the wrong type; for an object also a `TypeError`.
    """

    def __init__(
        self,
        producer: Any,
        cc: Offloads,
        *,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
        admin_url: str | None = None,
        admin_headers: Mapping[str, str] | None = None,
        admin_ca_file: str | None = None,
        window_bytes: int = WINDOW_BYTES,
        deadline_seconds: float = DEADLINE_SECONDS,
    ) -> None:
        check_type("producer", producer, valid=hasattr(producer, "_producer"), expected="a pulsar.asyncio.Producer")
        self._native = producer
        self._blocking = PulsarProducer(
            blocking("Producer", producer),
            cc,
            max_message_bytes=max_message_bytes,
            admin_url=admin_url,
            admin_headers=admin_headers,
            admin_ca_file=admin_ca_file,
            window_bytes=window_bytes,
            deadline_seconds=deadline_seconds,
        )
        self._order = Order()

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
        """Send one payload; arguments and result as of `PulsarProducer.send`, with ``None`` for a tombstone.

        A task that is cancelled meanwhile ends at once; the payload is sent all the same.

        Raises:
            pulsar.asyncio.PulsarException: What the client says; otherwise as `PulsarProducer.send`.
        """
        options = (
            ordering_key, sequence_id, replication_clusters, bool(disable_replication), event_timestamp, deliver_at,
            deliver_after,
        )  # fmt: skip
        producer = self._blocking
        with as_asyncio_says_it():
            plain = not any(options) and producer.sends_plain(content, properties, partition_key)
            if plain and self._order.at_rest:
                return await called_back(lambda call: producer.send_async(content, call, properties, partition_key))
            launch = self._launch_plain if plain else self._launch
            sending = self._in_turn(launch, (content, properties, partition_key, *options))
            return await asyncio.shield(in_background(asyncio.get_running_loop(), sending))

    async def flush(self) -> None:
        """Wait until everything that was sent is in the topic."""
        await self._order.rest()
        with as_asyncio_says_it():
            await asyncio.to_thread(self._blocking.flush)

    async def close(self) -> None:
        """Flush and close."""
        await self._order.rest()
        with as_asyncio_says_it():
            await asyncio.to_thread(self._blocking.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def topic(self) -> Any:
        """The topic's whole name."""
        return self._native.topic()

    def producer_name(self) -> Any:
        """The producer's name."""
        return self._blocking.producer_name()

    def last_sequence_id(self) -> Any:
        """Of the last message in the topic; chunks have one each."""
        return self._native.last_sequence_id()

    def is_connected(self) -> Any:
        """Whether it is connected just now."""
        return self._native.is_connected()

    def __repr__(self) -> str:
        return f"<Async{repr(self._blocking)[1:]}"

    # Within ----------------------------------------------------------------------------------------------------

    def _in_turn(self, launch: Launch, arguments: tuple[Any, ...]) -> Coroutine[Any, Any, Any]:
        """Take a place in the order, now, and send when it has come."""
        turn = self._order.take()

        async def send() -> Any:
            try:
                answer = await launch(turn, arguments)
            finally:
                turn.end()
            return await answer

        return send()

    async def _launch(self, turn: Turn, arguments: tuple[Any, ...]) -> Awaitable[Any]:
        sending = await in_thread(lambda: self._blocking.prepare(*arguments), undo=Sending.drop)
        try:
            await turn.come()
        except asyncio.CancelledError:  # the loop is being closed
            sending.drop()
            raise
        await asyncio.to_thread(sending.launch)
        return asyncio.to_thread(sending.wait)

    async def _launch_plain(self, turn: Turn, arguments: tuple[Any, ...]) -> Awaitable[Any]:
        content, properties, key, *_ = arguments
        await turn.come()
        return called_back(lambda call: self._blocking.send_async(content, call, properties, key))
