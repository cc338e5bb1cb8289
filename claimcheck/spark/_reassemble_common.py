"""What `reassemble` does alike on a batch and on a stream: input columns, the headers of chunks, and output.

Spark itself reads the headers of chunks, so that no byte of a payload passes through Python for it. These expressions
select chunks and abort envelopes; every other message is left to `claimcheck._wire.envelope.decode`, which knows what
it is or what is wrong with it.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

from claimcheck._client import ClaimCheck
from claimcheck._validation import fail
from claimcheck._wire import headers as hints
from claimcheck._wire.buffers import Buffer
from claimcheck._wire.digest import digest_of
from claimcheck._wire.envelope import CHUNK_OVERHEAD_BYTES, Kind
from claimcheck.config import Config
from claimcheck.errors import ClaimCheckError, PointerRejectedError
from claimcheck.spark._columns import (
    MAP_TYPE,
    MAX_COLUMN_BYTES,
    MESSAGE_ERRORS,
    binary_array,
    error_array,
    find_column,
    headers_index,
)
from claimcheck.spark._metrics import Tally

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame

_log = logging.getLogger(__name__)

ABORT = -1
"""The position of an abort envelope: it sorts before all chunks."""

ExpireBy = Literal["clock", "data"]
"""Which time expires payloads: the machine's, or that of arriving messages."""

_SOURCE_TYPES = ("string", "tinyint", "smallint", "int", "bigint", "binary")
_DEFAULT_SOURCE = ("topic", "partition", "key")  # in a topic, the key is all that distinguishes writers
_UUID = "^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$"
_UUID_BYTES = 36


def max_payload_bytes(config: Config) -> int:
    """Return the largest payload in chunks that the configuration allows and a column can hold."""
    return min(config.chunks.max_payload_bytes, MAX_COLUMN_BYTES)


@dataclass(frozen=True, slots=True)
class ColumnIndexes:
    """Indexes of the messages, of the columns that identify their source, and of their headers, if any."""

    message: int
    source: tuple[int, ...]
    headers: int | None = None

    @classmethod
    def find(cls, df: DataFrame, column: str, source: Sequence[str] | None) -> ColumnIndexes:
        message = find_column(df, "column", column)
        if isinstance(source, str):
            fail("source", found=f"the text {source!r}", expected="a list of columns")
        if source is None:
            types = {name.lower(): kind for name, kind in df.dtypes}
            source = [name for name in _DEFAULT_SOURCE if types.get(name) in _SOURCE_TYPES]
        found = tuple(find_column(df, "source", name, *_SOURCE_TYPES) for name in source)
        return cls(message, found, headers_index(df))


# The headers of chunks ---------------------------------------------------------------------------------------------


def read_header(message: Column, header: bytes) -> tuple[Column, Column]:
    """Return the uuid and the position of chunks and abort envelopes; null for every other message."""
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
    positions = F.when(abort, F.lit(ABORT)).when(chunk, position.cast("int"))
    return F.when(chunk | abort, uuid), positions


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


def _split(declared: str | None) -> tuple[str | None, list[str]]:
    checksum, separator, signature = (declared or "").partition("\n")
    return checksum or None, [signature] if separator else []


def _number(four: Column) -> Column:
    from pyspark.sql import functions as F  # noqa: N812

    return F.conv(F.hex(four), 16, 10).cast("bigint")


def _literal(value: bytes) -> Column:
    from pyspark.sql import functions as F  # noqa: N812

    return F.expr(f"X'{value.hex()}'")


# The result -----------------------------------------------------------------------------------------------------------


class Joined(NamedTuple):
    """What a row of the result has besides its input row, which is ``row`` if it comes from Spark's state."""

    uuid: str | None
    pieces: Sequence[Buffer] | None = None
    error: Exception | None = None
    row: pa.RecordBatch | None = None

    @property
    def size(self) -> int:
        return sum(map(len, self.pieces or ()))

    def counted(self, tally: Tally, *, store: str | None = None) -> Joined:
        if self.error is None:
            tally.row(self.size, store=store)
        else:
            tally.row(0, error=type(self.error).__name__)
        return self


def joined(
    cc: ClaimCheck,
    uuid: str,
    pieces: list[Buffer],
    declared: str | None,
    destination: str | None,
    row: pa.RecordBatch | None = None,
) -> Joined:
    """Return the payload of complete chunks: signature and checksum verified, decompressed and decrypted."""
    checksum, signatures = _split(declared)
    claims = set() if checksum is None else {(hints.CHECKSUM, checksum)}
    try:
        cc.opened.seal.check_chunks(signatures, uuid=uuid, count=len(pieces), pieces=pieces, destination=destination)
        try:
            hints.check(claims, size=None, checksum=lambda name: digest_of(*pieces, algorithm=name))
        except ClaimCheckError as error:  # also one that this worker cannot compute
            return Joined(uuid, None, error, row)
        return Joined(uuid, cc.opened.unpacker.pieces(pieces, uuid, destination=destination), None, row)
    except MESSAGE_ERRORS as error:
        return Joined(uuid, None, error, row)


def is_genuine(cc: ClaimCheck, declared: str | None, *, uuid: str, destination: str | None) -> bool:
    """Whether an abort envelope is signed as the configuration requires; otherwise it is ignored, which is logged."""
    try:
        cc.opened.seal.check_abort(_split(declared)[1], uuid=uuid, destination=destination)
    except PointerRejectedError as error:
        _log.warning("ignored a message: %s", error)
        return False
    return True


def added_columns(rows: Sequence[Joined], kind: pa.DataType) -> list[pa.Array]:
    """Return the columns for uuid, payload and error; ``kind`` is ``large_binary`` where Spark uses it."""
    import pyarrow as pa

    uuids = pa.array([row.uuid for row in rows], type=pa.string())
    return [uuids, binary_array([row.pieces for row in rows], kind), error_array([row.error for row in rows])]
