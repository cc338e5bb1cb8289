"""Options as Spark hands them over: all of them texts, whatever their case; looked at before anything is opened."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

from claimcheck._validation import fail
from claimcheck.config import Config
from claimcheck.spark._worker import as_config, check_store_paths, check_writing
from claimcheck.spark.sources._admission_control import Budget

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.streaming.datasource import ReadLimit
    from pyspark.sql.types import StructType

__all__ = [
    "arrow_schema",
    "as_ddl",
    "check_columns",
    "choice",
    "COUNT",
    "default_limit",
    "Kind",
    "parse",
    "refuse_overwrite",
    "require",
    "SECONDS",
    "sink_config",
    "TEXT",
    "TRUTH",
]

_OF_SPARK = {"checkpointlocation", "queryname"}  # what Spark itself hands on with the options of a sink
_MAX_SECONDS = 86_400
_MAX_COUNT = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Kind:
    """How a text becomes a value; whatever raises a ``ValueError`` is refused with what was expected."""

    convert: Callable[[str], Any]
    expected: str


def parse(raw: Mapping[str, str], known: Mapping[str, Kind]) -> dict[str, Any]:
    """Check options and return their values, by the names in ``known``.

    Raises:
        ConfigError: An option is unknown or cannot be used. What may be a secret is not quoted.
    """
    names = {name.lower(): name for name in known}
    values = {}
    for given, text in raw.items():
        if given.lower() in _OF_SPARK:
            continue
        name = names.get(given.lower())
        if name is None:
            _unknown(given, known)
        values[name] = _convert(name, text, known[name])
    return values


def require(values: Mapping[str, Any], name: str, expected: str) -> Any:
    """Give an option that must be there.

    Raises:
        ConfigError: It is not.
    """
    if values.get(name) is None:
        fail(name, found="nothing", expected=expected)
    return values[name]


def sink_config(config: str | None, topic: str, *, relative_paths: bool) -> Config | None:
    """Read the configuration that a sink offloads with.

    Args:
        config: The path of its file, if there is one.
        topic: That all rows go to; empty where they say it themselves.
        relative_paths: Whether stores may have relative paths.

    Raises:
        ConfigError: It cannot be used here.
    """
    if config is None:
        return None
    known = as_config(config)
    own = known.for_destination(topic)
    check_writing(own)
    if not relative_paths:
        check_store_paths(own)
    return known


def refuse_overwrite(overwrite: bool) -> None:
    """Refuse to overwrite a topic, which only ever grows.

    Raises:
        ConfigError: That was wanted.
    """
    if overwrite:
        fail("mode", found="'overwrite'", expected="'append': a topic only ever grows")


def choice(*words: str) -> Kind:
    """Make the kind that is one of a few words."""

    def convert(text: str) -> str:
        if text.lower() not in words:
            raise ValueError(text)
        return text.lower()

    return Kind(convert, " or ".join(map(repr, words)))


def _convert(name: str, text: str, kind: Kind) -> Any:
    try:
        return kind.convert(text.strip())
    except ValueError:
        hidden = len(text) > 20 or not text.isprintable() or any(sign in text for sign in ":/@")
        fail(name, found="text" if hidden else repr(text), expected=kind.expected)


def _unknown(name: str, known: Mapping[str, Kind]) -> NoReturn:
    lower = {each.lower(): each for each in known}
    near = difflib.get_close_matches(name.lower(), lower, n=1)
    hint = f"; did you mean {lower[near[0]]!r}?" if near else ""
    fail(name, found="an unknown option", expected=f"one of {', '.join(sorted(known))}{hint}")


def _text(text: str) -> str:
    if not text:
        raise ValueError(text)
    return text


def _count(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= _MAX_COUNT:
        raise ValueError(text)
    return int(text)


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 < value <= _MAX_SECONDS:
        raise ValueError(text)
    return value


def _truth(text: str) -> bool:
    return {"true": True, "false": False}[text.lower()] if text.lower() in ("true", "false") else _no(text)


def _no(text: str) -> NoReturn:
    raise ValueError(text)


TEXT = Kind(_text, "text")
COUNT = Kind(_count, f"an integer of at least 1, and at most {_MAX_COUNT}")
SECONDS = Kind(_seconds, f"a number of seconds above 0 and at most {_MAX_SECONDS}")
TRUTH = Kind(_truth, "'true' or 'false'")


def arrow_schema(schema: StructType) -> pa.Schema:
    """Give the types that Spark compares batches with, to the letter."""
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(schema, timezone="UTC")


def as_ddl(columns: Mapping[str, str]) -> str:
    """Write columns as Spark reads them."""
    return ", ".join(f"{name} {kind}" for name, kind in columns.items())


def check_columns(schema: StructType, columns: Mapping[str, str]) -> StructType:
    """Accept a schema that a user gave: some of the columns, which are then the only ones to be made.

    Args:
        schema: The user's.
        columns: All that there are, and their types.

    Raises:
        ConfigError: A column that there is not, or one of another type.
    """
    names = [field.name for field in schema.fields]
    if not names or len(set(names)) < len(names):
        fail("schema", found=", ".join(names) or "no columns", expected=f"some, each once, of: {as_ddl(columns)}")
    for field in schema.fields:
        kind = field.dataType.simpleString()
        if columns.get(field.name) != kind:
            fail("schema", found=f"{field.name} {kind}", expected=f"columns out of: {as_ddl(columns)}")
    return schema


def default_limit(budget: Budget) -> ReadLimit:
    """Tell Spark about a limit, in the word that it has for it."""
    from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows

    if budget.rows is not None:
        return ReadMaxRows(budget.rows)
    return ReadAllAvailable() if budget.size is None else ReadMaxBytes(budget.size)
