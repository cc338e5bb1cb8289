"""Sends payloads of any size through a producer of the Pulsar client."""

from __future__ import annotations

import atexit
import contextlib
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import timedelta
from types import TracebackType
from typing import Any, Self

from claimcheck import _hints as hints
from claimcheck._envelope import Envelope
from claimcheck._validation import check_cc, check_int, check_seconds
from claimcheck._wire_size import WireLimit
from claimcheck.transports._common.claimcheck_types import Offloads
from claimcheck.transports._common.rollback_worker import Undoing
from claimcheck.transports.pulsar._admin import MAX_MESSAGE_BYTES, ask_limit, wire_limit
from claimcheck.transports.pulsar._errors import SendDeadlineError, classify, error_of, vendor
from claimcheck.transports.pulsar._send import Line, Sending, no_id
from claimcheck.transports.pulsar._send_deadlines import Deadlines, Ticket
from claimcheck.transports.pulsar._send_options import given_options, without_schema

__all__ = [
    "DEADLINE_SECONDS",
    "Flushing",
    "PulsarProducer",
    "WINDOW_BYTES",
]

_LEAVE_SECONDS = 5.0

_waiting: dict[threading.Thread, Any] = {}  # on the client, for what was sent with these producers


class Flushing:
    """Flushes one producer, until it is lost.

    Args:
        producer: A native producer.
    """

    def __init__(self, producer: Any) -> None:
        self._native = producer
        self._changed = threading.Condition()
        self._lost = False

    def lose(self) -> None:
        """Say that a message has had no answer in time: the client will not get beyond it."""
        with self._changed:
            self._lost = True
            self._changed.notify_all()

    def wait(self) -> None:
        """Wait until everything that was sent is in the topic.

        Raises:
            SendDeadlineError: The producer is lost, or was lost meanwhile.
            Exception: The client's own.
        """
        heard: list[Exception | None] = []
        if not self._lost:
            self._start(heard)
        with self._changed:
            self._changed.wait_for(lambda: heard or self._lost)
        if not heard:
            raise SendDeadlineError(f"{self._native.topic()}: a message has no answer, and nothing passes it")
        if heard[0] is not None:
            raise heard[0]

    def _start(self, heard: list[Exception | None]) -> None:
        """Flush in a thread of its own, which may be left waiting.

        The client's ``flush_async`` needs none, but it waits for the producer's lock with the GIL in its hands, while
        the thread that ends a batch has that lock and waits for the GIL: the whole process stands still.
        """
        thread = threading.Thread(target=self._flush, args=(heard,), name="claimcheck-pulsar-flush", daemon=True)
        _waiting[thread] = self._native
        thread.start()

    def _flush(self, heard: list[Exception | None]) -> None:
        error: Exception | None = None
        try:
            self._native.flush()
        except Exception as caught:
            error = caught
        del _waiting[threading.current_thread()]
        with self._changed:
            heard.append(error)
            self._changed.notify_all()


@atexit.register
def _leave() -> None:
    """End what is still waited for: the interpreter aborts if it ends while threads are within the client."""
    for thread, producer in list(_waiting.items()):
        if thread.is_alive():  # not so in a forked child, which has the entry only
            with contextlib.suppress(Exception):
                producer.close()
            thread.join(_LEAVE_SECONDS)


WINDOW_BYTES = 16 << 20
DEADLINE_SECONDS = 60.0

Callback = Callable[[Any, Any], None]


