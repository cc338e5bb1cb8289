"""Chunks within one partition of a batch: put together in any order; time plays no role, the partition's end does."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, NoReturn

from claimcheck.config import Config
from claimcheck.envelope import Abort, Buffer, Chunk, decode
from claimcheck.errors import ClaimCheckError, IncompletePayloadError
from claimcheck.pointer import Pointer
from claimcheck.resolver import Dropped, Failed, Resolved, Resolver
from claimcheck.spark.core import Outcome, Resolving

__all__ = ["PassingChunks", "Reassembly"]

_log = logging.getLogger(__name__)


class PassingChunks:
    """A `Resolving` that leaves chunks and aborts to a `Reassembly` and resolves the rest."""

    def __init__(self, cc: Resolving, config: Config) -> None:
        self._cc, self._header = cc, config.header

    def resolve(self, message: Buffer | None, /) -> bytes | None:
        """Return the payload, or nothing for a chunk."""
        return None if message is None or _is_part(message, self._header) else self._cc.resolve(message)

    def pointer(self, message: Buffer, /) -> Pointer | None:
        """Return the pointer that a message carries, if it carries one."""
        return self._cc.pointer(message)

    def read(self, pointer: Pointer, /) -> bytes:
        """Return the payload that a pointer names."""
        return self._cc.read(pointer)


class Reassembly:
    """The chunks of one partition; bounded by ``chunking`` in the configuration.

    Args:
        config: Its bounds on chunks, payloads and bytes hold; its expiry does not, a batch has no time.
        partition: For the texts of errors.
    """

    def __init__(self, config: Config, *, partition: int) -> None:
        self._header = config.header
        self._partition = partition
        self._now = 0.0
        timeless = replace(
            config.chunks, expire_after_seconds=1.0, on_expire="ack", on_evict="ack"
        )  # nothing comes again
        self._resolver = Resolver(_unread, chunking=timeless, header=config.header, clock=lambda: self._now)
        self._fed = 0

    def run(self, resolved: Iterable[tuple[Any, Buffer | None, Outcome]]) -> Iterator[tuple[Any, Outcome]]:
        """Replace chunks by the payloads that they make.

        Args:
            resolved: Anything that belongs to a message, the message, and what `PassingChunks` made of it.

        Yields:
            What belongs to a payload's first chunk, and the payload or the error; other messages as they came. What
            the partition's end leaves incomplete comes last, as errors.
        """
        for thing, message, outcome in resolved:
            if message is None or isinstance(outcome, ClaimCheckError) or not _is_part(message, self._header):
                yield thing, outcome
            else:
                self._fed += 1
                yield from self._results(self._resolver.feed(self._partition, self._fed, message, handle=thing))
        self._now = 2.0  # the end of time: what is still incomplete expires
        yield from self._results(self._resolver.tick())

    def _results(self, results: list[Resolved | Failed | Dropped]) -> Iterator[tuple[Any, Outcome]]:
        for result in results:
            self._resolver.settle(result, acked=True)  # a batch gives nothing back
            thing = result.slots[0].handle
            if isinstance(result, Resolved):
                yield thing, result.payload
            elif isinstance(result, Failed):
                yield thing, result.error
            elif result.reason in ("expired", "evicted"):
                yield thing, self._incomplete(result)
            else:  # aborted by the writer, or a duplicate: there is no payload to be missed
                _log.info("partition %d: let go of chunks of %s: %s", self._partition, result.uuid, result.reason)

    def _incomplete(self, dropped: Dropped) -> ClaimCheckError | None:
        if dropped.reason == "evicted":
            return dropped.error
        seen, total = getattr(dropped.error, "seen", None), getattr(dropped.error, "total", None)
        return IncompletePayloadError(
            f"partition {self._partition} ended with {seen} of {total} chunks of {dropped.uuid}: the others are in "
            "another partition of this RDD, outside of what was read, or were never sent",
            uuid=dropped.uuid,
            seen=seen,
            total=total,
        )


def _is_part(message: Buffer, header: bytes) -> bool:
    try:
        return isinstance(decode(message, header=header), (Chunk, Abort))
    except ClaimCheckError:  # resolving it says so
        return False


def _unread(data: bytes) -> NoReturn:
    raise AssertionError("only chunks are fed")  # pragma: no cover
