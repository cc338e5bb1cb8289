"""Which payload a single message carries, and whether it is trusted; many messages concurrently, in order.

Chunks are for `Resolver`.
"""

from __future__ import annotations

import functools
import io
import threading
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, BinaryIO, NoReturn, TypeAlias

from claimcheck._content.coder import Unpacker
from claimcheck._store.store import Store
from claimcheck._threads import Pipelined, interruptible, io_threads, retrieved
from claimcheck._validation import check_int
from claimcheck._wire.buffers import Buffer
from claimcheck._wire.envelope import Abort, Chunk, Encoded, Literal, Plain, PointerData, decode
from claimcheck._wire.pointer import Pointer
from claimcheck._wire.signing import Seal
from claimcheck.errors import (
    UNUSABLE,
    ChunkError,
    ClaimCheckError,
    PayloadTypeError,
    PointerRejectedError,
    unusable,
)

if TYPE_CHECKING:
    from concurrent.futures import Future

Whole = Plain | Literal | PointerData | Encoded

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
    run: Callable[[], Buffer | None]
    blocks: bool = False
    size: int | None = 0
    pipelined: Pipelined | None = None
    pointer: Pointer | None = None


@dataclass(frozen=True, slots=True)
class MessageReader:
    """Reads the payloads of messages in one process; see `ClaimCheck` for the errors. Thread-safe."""

    header: bytes
    seal: Seal
    unpacker: Unpacker
    store: Callable[[str], Store]
    opened: Mapping[str, Store]

    def payload(self, message: Buffer, headers: object, destination: str | None) -> Buffer:
        """Return the payload of a message; see `ClaimCheck.resolve`."""
        return self._payload(self._whole(message, headers, destination), destination)

    def file(self, message: Buffer, headers: object, destination: str | None) -> BinaryIO:
        """Return the payload of a message as a file; see `ClaimCheck.open`."""
        envelope = self._whole(message, headers, destination)
        if isinstance(envelope, PointerData):
            return self.open(self.seal.accept(envelope.data, destination=destination))
        return io.BytesIO(self._payload(envelope, destination))

    def work(self, message: Buffer | None, headers: object, destination: str | None) -> Work:
        """Return what resolves a message; raises as `ClaimCheck.resolve` if it is bad or not trusted."""
        if message is None:
            return Work(lambda: None)
        envelope = self._whole(message, headers, destination)
        if isinstance(envelope, PointerData):
            pointer = self.seal.accept(envelope.data, destination=destination)
            run = functools.partial(self.read, pointer)
            return Work(run, blocks=True, size=pointer.size, pipelined=self.pipelined(pointer), pointer=pointer)
        blocks = isinstance(envelope, Encoded)
        size = self.unpacker.size_of(envelope.content) if isinstance(envelope, Encoded) else len(memoryview(message))
        return Work(lambda: self._payload(envelope, destination), blocks=blocks, size=size)

    def pointer(self, message: Buffer, destination: str | None) -> Pointer | None:
        """Return the pointer of a message, if it has one; see `ClaimCheck.pointer`."""
        envelope = decode(message, header=self.header)
        return self.seal.accept(envelope.data, destination=destination) if isinstance(envelope, PointerData) else None

    def pointer_from_anywhere(self, message: Buffer) -> Pointer | None:
        """Same as `pointer`, whatever destination the pointer is bound to: for callers that deliver no payload."""
        envelope = decode(message, header=self.header)
        return self.seal.accept(envelope.data, anywhere=True) if isinstance(envelope, PointerData) else None

    def read_data(self, data: bytes, destination: str | None = None) -> bytes:
        return self.read(self.seal.accept(data, destination=destination))

    def read(self, pointer: Pointer) -> bytes:
        """Return the payload of an accepted pointer; see `ClaimCheck.read`."""
        name = self.seal.store_name(pointer)
        try:
            return self.store(name).read(pointer)
        except UNUSABLE as error:
            raise unusable(name, pointer.key, error) from error

    def open(self, pointer: Pointer) -> BinaryIO:
        """Return the payload of an accepted pointer as a file."""
        return self.store_of(pointer).open_file(pointer, from_message=True)

    def store_of(self, pointer: Pointer) -> Store:
        """Return the store that an accepted pointer names; raises `PointerRejectedError` as `read` does."""
        name = self.seal.store_name(pointer)
        try:
            return self.store(name)
        except UNUSABLE as error:
            raise unusable(name, pointer.key, error) from error

    def pipelined(self, pointer: Pointer) -> Pipelined | None:
        """Return what reads a payload together with others; ``None`` if it is read alone, or must not be read."""
        try:
            store = self.opened.get(self.seal.store_name(pointer))
        except PointerRejectedError:  # the error of this message alone, when it is read
            return None
        return None if store is None else store.pipelined_read(pointer)

    def _whole(self, message: Buffer, headers: object, destination: str | None) -> Whole:
        """Decode a message that is a whole payload, and check its signature, except for that of a pointer."""
        envelope = decode(message, header=self.header)
        if isinstance(envelope, (Chunk, Abort)):
            raise ChunkError(
                f"one message of the chunked payload {envelope.uuid} cannot be resolved alone: its writer has strategy "
                "'chunking' or 'hybrid'; read the whole topic with a wrapped consumer, ClaimCheck.resolver() or "
                "claimcheck.spark.reassemble, or set strategy 'external' for the writer",
                uuid=envelope.uuid,
                total=envelope.count if isinstance(envelope, Chunk) else None,
            )
        if not isinstance(envelope, PointerData):  # a pointer is checked when it is decoded
            self.seal.check_whole(envelope, headers, destination)
        return envelope

    def _payload(self, envelope: Whole, destination: str | None) -> Buffer:
        if isinstance(envelope, PointerData):
            return self.read_data(envelope.data, destination)
        if isinstance(envelope, Encoded):
            return self.unpacker.content(envelope.content, destination=destination)
        return envelope.payload if isinstance(envelope, Plain) else bytes(envelope.payload)


# Many messages --------------------------------------------------------------------------------------------------

Prepare: TypeAlias = Callable[[Buffer | None, object], Work]
"""Returns the work for a value and headers; raises a `ClaimCheckError` for a bad message."""


def check_many(messages: object, concurrency: int, max_bytes: int) -> None:
    """Check the arguments of `ClaimCheck.resolve_many`."""
    if isinstance(messages, (bytes, bytearray, memoryview, str)):
        raise PayloadTypeError(f"messages must be an iterable of messages, not one {type(messages).__name__}")
    check_int("concurrency", concurrency, minimum=1)
    check_int("max_bytes", max_bytes, minimum=1)


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
    waiting = list[asyncio.Future[Any]]()
    with closing(_Window(prepare, concurrency, max_bytes)) as window:
        try:
            while source is not None or window.head is not None:
                if source is not None and following is None and not window.is_full:
                    following = retrieved(asyncio.ensure_future(_next(source, end)))
                if (head := window.head) is not awaited:
                    awaited, arrived = head, None if head is None else retrieved(asyncio.wrap_future(head))
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
            for each in waiting:
                each.cancel()
            if waiting:
                await asyncio.wait(waiting)  # until the source is no longer in use
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
        least = self._concurrency - 1 if taken.work.pipelined is None else self._concurrency // 2
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
                lambda: interruptible(stop, _resolution, message, work), size=last.size, pipelined=work.pipelined
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
