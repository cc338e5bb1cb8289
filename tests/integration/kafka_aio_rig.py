"""Helpers for the tests of the asyncio wrappers, in addition to `kafka_rig`."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import AsyncIterator
from typing import Any

from confluent_kafka.aio import AIOConsumer, AIOProducer

from claimcheck.stores import memory
from claimcheck.transports.kafka import AsyncKafkaConsumer, AsyncKafkaProducer
from tests.integration.kafka_rig import LIMIT, WITHIN_SECONDS, Rig

_quiet = logging.getLogger("kafka-client-of-tests")


@contextlib.asynccontextmanager
async def producing(
    lab: Rig, strategy: str = "external", *, wrap: dict[str, Any] | None = None, **conf: Any
) -> AsyncIterator[AsyncKafkaProducer]:
    """A wrapped producer, closed at the end; its native buffer is disabled, because it would never be flushed."""
    named = {key.replace("_", "."): value for key, value in conf.items()}
    options = {**lab.servers, "message.max.bytes": LIMIT, "logger": _quiet, **named}
    native = AIOProducer(options, buffer_timeout=0)
    made = AsyncKafkaProducer(native, lab.claimcheck(strategy), **{"max_message_bytes": LIMIT, **(wrap or {})})
    async with made:
        yield made


@contextlib.asynccontextmanager
async def consuming(
    lab: Rig,
    *,
    cc: Any = None,
    wrap: dict[str, Any] | None = None,
    callbacks: dict[str, Any] | None = None,
    **conf: Any,
) -> AsyncIterator[AsyncKafkaConsumer]:
    """A wrapped consumer that is subscribed to the rig's topic; closed at the end."""
    named = {key.replace("_", "."): value for key, value in conf.items()}
    options = {"auto.offset.reset": "earliest", "enable.auto.offset.store": False, "enable.auto.commit": False}
    native = AIOConsumer({**lab.servers, "group.id": lab.group, "logger": _quiet, **options, **named})
    async with AsyncKafkaConsumer(native, cc or lab.cc, **(wrap or {})) as made:
        await made.subscribe([lab.topic], **(callbacks or {}))
        yield made


async def soon(awaitable: Any) -> Any:
    """Return the result; raises `TimeoutError` instead of waiting forever."""
    return await asyncio.wait_for(awaitable, WITHIN_SECONDS)


async def send(producer: AsyncKafkaProducer, topic: str, value: Any, **arguments: Any) -> Any:
    """Send a payload and wait for its report."""
    return await soon(await soon(producer.produce(topic, value, **arguments)))


async def poll(consumer: AsyncKafkaConsumer, count: int) -> list[Any]:
    """Return ``count`` messages."""
    return [await soon(consumer.poll()) for _ in range(count)]


def stored(lab: Rig) -> int:
    """Return the number of payloads in the rig's store."""
    return len(memory._SPACES.get(lab.topic, {}))


class Held:
    """Blocks every call of a method until `let_go`, in any thread except the loop's; `entered` waits for a call."""

    def __init__(self, owner: Any, name: str) -> None:
        self._call = getattr(owner, name)
        self._came, self._may_go = threading.Event(), threading.Event()
        setattr(owner, name, self)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self._came.set()
        assert self._may_go.wait(WITHIN_SECONDS)
        return self._call(*args, **kwargs)

    async def entered(self) -> None:
        """Wait for the first call."""
        assert await asyncio.to_thread(self._came.wait, WITHIN_SECONDS)

    def let_go(self) -> None:
        """Unblock all calls."""
        self._may_go.set()
