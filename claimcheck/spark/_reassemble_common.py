"""What `reassemble` does alike on a batch and on a stream: its options, its input columns and its output."""

from __future__ import annotations

import logging
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from claimcheck._content import Unpacker
from claimcheck._envelope import Buffer
from claimcheck._signing import Seal
from claimcheck._validation import fail
from claimcheck.config import Config
from claimcheck.errors import ClaimCheckError, PointerRejectedError
from claimcheck.spark._columns import HEADERS_TYPE, MAP_TYPE, MAX_COLUMN_BYTES, arrow_error_type, find_column
from claimcheck.spark._fetching import MESSAGE_ERRORS
from claimcheck.spark._metrics import Tally
from claimcheck.spark._origin import DEFAULT_HEADERS
from claimcheck.spark._reassemble_chunks import checksum_error, split_claims
from claimcheck.spark._rows import Reading

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

_log = logging.getLogger(__name__)

ExpireBy = Literal["clock", "data"]
"""Which time expires payloads: the machine's, or that of arriving messages."""

_SOURCE_TYPES = ("string", "tinyint", "smallint", "int", "bigint", "binary")
_DEFAULT_SOURCE = ("topic", "partition", "key")  # in a topic, the key is all that distinguishes writers
_MAX_ROWS = 1 << 14


@dataclass(frozen=True, slots=True)
class Options:
    """The options of `claimcheck.spark.reassemble`; pickled and sent to the workers."""

    reading: Reading
    expire_after_seconds: float
    expire_by: ExpireBy
    remember_seconds: float
    delete_chunks: bool = True

    @property
    def config(self) -> Config:
        return self.reading.config

    @property
    def max_payload_bytes(self) -> int:
        """The largest payload in chunks that the configuration allows and a column can hold."""
        return min(self.config.chunks.max_payload_bytes, MAX_COLUMN_BYTES)


@dataclass(frozen=True, slots=True)
class ColumnIndexes:
    """Indexes of the messages, of the columns that identify their source, and of their headers, if any."""

    message: int
    source: tuple[int, ...]
    headers: int | None = None

    @classmethod
    def find(cls, df: DataFrame, column: str, source: Sequence[str] | None, headers: str | None) -> ColumnIndexes:
        """Find the columns by name, or raise a `ConfigError` if one does not exist or has the wrong type."""
        message = find_column(df, "column", column)
        if isinstance(source, str):
            fail("source", found=f"the text {source!r}", expected="a list of columns")
        types = {name.lower(): kind for name, kind in df.dtypes}
        if source is None:
            source = [name for name in _DEFAULT_SOURCE if types.get(name) in _SOURCE_TYPES]
        if headers is None:
            headers = next((name for name, kind in DEFAULT_HEADERS.items() if types.get(name) == kind), None)
        index = None if headers is None else find_column(df, "headers", headers, HEADERS_TYPE, MAP_TYPE)
        return cls(message, tuple(_source_index(df, types, name) for name in source), index)


def _source_index(df: DataFrame, types: dict[str, str], name: object) -> int:
    kind = types.get(name.lower(), "") if isinstance(name, str) else ""
    return find_column(df, "source", name, kind if kind in _SOURCE_TYPES else "string, binary or a whole number")


@dataclass(frozen=True, slots=True)
class OutputRow:
    """One row of the result; its other columns are those of row ``number`` in ``batch``."""

    batch: pa.RecordBatch
    number: int
    keeps_message: bool
    uuid: str | None
    pieces: Sequence[Buffer] | None = field(repr=False)
    error: dict[str, str | None] | None
    size: int


def decoded(
    seal: Seal, unpacker: Unpacker, declared: str | None, pieces: list[Buffer], *, uuid: str, destination: str | None
) -> list[Buffer] | ClaimCheckError:
    """Return the payload of complete chunks: signature and checksum verified, decompressed and decrypted."""
    checksum, signatures = split_claims(declared)
    try:
        seal.check_chunks(signatures, uuid=uuid, count=len(pieces), pieces=pieces, destination=destination)
        error = checksum_error(checksum, pieces)
        return unpacker.pieces(pieces, uuid, destination=destination) if error is None else error
    except MESSAGE_ERRORS as error:
        return error


def is_genuine(seal: Seal, declared: str | None, *, uuid: str, destination: str | None) -> bool:
    """Whether an abort envelope is signed as the configuration requires; otherwise it is ignored, which is logged."""
    try:
        seal.check_abort(split_claims(declared)[1], uuid=uuid, destination=destination)
    except PointerRejectedError as error:
        _log.warning("ignored a message: %s", error)
        return False
    return True


def count(tally: Tally, row: OutputRow, *, store: str | None = None) -> None:
    """Count a payload that came as chunks, read from ``store``."""
    if row.error is not None:
        tally.row(0, error=row.error["type"])
    else:
        tally.row(row.size, store=store)


def cut(rows: Iterable[OutputRow], *, max_bytes: int) -> Iterator[list[OutputRow]]:
    """Group rows into batches by bytes; a larger row is a batch of its own."""
    batches, held, limit = [list[OutputRow]()], 0, min(max_bytes, MAX_COLUMN_BYTES)
    for row in rows:
        if batches[0] and held + row.size > limit:
            yield batches.pop()
            batches, held = [[]], 0
        batches[0].append(row)
        held += row.size
        del row
        if held >= limit or len(batches[0]) >= _MAX_ROWS:
            yield batches.pop()
            batches, held = [[]], 0
    if batches[0]:
        yield batches.pop()


def added_columns(rows: Sequence[OutputRow], kind: pa.DataType) -> list[pa.Array]:
    """Return the columns for uuid, payload and error; ``kind`` is ``large_binary`` where Spark uses it."""
    import pyarrow as pa

    uuids = pa.array([row.uuid for row in rows], type=pa.string())
    errors = pa.array([row.error for row in rows], type=arrow_error_type())
    return [uuids, _joined([row.pieces for row in rows], kind), errors]


def _joined(values: Sequence[Sequence[Buffer] | None], kind: pa.DataType) -> pa.Array:
    """Join the pieces of payloads; copies their bytes once, to where the JVM reads them."""
    import pyarrow as pa

    ends = array("q" if kind == pa.large_binary() else "i", [0])
    for pieces in values:
        ends.append(ends[-1] + sum(map(len, pieces or ())))
    valid = pa.array([pieces is not None for pieces in values], type=pa.bool_()).buffers()[1]
    data = b"".join(piece for pieces in values for piece in pieces or ())
    return pa.Array.from_buffers(kind, len(values), [valid, pa.py_buffer(ends), pa.py_buffer(data)])
