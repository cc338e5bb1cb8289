"""Resolves many messages concurrently, in order, with bounded memory."""

from __future__ import annotations

import functools
import threading
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

from claimcheck._threads import Join, awaitable, interruptible, io_threads
from claimcheck._wire.envelope import Buffer
from claimcheck.errors import ClaimCheckError, PayloadTypeError

if TYPE_CHECKING:
    from concurrent.futures import Future

Message: TypeAlias = Buffer | tuple[Buffer | None, object] | None
"""A message's value, or its value and its headers."""


@dataclass(frozen=True, slots=True)
class Resolution:
    """The payload of one message, or the error in its place.

    Attributes:
        message: As it was passed to `ClaimCheck.resolve_many`.
        error: Why there is no payload; ``None`` if there is one.
    """

    message: Message = field(repr=False)
    error: ClaimCheckError | None
    _payload: Buffer | None = field(default=None, repr=False)

    @property
    def payload(self) -> Buffer | None:
        """The payload; ``None`` for a tombstone.

        Raises:
            ClaimCheckError: The ``error``, if there is one.
        """
        if self.error is not None:
            raise self.error
        return self._payload


@dataclass(frozen=True, slots=True)
class Work:
    """What resolves one message."""

    run: Callable[[], Buffer | None]
    blocks: bool = False
    size: int | None = 0
    join: Join | None = None
    request: object = None


Prepare: TypeAlias = Callable[[Buffer | None, object], Work]
"""Returns the work for a value and headers; raises a `ClaimCheckError` for a bad message."""


def resolve_many(
    messages: Iterable[Message], prepare: Prepare, *, concurrency: int, max_bytes: int
) -> Iterator[Resolution]:
    """Yield a resolution for each message, in order; see `ClaimCheck.resolve_many`."""
    errors: list[Exception] = []
    with closing(_Window(prepare, concurrency, max_bytes)) as window:
        for message in _until_error(messages, errors):
            window.add(message)
            while (head := window.head) is not None and (window.is_full or head.done()):
                head.result()
                yield window.take()
        while (head := window.head) is not None:
            head.result()
            yield window.take()
    if errors:
        raise errors[0]


async def aresolve_many(
    messages: Iterable[Message] | AsyncIterable[Message], prepare: Prepare, *, concurrency: int, max_bytes: int
) -> AsyncIterator[Resolution]:
    """Same as `resolve_many` on an event loop. A slow source of messages does not hold back payloads."""
    import asyncio

    errors: list[Exception] = []
    source: AsyncIterator[Message] | None = _as_async(messages, errors)
    end, following, awaited, arrived = object(), None, None, None
    with closing(_Window(prepare, concurrency, max_bytes)) as window:
        try:
            while source is not None or window.head is not None:
                if source is not None and following is None and not window.is_full:
                    following = asyncio.ensure_future(_next(source, end))
                if (head := window.head) is not awaited:
                    awaited, arrived = head, None if head is None else awaitable(head)
                waiting = [each for each in (following, arrived) if each is not None]
                await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                if following is not None and following.done():
                    message, following = following.result(), None
                    if message is end:
                        source = None
                    else:
                        window.add(message)
                while (head := window.head) is not None and head.done():
                    yield window.take()
        finally:
            if following is not None:
                following.cancel()
                await asyncio.wait([following])  # until the source is no longer in use
                if not following.cancelled():
                    following.exception()  # marks it as retrieved
    if errors:
        raise errors[0]


async def _next(source: AsyncIterator[Message], end: object) -> Any:
    return await anext(source, end)


async def _as_async(
    messages: Iterable[Message] | AsyncIterable[Message], errors: list[Exception]
) -> AsyncIterator[Message]:
    if not isinstance(messages, AsyncIterable):
        for message in _until_error(messages, errors):
            yield message
        return
    try:
        async for message in messages:
            yield message
    except Exception as error:  # raised once the messages before it are resolved
        errors.append(error)


def _until_error(messages: Iterable[Message], errors: list[Exception]) -> Iterator[Message]:
    source = iter(messages)
    while True:
        try:
            message = next(source)
        except StopIteration:
            return
        except Exception as error:  # raised once the messages before it are resolved
            errors.append(error)
            return
        yield message


def _new_future() -> Future[Resolution]:
    from concurrent.futures import Future  # as slow to import as asyncio

    return Future()


@dataclass(slots=True, eq=False)
class _Pending:
    message: Message
    work: Work
    size: int = 0
    future: Future[Resolution] = field(default_factory=_new_future)
    is_started: bool = False


class _Window:
    """The messages that are being resolved, or wait for those before them."""

    def __init__(self, prepare: Prepare, concurrency: int, max_bytes: int) -> None:
        self._prepare = prepare
        self._concurrency = concurrency
        self._max_bytes = max_bytes
        self._bytes = 0
        self._is_refilled = True
        self._pending: deque[_Pending] = deque()
        self._stop = threading.Event()

    @property
    def head(self) -> Future[Resolution] | None:
        """The oldest message; ``None`` if there is none."""
        return self._pending[0].future if self._pending else None

    @property
    def is_full(self) -> bool:
        """Whether the oldest message has to be taken before another one is added."""
        is_large = not self._is_refilled or self._bytes > self._max_bytes
        return bool(self._pending) and (is_large or not self._pending[-1].is_started)

    def add(self, message: Message) -> None:
        """Start to resolve a message, now or once there is room for its payload."""
        pending = _Pending(message, self._work(message))
        if pending.work.blocks:
            pending.size = self._max_bytes if pending.work.size is None else pending.work.size
        else:
            pending.is_started, pending.size = True, pending.work.size or 0
            self._bytes += pending.size
            pending.future.set_result(_resolution(message, pending.work))
        self._pending.append(pending)
        self._is_refilled = self._is_refilled and len(self._pending) < self._concurrency
        self._begin()

    def take(self) -> Resolution:
        """Remove the oldest message, which is resolved."""
        taken = self._pending.popleft()
        self._bytes -= taken.size
        # Those that are requested together are added together, too.
        least = self._concurrency - 1 if taken.work.join is None else self._concurrency // 2
        self._is_refilled = self._is_refilled or len(self._pending) <= least
        self._begin()
        return taken.future.result()

    def close(self) -> None:
        """Cancel what was not taken. Reads stop at their next piece, and close their connections."""
        self._stop.set()
        while self._pending:
            self._pending.popleft().future.cancel()

    def _begin(self) -> None:
        """Start the last message if there is room; all before it were started."""
        last = self._pending[-1] if self._pending else None
        if last is None or last.is_started:
            return
        if not self._bytes or self._bytes + last.size <= self._max_bytes:
            message, work, stop = last.message, last.work, self._stop
            last.future = io_threads().submit(
                lambda: interruptible(stop, _resolution, message, work),
                size=last.size,
                join=work.join,
                request=work.request,
            )
            last.is_started = True
            self._bytes += last.size

    def _work(self, message: Any) -> Work:
        try:
            if not isinstance(message, tuple):
                return self._prepare(message, None)
            if len(message) != 2:
                found = f"a tuple of {len(message)} elements"
                raise PayloadTypeError(f"a message must be its value, or a tuple of value and headers, not {found}")
            return self._prepare(*message)
        except ClaimCheckError as error:
            return Work(functools.partial(_fail, error))


def _fail(error: ClaimCheckError) -> NoReturn:
    raise error


def _resolution(message: Message, work: Work) -> Resolution:
    try:
        return Resolution(message, None, work.run())
    except ClaimCheckError as error:
        return Resolution(message, error)
