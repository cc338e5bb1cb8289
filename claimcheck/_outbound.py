"""One payload to be sent: its envelopes, the account of what became of them, and the rollback of what was stored."""

from __future__ import annotations

import contextlib
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable, Iterator
from typing import Any

from claimcheck._envelope import Envelope
from claimcheck._sending import Classifier, SendLedger, Verdict
from claimcheck.hooks import Hooks

__all__ = ["Outbound", "in_background", "is_future"]

_log = logging.getLogger(__name__)
_ABORT_SECONDS = 5.0
_running: set[Any] = set()


class Outbound:
    """What a strategy made of one payload.

    Sent by hand, each envelope that is taken from `envelopes` is produced, and then `sent` is called. `send` and
    `send_async` do both.

    Args:
        envelopes: The messages to produce, in order.
        total: How many there are.
        uuid: The payload's identity, if it goes as chunks.
        abort: Tells readers that the chunks will not be completed.
        undo: Deletes what was stored.
        blocking: Whether to take an envelope may block, because it is read from a file.
        as_is: Whether the payload goes as it is; no event is emitted then.

    Attributes:
        results: What each produce call returned, in order.
        uuid: The payload's identity, if it goes as chunks.
        total: How many envelopes there are.
        abort: Tells readers that the chunks will not be completed; ``None`` for anything but chunks.
        ledger: The account of what became of the messages.
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
        self._taken: deque[int] = deque()  # by hand, and not said to be sent
        self._undo = undo
        self._blocking = blocking
        self._as_is = as_is
        self._rewind: Callable[[], None] | None = None
        self._hooks = Hooks()
        self._destination = ""
        self._once = [None]  # whoever takes it out finishes

    @property
    def envelopes(self) -> Iterator[Envelope]:
        """The messages to produce by hand, in order, made as they are taken; each is taken once.

        To take an envelope is not to send it: call `sent` when it was produced.
        """
        for envelope in self._messages:
            self._taken.append(self.ledger.launched())
            yield envelope

    @property
    def messages(self) -> Iterator[Envelope]:
        """The same for producers that record in the `ledger` what becomes of each message."""
        return self._messages

    def sent(self, result: Any = None) -> None:
        """Say that the next envelope taken from `envelopes` was produced; its payload is never deleted from here on.

        Args:
            result: What the produce call returned; it is appended to `results`.
        """
        number = self._taken.popleft() if self._taken else self.ledger.launched()
        self.ledger.acknowledged(number, result)
        self.results.append(result)

    def send(self, produce: Callable[[Envelope], Any]) -> Any:
        """Produce every envelope and return the first call's result.

        After an error the send is over: what was stored is deleted if the send failed for certain, and kept otherwise.

        Raises:
            PartialSendError: Chunks broke off after something may have been sent; an abort envelope followed where
                it could. Any other error of ``produce`` is raised unchanged.
        """
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
        return self.results[0]

    async def send_async(self, produce: Callable[[Envelope], Awaitable[Any]]) -> Any:
        """The same for a coroutine function; files are read, and stored payloads deleted, off the event loop."""
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
        return self.results[0]

    def rollback(self) -> None:
        """Delete what was stored; does nothing when nothing was, or when it was deleted already.

        Raises:
            StoreError: The store failed; what was stored stays until it expires.
        """
        undo = self.release_undo()
        if undo is not None:
            undo()

    @property
    def undoable(self) -> bool:
        """Whether anything is stored that `rollback` would delete."""
        return self._undo is not None

    @property
    def awaits_outcome(self) -> bool:
        """Whether the outcome makes a difference: to what was stored, or to a hook."""
        return self.undoable or (bool(self._hooks) and not self._as_is)

    def release_undo(self) -> Callable[[], None] | None:
        """Return what deletes the stored payload, if there is one; from here on it is kept unless the caller does."""
        undo, self._undo = self._undo, None
        return undo

    def break_off(self, error: BaseException, send_abort: Callable[[Envelope], Any]) -> None:
        """End a send with an error, unless the ledger has one from before; the caller re-raises after this.

        Args:
            error: What ended the send.
            send_abort: Sends the abort envelope; what it raises is logged.

        Raises:
            PartialSendError: The payload goes as chunks, and some are or may be in the topic.
        """
        self.ledger.stopped(error)
        self.tell_readers(send_abort)
        self.settle(error)
        self._raise_partial(error)

    def tell_readers(self, send_abort: Callable[[Envelope], Any]) -> Any:
        """Send the abort envelope if the ledger says so; an error of that is logged."""
        if self.abort is not None and self.ledger.verdict().abort:
            try:
                return send_abort(self.abort)
            except Exception as error:
                _log.warning("could not send the abort envelope: %s", type(error).__name__)
        return None

    def settle(self, error: BaseException | None) -> None:
        """End a block: envelopes taken by hand count as sent when it ended normally, else the error is theirs.

        A deletion that fails is added to the error as a note.
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
        """The same off the event loop, and to the end even when this task is cancelled."""
        if not self.undoable:
            self.settle(error)
        else:
            import asyncio  # a third of the whole import time, for those who need it

            await asyncio.shield(asyncio.ensure_future(asyncio.to_thread(self.settle, error)))

    def finish(self) -> Verdict:
        """Keep or delete what was stored, by the ledger, and emit the event, once; safe under threads."""
        verdict = self.ledger.verdict()
        try:
            self._once.pop()
        except IndexError:
            return verdict
        self._release()
        try:
            self._keep_or_delete(verdict)
        finally:
            if self._hooks.listeners and not self._as_is:
                self._hooks.emit(self.ledger.event(self._destination))
            self.ledger.forget_errors()
        return verdict

    def rewinding(self, rewind: Callable[[], None]) -> Outbound:
        """Put the caller's file back to where it was when the sending fails; returns itself."""
        self._rewind = rewind
        return self

    def bind(self, *, destination: str, hooks: Hooks, classify: Classifier | None) -> Outbound:
        """Set what the event names, who gets it, and how errors are classified; returns itself."""
        self._destination, self._hooks, self.ledger.classify = destination, hooks, classify
        return self

    # Within ----------------------------------------------------------------------------------------------------

    def _produced(self, number: int, result: Any) -> None:
        """The produce call returned; the message of a future is on its way until the future is done."""
        self.results.append(result)
        if not is_future(result):
            self.ledger.acknowledged(number, result)

    def _raise_partial(self, error: BaseException) -> None:
        if isinstance(error, Exception) and self.ledger.verdict().abort:
            raise self.ledger.partial_error(error) from error

    def _keep_or_delete(self, verdict: Verdict) -> None:
        if not verdict.rollback:
            self.release_undo()
            return
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
            with contextlib.suppress(OSError, ValueError):  # it was closed meanwhile
                rewind()

    def _release(self) -> None:
        """Drop payload and file now: this object and its generator refer to each other, and would wait for the gc."""
        if isinstance(self._messages, Generator):
            with contextlib.suppress(ValueError):  # a thread that was abandoned is still in it
                self._messages.close()
        self._messages = iter(())

    async def _next_async(self) -> Envelope | None:
        if self._blocking:  # the next chunk is read from a file
            import asyncio

            reading = asyncio.ensure_future(asyncio.to_thread(next, self._messages, None))
            try:
                return await asyncio.shield(reading)
            except asyncio.CancelledError:
                await asyncio.wait([reading])  # else the thread would go on moving the caller's file
                raise
        return next(self._messages, None)


def is_future(value: Any) -> bool:
    """Whether a produce call returned a `concurrent.futures.Future`, an `asyncio.Future` or one like them."""
    return hasattr(value, "add_done_callback") and hasattr(value, "exception") and hasattr(value, "cancelled")


async def _attempt_async(produce: Callable[[Envelope], Awaitable[Any]], abort: Envelope, *, wait: bool) -> None:
    """Try for a while; within a task that was cancelled, which must end now, without waiting."""
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


def in_background(loop: Any, coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Start a task that nobody has to wait for; it is held here, since a loop keeps only weak references to it."""
    task = loop.create_task(coroutine)
    _running.add(task)
    task.add_done_callback(_running.discard)
    return task
