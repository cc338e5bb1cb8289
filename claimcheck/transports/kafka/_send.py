"""Sends the records of one payload: limits of the topic, in-flight window, and the poller for delivery reports."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from claimcheck._send.outbound import SendLedger
from claimcheck._wire.envelope import Envelope
from claimcheck._wire.headers import WireLimit, kafka_overhead
from claimcheck.transports.kafka._client import CompactedTopicError, MissingReportError, exception_of, vendor
from claimcheck.transports.kafka._queries import TopicSettings, topic_settings

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message, Producer
    from confluent_kafka.admin import AdminClient

    from claimcheck.transports.kafka._client import Record

_log = logging.getLogger(__name__)

_POLL_SECONDS = 0.1
_RETRY_SECONDS = 5.0
_DEFAULT = TopicSettings.of({})
_STEP_SECONDS = 0.02  # another thread may be serving our reports


class Poller:
    """Polls a producer, and keeps exceptions for the user's next `poll` or `flush`."""

    def __init__(self, native: Producer, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._native = native
        self._clock = clock
        self._pending: Exception | None = None

    def poll(self, seconds: float) -> int:
        """Serve events for up to ``seconds`` (negative: no limit); returns their number."""
        count = self.quietly(seconds)
        self._raise_pending()
        return count

    def flush(self, seconds: float) -> int:
        """Serve until every record has its report or time is up; returns the number of records without one."""
        end = None if seconds < 0 else self._clock() + seconds
        self.quietly(0)
        while (left := len(self._native)) and (end is None or self._clock() < end):
            self.quietly(_POLL_SECONDS if end is None else min(_POLL_SECONDS, max(0.0, end - self._clock())))
        self._raise_pending()
        return left

    def quietly(self, seconds: float) -> int:
        """Serve like `poll`, but keep an exception for the next `poll` or `flush`."""
        try:
            return self._native.poll(seconds)
        except Exception as error:
            if isinstance(error, SystemError) and "without setting an exception" in str(error):
                raise KeyboardInterrupt from error
            self._pending = self._pending or error
            return 0

    def _raise_pending(self) -> None:
        error, self._pending = self._pending, None
        if error is not None:
            raise error


@dataclass(slots=True, eq=False, kw_only=True)
class InFlightWindow:
    """Sends the records of one payload, and records their outcomes in a ledger."""

    native: Producer
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
        """Send one record as soon as there is room for it."""
        data = envelope.data
        size = len(data or b"")
        self._wait_while(lambda: self._in_flight > 0 and self._bytes + size > self.window_bytes)
        if self.ledger.count == 1:
            self._wait_while(lambda: self._in_flight > 0)
            self.partition = self.ledger.results[0].partition()
        self._produce(envelope, data if data is None or type(data) is bytes else bytes(data), size)

    def settle(self) -> None:
        """Wait until every record has its report."""
        while self._in_flight and len(self.native):
            self.poller.quietly(_STEP_SECONDS)

    def close(self, on_complete: Callable[[], None]) -> None:
        """Accept no more records; call ``on_complete`` once the last one has its report."""
        with self._lock:
            done = not self._in_flight
            self._on_complete = None if done else on_complete
        if done:
            on_complete()

    def first(self) -> Record:
        """Return the report with the lowest offset, or the first report if offsets are unknown (``acks=0``)."""
        report: Record = min(self.ledger.results, key=lambda each: -1 if each.offset() is None else each.offset())
        return report

    def last_offset(self) -> int | None:
        """Return the highest offset."""
        return max((each.offset() for each in self.ledger.results if each.offset() is not None), default=None)

    def _wait_while(self, busy: Callable[[], bool]) -> None:
        while True:
            if self.ledger.error is not None:
                raise self.ledger.error
            if not busy():
                return
            if not self.poller.quietly(_STEP_SECONDS) and not len(self.native) and busy():
                raise MissingReportError(
                    "a record has no delivery report, which chunks need: unset delivery.report.only.error",
                    destination=self.topic,
                )

    def _produce(self, envelope: Envelope, data: bytes | None, size: int) -> None:
        deadline = None
        with self._lock:
            self._in_flight, self._bytes = self._in_flight + 1, self._bytes + size
            number = self.ledger.launched()
        while True:
            try:
                self.native.produce(
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
            self._in_flight, self._bytes = self._in_flight - 1, self._bytes - size
            if error is None:
                if self.ledger.total > 1:  # only their positions are needed
                    report.set_value(None)
                self.ledger.acknowledged(number, report)
            else:
                self.ledger.failed(number, exception_of(error))
                if self.error is None:
                    self.error, self.failed = error, report
            on_complete = self._on_complete if not self._in_flight else None
        if on_complete is not None:
            on_complete()


class Topics:
    """Requests the configuration of each topic once, and again after `refresh`."""

    def __init__(
        self, admin: AdminClient | None, max_message_bytes: int, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._admin = admin
        self._max_message_bytes = max_message_bytes
        self._known: dict[str, TopicSettings] = {}
        self._stale: set[str] = set()  # known topics only
        self._retry_at: dict[str, float] = {}
        self._clock = clock
        self._warned = False

    def of(self, name: str) -> TopicSettings:
        """Return a topic's settings, or the defaults if the broker does not answer; a later call asks it again."""
        if self._admin is not None and not self.knows(name) and self._retry_at.get(name, 0.0) <= self._clock():
            settings = self._request(self._admin, name)
            if settings is None or name in self._stale:
                self._retry_at[name] = self._clock() + _RETRY_SECONDS
            if settings is not None:
                self._known[name] = settings
                self._stale.discard(name)
        return self._known.get(name, _DEFAULT)

    def limit(self, name: str) -> WireLimit:
        """Return the limit of one record of a topic."""
        allowed = self.of(name).max_message_bytes or self._max_message_bytes
        return WireLimit(min(allowed, self._max_message_bytes), kafka_overhead)

    def knows(self, name: str) -> bool:
        """Whether `of` returns the same limits until `refresh`, without a request."""
        return self._admin is None or (name in self._known and name not in self._stale)

    def refresh(self, name: str) -> None:
        """Request a topic's limits again at its next use, but at most every few seconds."""
        if name in self._known:
            self._stale.add(name)

    def check_chunks(self, name: str, size: int | None) -> None:
        """Check that a topic can hold the chunks of a payload of ``size`` bytes, if the size is known."""
        topic = self.of(name)
        if topic.compacted:
            text = f"{name} is compacted and would keep only the last chunk of a payload; use strategy external"
            raise CompactedTopicError(text, destination=name)
        if topic.retention_bytes is not None and size is not None and size > topic.retention_bytes:
            _log.warning(
                "%s: sending %d bytes as chunks to a partition that keeps %d (retention.bytes); the first chunks may "
                "be deleted before the last one is read", name, size, topic.retention_bytes,
            )  # fmt: skip
        if self._admin is None and not self._warned:
            self._warned = True
            _log.warning("%s: sending chunks without checking whether the topic is compacted; pass admin=", name)

    def _request(self, admin: AdminClient, name: str) -> TopicSettings | None:
        try:
            settings = topic_settings(admin, name)
        except vendor().KafkaException as error:
            _log.warning("%s: failed to read the topic's configuration: %s", name, error.args[0].name())
            return None
        if (max_bytes := settings.max_message_bytes) is not None and max_bytes < self._max_message_bytes:
            _log.warning(
                "%s accepts batches of at most %d bytes, and rejects a larger one as a whole: set the producer's "
                "batch.size to %d or less", name, max_bytes, max_bytes,
            )  # fmt: skip
        return settings
