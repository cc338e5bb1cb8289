"""Which payload a single message carries, and whether it is trusted. Chunks are for `Resolver`."""

from __future__ import annotations

import functools
import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import BinaryIO, TypeVar

from claimcheck._content.coder import Unpacker
from claimcheck._receive.many import Work
from claimcheck._registry import UNUSABLE, unusable
from claimcheck._store.read import open_file
from claimcheck._store.store import Store
from claimcheck._threads import Join
from claimcheck._wire.envelope import Abort, Buffer, Chunk, Encoded, Literal, Plain, PointerData, decode
from claimcheck._wire.pointer import Pointer
from claimcheck._wire.signing import Seal
from claimcheck.errors import ChunkError, PointerRejectedError

T = TypeVar("T")

Whole = Plain | Literal | PointerData | Encoded


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
            return Work(run, blocks=True, size=pointer.size, join=self.join(pointer), request=pointer)
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
        """Return the payload of the pointer in a message."""
        return self.read(self.seal.accept(data, destination=destination))

    def read(self, pointer: Pointer) -> bytes:
        """Return the payload of an accepted pointer; see `ClaimCheck.read`."""
        return self._in_store(pointer, lambda store: store.read(pointer))

    def open(self, pointer: Pointer) -> BinaryIO:
        """Return the payload of an accepted pointer as a file."""
        return open_file(self.store_of(pointer), pointer, from_message=True)

    def store_of(self, pointer: Pointer) -> Store:
        """Return the store that an accepted pointer names; raises `PointerRejectedError` as `read` does."""
        return self._in_store(pointer, lambda store: store)

    def join(self, pointer: Pointer) -> Join | None:
        """Return what reads a payload together with others; ``None`` if it is read alone, or must not be read."""
        try:
            store = self.opened.get(self.seal.store_name(pointer))
        except PointerRejectedError:  # the error of this message alone, when it is read
            return None
        return None if store is None else store._join(pointer)

    def _in_store(self, pointer: Pointer, use: Callable[[Store], T]) -> T:
        name = self.seal.store_name(pointer)
        try:
            return use(self.store(name))
        except UNUSABLE as error:
            raise unusable(name, pointer.key, error) from error

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
