"""The records of one payload between ``produce`` and their delivery reports: one partition, and bounded in bytes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from claimcheck._envelope import Envelope
from claimcheck._sending import SendLedger
from claimcheck.transports.kafka._callbacks import Serving
from claimcheck.transports.kafka._errors import MissingReportError, exception_of

__all__ = ["Flight"]

_STEP_SECONDS = 0.02  # another thread may be the one to serve our reports


class Flight:
    """Sends records and records in a ledger what becomes of them.

    The first of several is sent alone: its report says which partition the partitioner chose, and all others are sent
    to that one. So the first has the lowest offset, too: without idempotence a client that retries changes the order.

    Args:
        native: A `confluent_kafka.Producer`.
        serving: Serves its delivery reports.
        ledger: Of the payload; its results are delivery reports.
        topic: Where to.
        partition: The user's choice, or -1.
        timestamp: Milliseconds since 1970, or 0 for now.
        window_bytes: On their way at once; one record always may be.
        room_seconds: How long to wait for room in the client's queue.
        clock: Seconds, monotonic.
    """

    def __init__(
        self,
        native: Any,
        serving: Serving,
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
        self._serving = serving
        self._ledger = ledger
        self._topic = topic
        self._partition = partition
        self._timestamp = timestamp
        self._window_bytes = window_bytes
        self._room_seconds = room_seconds
        self._clock = clock
        self._lock = threading.Lock()
        self._flying = 0
        self._bytes = 0
        self._on_landed: Callable[[], None] | None = None
        self.error: Any = None  # of the first record that failed
        self.failed: Any = None  # its report

    @property
    def partition(self) -> int:
        """Where they go; -1 as long as nobody knows."""
        return self._partition

    def launch(self, envelope: Envelope) -> None:
        """Send one record, when there is room for it.

        Raises:
            BufferError: There is no room in the client's queue. This record was not sent.
            KafkaException: The error of an earlier record, or of this one, which was not sent.
        """
        data = envelope.data
        size = len(data or b"")
        self._wait(lambda: self._flying and self._bytes + size > self._window_bytes)
        if self._ledger.count == 1:
            self._wait(lambda: self._flying)
            self._partition = self._ledger.results[0].partition()
        self._give(envelope, data if data is None or type(data) is bytes else bytes(data), size)

    def settle(self) -> None:
        """Wait until every record has its report."""
        while self._flying and len(self._native):
            self._serving.quietly(_STEP_SECONDS)

    def close(self, landed: Callable[[], None]) -> None:
        """Nothing more will be launched; ``landed`` is called when the last record has its report."""
        with self._lock:
            done = not self._flying
            self._on_landed = None if done else landed
        if done:
            landed()

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
            if not self._serving.quietly(_STEP_SECONDS) and not len(self._native) and busy():
                raise MissingReportError(
                    "a record was settled without a report, which chunks need: unset delivery.report.only.error",
                    destination=self._topic,
                )

    def _give(self, envelope: Envelope, data: bytes | None, size: int) -> None:
        patience = None
        with self._lock:
            self._flying, self._bytes = self._flying + 1, self._bytes + size
            number = self._ledger.launched()
        while True:
            try:
                self._native.produce(
                    self._topic, data, envelope.key, self._partition,
                    on_delivery=lambda error, report: self._landed(number, size, error, report),
                    timestamp=self._timestamp, headers=envelope.headers,
                )  # fmt: skip
                return
            except BufferError as error:
                patience = patience or self._clock() + self._room_seconds
                if self._clock() > patience:
                    self._take_back(number, size, error)
                    raise
                self._serving.quietly(_STEP_SECONDS)
            except BaseException as error:
                self._take_back(number, size, error)
                raise

    def _take_back(self, number: int, size: int, error: BaseException) -> None:
        with self._lock:
            self._flying, self._bytes = self._flying - 1, self._bytes - size
            self._ledger.failed(number, error)

    def _landed(self, number: int, size: int, error: Any, report: Any) -> None:
        """In whatever thread serves the producer."""
        with self._lock:
            self._flying, self._bytes = self._flying - 1, self._bytes - size
            if error is None:
                if self._ledger.total > 1:  # their positions are enough
                    report.set_value(None)
                self._ledger.acknowledged(number, report)
            else:
                self._ledger.failed(number, exception_of(error))
                if self.error is None:
                    self.error, self.failed = error, report
            landed = self._on_landed if not self._flying else None
        if landed is not None:
            landed()
