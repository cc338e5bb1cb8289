"""What SQL and other engines use: the function `claimcheck_resolve`, and references to stored payloads as files."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from claimcheck._wire.pointer import Pointer
from claimcheck.errors import PayloadTypeError
from claimcheck.spark._columns import Origin, find_field, header_pairs
from claimcheck.spark._reading import MAX_INFLIGHT_BYTES, OnError, Reading, ResolveStage, with_results
from claimcheck.spark._resolve import MapStage, parsed_schema
from claimcheck.spark._worker import AnyConfig, claim_check

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame


def sql_function(config: AnyConfig) -> Any:
    """Return the function ``claimcheck_resolve``; see `claimcheck.spark.register`."""
    import pandas as pd
    from pyspark.sql.functions import pandas_udf  # type: ignore[attr-defined]

    reading = replace(Reading.of(config, MAX_INFLIGHT_BYTES, None), origin=Origin(topic=2, headers=1))
    stage = ResolveStage(reading, 0, ("value", "headers", "topic"))

    def claimcheck_resolve(batches):  # type: ignore[no-untyped-def]
        for resolved in stage(_arguments(*(given if isinstance(given, tuple) else (given,))) for given in batches):
            yield resolved.column(3).to_pandas()

    claimcheck_resolve.__annotations__ = {"batches": Iterator[tuple[pd.Series, ...]], "return": Iterator[pd.Series]}
    # Otherwise Spark calls it again for each use of its result.
    return pandas_udf(claimcheck_resolve, "binary").asNondeterministic()


def _arguments(*given: Any) -> pa.RecordBatch:
    """Return the arguments of one batch: the messages, and their headers and topics, or nulls."""
    import pyarrow as pa

    types = {"value": pa.binary(), "headers": pa.map_(pa.string(), pa.binary()), "topic": pa.string()}
    try:
        value, headers, topic = given + (None,) * (3 - len(given))
        missing = [None] * len(value)
        pairs = missing if headers is None else [header_pairs(each) for each in headers]
        columns = {"value": value.tolist(), "headers": pairs, "topic": missing if topic is None else topic}
        return pa.RecordBatch.from_pydict(columns, pa.schema(types))
    except (TypeError, ValueError) as error:
        text = "claimcheck_resolve takes value (binary), headers (an array of structs, or a map) and topic (string)"
        raise PayloadTypeError(text) from error


# References to files -------------------------------------------------------------------------------------------------

_FILE = "file struct<uri:string,offset:bigint,size:bigint,content_type:string,checksum:string,inline:binary>"
_FILE_CHECKSUMS = {"crc32": "CRC32", "sha256": "SHA-256"}


def as_file(
    column: str, *, config: AnyConfig, destination: str | None = None, on_error: OnError = "fail"
) -> Callable[[DataFrame], DataFrame]:
    """Return a function that adds where payloads are stored, for ``df.transform`` and engines that read files.

    Adds ``file``, a struct with the fields of Parquet's logical type FILE: ``uri``, ``offset`` (null: the whole file),
    ``size``, ``content_type`` (null), ``checksum`` (``CRC32:`` or ``SHA-256:`` and hexadecimal digits) and ``inline``,
    the bytes of a message that has no pointer. Null stays null. Pointers are checked as `resolve` checks them, but no
    store is read: an engine that follows the URI has to verify the checksum, and finds nothing once a payload expired.

    Args:
        column: As in `resolve`.
        config: As in `resolve`.
        destination: As in `resolve`.
        on_error: As in `resolve`. A payload that no URI leads to is an error of its row: in a store other than
            ``filesystem``, ``s3`` and ``obstore``, compressed or encrypted.

    Raises:
        ConfigError, MissingDependencyError: As `resolve`.
    """
    reading = Reading.of(config, MAX_INFLIGHT_BYTES, None, on_error)

    def transform(df: DataFrame) -> DataFrame:
        schema, path = parsed_schema(df, _FILE), find_field(df, "column", column)
        stage = _FileStage(reading.at(df, destination), path, tuple(df.columns), schema, _inline, False, False)
        return with_results(df, stage, {"file": schema.fields[0].dataType})

    return transform


class _FileStage(MapStage):
    """Maps messages to references; where `MapStage` opens a pointer's payload, this one describes it."""

    def _opener(self, pointer: Pointer) -> Callable[[], Any]:
        uri = claim_check(self.reading.config).opened.messages.store_of(pointer).uri(pointer)
        if uri is None or pointer.codec or pointer.encryption:
            why = "compressed or encrypted" if uri else "in a store without URIs"
            raise PayloadTypeError(f"the payload is {why}: read it with resolve or map_payloads")
        algorithm, _, digest = (pointer.checksum or "").partition(":")
        checksum = f"{_FILE_CHECKSUMS[algorithm]}:{digest}" if algorithm in _FILE_CHECKSUMS else None
        return partial(dict, uri=uri, size=pointer.size, checksum=checksum)


def _inline(found: Any) -> dict[str, object]:
    return {"file": {"inline": found, "size": len(found)} if isinstance(found, bytes) else found()}
