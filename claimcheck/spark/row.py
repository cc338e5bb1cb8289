"""One row in a worker: its columns as Python has them, and what becomes of it when its payload cannot be had."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from claimcheck.config import Config
from claimcheck.errors import ClaimCheckError
from claimcheck.spark.columns import row_source
from claimcheck.spark.core import check_choice, is_bad_message
from claimcheck.validation import fail

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Columns", "DeadLetter", "Faults", "OnError", "ResultError", "Row"]

_ROWS_AT_ONCE, _BYTES_AT_ONCE = 256, 1 << 20

OnError = Literal["fail", "null", "dead_letter"]
"""What becomes of a row whose payload cannot be had: the task fails, the row says why, or somebody else gets it."""


class ResultError(ClaimCheckError, TypeError):
    """What a function made of a payload does not fit the columns that were promised."""


class Row(NamedTuple):
    """One row of an Arrow batch, whose columns stand at their places; ``names`` has what people call them."""

    batch: pa.RecordBatch
    number: int
    names: tuple[str, ...] = ()

    def values(self) -> dict[str, Any]:
        """Its columns by their names, as Python has them."""
        return self.values_of(range(self.batch.num_columns))

    def values_of(self, columns: Iterable[int]) -> dict[str, Any]:
        """Some of its columns, by their places."""
        return {self.names[place]: self.batch.column(place)[self.number].as_py() for place in columns}


class Columns:
    """Rows as dictionaries, one after the other: columns become Python's some rows at a time, which is much quicker.

    Args:
        names: Of the columns.
    """

    def __init__(self, names: tuple[str, ...]) -> None:
        self._names = names
        self._batch: pa.RecordBatch | None = None
        self._start = self._stop = 0
        self._values: list[list[Any]] = []

    def of(self, row: Row) -> dict[str, Any]:
        """One row, all columns."""
        if row.batch is not self._batch or not self._start <= row.number < self._stop:
            self._read(row)
        return dict(zip(self._names, (column[row.number - self._start] for column in self._values), strict=True))

    def _read(self, row: Row) -> None:
        batch, self._start = row.batch, row.number
        some = min(_ROWS_AT_ONCE, max(1, _BYTES_AT_ONCE * len(batch) // max(1, batch.nbytes)))
        self._batch, self._stop = batch, min(len(batch), row.number + some)
        self._values = [column.slice(self._start, some).to_pylist() for column in batch.columns]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """A row whose payload could not be had.

    Attributes:
        row: All its columns, the message among them.
        error: Why.
        source: Where the row came from, as far as its columns tell.
    """

    row: dict[str, Any] = field(repr=False)
    error: Exception
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """What becomes of rows whose payload cannot be had.

    Attributes:
        on_error: See `OnError`.
        dead_letter: Called in the worker with each such row, which then leaves the DataFrame.

    Raises:
        ConfigError: One without the other.
    """

    on_error: OnError = "fail"
    dead_letter: Callable[[DeadLetter], object] | None = None

    def __post_init__(self) -> None:
        check_choice("on_error", self.on_error, "fail", "null", "dead_letter")
        if (self.on_error == "dead_letter") != callable(self.dead_letter):
            expected = "a function of a DeadLetter, together with on_error='dead_letter'"
            fail("dead_letter", found=repr(self.dead_letter), expected=expected)

    def keeps(self, row: Row, error: Exception, config: Config) -> bool:
        """Whether the row stays, to say what is wrong with it.

        Args:
            row: The row.
            error: Why it has no payload.
            config: Of the job.

        Raises:
            Exception: The error, if it is to fail the task; with a note that says which row it was.
        """
        if self.on_error == "fail" or _affects_all(error, config):
            if source := row_source(row.values()):
                error.add_note(f"Row: {source}")
            raise error
        if self.dead_letter is None:
            return True
        values = row.values()
        self.dead_letter(DeadLetter(row=values, error=error, source=row_source(values)))
        return False


def _affects_all(error: Exception, config: Config) -> bool:
    """Whether an error is not about one row; what the user's function raises or returns always is."""
    if not isinstance(error, ClaimCheckError) or isinstance(error, ResultError):
        return False
    return not is_bad_message(error, config)
