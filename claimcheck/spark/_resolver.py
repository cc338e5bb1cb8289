"""For RDDs: ``rdd.mapPartitions(resolver("claimcheck.yaml"))`` turns envelopes into payloads."""

from __future__ import annotations

import logging
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any, Literal, NoReturn

from claimcheck._envelope import Buffer
from claimcheck._resolver import Dropped, Failed, Resolved, Resolver
from claimcheck._validation import check_value
from claimcheck.errors import ChunkError, ClaimCheckError, IncompletePayloadError, PayloadTypeError
from claimcheck.spark._columns import Origin, check_destination
from claimcheck.spark._fetching import MAX_INFLIGHT_BYTES, Concurrency, Outcome, ReadFrom, is_bad_message, outcomes
from claimcheck.spark._reading import Reading
from claimcheck.spark._worker import (
    AnyConfig,
    active_session,
    adaptive_concurrency,
    as_config,
    check_paths,
    claim_check,
    partition_id,
)

OnError = Literal["fail", "skip"]
Chunks = Literal["refuse", "reassemble"]

_log = logging.getLogger(__name__)


def resolver(
    config: AnyConfig,
    *,
    on_error: OnError = "fail",
    chunks: Chunks = "refuse",
    keyed: bool = False,
    destination: str | None = None,
    concurrency: Concurrency = "auto",
    max_inflight_bytes: int = MAX_INFLIGHT_BYTES,
) -> PartitionResolver:
    """Return a function that resolves a partition of messages, for ``rdd.mapPartitions``.

    It is lazy: it fetches payloads on demand, a bounded number of bytes ahead, and keeps their order. The worker opens
    connections, once per process.

    Args:
        config: Path of a YAML file (read here, on the driver), mapping, `Config` or `ClaimCheck`.
        on_error: ``fail`` raises the first error, which fails the task. ``skip`` logs a warning and drops the message
            if the error is specific to it. Other errors always fail the task (as in `claimcheck.spark.resolve`).
        chunks: ``refuse`` treats a chunk as an error. ``reassemble`` joins payloads whose chunks are all in one
            partition, in any order, within the limits of ``chunking`` in the configuration. A payload takes the place
            of its last chunk to arrive. Checksums and signatures are in headers, which an RDD of messages lacks: to
            check them, use `reassemble` on a DataFrame. With ``signing.require`` payloads in chunks, escaped payloads
            and abort envelopes are errors here.
        keyed: Elements are pairs of any key and a message, and become pairs of the key and the payload; the key of a
            payload in chunks is that of its first message.
        destination: The topic that the messages were read from. Required where signing keys are configured, unless
            ``signing.bind_destination`` is false.
        concurrency: Concurrent fetches per task, 1 to 64, or ``auto``: threads where fetching means waiting.
        max_inflight_bytes: Bound on the payload bytes that a task fetches ahead.

    Returns:
        A picklable callable from ``Iterator[bytes]`` to ``Iterator[bytes]``; ``None`` stays ``None``.

    Raises:
        ConfigError: The configuration or an option is invalid.
    """
    check_value("on_error", on_error, OnError)
    check_value("chunks", chunks, Chunks)
    check_value("keyed", keyed, bool)
    checked = as_config(config)
    check_destination(checked, destination)
    if session := active_session():
        check_paths(checked, session)
    reading = Reading(
        config=checked,
        concurrency=concurrency,
        max_inflight_bytes=max_inflight_bytes,
        origin=Origin(destination),
    )
    return PartitionResolver(reading, skip_errors=on_error == "skip", reassemble=chunks == "reassemble", keyed=keyed)


