"""One payload to send, and the outcome: the one place that decides on the rollback, the abort envelope and the error.

A `SendLedger` records what happens to each message and returns a `Verdict`; the producers of all transports use it.
`Outbound` has the envelopes and acts on the verdict.
"""

from __future__ import annotations

import contextlib
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar, cast

from claimcheck._send.classification import Classification, Classifier, judge
from claimcheck._wire.envelope import Envelope
from claimcheck.errors import ClaimCheckError, PartialSendError
from claimcheck.hooks import Hooks, SendEvent

if TYPE_CHECKING:
    import asyncio
    import concurrent.futures
    from typing import TypeAlias

    from typing_extensions import TypeIs

    AnyFuture: TypeAlias = concurrent.futures.Future[Any] | asyncio.Future[Any]

R = TypeVar("R")

_log = logging.getLogger(__name__)
SendOutcome = Literal["sent", "failed", "unknown", "partial"]
"""The outcome of the send of a payload; see `Verdict`."""

_ABORT_SECONDS = 5.0
_NO_HOOKS = Hooks()
_running: set[asyncio.Task[object]] = set()


class Verdict(NamedTuple):
    """The outcome of the send of one payload."""

    outcome: SendOutcome
    acknowledged: int
    unknown: int
    total: int
    chunked: bool

    @property
    def unsent(self) -> int:
        """Messages that are definitely not in the topic."""
        return self.total - self.acknowledged - self.unknown

    @property
    def rollback(self) -> bool:
        """Whether to delete the stored payload, because no message can point at it."""
        return self.outcome == "failed"

    @property
    def abort(self) -> bool:
        """Whether to send an abort envelope, because a reader may hold chunks that will not be completed."""
        return self.chunked and self.outcome in ("partial", "unknown")


class SendLedger:
    """Records what happens to the messages of one payload. Not thread-safe: callers use their own lock."""

    __slots__ = ("_judged", "_refused", "_results", "classify", "count", "error", "total", "uuid")

    def __init__(self, *, total: int = 1, uuid: str | None = None, classify: Classifier | None = None) -> None:
        self.total = total
        self.uuid = uuid
        self.classify = classify
        self.count = 0
        self.error: BaseException | None = None
        self._results: dict[int, Any] = {}
        self._refused: set[int] = set()
        self._judged: dict[int, tuple[BaseException, Classification]] = {}

    def launched(self) -> int:
        """Record that the next message is handed to the client; returns its number, from 0."""
        self.count += 1
        return self.count - 1

    def postponed(self, number: int) -> None:
        """Record that the client refused a message for now; it is not in flight until it is `resumed`."""
        self._refused.add(number)

    def resumed(self, number: int) -> None:
        """Record that a postponed message is handed to the client again."""
        self._refused.discard(number)

    def acknowledged(self, number: int, result: object = None) -> None:
        """Record that a message is in the topic, and what its send returned."""
        self._refused.discard(number)
        self._results[number] = result

    def failed(self, number: int | None, error: BaseException) -> None:
        """Record an error of a message, or of none."""
        self.stopped(error)
        if number is not None and number not in self._results and self._judge(error) == "failed":
            self._refused.add(number)

    def stopped(self, error: BaseException) -> None:
        """Record an error that ends the send but belongs to no message: messages in flight stay unknown."""
        if self.error is None:
            self.error = error

    def forget_errors(self) -> None:
        """Drop all errors: their tracebacks refer to the payload."""
        self.error = None
        self._judged.clear()

    @property
    def results(self) -> list[Any]:
        """What the sends of the acknowledged messages returned, in message order."""
        return [self._results[number] for number in sorted(self._results)]

    def verdict(self) -> Verdict:
        """Return the outcome according to what was recorded so far."""
        total, acknowledged = max(self.total, self.count), len(self._results)
        unknown = self.count - acknowledged - len(self._refused)
        outcome: SendOutcome = "failed"
        if acknowledged:
            outcome = "sent" if acknowledged == total else "partial"
        elif unknown:
            outcome = "unknown"
        return Verdict(outcome, acknowledged, unknown, total, chunked=self.uuid is not None)

    def event(self, destination: str) -> SendEvent:
        verdict = self.verdict()
        return SendEvent(
            destination=destination,
            outcome=verdict.outcome,
            messages=verdict.total,
            uuid=self.uuid,
            error=None if verdict.outcome == "sent" else self.error,
        )

    def partial_error(self, error: Exception) -> PartialSendError:
        """Return the error to raise for chunks of which some are or may be in the topic."""
        verdict = self.verdict()
        are = "is" if verdict.acknowledged == 1 else "are"
        were = "was" if verdict.unsent == 1 else "were"
        return PartialSendError(
            f"{verdict.acknowledged} of {verdict.total} chunks {are} in the topic, {verdict.unknown} may be, "
            f"{verdict.unsent} {were} not sent (payload {self.uuid}): {type(error).__name__}: {error}",
            uuid=self.uuid,
            seen=verdict.acknowledged,
            total=verdict.total,
            acknowledged=verdict.acknowledged,
            unknown=verdict.unknown,
            unsent=verdict.unsent,
            results=tuple(self.results),
        )

    def _judge(self, error: BaseException) -> Classification:
        known = self._judged.get(id(error))
        if known is None:
            known = self._judged[id(error)] = error, judge(error, self.classify)
        return known[1]


