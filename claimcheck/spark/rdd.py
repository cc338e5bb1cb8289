"""For RDDs: ``rdd.mapPartitions(resolver("claimcheck.yaml"))``, envelopes in, payloads out."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Literal

from claimcheck.config import Config
from claimcheck.envelope import Buffer
from claimcheck.errors import ChunkError, ClaimCheckError, PayloadTypeError
from claimcheck.spark.chunks import PassingChunks, Reassembly
from claimcheck.spark.core import (
    MAX_INFLIGHT_BYTES,
    Concurrency,
    Outcome,
    Resolving,
    check_choice,
    check_reading,
    is_bad_message,
    outcomes,
)
from claimcheck.spark.paths import active_session, check_paths
from claimcheck.spark.worker import AnyConfig, as_config, claim_check, pace, partition_id

__all__ = ["Resolver", "resolver"]

_log = logging.getLogger(__name__)


def resolver(
    config: AnyConfig,
    *,
    on_error: Literal["fail", "skip"] = "fail",
    chunks: Literal["refuse", "reassemble"] = "refuse",
    keyed: bool = False,
    concurrency: Concurrency = "auto",
    max_inflight_bytes: int = MAX_INFLIGHT_BYTES,
) -> Resolver:
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
    return Resolver(
        config=known,
        skip_errors=on_error == "skip",
        reassemble=chunks == "reassemble",
        keyed=keyed,
        concurrency=concurrency,
        max_inflight_bytes=max_inflight_bytes,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolver:
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
