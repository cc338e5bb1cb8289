"""Messages that are small on the wire and large in memory, and what a reader must answer to each of them."""

from __future__ import annotations

import functools
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import zstandard

import claimcheck
from claimcheck._content.header import ContentHeader
from claimcheck._wire.digest import digest_of
from claimcheck._wire.envelope import encode_chunk
from claimcheck._wire.pointer import Pointer

MIB = 1 << 20
LIMIT = 16 * MIB
"""The largest payload, and the bound in bytes of every reader, unless an attack raises the first of them."""

MANY = 12
_HUGE = 160 * MIB  # more than the memory of a reader
_RAISED = 256 * MIB
_GOOD = b"good" * 300


@dataclass(frozen=True)
class Attack:
    """Messages, the result of each (its size in bytes, or the name of the error), and options of the readers."""

    messages: list[bytes]
    expected: list[str]
    options: dict[str, Any] = field(default_factory=dict)


@functools.cache
def zeros(size: int) -> bytes:
    """Return a zstd frame of ``size`` zeros, which does not say how many they are."""
    compressor, piece = zstandard.ZstdCompressor(level=1).compressobj(), bytes(MIB)
    return b"".join([*(compressor.compress(piece) for _ in range(size // MIB)), compressor.flush()])


@functools.cache
def checksum_of_zeros(size: int) -> str:
    """Return the checksum of ``size`` zeros."""
    return digest_of(bytes(size))


class Attacker:
    """Whoever can write to a topic and to the folder of a store; has no keys."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._cc = claimcheck.from_dict(options(folder))
        self._store = self._cc.store("s")
        self._plain = self._stored(_GOOD)

    def attack(self, name: str) -> Attack:
        """Return the messages of an attack, with harmless ones between them."""
        make: Callable[[], Attack] = getattr(self, name)
        attack, messages, expected = make(), list[bytes](), list[str]()
        for message, result in zip(attack.messages, attack.expected, strict=True):
            messages += [message, b"plain", self._plain]
            expected += [result, "5 bytes", f"{len(_GOOD)} bytes"]
        return Attack(messages, expected, attack.options)

    def many_that_decompress(self) -> Attack:
        """Each is within the limit; all of them together are not."""
        return Attack([self._encoded(LIMIT, zeros(LIMIT))] * MANY, [f"{LIMIT} bytes"] * MANY)

    def more_than_declared(self) -> Attack:
        """The header in the message declares too little, too much or nothing."""
        body, sizes = zeros(_HUGE), (1000, LIMIT, 1 << 45, 1 << 80, -1, None)
        results = ["IntegrityError"] * 2 + ["PayloadTooLargeError"] * 2 + ["IntegrityError"] * 2
        return Attack([self._encoded(size, body) for size in sizes], results)

    def many_stored(self) -> Attack:
        """Compressed objects, each within the limit."""
        body = zeros(LIMIT)
        return Attack([self._compressed(LIMIT, LIMIT, body)] * MANY, [f"{LIMIT} bytes"] * MANY)

    def stored_larger_than_declared(self) -> Attack:
        """Objects that are larger than their pointers, as they are or once they are decompressed."""
        body = zeros(_HUGE)
        messages = [self._grown(size) for size in (6, 0, 70_000, LIMIT)]
        messages += [self._compressed(size, found, body) for size in (1000, LIMIT) for found in (size, None)]
        return Attack(messages, ["IntegrityError"] * len(messages))

    def raised(self) -> Attack:
        """Pointers that declare much, to compressed content that has little, or as much as they declare."""
        little, much = zeros(6 * MIB), zeros(_RAISED)
        messages = [
            self._compressed(_RAISED, None, little),
            self._compressed(_RAISED, _RAISED, little),
            self._compressed(_RAISED, _RAISED, much),
            self._grown(_RAISED),
        ]
        results = ["IntegrityError", "IntegrityError", "PayloadTooLargeError", "IntegrityError"]
        return Attack(messages, results, {"limits": {"max_payload_bytes": 5 << 30}})

    def many_chunks_that_decompress(self) -> Attack:
        """Each is the only chunk of an encoded payload."""
        encoded = [self._encoded(LIMIT, zeros(LIMIT), each) for each in (uuid.uuid4() for _ in range(MANY))]
        ids = [str(uuid.UUID(hex=_id_of(message))) for message in encoded]
        messages = [encode_chunk(each, 0, 1, message) for each, message in zip(ids, encoded, strict=True)]
        return Attack(messages, [f"{LIMIT} bytes"] * MANY)

    def _encoded(self, size: int | None, body: bytes, identity: uuid.UUID | None = None) -> bytes:
        header = ContentHeader(id=(identity or uuid.uuid4()).hex, size=size, codec="zstd")
        return self._cc.config.header + b"\x04" + header.encode() + body

    def _stored(self, payload: bytes) -> bytes:
        return self._cc.seal(self._store.write(payload))

    def _grown(self, size: int) -> bytes:
        """Return a pointer of this size to an object of another size."""
        pointer = self._store.write(b"x")
        with (self._folder / pointer.key).open("r+b") as file:
            file.truncate(64 * MIB if size != 64 * MIB else MIB)
        return self._cc.seal(replace(pointer, size=size))

    def _compressed(self, size: int, found: int | None, body: bytes) -> bytes:
        """Return a pointer of this size to compressed content whose header has another one, or none."""
        pointer = self._store.write(b"x")
        header = ContentHeader(id=uuid.uuid4().hex, size=found, codec="zstd", store="s", stored_as=pointer.key)
        content = header.encode() + body
        (self._folder / pointer.key).write_bytes(content)
        checksum = checksum_of_zeros(size) if size <= LIMIT else pointer.checksum
        changed: Pointer = replace(pointer, size=size, stored_bytes=len(content), codec="zstd", checksum=checksum)
        return self._cc.seal(changed)


def options(folder: Path) -> dict[str, Any]:
    """Return the configuration of all readers."""
    store = {"type": "filesystem", "path": str(folder), "create": True}
    return {"strategy": "external", "stores": {"s": store}, "limits": {"max_payload_bytes": LIMIT}}


def _id_of(message: bytes) -> str:
    begin = message.index(b'"id":"') + 6
    return message[begin : begin + 32].decode()
