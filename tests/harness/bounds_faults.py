"""Faults that are planted in the library, each of which breaks one bound in bytes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from claimcheck._content import coder as _content
from claimcheck._content.compression import DecompressingReader
from claimcheck._store import read as _store_read
from claimcheck._wire.envelope import Literal
from claimcheck.transports._common import dispatch


def _plant(owner: Any, name: str, value: Any) -> None:
    assert hasattr(owner, name)
    setattr(owner, name, value)


def counts_bytes_on_the_wire() -> None:
    """Count an encoded message as it came."""
    _plant(_content.Unpacker, "size_of", lambda self, content: len(content))


def decodes_at_once() -> None:
    """Decode a message when it is received."""

    def decoded(cc: Any, content: memoryview, destination: str) -> Literal:
        return Literal(memoryview(cc.opened.unpacker.content(content, destination=destination)))

    _plant(dispatch, "_encoded", decoded)


def decodes_chunks_at_once() -> None:
    """Decode a payload when its last chunk is received."""
    resolver_of = dispatch.resolver_of

    def eager(*arguments: Any, **options: Any) -> Any:
        resolver = resolver_of(*arguments, **options)
        resolver.decode_later = None
        return resolver

    from claimcheck.transports.kafka import _consumer

    _plant(_consumer, "resolver_of", eager)


def trusts_declared_sizes() -> None:
    """Allocate what a pointer declares."""
    _plant(_store_read, "TRUSTED_BYTES", 1 << 60)


def ignores_the_end() -> None:
    """Decompress as much as there is."""
    begin = DecompressingReader.__init__

    def unlimited(self: Any, source: Any, *, size: int) -> None:
        begin(self, source, size=1 << 60)

    _plant(DecompressingReader, "__init__", unlimited)
    _plant(_content, "_too_large", lambda size, limit: MemoryError())


def holds_all_rows() -> None:
    """Pass on a partition as one batch."""
    from claimcheck.spark import _reading

    grouped = _reading.grouped
    _plant(_reading, "grouped", lambda rows, **limits: grouped(rows, max_bytes=1 << 60, max_rows=1 << 60))


FAULTS: dict[str, Callable[[], None]] = {
    each.__name__: each
    for each in (
        counts_bytes_on_the_wire,
        decodes_at_once,
        decodes_chunks_at_once,
        trusts_declared_sizes,
        ignores_the_end,
        holds_all_rows,
    )
}
