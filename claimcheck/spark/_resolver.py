"""For RDDs: ``rdd.mapPartitions(resolver("claimcheck.yaml"))`` turns envelopes into payloads."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Literal

from claimcheck._validation import check_value
from claimcheck._wire.buffers import Buffer
from claimcheck.errors import ChunkError, ClaimCheckError, PayloadTypeError
from claimcheck.spark._columns import Origin, check_destination
from claimcheck.spark._fetching import MAX_INFLIGHT_BYTES, Concurrency, ReadFrom, is_bad_message, outcomes
from claimcheck.spark._reading import Reading
from claimcheck.spark._worker import (
    AnyConfig,
    active_session,
    adaptive_concurrency,
    as_config,
    check_paths,
    claim_check,
)

OnError = Literal["fail", "skip"]

_log = logging.getLogger(__name__)


def resolver(
    config: AnyConfig,
    *,
    on_error: OnError = "fail",
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
            if the error is specific to it. Other errors always fail the task (as in `claimcheck.spark.resolve`). A
            chunk is an error: use `claimcheck.spark.reassemble` on a DataFrame.
        keyed: Elements are pairs of any key and a message, and become pairs of the key and the payload.
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
    return PartitionResolver(reading, skip_errors=on_error == "skip", keyed=keyed)


@dataclass(frozen=True, slots=True)
class PartitionResolver:
    """The result of `resolver`: pickled and sent to the workers, where it is called once per partition."""

    reading: Reading
    skip_errors: bool
    keyed: bool

    def __call__(self, elements: Iterable[Any]) -> Iterator[Any]:
        reading, origin = self.reading, ReadFrom(self.reading.origin.destination)
        results = outcomes(
            map(_keyed if self.keyed else _unkeyed, elements),
            claim_check(reading.config),
            concurrency=adaptive_concurrency(reading.config, reading.concurrency),
            max_inflight_bytes=reading.max_inflight_bytes,
            read_from=lambda item: origin,
        )
        with closing(results):
            for key, _, outcome in results:
                if isinstance(outcome, ClaimCheckError):
                    self._handle(outcome)
                else:
                    yield (key, outcome) if self.keyed else outcome
                del outcome

    def _handle(self, error: ClaimCheckError) -> None:
        if isinstance(error, ChunkError):
            error.add_note("In Spark: df.transform(reassemble(...)).")
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
