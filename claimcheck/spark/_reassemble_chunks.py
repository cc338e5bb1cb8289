"""The headers of chunks, read by Spark itself, and the errors of payloads in chunks.

Reading headers passes no byte of a payload through Python. These expressions select chunks and abort envelopes; every
other message is left to `claimcheck._envelope.decode`, which knows what it is or what is wrong with it.

The functions below that format errors use nothing outside this module: `claimcheck.spark._reassemble_state` takes them
to processes where claimcheck is not installed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from claimcheck import _hints as hints
from claimcheck._digest import digest_of
from claimcheck._envelope import CHUNK_OVERHEAD_BYTES, Buffer, Kind
from claimcheck.errors import ClaimCheckError
from claimcheck.spark._columns import MAP_TYPE

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

ABORT = -1
"""The position of an abort envelope: it sorts before all chunks."""

_UUID = "^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$"
_UUID_BYTES = 36
_RANGES = 8


class ChunkHeader(NamedTuple):
    """Columns that are null for every message except chunks and abort envelopes."""

    uuid: Column
    position: Column


def read_header(message: Column, header: bytes) -> ChunkHeader:
    """Read the chunk headers of a column of messages; envelopes begin with ``header``."""
    from pyspark.sql import functions as F  # noqa: N812 - the usual alias

    start = len(header) + 1
    uuid = F.substring(message, start + 1, _UUID_BYTES).cast("string")
    position = _number(F.substring(message, start + 1 + _UUID_BYTES, 4))
    count = _number(F.substring(message, start + 5 + _UUID_BYTES, 4))
    ours = (F.substring(message, 1, len(header)) == _literal(header)) & uuid.rlike(_UUID)
    size, kind = F.length(message), F.substring(message, start, 1)
    chunk = ours & (kind == _literal(bytes([Kind.CHUNK]))) & (size >= len(header) + CHUNK_OVERHEAD_BYTES)
    chunk &= (position < count) & (count <= 0x7FFFFFFF)
    abort = ours & (kind == _literal(bytes([Kind.ABORT]))) & (size == start + _UUID_BYTES)
    return ChunkHeader(F.when(chunk | abort, uuid), F.when(abort, F.lit(ABORT)).when(chunk, position.cast("int")))


def declared_claims(df: DataFrame, headers: int | None) -> Column:
    """Read the checksum and the signature from the Kafka or Pulsar headers of each message; null if there are none."""
    from pyspark.sql import functions as F  # noqa: N812

    if headers is None:
        return F.lit(None).cast("string")
    # One character more than allowed: enough to be rejected.
    checksum = F.substring(_header(df, headers, hints.CHECKSUM), 1, hints.MAX_CHECKSUM_CHARACTERS + 1)
    signature = F.substring(_header(df, headers, hints.SIGNATURE), 1, hints.MAX_SIGNATURE_CHARACTERS + 1)
    both = F.concat(F.coalesce(checksum, F.lit("")), F.lit("\n"), signature)
    return F.when(signature.isNull(), checksum).otherwise(both)


def _header(df: DataFrame, headers: int, wanted: str) -> Column:
    from pyspark.sql import functions as F  # noqa: N812

    name, kind = df.dtypes[headers]
    if kind == MAP_TYPE:
        return F.try_element_at(df[name], F.lit(wanted))
    pairs = F.filter(df[name], lambda pair: pair["key"] == F.lit(wanted))
    return F.try_element_at(pairs, F.lit(-1))["value"].cast("string")


def split_claims(declared: str | None) -> tuple[str | None, list[str]]:
    """Return the checksum and the signatures in a value of `declared_claims`."""
    checksum, separator, signature = (declared or "").partition("\n")
    return checksum or None, [signature] if separator else []


def checksum_error(declared: str | None, pieces: Iterable[Buffer]) -> ClaimCheckError | None:
    """Return the error if a payload does not match its declared checksum, or it cannot be computed, else ``None``."""
    if declared is None:
        return None
    try:
        hints.check({(hints.CHECKSUM, declared)}, size=None, checksum=lambda name: digest_of(*pieces, algorithm=name))
    except ClaimCheckError as error:
        return error
    return None


def _number(four: Column) -> Column:
    from pyspark.sql import functions as F  # noqa: N812

    return F.conv(F.hex(four), 16, 10).cast("bigint")


def _literal(value: bytes) -> Column:
    from pyspark.sql import functions as F  # noqa: N812

    return F.expr(f"X'{value.hex()}'")


# Errors ----------------------------------------------------------------------------------------------------------


def incomplete_text(uuid: str, positions: list[int], count: int, why: str) -> str:
    """Return the text of the error for a payload that lacks chunks; ``positions`` are those present, sorted."""
    missing = missing_positions(positions, count)
    return f"received only {len(positions)} of {count} chunks of {uuid}, missing {missing}: {why}"


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


def conflict_text(uuid: str, position: int, why: str) -> str:
    """Return the text of the error for a chunk that contradicts another one."""
    return f"chunk {position} of {uuid} {why}: two writers, or damage"


def too_large_text(uuid: str, size: int, limit: int, what: str) -> str:
    """Return the text of the error for a payload that exceeds a limit; ``what`` is the unit."""
    return f"the payload {uuid} has {size} {what}, but the limit is {limit}"
