"""Delivery reports: served without losing any, and the in-flight window of the records of one payload."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from claimcheck._envelope import Envelope
from claimcheck._sending import SendLedger
from claimcheck.transports.kafka._errors import MissingReportError, exception_of

__all__ = ["InFlightWindow", "Poller"]

_POLL_SECONDS = 0.1
_STEP_SECONDS = 0.02  # another thread may be the one that serves our reports


class Poller:
    """Polls a producer.

    An exception of the client after a fatal error, or of a user's callback, is not lost: the user's next `poll` or
    `flush` raises it. The client's own ``flush`` calls callbacks while an exception is pending and loses their
    reports.

    Args:
        native: A `confluent_kafka.Producer`.
        clock: Seconds, monotonic.
    """

    def __init__(self, native: Any, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._native = native
        self._clock = clock
        self._kept: Exception | None = None

    def poll(self, seconds: float) -> int:
        """Serve what is there or arrives in time (negative: no limit); returns the number of events.

        Raises:
            Exception: A callback's own, or the client's, for example after a fatal error; once each.
        """
        count = self.quietly(seconds)
        self._raise_kept()
        return count

    def flush(self, seconds: float) -> int:
        """Serve until every record has its report, or time is up; returns the number of those without one.

        Raises:
            Exception: As `poll`.
        """
        end = None if seconds < 0 else self._clock() + seconds
        self.quietly(0)
        while (left := len(self._native)) and (end is None or self._clock() < end):
            self.quietly(_POLL_SECONDS if end is None else min(_POLL_SECONDS, max(0.0, end - self._clock())))
        self._raise_kept()
        return int(left)

    def quietly(self, seconds: float) -> int:
        """Serve, and keep what is raised for the user's own `poll` or `flush`.

        Raises:
            KeyboardInterrupt: The client was interrupted, which it reports only as a `SystemError`.
        """
        try:
            return int(self._native.poll(seconds))
        except Exception as error:
            if isinstance(error, SystemError) and "without setting an exception" in str(error):
                raise KeyboardInterrupt from error
            self._kept = self._kept or error
            return 0

    def _raise_kept(self) -> None:
        kept, self._kept = self._kept, None
        if kept is not None:
            raise kept


class InFlightWindow:
    """Sends the records of one payload and enters in a ledger what became of them.

    The first of several is sent alone: its report says which partition the partitioner chose, and all others are sent
    to that one. So the first has the lowest offset, too: without idempotence a client that retries changes the order.

    Args:
        native: A `confluent_kafka.Producer`.
        poller: Serves the delivery reports.
        ledger: Of the payload; its results are delivery reports.
        topic: The topic.
        partition: The user's choice, or -1.
        timestamp: Milliseconds since 1970, or 0 for now.
        window_bytes: Bytes in flight at once; one record is always allowed.
        room_seconds: How long to wait for room in the client's queue.
        clock: Seconds, monotonic.
    """

    def __init__(
        self,
        native: Any,
        poller: Poller,
        ledger: SendLedger,
        *,
        topic: str,
        partition: int,
        timestamp: int,
        window_bytes: int,
        room_seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._native = native
        self._poller = poller
        self._ledger = ledger
        self._topic = topic
        self._partition = partition
        self._timestamp = timestamp
        self._window_bytes = window_bytes
        self._room_seconds = room_seconds
        self._clock = clock
        self._lock = threading.Lock()
        self._in_flight = 0
        self._bytes = 0
        self._on_complete: Callable[[], None] | None = None
        self.error: Any = None  # of the first record that failed
        self.failed: Any = None  # its report

    @property
    def partition(self) -> int:
        """The partition of all records; -1 until the first report names it."""
        return self._partition

    def send(self, envelope: Envelope) -> None:
        """Send one record, when there is room for it.

        Raises:
            BufferError: There is no room in the client's queue. This record was not sent.
            KafkaException: The error of an earlier record, or of this one, which was not sent.
        """
        data = envelope.data
        size = len(data or b"")
        self._wait(lambda: self._in_flight and self._bytes + size > self._window_bytes)
        if self._ledger.count == 1:
            self._wait(lambda: self._in_flight)
            self._partition = self._ledger.results[0].partition()
        self._produce(envelope, data if data is None or type(data) is bytes else bytes(data), size)

    def settle(self) -> None:
        """Wait until every record has its report."""
        while self._in_flight and len(self._native):
            self._poller.quietly(_STEP_SECONDS)

    def close(self, on_complete: Callable[[], None]) -> None:
        """End the sends; ``on_complete`` is called when the last record has its report."""
        with self._lock:
            done = not self._in_flight
            self._on_complete = None if done else on_complete
        if done:
            on_complete()

    def first(self) -> Any:
        """The report with the lowest offset; the first where there are no offsets, as with ``acks`` 0."""
        return min(self._ledger.results, key=lambda report: -1 if report.offset() is None else report.offset())

    def last_offset(self) -> int | None:
        """The highest offset."""
        return max((report.offset() for report in self._ledger.results if report.offset() is not None), default=None)

    # Within ----------------------------------------------------------------------------------------------------

    def _wait(self, busy: Callable[[], Any]) -> None:
        while True:
            if self._ledger.error is not None:
                raise self._ledger.error
            if not busy():
                return
            if not self._poller.quietly(_STEP_SECONDS) and not len(self._native) and busy():
                raise MissingReportError(
                    "a record has no delivery report, which chunks need: unset delivery.report.only.error",
                    destination=self._topic,
                )

    def _produce(self, envelope: Envelope, data: bytes | None, size: int) -> None:
        patience = None
        with self._lock:
            self._in_flight, self._bytes = self._in_flight + 1, self._bytes + size
            number = self._ledger.launched()
        while True:
            try:
                self._native.produce(
                    self._topic, data, envelope.key, self._partition,
                    on_delivery=lambda error, report: self._reported(number, size, error, report),
                    timestamp=self._timestamp, headers=envelope.headers,
                )  # fmt: skip
                return
            except BufferError as error:
                patience = patience or self._clock() + self._room_seconds
                if self._clock() > patience:
                    self._refused(number, size, error)
                    raise
                self._poller.quietly(_STEP_SECONDS)
            except BaseException as error:
                self._refused(number, size, error)
                raise

    def _refused(self, number: int, size: int, error: BaseException) -> None:
        with self._lock:
            self._in_flight, self._bytes = self._in_flight - 1, self._bytes - size
            self._ledger.failed(number, error)

    def _reported(self, number: int, size: int, error: Any, report: Any) -> None:
        """Called in the thread that serves the producer."""
        with self._lock:
            self._in_flight, self._bytes = self._in_flight - 1, self._bytes - size
            if error is None:
                if self._ledger.total > 1:  # their positions are enough
                    report.set_value(None)
                self._ledger.acknowledged(number, report)
            else:
                self._ledger.failed(number, exception_of(error))
                if self.error is None:
                    self.error, self.failed = error, report
            on_complete = self._on_complete if not self._in_flight else None
        if on_complete is not None:
            on_complete()
