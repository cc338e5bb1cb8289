"""Sends payloads of any size through a producer of confluent-kafka."""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypedDict

from claimcheck._send.outbound import Outbound, SendLedger
from claimcheck._validation import check_cc, check_int
from claimcheck._wire.envelope import Envelope, FailedEnvelope
from claimcheck._wire.headers import WireLimit, is_ours, kafka_overhead
from claimcheck.transports._common.delegation import RollbackWorker
from claimcheck.transports.kafka._client import (
    MissingReportError,
    NativeClient,
    classify,
    exception_of,
    unwrapped,
    vendor,
)
from claimcheck.transports.kafka._message import report_of
from claimcheck.transports.kafka._queries import MAX_MESSAGE_BYTES

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message, Producer

    from claimcheck._client import ClaimCheck

_NOT_PLAIN = 1 << 62  # larger than every limit
_MAX_KNOWN_TOPICS = 10_000
_MIN_LIMIT_BYTES = 1000
_WINDOW_BYTES = 16 << 20  # of chunks of one payload in flight
_ROOM_SECONDS = 60.0  # in which the queue may get room for an offloaded payload
_MIN_OVERHEAD = kafka_overhead(None, None)
_POLL_SECONDS = 0.1
_STEP_SECONDS = 0.02  # another thread may be serving our reports

DeliveryCallback = Callable[[Any, Any], object]
Callback = DeliveryCallback | None
Key = str | bytes | None


class ProducerOptions(TypedDict, total=False):
    """The options of a `KafkaProducer`, which documents them."""

    max_message_bytes: int


