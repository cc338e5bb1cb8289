"""Segments whose sizes no pointer declares: those of version 1, and the only one of an empty payload.

Redis is asked for the sizes first, so that nothing over the limit is transferred or held in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any

from claimcheck.pointer import Pointer

from .redis_server import RedisServer, segment_key

__all__ = ["unsized_segments"]

_SIZES_AT_ONCE = 1000
_BYTES_AT_ONCE = 4 << 20


def unsized_segments(
    server: RedisServer,
    pointer: Pointer,
    *,
    limit: int,
    missing: Callable[[str], Exception],
    empty: Callable[[], Exception],
    too_large: Callable[[int], Exception],
) -> Iterator[bytes]:
    """Yield the segments of a payload in order, some requests per round trip.

    Args:
        server: The server.
        pointer: Of the payload.
        limit: The most bytes that all segments may have together.
        missing: Makes the error for a segment that does not exist.
        empty: Makes the error for a segment without bytes; only that of an empty payload may be so.
        too_large: Makes the error for more bytes than the limit, given their number so far.
    """
    total, numbers = 0, iter(range(pointer.segments))
    while some := list(islice(numbers, _SIZES_AT_ONCE)):
        sizes = _ask(server, pointer, "STRLEN", some)
        total += sum(sizes)
        if total > limit:
            raise too_large(total)
        for batch in _batches(some, sizes):
            for i, segment in zip(batch, _ask(server, pointer, "GET", batch), strict=True):
                if segment is None:
                    raise missing(f"segment {i} of {pointer.segments}")
                if not segment and pointer.segments > 1:
                    raise empty()
                yield segment


def _ask(server: RedisServer, pointer: Pointer, command: str, numbers: Sequence[int]) -> list[Any]:
    pipeline = server.client.pipeline(transaction=False)
    for i in numbers:
        pipeline.execute_command(command, segment_key(pointer, i))
    replies = list(pipeline.execute(raise_on_error=False))  # it would put the command before the server's own words
    for reply in replies:
        if isinstance(reply, Exception):
            raise reply
    return replies


def _batches(numbers: list[int], sizes: list[int]) -> Iterator[list[int]]:
    """Cut by bytes; a segment that alone has more is a batch of its own."""
    batch: list[int] = []
    held = 0
    for i, size in zip(numbers, sizes, strict=True):
        if batch and held + size > _BYTES_AT_ONCE:
            yield batch
            batch, held = [], 0
        batch.append(i)
        held += size
    if batch:
        yield batch
