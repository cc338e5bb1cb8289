"""Sends payloads of any size through a producer of `pulsar.asyncio`."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

from claimcheck.interrupt import in_thread
from claimcheck.transports.needs import Offloads
from claimcheck.transports.pulsar.aio_native import as_asyncio_says_it, blocking, called_back
from claimcheck.transports.pulsar.producer import PulsarProducer

__all__ = ["AsyncPulsarProducer"]


class AsyncPulsarProducer:
    """Has the methods of a `pulsar.asyncio.Producer`, and sends payloads that are too large for it.

    Small messages go straight to the client; what has to be stored or cut into chunks goes in a thread.

    Args:
        producer: A `pulsar.asyncio.Producer`.
        cc: A `claimcheck.ClaimCheck`.
        options: As of `PulsarProducer`. With ``admin_url`` this blocks while the broker is asked.
    """

    def __init__(self, producer: Any, cc: Offloads, **options: Any) -> None:
        self._native = producer
        self._blocking = PulsarProducer(blocking("Producer", producer), cc, **options)

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

        A task that is cancelled meanwhile ends at once; the payload may be sent all the same.

        Raises:
            pulsar.asyncio.PulsarException: What the client says; otherwise as `PulsarProducer.send`.
        """
        options = (
            ordering_key, sequence_id, replication_clusters, bool(disable_replication), event_timestamp, deliver_at,
            deliver_after,
        )  # fmt: skip
        producer = self._blocking
        with as_asyncio_says_it():
            if any(options) or not producer.sends_plain(content, properties, partition_key):
                return await in_thread(lambda: producer.send(content, properties, partition_key, *options))
            return await called_back(lambda call: producer.send_async(content, call, properties, partition_key))

    async def flush(self) -> None:
        """Wait until everything that was sent is in the topic."""
        with as_asyncio_says_it():
            await asyncio.to_thread(self._blocking.flush)

    async def close(self) -> None:
        """Flush and close."""
        with as_asyncio_says_it():
            await asyncio.to_thread(self._blocking.close)

    def topic(self) -> Any:
        """The topic's whole name."""
        return self._native.topic()

    def producer_name(self) -> Any:
        """The producer's name."""
        return self._native.producer_name()

    def last_sequence_id(self) -> Any:
        """Of the last message in the topic; chunks have one each."""
        return self._native.last_sequence_id()

    def is_connected(self) -> Any:
        """Whether it is connected just now."""
        return self._native.is_connected()

    def __repr__(self) -> str:
        return f"<Async{repr(self._blocking)[1:]}"
