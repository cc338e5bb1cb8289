"""The options of sources, checked before any I/O, and the errors that end their queries.

Spark passes options as texts with names in any case. It shows class and text of the error that ended a query.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping
from dataclasses import fields
from typing import Annotated, Any, Literal, get_args, get_origin

from claimcheck._validation import Check, Option, Range, check_options, fail
from claimcheck.errors import TransportError

Values = dict[str, Any]
"""Parsed options by name."""

TEXT = Annotated[str, Check(bool, "text")]
COUNT = Annotated[int, Range(1, 2**31 - 1)]


def parse(raw: Mapping[str, str], known: Mapping[str, object]) -> Values:
    """Check options and return their values, by the names in ``known``, which has their type hints."""
    names = {name.lower(): name for name in known}
    given = {names.get(name.lower(), name): text for name, text in raw.items()}
    values = {name: _converted(text.strip(), known.get(name)) for name, text in given.items()}
    return check_options({name: Option(hint, required=False) for name, hint in known.items()}, values, "")


def _converted(text: str, hint: object) -> object:
    """Return a text as a value for a hint, or unchanged if it cannot be one."""
    if hint is bool:
        return {"false": False, "true": True}.get(text.lower(), text)
    if get_origin(hint) is Literal:
        return text.lower()
    kind = (*get_args(hint), str)[0]
    if kind in (int, float):
        with contextlib.suppress(ValueError):
            return kind(text)
    return text


def by_field(kind: Any, values: Values) -> Values:
    """Return the values whose names, written ``with_underscores``, are fields of a dataclass."""
    snake = {re.sub("(?=[A-Z])", "_", name).lower(): value for name, value in values.items()}
    return {each.name: snake[each.name] for each in fields(kind) if each.name in snake}


def require(values: Values, name: str, expected: str) -> str:
    """Return a text that is not optional; raises `ConfigError` if it is missing."""
    if name not in values:
        fail(name, found="nothing", expected=expected)
    return str(values[name])


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
