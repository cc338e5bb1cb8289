"""Which chunks fit together: a chunk is new, a duplicate, in conflict with others, or over a limit.

One rule for every reader: the assembler, and the reassemblies on Spark. Nothing that they call here, except `error_of`,
uses anything outside this module: Spark takes it to processes where claimcheck is not installed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import claimcheck.errors

_RANGES = 8


@dataclass(frozen=True, slots=True)
class Fault:
    """Why chunks become no payload: an error by its name, its text and its attributes."""

    kind: str
    text: str
    details: dict[str, str | int]


def fault_of(
    uuid: str,
    position: int,
    count: int,
    *,
    total: int,
    seen: int,
    size: int,
    same: bool | None,
    max_chunks: int,
    max_bytes: int,
    option: str = "max_payload_bytes",
) -> Fault | None:
    """Return why a chunk does not fit to the ``seen`` ones before it, if so.

    Those declare ``total`` chunks; ``size`` are the bytes of all of them, and of this one if it is new; ``same`` is
    whether its bytes are those of an earlier chunk in its position, and ``None`` if there is none.
    """
    if count != total:
        return conflict(uuid, position, f"declares {count} chunks, but an earlier one {total}", seen, total)
    if same is False:
        return conflict(uuid, position, "arrived twice with different bytes", seen, total)
    if count > max_chunks:
        return too_large(uuid, count, max_chunks, "chunks (chunking.max_chunks)")
    if size > max_bytes:
        return too_large(uuid, size, max_bytes, f"bytes or more (chunking.{option})")
    return None


def conflict(uuid: str, position: int, why: str, seen: int, total: int) -> Fault:
    """Return that a chunk contradicts others of its payload."""
    text = f"chunk {position} of {uuid} {why}: two writers, or damage"
    details: dict[str, str | int] = {"uuid": uuid, "position": position, "seen": seen, "total": total}
    return Fault("ChunkConflictError", text, details)


def too_large(uuid: str, size: int, limit: int, what: str) -> Fault:
    """Return that a payload exceeds a limit; ``what`` is the unit."""
    text = f"the payload {uuid} has {size} {what}, but the limit is {limit}"
    return Fault("PayloadTooLargeError", text, {"size": size, "limit": limit})


def incomplete(uuid: str, positions: Iterable[int], count: int, why: str) -> Fault:
    """Return that a payload ended without all of its chunks; ``positions`` are those present."""
    present = sorted(positions)
    text = f"received only {len(present)} of {count} chunks of {uuid}, missing {missing_positions(present, count)}"
    details: dict[str, str | int] = {"uuid": uuid, "seen": len(present), "total": count}
    return Fault("IncompletePayloadError", f"{text}: {why}", details)


def missing_positions(positions: Iterable[int], count: int) -> str:
    """List the positions below ``count`` that are not in ``positions``, which are sorted: ``1, 4-7 and 12 more``."""
    ranges, more = list[str](), 0
    for first, last in _gaps(positions, count):
        if len(ranges) < _RANGES:
            ranges.append(str(first) if first == last else f"{first}-{last}")
        else:
            more += last - first + 1
    return ", ".join(ranges) + (f" and {more} more" if more else "")


def _gaps(positions: Iterable[int], count: int) -> Iterator[tuple[int, int]]:
    following = 0
    for position in positions:
        if position > following:
            yield following, position - 1
        following = position + 1
    if following < count:
        yield following, count - 1


def error_of(fault: Fault) -> claimcheck.errors.ClaimCheckError:
    error: claimcheck.errors.ClaimCheckError = getattr(claimcheck.errors, fault.kind)(fault.text, **fault.details)
    return error