class KafkaProducer(NativeClient):
    """Wraps a `confluent_kafka.Producer`, has its methods, and sends payloads that are too large for it.

    Thread-safe. Partitioning, compression, idempotence and transactions remain those of the producer. `poll` and
    `flush` serve delivery reports, and so does `produce` while the chunks of a payload wait.

    Args:
        producer: A `confluent_kafka.Producer`, also an instrumented one, but not one that serializes.
        cc: A `claimcheck.ClaimCheck`.
        max_message_bytes: The producer's own ``message.max.bytes``, if it is not the client's default, or the
            ``max.message.bytes`` of its topics, if that is less.

    Raises:
        ConfigError: An argument is out of range or of the wrong type; for an object also a `TypeError`.
    """

    delegated = NativeClient.delegated | {"init_transactions", "purge", "send_offsets_to_transaction"}

    def __init__(self, producer: Producer, cc: ClaimCheck, *, max_message_bytes: int = MAX_MESSAGE_BYTES) -> None:
        native = unwrapped("producer", producer, "Producer")
        check_cc(cc)
        check_int("max_message_bytes", max_message_bytes, minimum=_MIN_LIMIT_BYTES)
        self._native: Producer = native
        self._cc = cc
        self._limit = WireLimit(max_message_bytes, kafka_overhead)
        self._header = cc.config.header
        self._first_byte = self._header[0]
        self._produce: Any = producer.produce if type(producer) is vendor().cimpl.Producer else _named(producer.produce)
        self._plain_limits: dict[str, int] = {}  # by topic: bytes of value and key of a plain record without headers
        self._window_bytes = _WINDOW_BYTES
        self._room_seconds = _ROOM_SECONDS
        self._poller = Poller(native)
        self._closed = False
        self._rollbacks = RollbackWorker()
        self._transaction: list[Callable[[], None]] | None = None  # rollbacks of payloads sent in the open transaction

    def produce(
        self,
        topic: str,
        value: Any = None,
        key: Key = None,
        partition: int = -1,
        callback: Callback = None,
        on_delivery: Callback = None,
        timestamp: int = 0,
        headers: Any = None,
    ) -> None:
        """Send one payload; takes the arguments of `confluent_kafka.Producer.produce`.

        A payload for a store is stored before this returns. Chunks are sent as earlier ones are acknowledged, all to
        the partition of the first; the last 16 MiB of them are in flight when this returns.

        Args:
            topic: The topic.
            value: ``str``, bytes-like, or a readable binary file; ``None`` is a tombstone.
            key: Chunks of a payload without a key have its uuid as their key, which readers remove.
            partition: By default the producer's partitioner chooses.
            callback: Called once by `poll` or `flush`, with an error or ``None``, and a report: for chunks with the
                lowest offset and no value, else with the envelope. Never called for errors that this method raises.
            on_delivery: Used if there is no ``callback``.
            timestamp: Milliseconds since 1970; by default now.
            headers: A mapping or a list of pairs. Names beginning with ``claimcheck-`` are reserved.

        Raises:
            TypeError: The callback is not callable, or the client does not accept another argument. Nothing was sent.
            BufferError: The producer's queue is full, for 60 seconds if the payload was offloaded. Nothing was sent.
            PartialSendError: Some chunks are or may be in the topic; an abort envelope followed them if possible.
            KafkaException: An error of the client, unchanged; the stored payload is deleted if this one is definite.
            ClaimCheckError: The payload could not be offloaded; nothing was sent.
        """
        if headers is None and type(value) is bytes and value and value[0] != self._first_byte:
            size = len(value) if key is None else len(value) + len(key) if type(key) is bytes else _NOT_PLAIN
            if size <= self._plain_limits.get(topic, -1):
                produce = self._produce  # called as a local variable, and with no more arguments than needed: faster
                if callback is None and on_delivery is None and partition == -1 and timestamp == 0:
                    produce(topic, value, key)
                else:  # the client ignores on_delivery if a callback is passed, even None
                    callback = _checked_callback(callback, on_delivery)
                    produce(topic, value, key, partition, callback, callback, timestamp)
                return
        callback = _checked_callback(callback, on_delivery)
        value = value.encode() if isinstance(value, str) else value
        if self.sends_plain(topic, value, key, headers):
            self._produce(topic, value, key, partition, callback, callback, timestamp, headers)
        else:
            self._offload(topic, value, key, partition, callback, timestamp, headers)

    def poll(self, timeout: float | None = -1) -> int:
        """Serve delivery reports, like the client's ``poll``; none is lost after a fatal error."""
        return self._poller.poll(-1 if timeout is None else timeout)

    def serve(self, seconds: float) -> int:
        """Serve delivery reports; the next `poll` or `flush` raises exceptions that occur here."""
        return self._poller.quietly(seconds)

    def flush(self, timeout: float | None = -1) -> int:
        """Wait for all delivery reports and rollbacks; returns the number of records without a report."""
        timeout = -1 if timeout is None else timeout
        left = self._poller.flush(timeout)
        self._rollbacks.wait()
        return self._poller.flush(timeout) if len(self._native) else left  # rollbacks may have sent abort envelopes

    def close(self) -> bool:
        """Flush and close; returns whether every record has its report. A second call does nothing."""
        if self._closed:
            return True
        self._closed = True
        with contextlib.ExitStack() as closing:
            closing.callback(self._rollbacks.close)
            closing.callback(self._native.close)
            return self.flush() == 0

    def begin_transaction(self) -> None:
        """Begin a transaction. A commit keeps the payloads stored in it; an abort deletes them."""
        self._native.begin_transaction()
        self._transaction = []

    def commit_transaction(self, timeout: float = -1) -> None:
        """Flush and commit. After an error of the client, a retry or an abort decides about the stored payloads."""
        self._poller.flush(timeout)
        try:
            self._native.commit_transaction(timeout)
        except vendor().KafkaException as error:
            if not (error.args[0].retriable() or error.args[0].txn_requires_abort()):
                self._transaction = None  # the outcome is unknown: stored payloads stay until they expire
            raise
        self._transaction = None

    def abort_transaction(self, timeout: float = -1) -> None:
        """Abort, and delete the stored payloads. Readers of uncommitted messages may see pointers without a payload."""
        try:
            self._native.abort_transaction(timeout)
        except vendor().KafkaException as error:
            if not error.args[0].retriable():
                self._transaction = None  # as above
            raise
        self._poller.flush(timeout)
        rollbacks, self._transaction = self._transaction or [], None
        for rollback in rollbacks:
            self._rollbacks.submit(rollback)

    def __len__(self) -> int:
        return len(self._native)

    def __bool__(self) -> bool:
        return True

    def __repr__(self) -> str:
        return f"<KafkaProducer, {len(self)} records without a report>"

    def sends_plain(self, topic: str, value: object, key: Key, headers: object) -> bool:
        """Whether a payload would be sent unchanged: it is small, and no reader would take it for an envelope."""
        if value is None:
            return True
        if type(value) is not bytes or value.startswith(self._header) or is_ours(headers):
            return False
        return len(value) + kafka_overhead(key, headers) - _MIN_OVERHEAD <= self._plain_limit(topic)

    def _plain_limit(self, topic: str) -> int:
        limit = self._plain_limits.get(topic)
        if limit is None:
            limit = self._cc.threshold(topic, self._limit) - _MIN_OVERHEAD
            if len(self._plain_limits) < _MAX_KNOWN_TOPICS:
                self._plain_limits[topic] = limit
        return limit

    def _offload(
        self, topic: str, value: Any, key: Key, partition: int, callback: Callback, timestamp: int, headers: Any
    ) -> None:
        block = self._cc.outbound(
            value, destination=topic, key=key, headers=headers, limit=self._limit, text_key=False, classify=classify
        )
        out = block.__enter__()
        window = InFlightWindow(
            self._native, self._produce, self._poller, out.ledger, topic, partition, timestamp, self._window_bytes,
            self._room_seconds,
        )  # fmt: skip
        try:
            for envelope in out.messages:
                window.send(envelope)
        except BaseException as error:
            if isinstance(error, Exception):
                window.settle()
            out.break_off(error, lambda abort: self._send_abort(abort, window))
            raise
        window.close(lambda: self._completed(key, out, window, callback))

    def _completed(self, key: Key, out: Outbound, window: InFlightWindow, callback: Callback) -> None:
        """Called in the thread that serves the producer."""
        report: Message | None
        if window.error is None:
            if self._transaction is not None and (rollback := out.release_undo()) is not None:
                self._transaction.append(rollback)
            out.finish()
            report = out.ledger.results[0] if out.uuid is None else report_of(out.ledger.results, key)
        else:
            self._rollbacks.submit(lambda: self._failed(out, window))
            report = window.failed
            if report is not None and not out.as_is and (value := report.value()) is not None:
                report.set_value(FailedEnvelope(value))  # an application that sends it again gets an error
        if callback is not None:
            callback(window.error, report)

    def _failed(self, out: Outbound, window: InFlightWindow) -> None:
        out.tell_readers(lambda abort: self._send_abort(abort, window))
        out.finish()

    def _send_abort(self, abort: Envelope, window: InFlightWindow) -> None:
        self._produce(window.topic, abort.data, abort.key, window.partition, headers=abort.headers)


