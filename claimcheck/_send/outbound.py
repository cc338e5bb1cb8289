"""`Outbound`: one payload to send, as envelopes, with the record of what became of them and the rollback."""

from __future__ import annotations

import contextlib
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

from claimcheck._send.ledger import Classifier, SendLedger, Verdict
from claimcheck._wire.envelope import Envelope
from claimcheck.errors import ClaimCheckError
from claimcheck.hooks import Hooks

if TYPE_CHECKING:
    import asyncio
    import concurrent.futures
    from typing import TypeAlias

    from typing_extensions import TypeIs

    AnyFuture: TypeAlias = concurrent.futures.Future[Any] | asyncio.Future[Any]

R = TypeVar("R")

_log = logging.getLogger(__name__)
_ABORT_SECONDS = 5.0
_NO_HOOKS = Hooks()
_running: set[asyncio.Task[object]] = set()


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
        self._rewind: Callable[[], None] | None = None
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
        before = self.ledger.count
        try:
            for envelope in self._messages:
                number = self.ledger.launched()
                try:
                    result = produce(envelope)
                except BaseException as error:
                    self.ledger.failed(number, error)
                    raise
                self._produced(number, result)
        except BaseException as error:
            self.break_off(error, produce)
            raise
        self._check_produced(since=before)
        first: R = self.results[0]
        return first

    async def send_async(self, produce: Callable[[Envelope], Awaitable[R]]) -> R:
        """Same as `send` for a coroutine function. Files are read, and payloads deleted, off the event loop."""
        before = self.ledger.count
        try:
            while (envelope := await self._next_async()) is not None:
                number = self.ledger.launched()
                try:
                    result = await produce(envelope)
                except BaseException as error:
                    self.ledger.failed(number, error)
                    raise
                self._produced(number, result)
        except BaseException as error:
            self.ledger.stopped(error)
            if self.abort is not None and self.ledger.verdict().abort:
                await _attempt_async(produce, self.abort, wait=isinstance(error, Exception))
            await self.settle_async(error)
            self._raise_partial(error)
            raise
        self._check_produced(since=before)
        first: R = self.results[0]
        return first

    def rollback(self) -> None:
        """Delete the stored payload, if there is one and it was not deleted already.

        Raises:
            StoreError: The store failed; the payload stays until it expires.
        """
        undo = self.release_undo()
        if undo is not None:
            undo()

    @property
    def undoable(self) -> bool:
        """Whether there is a stored payload that `rollback` would delete."""
        return self._undo is not None

    @property
    def awaits_outcome(self) -> bool:
        """Whether the outcome matters, to a stored payload or to a hook."""
        return self.undoable or (bool(self._hooks) and not self.as_is)

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
        self.ledger.stopped(error)
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
        if self.finish().outcome != "sent" and error is not None:
            self._put_back()

    async def settle_async(self, error: BaseException | None) -> None:
        """Same as `settle` off the event loop; runs to completion even if this task is cancelled."""
        if not self.undoable:
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
        self._release()
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

    def rewinding(self, rewind: Callable[[], None]) -> Outbound:
        """Set what rewinds the caller's file after a failed send; returns itself."""
        self._rewind = rewind
        return self

    def bind(self, *, destination: str, hooks: Hooks, classify: Classifier | None) -> Outbound:
        """Set the destination of the event, the hooks and the classifier; returns itself."""
        self._destination, self._hooks, self.ledger.classify = destination, hooks, classify
        return self

    # Internals -------------------------------------------------------------------------------------------------

    def _produced(self, number: int, result: object) -> None:
        """Record a produce call that returned; the message of a future is in flight until the future is done."""
        self.results.append(result)
        if not is_future(result):
            self.ledger.acknowledged(number, result)

    def _check_produced(self, *, since: int) -> None:
        if self.ledger.count == since:
            raise ClaimCheckError("nothing left to send: every envelope of this payload was sent or taken already")

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

    def _put_back(self) -> None:
        rewind, self._rewind = self._rewind, None
        if rewind is not None:
            with contextlib.suppress(OSError, ValueError):  # the file was closed meanwhile
                rewind()

    def _release(self) -> None:
        """Drop payload and file now: this object and its generator form a cycle, which would wait for the gc."""
        close = getattr(self._messages, "close", None)  # of a generator
        if close is not None:
            with contextlib.suppress(ValueError):  # an abandoned thread still runs it
                close()
        self._messages = iter(())

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