class PulsarProducer:
    """Has the methods of a `pulsar.Producer`, and sends payloads that are too large for it. Safe under threads.

    The producer stays as it is: batching, compression, encryption, routing and schema are its own. Encryption
    covers messages; the payload that a pointer names is stored unencrypted. Leave its ``chunking_enabled`` off. A
    router of your own must send messages with one key to one partition.

    Args:
        producer: A `pulsar.Producer`.
        cc: A `claimcheck.ClaimCheck`.
        max_message_bytes: What the broker takes in one message, if it is not Pulsar's default. Where the producer
            encrypts, 1 KiB less: its keys travel with every message.
        admin_url: The broker's web service, to be asked for that instead; a limit of the topic's own is found, too.
        admin_headers: Sent with that request, for example with a token; never to another host.
        admin_ca_file: Certificates (PEM) of the authorities to trust for an ``admin_url`` with https; by default the
            machine's own.
        window_bytes: Of the chunks of one payload, on their way at once.
        deadline_seconds: For the answer to one message; more than the producer's ``send_timeout_millis``.

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
        check_cc(cc)
        check_int("max_message_bytes", max_message_bytes, minimum=1)
        check_int("window_bytes", window_bytes, minimum=1)
        check_seconds("deadline_seconds", deadline_seconds)
        self._native = producer
        self._cc = cc
        self._raw = without_schema(producer)
        self._schema = producer._schema
        self._topic: str = producer.topic()
        # Asked once: partitioned producers tell it under a lock, with which a router in Python waits for the GIL.
        self._name: str = producer.producer_name()
        self._max_message_bytes = max_message_bytes
        if admin_url:
            self._max_message_bytes = ask_limit(admin_url, self._topic, headers=admin_headers, ca_file=admin_ca_file)
        self._limit = self._limit_for({})
        self._header = cc.config.header
        self._threshold = cc.threshold(self._topic, self._limit)
        self._plain_bytes = self._threshold - self._limit.overhead(None, None)  # with no key and no properties
        self._is_encoded = isinstance(self._schema, vendor().schema.BytesSchema)
        self._undoing = Undoing()
        self._closed = False
        self._flushing = Flushing(producer)
        self._deadlines = Deadlines(deadline_seconds, self._overdue)
        self._line = Line(
            raw=self._raw,
            topic=self._topic,
            window_bytes=window_bytes,
            deadline_seconds=deadline_seconds,
            undoing=self._undoing,
            late=self._flushing.lose,
        )

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
            PartialSendError: Some chunks are or may be in the topic; an abort envelope followed where it could.
            SendDeadlineError: No answer in time; it may have been sent. Close this producer: until then the broker
                keeps dropping the connection that it shares with the client's other producers. Of chunks it is the
                ``__cause__`` of the `PartialSendError`.
            pulsar.AlreadyClosed: This producer was closed; nothing was stored.
            Exception: The client's own, unchanged; what was stored is deleted if it was definitely not sent.
            ClaimCheckError: The payload could not be offloaded; nothing was sent.
        """
        options = given_options(
            ordering_key, sequence_id, replication_clusters, disable_replication, event_timestamp, deliver_at,
            deliver_after,
        )  # fmt: skip
        if not options and (plain := self._plain(content, properties, partition_key)) is not None:
            return self._send_plain(Envelope(plain, properties, partition_key))
        sending = self._prepared(content, properties, partition_key, options)
        sending.launch()
        return sending.wait()

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
        if self._closed:
            ticket(vendor().Result.AlreadyClosed, no_id())
            return
        self._prepared(content, properties, partition_key, options).launch_for(ticket)
        self._deadlines.watch(ticket)

    def prepare(
        self,
        content: Any,
        properties: dict[str, str] | None,
        partition_key: str | None,
        *options: Any,
    ) -> Sending:
        """Store or cut one payload, for whoever launches it himself; arguments in the order of `send`. Raises as it."""
        return self._prepared(content, properties, partition_key, given_options(*options))

    def sends_plain(self, content: Any, properties: dict[str, str] | None, partition_key: str | None) -> bool:
        """Whether this payload would go as it is, with nothing stored and nothing to wait for."""
        return self._plain(content, properties, partition_key) is not None

    def flush(self) -> None:
        """Wait until everything that was sent is in the topic, and what failed is undone.

        Raises:
            SendDeadlineError: A message has no answer; the client gets beyond it no more.
            Exception: The client's own.
        """
        self._flushing.wait()
        self._undoing.wait()

    def close(self) -> None:
        """Flush and close: closed with messages on their way, the client reports failures for what was stored.

        A producer that is lost, since a message has had no answer in time, is closed without.
        """
        with suppress(vendor().exceptions.PulsarException, SendDeadlineError):  # whoever sent them hears of it
            self._flushing.wait()
        self._closed = True
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
        return self._name

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
        flight = self._line.flight({})
        flight.launch(envelope)
        return flight.wait()[0]

    def _overdue(self) -> tuple[Any, Any]:
        self._flushing.lose()
        return vendor().Result.Timeout, no_id()

    def _encode(self, content: Any) -> Any:
        return content if content is None or self._is_encoded else self._schema.encode(content)

    def _prepared(self, content: Any, properties: Any, key: Any, options: Mapping[str, Any]) -> Sending:
        """Store or cut a payload, so that nothing is left but to launch it."""
        if self._closed:  # known to be refused, where the client says no more than that it may be
            raise error_of(vendor().Result.AlreadyClosed)
        block = self._cc.outbound(
            self._encode(content),
            destination=self._topic,
            key=key,
            headers=properties,
            limit=self._limit_for(options) if options else self._limit,
            text_key=True,
            classify=classify,
        )
        return Sending(self._line, block.__enter__(), options)

    def _limit_for(self, options: Mapping[str, Any]) -> WireLimit:
        return wire_limit(self._max_message_bytes, producer_name=self._name, options=options)
