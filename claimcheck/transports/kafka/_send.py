"""Sends the records of one payload: in-flight window, delivery reports, and the poller that serves them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from claimcheck._send.outbound import SendLedger
from claimcheck._wire.envelope import Envelope
from claimcheck.transports.kafka._client import MissingReportError, exception_of

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message, Producer

    from claimcheck.transports.kafka._client import Record

_POLL_SECONDS = 0.1
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
            except BufferError as error:
                deadline = deadline or self.clock() + self.room_seconds
                if self.clock() > deadline:
                    self._rejected(number, size, error)
                    raise
                self.poller.quietly(_STEP_SECONDS)
            except BaseException as error:
                self._rejected(number, size, error)
                raise

    def _rejected(self, number: int, size: int, error: BaseException) -> None:
        with self._lock:
            self._in_flight, self._bytes = self._in_flight - 1, self._bytes - size
            self.ledger.failed(number, error)

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
