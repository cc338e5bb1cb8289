"""One payload on its way out: its envelopes, what became of them, and the undo of what was stored for them."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable, Iterator, Sequence
from typing import Any, Literal

from claimcheck.envelope import Envelope
from claimcheck.errors import ConfigError, PartialSendError

__all__ = ["Classifier", "Outbound", "Outcome", "classify_error", "in_background", "verdict"]

_log = logging.getLogger(__name__)
_ABORT_SECONDS = 5.0
_running: set[Any] = set()

Outcome = Literal["failed", "unknown"]
"""``failed``: the message is definitely not in the broker. ``unknown``: it may be."""

Classifier = Callable[[BaseException], Outcome]

_UNKNOWN = (TimeoutError, ConnectionError, EOFError)
_VAGUE = ("timeout", "timedout", "connect", "cancelled")


def classify_error(error: BaseException) -> Outcome:
    """The safe default: time-outs, lost connections and whatever is not an `Exception` leave the outcome unknown.

    An error whose class, or a base of it, has ``Timeout``, ``Connection`` or ``Cancelled`` in its name counts as one:
    most drivers do not derive theirs from Python's.
    """
    if not isinstance(error, Exception) or isinstance(error, _UNKNOWN):
        return "unknown"
    names = [cls.__name__.lower() for cls in type(error).__mro__]
    return "unknown" if any(word in name for name in names for word in _VAGUE) else "failed"


def verdict(error: BaseException, classify: Classifier | None) -> Outcome:
    """Ask the caller's classifier; one that fails, or says anything odd, leaves the outcome unknown."""
    if isinstance(error, ConfigError):  # ours, raised before anything was sent
        return "failed"
    if not isinstance(error, Exception) or type(error).__name__ == "CancelledError":
        return "unknown"
    try:
        return "failed" if (classify or classify_error)(error) == "failed" else "unknown"
    except Exception:
        _log.exception("the classifier failed on %s; the outcome counts as unknown", type(error).__name__)
        return "unknown"