def _checked_callback(callback: Callback, on_delivery: Callback) -> Any:
    """Return the callback that the client would call."""
    chosen = on_delivery if callback is None else callback
    if not (chosen is None or callable(chosen)):
        raise TypeError(f"a delivery callback must be callable, not {type(chosen).__name__}")
    return chosen


def _named(produce: Any) -> Any:
    """Return a function that passes arguments by name, as what instruments a client expects."""
    names = ("key", "partition", "callback", "on_delivery", "timestamp", "headers")
    return lambda topic, value, *rest, **more: produce(topic, value, **dict(zip(names, rest, strict=False)), **more)


class Poller:
    """Polls a producer, and keeps exceptions for the user's next `poll` or `flush`."""

    def __init__(self, native: Producer, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._native = native
        self._clock = clock
        self._pending: Exception | None = None

    def poll(self, seconds: float) -> int:
        """Serve events for up to ``seconds`` (negative: no limit); returns their number."""
        try:  # as `quietly`, with a call less
            count = self._native.poll(seconds)
        except Exception as error:
            self._keep(error)
            count = 0
        if self._pending is not None:
            self._raise_pending()
        return count

    def flush(self, seconds: float) -> int:
        """Serve until every record has its report or time is up; returns the number of records without one."""
        end = math.inf if seconds < 0 else self._clock() + seconds
        self.quietly(0)
        while (left := len(self._native)) and self._clock() < end:
            self.quietly(min(_POLL_SECONDS, max(0.0, end - self._clock())))
        self._raise_pending()
        return left

    def quietly(self, seconds: float) -> int:
        """Serve like `poll`, but keep an exception for the next `poll` or `flush`."""
        try:
            return self._native.poll(seconds)
        except Exception as error:
            self._keep(error)
            return 0

    def _keep(self, error: Exception) -> None:
        if isinstance(error, SystemError) and "without setting an exception" in str(error):
            raise KeyboardInterrupt from error
        self._pending = self._pending or error

    def _raise_pending(self) -> None:
        error, self._pending = self._pending, None
        if error is not None:
            raise error


@dataclass(slots=True, eq=False)
class InFlightWindow:
    """Sends the records of one payload, and records their outcomes in a ledger."""

    native: Producer
    produce: Callable[..., object]
    poller: Poller
    ledger: SendLedger
    topic: str
    partition: int
    timestamp: int
    window_bytes: int
    room_seconds: float
    clock: Callable[[], float] = time.monotonic
    error: KafkaError | None = None
    failed: Message | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)
    _in_flight: int = field(default=0, init=False)
    _bytes: int = field(default=0, init=False)
    _on_complete: Callable[[], None] | None = field(default=None, init=False)

    def send(self, envelope: Envelope) -> None:
        data = envelope.data
        size = len(data or b"")
        self._wait_while(lambda: self._in_flight > 0 and self._bytes + size > self.window_bytes)
        if self.ledger.count == 1:
            self._wait_while(lambda: self._in_flight > 0)
            self.partition = self.ledger.results[0].partition()
        self._produce(envelope, data if data is None or type(data) is bytes else bytes(data), size)

    def settle(self) -> None:
        while self._in_flight and len(self.native):
            self.poller.quietly(_STEP_SECONDS)

    def close(self, on_complete: Callable[[], None]) -> None:
        """Accept no more records; call ``on_complete`` once the last one has its report."""
        with self._lock:
            done = not self._in_flight
            self._on_complete = None if done else on_complete
        if done:
            on_complete()

    def _wait_while(self, busy: Callable[[], bool]) -> None:
        while True:
            if self.ledger.error is not None:
                raise self.ledger.error
            if not busy():
                return
            if not self.poller.quietly(_STEP_SECONDS) and not len(self.native) and busy():
                text = "a record has no delivery report, which chunks need: unset delivery.report.only.error"
                raise MissingReportError(text, destination=self.topic)

    def _produce(self, envelope: Envelope, data: bytes | None, size: int) -> None:
        deadline = None
        with self._lock:
            self._in_flight, self._bytes = self._in_flight + 1, self._bytes + size
            number = self.ledger.launched()
        while True:
            try:
                self.produce(
                    self.topic, data, envelope.key, self.partition,
                    on_delivery=lambda error, report: self._reported(number, size, error, report),
                    timestamp=self.timestamp, headers=envelope.headers,
                )  # fmt: skip
                return
            except BaseException as error:
                deadline = deadline or self.clock() + self.room_seconds
                if not isinstance(error, BufferError) or self.clock() > deadline:
                    with self._lock:
                        self._in_flight, self._bytes = self._in_flight - 1, self._bytes - size
                        self.ledger.failed(number, error)
                    raise
                self.poller.quietly(_STEP_SECONDS)

    def _reported(self, number: int, size: int, error: KafkaError | None, report: Message) -> None:
        """Called in the thread that serves the producer."""
        with self._lock:
            if error is None:
                if self.ledger.total > 1:  # only their positions are needed
                    report.set_value(None)
                self.ledger.acknowledged(number, report)
            else:
                self.ledger.failed(number, exception_of(error))
                if self.error is None:
                    self.error, self.failed = error, report
            self._in_flight, self._bytes = self._in_flight - 1, self._bytes - size  # last: `_wait_while` takes no lock
            on_complete = self._on_complete if not self._in_flight else None
        if on_complete is not None:
            on_complete()
