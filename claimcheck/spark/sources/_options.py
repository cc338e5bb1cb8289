"""The options of sources and sinks, checked before any I/O, and the errors that end their queries.

Spark passes options as texts with names in any case. It shows class and text of the error that ended a query.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from claimcheck._validation import did_you_mean, fail
from claimcheck.errors import TransportError

_OF_SPARK = {"checkpointlocation", "queryname"}  # which Spark passes with the options of a sink
_MAX_SECONDS = 86_400
_MAX_COUNT = 2**31 - 1

Values = dict[str, Any]
"""Parsed options by name."""


@dataclass(frozen=True, slots=True)
class OptionType:
    """How a text becomes a value: ``convert`` raises `ValueError` for a text that is not as ``expected``."""

    convert: Callable[[str], object]
    expected: str


def parse(raw: Mapping[str, str], known: Mapping[str, OptionType]) -> Values:
    """Check options and return their values, by the names in ``known``."""
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


def require(values: Values, name: str, expected: str) -> str:
    """Return a text that is not optional; raises `ConfigError` if it is missing."""
    value: str | None = values.get(name)
    if value is None:
        fail(name, found="nothing", expected=expected)
    return value


def choice(*words: str) -> OptionType:
    """Return the type of an option that is one of a few words."""
    return OptionType(lambda text: words[words.index(text.lower())], " or ".join(map(repr, words)))


def _convert(name: str, text: str, option: OptionType) -> object:
    try:
        return option.convert(text.strip())
    except ValueError:
        hidden = len(text) > 20 or not text.isprintable() or any(sign in text for sign in ":/@")
        fail(name, found="text" if hidden else repr(text), expected=option.expected)


def _unknown(name: str, known: Mapping[str, OptionType]) -> NoReturn:
    expected = f"one of {', '.join(sorted(known))}{did_you_mean(name, known)}"
    fail(name, found="an unknown option", expected=expected)


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


TEXT = OptionType(_text, "text")
COUNT = OptionType(_count, f"an integer of at least 1, and at most {_MAX_COUNT}")
SECONDS = OptionType(_seconds, f"a number of seconds above 0 and at most {_MAX_SECONDS}")
TRUTH = OptionType(lambda text: ("false", "true").index(text.lower()) == 1, "'true' or 'false'")


# Errors -----------------------------------------------------------------------------------------------------------


class AccessError(TransportError):
    """The broker refuses this process, or its certificate is not trusted. Nothing is committed.

    The text names the option to change. It contains no part of a token.
    """


class DataLossError(TransportError):
    """The messages after the checkpoint are no longer in the topic. Nothing was read, and the checkpoint is kept."""


class ForeignMessageError(TransportError):
    """A message that this source cannot read. Nothing of its micro-batch is committed, and the checkpoint is kept."""


class SubscriptionBusyError(TransportError):
    """Another consumer holds the subscription of this query, perhaps a second run of it. Nothing was read."""

    retryable = True


class RowSendError(TransportError):
    """A row was not sent, or the result is unknown; other rows of its task may have been sent.

    Attributes:
        row: Its number in its task, from 0.
    """

    row = None