class Outbound:
    """What a strategy made of one payload.

    Attributes:
        results: What each produce call returned, in order; filled by `send` and `send_async`.
        uuid: The payload's identity, where it goes as chunks.
        total: Envelopes in all.
        abort: Tells readers that the chunks will not be completed; ``None`` for anything but chunks.
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
    ) -> None:
        self.results: list[Any] = []
        self.uuid = uuid
        self.total = total
        self._source = envelopes
        self._blocking = blocking
        self._iterator: Iterator[Envelope] | None = None
        self.abort = abort
        self._undo = undo
        self._rewind: Callable[[], None] | None = None
        self._taken = 0
        self._passed = 0
        self._classify: Classifier | None = None

    @property
    def envelopes(self) -> Iterator[Envelope]:
        """The messages to produce, in order, made as they are taken; each is taken once."""
        if self._iterator is None:
            self._iterator = self._counted()
        return self._iterator

    def send(self, produce: Callable[[Envelope], Any]) -> Any:
        """Produce every envelope and return the first call's result.

        Raises:
            PartialSendError: Chunks broke off after something may have been sent; an abort envelope followed where
                it could. Anything else that ``produce`` raises comes through unchanged.
        """
        try:
            for envelope in self.envelopes:
                self.results.append(produce(envelope))
        except BaseException as error:
            if (abort := self._abort_after(error)) is not None:
                _attempt(lambda: produce(abort))
            self._raise_partial(error)
            raise
        finally:
            self._release()
        return self.results[0]

    async def send_async(self, produce: Callable[[Envelope], Awaitable[Any]]) -> Any:
        """The same for a coroutine function; chunks are read off the event loop."""
        try:
            while (envelope := await self._next_async()) is not None:
                self.results.append(await produce(envelope))
        except BaseException as error:
            if (abort := self._abort_after(error)) is not None:
                await _attempt_async(produce, abort, wait=isinstance(error, Exception))
            self._raise_partial(error)
            raise
        finally:
            self._release()
        return self.results[0]

    def rollback(self) -> None:
        """Undo what was stored; harmless when nothing was, or when it was undone already.

        Raises:
            StoreError: The store refused; what was stored stays until it expires.
        """
        undo, self._undo = self._undo, None
        if undo is not None:
            undo()

    @property
    def undoable(self) -> bool:
        """Whether anything is stored that `rollback` would remove."""
        return self._undo is not None

    def keep(self) -> None:
        """Let what was stored live on, whatever happens from here."""
        self._undo = None

    def settle(self, error: BaseException | None) -> None:
        """Keep or undo, by how the block ended; a rollback that fails is noted on the error, never replaces it."""
        self._release()
        if error is not None and self._passed < self.total:
            self._put_back()
        if self._taken == 0:
            self._undo_after(error)
        elif error is None or self._passed == self._taken:  # the caller went on to the next, or past the last: sent
            self.keep()
        else:
            self.conclude(error)

    def conclude(self, error: BaseException | None) -> None:
        """Keep or undo, by the outcome of the send itself: a delivery report, or a future that is done."""
        if error is None or self.judge(error) == "unknown":
            self.keep()
        else:
            self._undo_after(error)

    def _put_back(self) -> None:
        rewind, self._rewind = self._rewind, None
        if rewind is not None:
            with contextlib.suppress(OSError, ValueError):  # it was closed meanwhile
                rewind()

    def _release(self) -> None:
        """Let go of payload and file now: this object and its generator know each other, and would wait for the gc."""
        if isinstance(self._iterator, Generator):
            with contextlib.suppress(ValueError):  # a thread that was abandoned is still in it
                self._iterator.close()
        self._iterator, self._source = iter(()), ()

    def _undo_after(self, error: BaseException | None) -> None:
        try:
            self.rollback()
        except Exception as second:
            _log.warning("rollback failed: %s", second)
            if error is None:
                raise
            error.add_note(f"and the rollback failed: {type(second).__name__}: {second}")

    def rewinding(self, rewind: Callable[[], None]) -> Outbound:
        """Put the caller's file back where it stood when the sending fails; returns itself."""
        self._rewind = rewind
        return self

    def with_classifier(self, classify: Classifier | None) -> Outbound:
        """Use this classifier for the errors of the produce call; returns itself."""
        self._classify = classify
        return self

    def judge(self, error: BaseException) -> Outcome:
        """Whether this error of the produce call means that the message was not sent."""
        return verdict(error, self._classify)

    def partial(self, sent: Sequence[Any], error: BaseException) -> PartialSendError:
        """Make the error for a payload of which only some chunks, with these results, were sent."""
        return PartialSendError(
            f"{len(sent)} of {self.total} chunks of {self.uuid} were sent, then {type(error).__name__}: {error}",
            uuid=self.uuid,
            seen=len(sent),
            total=self.total,
            results=tuple(sent),
        )

    async def _next_async(self) -> Envelope | None:
        if self._blocking:  # the next chunk is read from a file
            import asyncio  # a third of the whole import time, for those who need it

            reading = asyncio.ensure_future(asyncio.to_thread(next, self.envelopes, None))
            try:
                return await asyncio.shield(reading)
            except asyncio.CancelledError:
                await asyncio.wait([reading])  # else the thread would go on moving the caller's file
                raise
        return next(self.envelopes, None)

    def _counted(self) -> Iterator[Envelope]:
        for envelope in self._source:
            self._taken += 1
            yield envelope
            self._passed += 1

    def _abort_after(self, error: BaseException) -> Envelope | None:
        """The abort envelope, if a reader may hold chunks of this payload."""
        return self.abort if self.results or self._maybe_sent(error) else None

    def _maybe_sent(self, error: BaseException) -> bool:
        return self._taken > self._passed and self.judge(error) == "unknown"

    def _raise_partial(self, error: BaseException) -> None:
        if self.abort is None or not isinstance(error, Exception):
            return
        if not self.results and not self._maybe_sent(error):
            return
        raise self.partial(self.results, error) from error


def _attempt(call: Callable[[], Any]) -> None:
    try:
        call()
    except Exception as error:
        _log.warning("could not send the abort envelope: %s", type(error).__name__)


async def _attempt_async(produce: Callable[[Envelope], Awaitable[Any]], abort: Envelope, *, wait: bool) -> None:
    """Try for a while; not at all within a task that was cancelled, which must end now."""
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