@dataclass(frozen=True, slots=True)
class PartitionResolver:
    """The result of `resolver`: pickled and sent to the workers, where it is called once per partition."""

    reading: Reading
    skip_errors: bool
    reassemble: bool
    keyed: bool

    def __call__(self, elements: Iterable[Any]) -> Iterator[Any]:
        """Resolve one partition."""
        reading, origin = self.reading, ReadFrom(self.reading.origin.destination)
        results = outcomes(
            map(_keyed if self.keyed else _unkeyed, elements),
            claim_check(reading.config),
            concurrency=adaptive_concurrency(reading.config, reading.concurrency),
            max_inflight_bytes=reading.max_inflight_bytes,
            read_from=lambda item: origin,
        )
        if self.reassemble:
            results = _Reassembly(reading, partition=partition_id()).run(results)
        with closing(results):
            for key, _, outcome in results:
                if isinstance(outcome, ClaimCheckError):
                    self._handle(outcome)
                else:
                    yield (key, outcome) if self.keyed else outcome
                del outcome

    def _handle(self, error: ClaimCheckError) -> None:
        if isinstance(error, ChunkError) and not self.reassemble:
            error.add_note('In Spark: resolver(..., chunks="reassemble"), if all chunks are in one partition.')
        if not self.skip_errors or not is_bad_message(error, self.reading.config):
            raise error
        _log.warning("skipped a message: %s: %s", type(error).__name__, error)


def _keyed(element: object) -> tuple[object, Buffer | None]:
    if not isinstance(element, (tuple, list)) or len(element) != 2:
        raise PayloadTypeError(
            f"with keyed=True an element is a pair of a key and a message, not {type(element).__name__}"
        )
    return element[0], _message(element[1])


def _unkeyed(element: object) -> tuple[None, Buffer | None]:
    return None, _message(element)


def _message(value: object) -> Buffer | None:
    if value is None or isinstance(value, (bytes, bytearray, memoryview)):
        return value
    raise PayloadTypeError(f"a message is bytes-like or None, not {type(value).__name__} (pairs need keyed=True)")


class _Reassembly:
    """Joins the chunks of one partition."""

    def __init__(self, reading: Reading, *, partition: int) -> None:
        config, self._destination, self._partition = reading.config, reading.origin.destination, partition
        self._now = 0.0
        # Nothing is redelivered in a batch, and everything expires when `_now` passes one second, at the end.
        chunking = replace(config.chunks, expire_after_seconds=1.0, on_expire="ack", on_evict="ack")
        current = claim_check(config)._current()
        self._resolver = Resolver(
            _not_called,
            chunking=chunking,
            unpacker=current.unpacker,
            header=config.header,
            clock=lambda: self._now,
            seal=current.seal,
        )

    def run(self, results: Generator[tuple[object, Buffer | None, Outcome]]) -> Generator[tuple[object, None, Outcome]]:
        """Replace chunks by payloads."""
        with closing(results):
            for position, (key, message, outcome) in enumerate(results):
                if isinstance(outcome, ChunkError) and message is not None:
                    fed = self._resolver.feed(
                        self._partition, position, message, handle=key, destination=self._destination
                    )
                    yield from self._ended(fed)
                else:
                    yield key, None, outcome
        self._now = 2.0
        yield from self._ended(self._resolver.tick())

    def _ended(self, results: list[Resolved | Failed | Dropped]) -> Iterator[tuple[object, None, Outcome]]:
        for result in results:
            self._resolver.settle(result, acked=True)
            key = result.slots[0].handle
            if isinstance(result, Resolved):
                yield key, None, result.payload
            elif isinstance(result, Failed) or result.reason == "evicted":
                yield key, None, result.error
            elif result.reason == "expired":
                yield key, None, _incomplete(result, self._partition)
            else:  # aborted by the writer, or a duplicate: no payload is missing
                _log.info("partition %d: dropped chunks of %s: %s", self._partition, result.uuid, result.reason)


def _incomplete(dropped: Dropped, partition: int) -> IncompletePayloadError:
    seen, total = getattr(dropped.error, "seen", None), getattr(dropped.error, "total", None)
    text = (
        f"partition {partition} ended with {seen} of {total} chunks of {dropped.uuid}: the others are in another "
        "partition of this RDD, outside the data that was read, or were never sent"
    )
    return IncompletePayloadError(text, uuid=dropped.uuid, seen=seen, total=total)


def _not_called(data: bytes) -> NoReturn:
    raise AssertionError("only chunks are fed")  # pragma: no cover
