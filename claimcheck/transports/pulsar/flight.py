"""The messages of one payload between ``send_async`` and their callbacks: bounded in bytes, and in time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from claimcheck.envelope import Envelope
from claimcheck.sending import SendLedger
from claimcheck.transports.pulsar.errors import SendDeadlineError, error_of

__all__ = ["Flight"]

_QUEUE_IS_FULL = "ProducerQueueIsFull"


class Flight:
    """Sends messages and records in a ledger what becomes of them; one thread launches, the client's reports results.

    Args:
        send: Hands one envelope to the client, with a callback for the result and the id.
        topic: For error texts.
        window_bytes: On their way at once; one message always may be.
        deadline_seconds: For each message, from its launch.
        ledger: Of the payload; its results are message ids.
        landed: Called by the client's thread when the last message of a flight that was `closed` has landed.
        late: Called when the time of a message is up.
        clock: Seconds, monotonic.
    """

    def __init__(
        self,
        send: Callable[[Envelope, Callable[[Any, Any], None]], None],
        *,
        topic: str,
        window_bytes: int,
        deadline_seconds: float,
        ledger: SendLedger | None = None,
        landed: Callable[[Flight], None] | None = None,
        late: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._send = send
        self._ledger = ledger or SendLedger()
        self._topic = topic
        self._window_bytes = window_bytes
        self._deadline_seconds = deadline_seconds
        self._on_landed = landed
        self._on_late = late
        self._clock = clock
        self._changed = threading.Condition()
        self._flying: dict[int, tuple[float, int]] = {}  # launched when, and how large
        self._again: list[tuple[int, Envelope, int]] = []  # the client's queue was full, with so many of ours in it
        self._closed = False
        self.launched = 0  # that the client took
        self.result: Any = None  # of the first message that failed

    def launch(self, envelope: Envelope) -> None:
        """Send one message, when there is room for it.

        Raises:
            SendDeadlineError: An earlier message has no answer.
            Exception: The error of an earlier message, or of this one, which was not sent.
        """
        size = len(envelope.data or b"")
        with self._changed:
            self._wait(lambda: not self._flying or self._bytes() + size <= self._window_bytes)
            number = self._ledger.launched()
        self._launch(number, envelope)
        self.launched += 1

    def wait(self) -> list[Any]:
        """Wait until every message has landed, and return their ids in order.

        Raises:
            SendDeadlineError: One has no answer.
            Exception: The first error that one met; all others have landed, too, or their time is up.
        """
        with self._changed:
            self._wait(lambda: not self._flying)
        return self._ledger.results

    def drain(self) -> None:
        """Wait until the client has taken all of them. Raises as `launch` does."""
        with self._changed:
            self._wait(lambda: True)

    def settle(self) -> None:
        """After an error: wait for the messages that are still on their way, as long as they have time."""
        with self._changed:
            while self._flying and (left := self._left()) > 0:
                self._changed.wait(left)
            if self._flying:
                self._on_late()

    def close(self) -> None:
        """Say that nothing more will be launched: from now on it may have landed."""
        with self._changed:
            self._closed = True
            done = not self._flying
        if done and self._on_landed is not None:
            self._on_landed(self)

    # Within ----------------------------------------------------------------------------------------------------

    def _launch(self, number: int, envelope: Envelope) -> None:
        with self._changed:
            self._flying[number] = self._clock(), len(envelope.data or b"")
        try:
            self._send(envelope, lambda result, message_id: self._landed(number, envelope, result, message_id))
        except BaseException as error:
            with self._changed:
                self._flying.pop(number, None)
                self._ledger.failed(number, error)
            raise

    def _landed(self, number: int, envelope: Envelope, result: Any, message_id: Any) -> None:
        """In the client's own thread: an exception here would end the process."""
        with self._changed:
            self._flying.pop(number, None)
            if result.name == "Ok":  # several times as fast as to compare members
                self._ledger.acknowledged(number, message_id)
            elif result.name == _QUEUE_IS_FULL and self._flying and not self._closed:
                self._again.append((number, envelope, len(self._flying)))
                self._ledger.postponed(number)
            else:
                self.result = self.result or result
                self._ledger.failed(number, error_of(result))
            done = self._closed and not self._flying
            self._changed.notify_all()
        if done and self._on_landed is not None:
            self._on_landed(self)

    def _wait(self, ready: Callable[[], bool]) -> None:
        while True:
            if self._ledger.error is not None:
                raise self._ledger.error
            if self._again and len(self._flying) < self._again[0][2]:  # one of ours has landed: there is room
                self._retry()
            elif ready() and not self._again:
                return
            elif (left := self._left()) <= 0:
                self._on_late()
                raise SendDeadlineError(
                    f"{self._topic}: no answer in {self._deadline_seconds:g} s; is a limit of the topic's own below "
                    "what the producer was told (admin_url asks for it)?",
                    destination=self._topic,
                )
            else:
                self._changed.wait(left)

    def _retry(self) -> None:
        number, envelope, _ = self._again.pop(0)
        self._ledger.resumed(number)
        self._changed.release()  # the client may call back before it returns
        try:
            self._launch(number, envelope)
        finally:
            self._changed.acquire()

    def _left(self) -> float:
        """Seconds until the oldest message is overdue."""
        begun = min(when for when, _ in self._flying.values())
        return begun + self._deadline_seconds - self._clock()

    def _bytes(self) -> int:
        return sum(size for _, size in self._flying.values())
