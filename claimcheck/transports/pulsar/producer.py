"""Sends payloads of any size through a producer of the Pulsar client."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import timedelta
from types import TracebackType
from typing import Any, Literal, Self

from claimcheck import hints
from claimcheck.envelope import Envelope
from claimcheck.hooks import SendEvent
from claimcheck.outbound import Outbound
from claimcheck.produce import OutboundBlock
from claimcheck.transports.needs import Offloads
from claimcheck.transports.pulsar.deadlines import Deadlines, Ticket
from claimcheck.transports.pulsar.errors import classify, vendor
from claimcheck.transports.pulsar.flight import Flight
from claimcheck.transports.pulsar.ids import WholeMessageId
from claimcheck.transports.pulsar.limit import MAX_MESSAGE_BYTES, ask_limit, wire_limit
from claimcheck.transports.pulsar.options import check_options, given_options, native_bytes, without_schema
from claimcheck.transports.undoing import Undoing
from claimcheck.wire import WireLimit

__all__ = ["PulsarProducer"]

_log = logging.getLogger(__name__)
_WINDOW_BYTES = 16 << 20
_ABORT_SECONDS = 5.0

Callback = Callable[[Any, Any], None]


class PulsarProducer:
    """Has the methods of a `pulsar.Producer`, and sends payloads that are too large for it. Safe under threads.

    The producer stays as it is: batching, compression, encryption, routing and schema are its own. Leave its
    ``chunking_enabled`` off. A router of your own must send messages with one key to one partition.

    Args:
        producer: A `pulsar.Producer`.
        cc: A `claimcheck.ClaimCheck`.
        max_message_bytes: What the broker takes in one message, if it is not Pulsar's default. Where the producer
            encrypts, 1 KiB less: its keys travel with every message.
        admin_url: The broker's web service, to be asked for that instead; a limit of the topic's own is found, too.
        admin_headers: To be sent along, for example with a token.
        window_bytes: Of the chunks of one payload, on their way at once.
        deadline_seconds: For the answer to one message; more than the producer's ``send_timeout_millis``.

    Raises:
        TransportError: The web service did not answer.
    """

    def __init__(
        self,
        producer: Any,
        cc: Offloads,
        *,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
        admin_url: str | None = None,
        admin_headers: Mapping[str, str] | None = None,
        window_bytes: int = _WINDOW_BYTES,
        deadline_seconds: float = 60.0,
    ) -> None:
        self._native = producer
        self._cc = cc
        self._raw = without_schema(producer)
        self._schema = producer._schema
        self._topic: str = producer.topic()
        asked = ask_limit(admin_url, self._topic, headers=admin_headers) if admin_url else max_message_bytes
        self._max_message_bytes = asked
        self._limit = self._limit_for({})
        self._header = cc.config.header
        self._threshold = cc.threshold(self._topic, self._limit)
        self._plain_bytes = self._threshold - self._limit.overhead(None, None)  # with no key and no properties
        self._is_encoded = isinstance(self._schema, vendor().schema.BytesSchema)
        self._window_bytes = window_bytes
        self._deadline_seconds = deadline_seconds
        self._undoing = Undoing()
        self._deadlines = Deadlines(deadline_seconds, lambda: (vendor().Result.Timeout, _no_id()))

    def send(
        self,
        content: Any,
        properties: dict[str, str] | None = None,
        partition_key: str | None = None,
        ordering_key: str | None = None,
        sequence_id: int | None = None,
        replication_clusters: list[str] | None = None,
        disable_replication: bool = False,
        event_timestamp: int | None = None,
        deliver_at: int | None = None,
        deliver_after: timedelta | None = None,
    ) -> Any:
        """Send one payload and wait until the broker has it; arguments as of `pulsar.Producer.send`.

        Args:
            content: What the producer's schema encodes; without one bytes-like, or a readable binary file. ``None`` is
                a tombstone.
            properties: Names beginning with ``claimcheck-`` are ours.
            partition_key: Chunks of a payload without one get its uuid, which readers take away again.
            ordering_key: As the client has it; as are all the others.
            sequence_id: Not with chunks: the broker would filter all but one.
            replication_clusters: As the client has it.
            disable_replication: As the client has it.
            event_timestamp: As the client has it.
            deliver_at: Not with chunks.
            deliver_after: Not with chunks.

        Returns:
            A native id; a `WholeMessageId` for chunks.

        Raises:
            ChunkArgumentError: An argument that chunks cannot have. Nothing was sent.
            PartialSendError: Chunks broke off; an abort envelope followed where one could.
            SendDeadlineError: No answer in time; it may have been sent.
            Exception: The client's own, unchanged; what was stored is removed where it was definitely not sent.
            ClaimCheckError: The payload could not be offloaded; nothing was sent.
        """
        options = given_options(
            ordering_key, sequence_id, replication_clusters, disable_replication, event_timestamp, deliver_at,
            deliver_after,
        )  # fmt: skip
        if not options and (plain := self._plain(content, properties, partition_key)) is not None:
            return self._send_plain(Envelope(plain, properties, partition_key))
        with self._outbound(content, properties, partition_key, options) as out:
            flight = self._flight(options)
            try:
                for envelope in out.envelopes:
                    check_options(out, options)
                    flight.launch(envelope)
                    if flight.launched == out.total:
                        ids = flight.wait()  # within the block that undoes what was stored
            except Exception as error:
                self._break_off(out, flight, options, error)
                raise
        self._say(out, "sent")
        return self._id(out, ids)

    def send_async(
        self,
        content: Any,
        callback: Callback,
        properties: dict[str, str] | None = None,
        partition_key: str | None = None,
        ordering_key: str | None = None,
        sequence_id: int | None = None,
        replication_clusters: list[str] | None = None,
        disable_replication: bool = False,
        event_timestamp: int | None = None,
        deliver_at: int | None = None,
        deliver_after: timedelta | None = None,
    ) -> None:
        """Send one payload and return before the broker has it; arguments as of `send`.

        What is stored is stored before this returns, and chunks are given to the client one by one as those before
        them land. The callback is called once, by the client's thread, with a `pulsar.Result` and the id; an exception
        in it is logged. Where the broker never answers it is called with ``Result.Timeout`` after ``deadline_seconds``.

        Raises:
            ChunkArgumentError: As `send`, and as every `ClaimCheckError`: nothing was sent, nobody is called.
        """
        options = given_options(
            ordering_key, sequence_id, replication_clusters, disable_replication, event_timestamp, deliver_at,
            deliver_after,
        )  # fmt: skip
        ticket = Ticket(callback)
        if not options and (plain := self._plain(content, properties, partition_key)) is not None:
            self._raw.send_async(plain, ticket, properties=properties, partition_key=partition_key)
            self._deadlines.watch(ticket)
            return
        out = self._outbound(content, properties, partition_key, options).__enter__()
        flight = self._flight(options, landed=lambda flight: self._landed(out, flight, options, ticket))
        try:
            for envelope in out.envelopes:
                check_options(out, options)
                flight.launch(envelope)
            flight.drain()
        except Exception as error:
            if not flight.launched:  # nobody knows of the callback yet
                out.settle(error)
                raise
            flight.error = flight.error or error
        flight.close()
        self._deadlines.watch(ticket)

    def sends_plain(self, content: Any, properties: dict[str, str] | None, partition_key: str | None) -> bool:
        """Whether this payload would go as it is, with nothing stored and nothing to wait for."""
        return self._plain(content, properties, partition_key) is not None

    def flush(self) -> None:
        """Wait until everything that was sent is in the topic, and what failed is undone."""
        self._native.flush()
        self._undoing.wait()

    def close(self) -> None:
        """Flush and close: closed with messages on their way, the client reports failures for what was stored."""
        with suppress(vendor().exceptions.PulsarException):  # whoever sent them hears of it
            self._native.flush()
        try:
            self._native.close()
        finally:
            self._undoing.close()
            self._deadlines.close()

    def topic(self) -> Any:
        """The topic's whole name."""
        return self._native.topic()

    def producer_name(self) -> Any:
        """The producer's name, given by its user or by the broker."""
        return self._native.producer_name()

    def last_sequence_id(self) -> Any:
        """Of the last message in the topic; chunks have one each."""
        return self._native.last_sequence_id()

    def is_connected(self) -> Any:
        """Whether it is connected just now."""
        return self._native.is_connected()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<PulsarProducer of {self._topic}, messages up to {self._max_message_bytes} bytes>"

    # Within ----------------------------------------------------------------------------------------------------

    def _plain(self, content: Any, properties: Any, key: Any) -> bytes | None:
        """The message of a small payload that nobody could take for an envelope, which most are."""
        data = content if self._is_encoded else self._encode(content)
        if type(data) is not bytes or data.startswith(self._header):
            return None
        if key is None and not properties:
            return data if len(data) <= self._plain_bytes else None
        small = len(data) + self._limit.overhead(key, properties) <= self._threshold
        return data if small and not hints.is_ours(properties) else None

    def _send_plain(self, envelope: Envelope) -> Any:
        flight = self._flight({})
        flight.launch(envelope)
        return flight.wait()[0]

    def _encode(self, content: Any) -> Any:
        return content if content is None or self._is_encoded else self._schema.encode(content)

    def _outbound(self, content: Any, properties: Any, key: Any, options: Mapping[str, Any]) -> OutboundBlock:
        limit = self._limit_for(options) if options else self._limit
        return self._cc.outbound(
            self._encode(content),
            destination=self._topic,
            key=key,
            headers=properties,
            limit=limit,
            text_key=True,
            classify=classify,
        )

    def _limit_for(self, options: Mapping[str, Any]) -> WireLimit:
        return wire_limit(self._max_message_bytes, producer_name=self._native.producer_name(), options=options)

    def _flight(self, options: Mapping[str, Any], landed: Callable[[Flight], None] | None = None) -> Flight:
        def send(envelope: Envelope, callback: Callback) -> None:
            self._raw.send_async(
                native_bytes(envelope), callback, properties=envelope.headers, partition_key=envelope.key, **options
            )

        return Flight(
            send,
            topic=self._topic,
            window_bytes=self._window_bytes,
            deadline_seconds=self._deadline_seconds,
            landed=landed,
        )

    def _say(
        self, out: Outbound, outcome: Literal["sent", "failed", "unknown", "partial"], error: Exception | None = None
    ) -> None:
        if self._cc.hooks:
            facts: dict[str, Any] = {"messages": out.total, "uuid": out.uuid, "error": error}
            self._cc.hooks.emit(SendEvent(destination=self._topic, outcome=outcome, **facts))

    def _id(self, out: Outbound, ids: list[Any]) -> Any:
        if any(message_id.ledger_id() < 0 for message_id in ids):
            _log.warning(
                "%s: stored, but the broker's deduplication did not say where; the id has no place", self._topic
            )
        return ids[0] if out.uuid is None else WholeMessageId.of_sent(tuple(ids), self._topic)

    # Failures --------------------------------------------------------------------------------------------------

    def _break_off(self, out: Outbound, flight: Flight, options: Mapping[str, Any], error: Exception) -> None:
        """Of chunks of which some may be in the topic, tell readers, and raise an error that says how many."""
        if out.abort is not None:
            flight.settle()
            if flight.ids or classify(error) == "unknown":
                self._send_abort(out.abort, options)
                self._say(out, "partial", error)
                raise out.partial([flight.ids[number] for number in sorted(flight.ids)], error) from error
        self._say(out, classify(error), error)

    def _send_abort(self, abort: Envelope, options: Mapping[str, Any]) -> None:
        heard = threading.Event()
        try:
            self._raw.send_async(
                native_bytes(abort),
                lambda result, message_id: heard.set(),
                properties=abort.headers,
                partition_key=abort.key,
                **options,
            )
            heard.wait(_ABORT_SECONDS)
        except Exception as error:
            _log.warning("could not send the abort envelope: %s", type(error).__name__)

    def _landed(self, out: Outbound, flight: Flight, options: Mapping[str, Any], ticket: Ticket) -> None:
        """In the client's thread, which must neither wait nor see an exception."""
        error, ok = flight.error, vendor().Result.Ok
        if error is None:
            out.keep()
            self._say(out, "sent")
            ticket(ok, self._id(out, [flight.ids[number] for number in range(flight.launched)]))
            return
        self._undoing.submit(lambda: self._undo(out, flight, options, error))
        ticket(flight.result or vendor().Result.UnknownError, _no_id())

    def _undo(self, out: Outbound, flight: Flight, options: Mapping[str, Any], error: Exception) -> None:
        partial = out.abort is not None and (flight.ids or classify(error) == "unknown")
        self._say(out, "partial" if partial else classify(error), error)
        if out.abort is None:
            out.conclude(error)
        elif flight.ids or classify(error) == "unknown":
            self._send_abort(out.abort, options)


def _no_id() -> Any:
    return vendor().MessageId(-1, -1, -1, -1)._msg_id