class Outbound:
    """The envelopes of one payload. The arguments ``total``, ``uuid`` and ``abort`` are described as attributes.

    `send` and `send_async` produce all of them. To send by hand, produce each envelope from `envelopes`, then call
    `sent`.

    Args:
        envelopes: The messages to produce, in order.
        undo: Deletes the stored payload.
        blocking: Whether taking an envelope may block, because it is read from a file.
        as_is: Whether the payload is sent unchanged; no event is emitted then.

    Attributes:
        results: What each produce call returned, in order.
        uuid: The payload's identity, if it is sent as chunks.
        total: Number of messages.
        abort: The envelope that tells readers that the chunks will not be completed; ``None`` unless the payload is
            sent as chunks.
        ledger: Records what became of each message.
    """

    def __init__(
        self,
        envelopes: Iterable[Envelope],
        *,
        total: int = 1,
        uuid: str | None = None,
        abort: Envelope | None = None,
        undo: Callable[[], None] | None = None,
        blocking: bool = False,
        as_is: bool = False,
    ) -> None:
        self.results: list[Any] = []
        self.uuid = uuid
        self.total = total
        self.abort = abort
        self.ledger = SendLedger(total=total, uuid=uuid)
        self._messages = iter(envelopes)
        self._taken: deque[int] = deque()  # by hand, and not reported as sent
        self._undo = undo
        self._blocking = blocking
        self.as_is = as_is
        self.rewind: Callable[[], None] | None = None  # of the caller's file, after a failed send
        self._hooks = _NO_HOOKS
        self._destination = ""
        self._once = [None]  # the thread that pops this entry finishes the send

    @property
    def envelopes(self) -> Iterator[Envelope]:
        """The messages to produce by hand, in order, created one by one; each is returned once.

        Taking an envelope does not count as sending it: call `sent` after it was produced.
        """
        for envelope in self._messages:
            self._taken.append(self.ledger.launched())
            yield envelope

    @property
    def messages(self) -> Iterator[Envelope]:
        """The same for producers that record in `ledger` what becomes of each message."""
        return self._messages

    def sent(self, result: object = None) -> None:
        """Report that the next envelope taken from `envelopes` was produced. The payload is never deleted after this.

        Args:
            result: What the produce call returned; appended to `results`.
        """
        number = self._taken.popleft() if self._taken else self.ledger.launched()
        self.ledger.acknowledged(number, result)
        self.results.append(result)

    def send(self, produce: Callable[[Envelope], R]) -> R:
        """Produce every envelope and return the first call's result. Call it once.

        After an error the send is over: the stored payload is deleted if the send definitely failed, else it is kept.

        Raises:
            PartialSendError: Some chunks were or may have been sent. An abort envelope followed if possible. Any other
                error of ``produce`` is raised unchanged.
            ClaimCheckError: Everything was sent or taken already. Nothing was sent now.
        """
        before, number = self.ledger.count, None
        try:
            for envelope in self._messages:
                number = self.ledger.launched()
                self._produced(number, produce(envelope))
                number = None
        except BaseException as error:
            self.ledger.failed(number, error)
            self.break_off(error, produce)
            raise
        return cast(R, self._first_result(since=before))

    async def send_async(self, produce: Callable[[Envelope], Awaitable[R]]) -> R:
        """Same as `send` for a coroutine function. Files are read, and payloads deleted, off the event loop."""
        before, number = self.ledger.count, None
        try:
            while (envelope := await self._next_async()) is not None:
                number = self.ledger.launched()
                self._produced(number, await produce(envelope))
                number = None
        except BaseException as error:
            self.ledger.failed(number, error)
            if self.abort is not None and self.ledger.verdict().abort:
                await _attempt_async(produce, self.abort, wait=isinstance(error, Exception))
            await self.settle_async(error)
            self._raise_partial(error)
            raise
        return cast(R, self._first_result(since=before))

    def rollback(self) -> None:
        """Delete the stored payload, if there is one and it was not deleted already.

        Raises:
            StoreError: The store failed; the payload stays until it expires.
        """
        undo = self.release_undo()
        if undo is not None:
            undo()

    @property
    def awaits_outcome(self) -> bool:
        """Whether the outcome matters, to a stored payload or to a hook."""
        return self._undo is not None or (bool(self._hooks) and not self.as_is)

    def release_undo(self) -> Callable[[], None] | None:
        """Return the function that deletes the stored payload, if any. After this only the caller can delete it."""
        undo, self._undo = self._undo, None
        return undo

    def break_off(self, error: BaseException, send_abort: Callable[[Envelope], object]) -> None:
        """End a send with an error, which the caller re-raises afterwards.

        Args:
            error: What ended the send; an error that the ledger recorded before takes precedence in events.
            send_abort: Sends the abort envelope; an exception in it is logged.

        Raises:
            PartialSendError: The payload is sent as chunks, and some are or may be in the topic.
        """
        self.tell_readers(send_abort)
        self.settle(error)
        self._raise_partial(error)

    def tell_readers(self, send_abort: Callable[[Envelope], R]) -> R | None:
        """Send the abort envelope if the ledger requires it; an exception in it is logged."""
        if self.abort is not None and self.ledger.verdict().abort:
            try:
                return send_abort(self.abort)
            except Exception as error:
                _log.warning("could not send the abort envelope: %s", type(error).__name__)
        return None

    def settle(self, error: BaseException | None) -> None:
        """End a block. Envelopes taken by hand count as sent if it ended normally; otherwise the error is theirs.

        If a deletion fails, a note is added to the error.
        """
        if not self._once:
            return
        for number in self._taken:
            if error is None:
                self.ledger.acknowledged(number)
            else:
                self.ledger.failed(number, error)
        if error is not None:
            self.ledger.stopped(error)
        if self.finish().outcome != "sent" and error is not None and self.rewind is not None:
            with contextlib.suppress(OSError, ValueError):  # the file was closed meanwhile
                self.rewind()

    async def settle_async(self, error: BaseException | None) -> None:
        """Same as `settle` off the event loop; runs to completion even if this task is cancelled."""
        if self._undo is None:
            self.settle(error)
        else:
            import asyncio  # a third of the whole import time

            await asyncio.shield(asyncio.ensure_future(asyncio.to_thread(self.settle, error)))

    def finish(self) -> Verdict:
        """Keep or delete the stored payload according to the ledger, and emit the event, once; thread-safe."""
        verdict = self.ledger.verdict()
        try:
            self._once.pop()
        except IndexError:
            return verdict
        # Drop payload and file now: this object and its generator form a cycle, which would wait for the gc.
        self._messages = iter(())
        try:
            if verdict.rollback:
                self._delete()
            else:
                self._undo = None
        finally:
            if self._hooks.listeners and not self.as_is:
                self._hooks.emit(self.ledger.event(self._destination))
            self.ledger.forget_errors()
        return verdict

    def bind(self, destination: str, hooks: Hooks, classify: Classifier | None) -> Outbound:
        """Set the destination of the event, the hooks and the classifier; returns itself."""
        self._destination, self._hooks, self.ledger.classify = destination, hooks, classify
        return self

    # Internals -------------------------------------------------------------------------------------------------

    def _produced(self, number: int, result: object) -> None:
        """Record a produce call that returned; the message of a future is in flight until the future is done."""
        self.results.append(result)
        if not is_future(result):
            self.ledger.acknowledged(number, result)

    def _first_result(self, *, since: int) -> object:
        if self.ledger.count == since:
            raise ClaimCheckError("nothing left to send: every envelope of this payload was sent or taken already")
        return self.results[0]

    def _raise_partial(self, error: BaseException) -> None:
        if isinstance(error, Exception) and self.ledger.verdict().abort:
            raise self.ledger.partial_error(error) from error

    def _delete(self) -> None:
        try:
            self.rollback()
        except Exception as second:
            _log.warning("rollback failed: %s", second)
            if self.ledger.error is None:
                raise
            self.ledger.error.add_note(f"and the rollback failed: {type(second).__name__}: {second}")

    async def _next_async(self) -> Envelope | None:
        if self._blocking:  # the next chunk is read from a file
            import asyncio

            reading = asyncio.ensure_future(asyncio.to_thread(next, self._messages, None))
            try:
                return await asyncio.shield(reading)
            except asyncio.CancelledError:
                await asyncio.wait([reading])  # otherwise the thread would go on moving the caller's file
                raise
        return next(self._messages, None)


def is_future(value: object) -> TypeIs[AnyFuture]:
    """Whether a produce call returned a `concurrent.futures.Future`, an `asyncio.Future` or a similar object."""
    return hasattr(value, "add_done_callback") and hasattr(value, "exception") and hasattr(value, "cancelled")


async def _attempt_async(produce: Callable[[Envelope], Awaitable[object]], abort: Envelope, *, wait: bool) -> None:
    """Try for a few seconds to send an abort envelope; in a cancelled task, which must end now, in the background."""
    import asyncio

    async def attempt() -> None:
        try:
            async with asyncio.timeout(_ABORT_SECONDS):
                await produce(abort)
        except Exception as error:
            _log.warning("could not send the abort envelope: %s", type(error).__name__)

    task = in_background(asyncio.get_running_loop(), attempt())
    if wait:
        await task


def in_background(loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, R]) -> asyncio.Task[R]:
    """Start a task and hold it until it is done, since a loop keeps only weak references to its tasks."""
    task = loop.create_task(coroutine)
    _running.add(task)
    task.add_done_callback(_running.discard)
    return task
