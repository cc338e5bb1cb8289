"""For RDDs: ``rdd.mapPartitions(resolver("claimcheck.yaml"))``, envelopes in, payloads out."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any, Literal, NoReturn

from claimcheck._envelope import Abort, Buffer, Chunk, decode
from claimcheck._pointer import Pointer
from claimcheck._resolver import Dropped, Failed, Resolved, Resolver
from claimcheck.config import Config
from claimcheck.errors import ChunkError, ClaimCheckError, IncompletePayloadError, PayloadTypeError
from claimcheck.spark._fetching import (
    MAX_INFLIGHT_BYTES,
    Concurrency,
    Outcome,
    Resolving,
    check_choice,
    check_reading,
    is_bad_message,
    outcomes,
)
from claimcheck.spark._worker import AnyConfig, active_session, as_config, check_paths, claim_check, pace, partition_id

__all__ = [
    "PartitionResolver",
    "PassingChunks",
    "Reassembly",
    "resolver",
]

_log = logging.getLogger(__name__)


class PassingChunks:
    """A `Resolving` that leaves chunks and aborts to a `Reassembly` and resolves the rest."""

    def __init__(self, cc: Resolving, config: Config) -> None:
        self._cc, self._header = cc, config.header

    def resolve(self, message: Buffer | None, /) -> Buffer | None:
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


def resolver(
    config: AnyConfig,
    *,
    on_error: Literal["fail", "skip"] = "fail",
    chunks: Literal["refuse", "reassemble"] = "refuse",
    keyed: bool = False,
    concurrency: Concurrency = "auto",
    max_inflight_bytes: int = MAX_INFLIGHT_BYTES,
) -> PartitionResolver:
    """Make the function that resolves a partition of messages, for ``rdd.mapPartitions``.

    It is lazy: payloads are fetched as they are asked for, a bounded number of bytes ahead, and stay in order.
    Connections are made in the worker, once per process.

    Args:
        config: Path of a YAML file (read here, on the driver), mapping, `Config` or `ClaimCheck`.
        on_error: ``fail`` raises the first error, which fails the task; ``skip`` logs a warning and leaves the
            message out, if the error is about that message. Other errors always fail the task (as in
            `claimcheck.spark.resolve`).
        chunks: ``refuse`` fails a chunk; ``reassemble`` puts payloads together whose chunks are all in one
            partition, in any order, within the bounds of ``chunking`` in the configuration. A payload takes the
            place of the chunk that completes it. Its checksum is in a header, which is not seen here: `reassemble`
            of a DataFrame checks it.
        keyed: Elements are pairs of anything and a message, and come out as pairs of the same thing and its payload;
            for chunks the thing beside the first one.
        concurrency: Fetches at once per task, 1 to 64, or ``auto``: threads where fetching means waiting.
        max_inflight_bytes: Bound on the payload bytes that a task fetches ahead.

    Returns:
        A picklable callable from ``Iterator[bytes]`` to ``Iterator[bytes]``; ``None`` stays ``None``.

    Raises:
        ConfigError: The configuration or an option cannot be used.
    """
    check_choice("on_error", on_error, "fail", "skip")
    check_choice("chunks", chunks, "refuse", "reassemble")
    check_choice("keyed", keyed, True, False)
    check_reading(concurrency=concurrency, max_inflight_bytes=max_inflight_bytes)
    known = as_config(config)
    if session := active_session():
        check_paths(known, session)
    return PartitionResolver(
        config=known,
        skip_errors=on_error == "skip",
        reassemble=chunks == "reassemble",
        keyed=keyed,
        concurrency=concurrency,
        max_inflight_bytes=max_inflight_bytes,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionResolver:
    """What `resolver` makes: a value that pickles, opens nothing, and is called once per partition."""

    config: Config
    skip_errors: bool
    reassemble: bool
    keyed: bool
    concurrency: Concurrency
    max_inflight_bytes: int

    def __call__(self, elements: Iterable[Any]) -> Iterator[Any]:
        """Resolve one partition."""
        with closing(self._delivered(iter(elements))) as delivered:
            for thing, outcome in delivered:
                if isinstance(outcome, ClaimCheckError):
                    self._complain(outcome)
                else:
                    yield (thing, outcome) if self.keyed else outcome

    def _complain(self, error: ClaimCheckError) -> None:
        if isinstance(error, ChunkError) and not self.reassemble:
            error.add_note('In Spark: resolver(..., chunks="reassemble"), where all chunks are in one partition.')
        if not self.skip_errors or not is_bad_message(error, self.config):
            raise error
        _log.warning("skipped a message: %s: %s", type(error).__name__, error)

    def _delivered(self, elements: Iterator[Any]) -> Generator[tuple[Any, Outcome]]:
        cc = claim_check(self.config)
        if not self.reassemble:
            with closing(self._resolved(elements, cc)) as resolved:
                yield from ((thing, outcome) for thing, _, outcome in resolved)
            return
        reassembly = Reassembly(self.config, partition=partition_id())
        with closing(self._resolved(elements, PassingChunks(cc, self.config))) as resolved:
            yield from reassembly.run(resolved)

    def _resolved(self, elements: Iterator[Any], cc: Resolving) -> Generator[tuple[Any, Any, Outcome]]:
        """Every element's two halves and what became of its message."""
        ahead: deque[tuple[Any, Any]] = deque()

        def messages() -> Iterator[Any]:
            for element in elements:
                ahead.append(_pair(element) if self.keyed else (None, element))
                yield _checked(ahead[-1][1])

        learnt = pace(self.config, self.concurrency)
        with closing(outcomes(messages(), cc, pace=learnt, max_inflight_bytes=self.max_inflight_bytes)) as results:
            for outcome in results:
                yield (*ahead.popleft(), outcome)


def _pair(element: Any) -> tuple[Any, Any]:
    if not isinstance(element, (tuple, list)) or len(element) != 2:
        raise PayloadTypeError(
            f"with keyed=True an element is a pair of anything and a message, not {type(element).__name__}"
        )
    return element[0], element[1]


def _checked(message: Any) -> Buffer | None:
    if message is None or isinstance(message, (bytes, bytearray, memoryview)):
        return message
    raise PayloadTypeError(f"a message is bytes-like or None, not {type(message).__name__} (pairs need keyed=True)")
