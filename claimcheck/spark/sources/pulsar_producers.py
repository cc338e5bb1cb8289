"""What a sink sends through: a wrapped producer where payloads are offloaded, else the client's own with a watchdog."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol

from claimcheck.config import Config
from claimcheck.errors import TransportError
from claimcheck.spark.sources.pulsar_admin import ask_limit
from claimcheck.spark.sources.pulsar_client import in_our_words
from claimcheck.spark.sources.pulsar_connection import Connection
from claimcheck.spark.worker import claim_check
from claimcheck.transports.pulsar.deadlines import Deadlines, Ticket
from claimcheck.transports.pulsar.errors import vendor
from claimcheck.transports.pulsar.flushing import Flushing
from claimcheck.transports.pulsar.producer import PulsarProducer
from claimcheck.transports.pulsar.sending import no_id

__all__ = ["Sends", "open_producer"]

_BATCH_BYTES = 128 << 10  # the client's own default
_BATCH_MESSAGES = 1000
_GRACE_SECONDS = 30.0


class Sends(Protocol):
    """The part of a producer that is needed here."""

    def send_async(
        self,
        content: bytes | None,
        callback: Callable[[Any, Any], None],
        properties: dict[str, str] | None = None,
        partition_key: str | None = None,
    ) -> None:
        """Send, and have the callback called once, by the client's thread."""

    def flush(self) -> None:
        """Wait until everything is answered."""

    def close(self) -> None:
        """Flush and close."""


def open_producer(
    client: Any,
    topic: str,
    *,
    connection: Connection,
    config: Config | None,
    max_message_bytes: int,
    timeout_seconds: float,
) -> Sends:
    """Open a producer, which batches.

    Args:
        client: To open it with.
        topic: Where to.
        connection: Knows whom to ask for the limit, if anybody.
        config: Offloads; without it everything goes as it is.
        max_message_bytes: What the broker takes in one message, where nobody is asked.
        timeout_seconds: For the answer to one message.
    """
    limit = max_message_bytes if connection.admin_url is None else ask_limit(connection, topic)
    with in_our_words(connection, topic, "opening a producer"):
        native = client.create_producer(
            topic,
            send_timeout_millis=max(1, round(timeout_seconds * 1000)),
            block_if_queue_full=True,
            batching_enabled=True,
            # A batch is one message to the broker, and may not be over the limit that each of its messages obeys. The
            # client counts payloads only: three quarters are left for keys and properties, 768 bytes for each.
            batching_max_allowed_size_in_bytes=max(1, min(_BATCH_BYTES, limit // 4)),
            batching_max_messages=max(2, min(_BATCH_MESSAGES, limit // 1024)),
        )
    deadline = timeout_seconds + _GRACE_SECONDS
    if config is None:
        return _Plain(native, deadline)
    return PulsarProducer(native, claim_check(config), max_message_bytes=limit, deadline_seconds=deadline)


class _Plain:
    """The client's own producer, which would wait for ever where a topic has a limit of its own."""

    def __init__(self, native: Any, deadline_seconds: float) -> None:
        self._native = native
        self._flushing = Flushing(native)
        self._deadlines = Deadlines(deadline_seconds, self._overdue)

    def send_async(
        self,
        content: bytes | None,
        callback: Callable[[Any, Any], None],
        properties: dict[str, str] | None = None,
        partition_key: str | None = None,
    ) -> None:
        ticket = Ticket(callback)
        self._native.send_async(content, ticket, properties=properties, partition_key=partition_key)
        self._deadlines.watch(ticket)

    def flush(self) -> None:
        self._flushing.wait()

    def close(self) -> None:
        with suppress(vendor().exceptions.PulsarException, TransportError):
            self._flushing.wait()
        try:
            self._native.close()
        finally:
            self._deadlines.close()

    def _overdue(self) -> tuple[Any, Any]:
        self._flushing.lose()
        return vendor().Result.Timeout, no_id()
