"""What the head of a chunk says, read by Spark itself: no byte of a payload goes through Python for it.

What these expressions do not take for a chunk, or for the end that a writer put to one, is left to
`claimcheck._envelope.decode`, which says what it is or what is wrong with it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from claimcheck import _hints as hints
from claimcheck._checksum import crc32
from claimcheck._envelope import CHUNK_OVERHEAD_BYTES, Buffer, Kind
from claimcheck._payload import crc32_text
from claimcheck.errors import IntegrityError
from claimcheck.spark._columns import MAP_TYPE

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["ABORT", "Head", "contradiction", "declared_of", "head_of"]

ABORT = -1
"""The position of the word that a writer gave up: before all chunks."""

_UUID = "^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$"
_UUID_BYTES = 36


class Head(NamedTuple):
    """Columns: null for every message that is no part of a payload in chunks."""

    uuid: Column
    position: Column


def head_of(value: Column, header: bytes) -> Head:
    """Read the heads of a column of messages.

    Args:
        value: The messages.
        header: What envelopes begin with.
    """
    from pyspark.sql import functions as F  # noqa: N812 - everybody calls it so

    start = len(header) + 1
    uuid = F.substring(value, start + 1, _UUID_BYTES).cast("string")
    position = _number(F.substring(value, start + 1 + _UUID_BYTES, 4))
    count = _number(F.substring(value, start + 5 + _UUID_BYTES, 4))
    ours = (F.substring(value, 1, len(header)) == _bytes(header)) & uuid.rlike(_UUID)
    size, kind = F.length(value), F.substring(value, start, 1)
    chunk = ours & (kind == _bytes(bytes([Kind.CHUNK]))) & (size >= len(header) + CHUNK_OVERHEAD_BYTES)
    chunk &= (position < count) & (count <= 0x7FFFFFFF)
    abort = ours & (kind == _bytes(bytes([Kind.ABORT]))) & (size == start + _UUID_BYTES)
    return Head(F.when(chunk | abort, uuid), F.when(abort, F.lit(ABORT)).when(chunk, position.cast("int")))


def declared_of(df: DataFrame, headers: int | None) -> Column:
    """Read the checksum of a whole payload, which the headers of its last chunk declare; null for none.

    Args:
        df: With columns of names that stand for themselves.
        headers: The place of the headers, of type `HEADERS_TYPE` or `MAP_TYPE`; ``None`` for nowhere.
    """
    from pyspark.sql import functions as F  # noqa: N812

    if headers is None:
        return F.lit(None).cast("string")
    name, kind = df.dtypes[headers]
    if kind == MAP_TYPE:
        return _cut(F.try_element_at(df[name], F.lit(hints.CHECKSUM)))
    named = F.filter(df[name], lambda pair: pair["key"] == F.lit(hints.CHECKSUM))
    return _cut(F.try_element_at(named, F.lit(-1))["value"].cast("string"))


def _cut(claim: Column) -> Column:
    """A claim that is too long is refused, and not kept: one character more than allowed is enough for that."""
    from pyspark.sql import functions as F  # noqa: N812

    return F.substring(claim, 1, hints.MAX_CHECKSUM_CHARACTERS + 1)


def contradiction(declared: str | None, pieces: Iterable[Buffer]) -> IntegrityError | None:
    """Compare a payload with what a header says of it; gives what is wrong, if anything is."""
    if declared is None:
        return None
    value = 0
    for piece in pieces:
        value = crc32(piece, value)
    try:
        hints.check({(hints.CHECKSUM, declared)}, size=None, checksum=lambda: crc32_text(value))
    except IntegrityError as error:
        return error
    return None


def _number(four: Column) -> Column:
    from pyspark.sql import functions as F  # noqa: N812

    return F.conv(F.hex(four), 16, 10).cast("bigint")


def _bytes(literal: bytes) -> Column:
    from pyspark.sql import functions as F  # noqa: N812

    return F.expr(f"X'{literal.hex()}'")
