"""Checks values against type hints: the configuration's mappings, and arguments of constructors.

One checker serves the configuration's dataclasses, the constructors of stores (third-party stores included) and those
of the transports' wrappers. It needs the standard library only, because Spark workers that open stores may have
nothing else. A value that may be a secret is never quoted: the error names its place and its type.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import inspect
import math
import re
import threading
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, Literal, NoReturn, TypeVar

from claimcheck.errors import ArgumentTypeError, ConfigError

__all__ = [
    "MAX_SECONDS",
    "SECRET",
    "AutoBytes",
    "ByteCount",
    "Check",
    "Count",
    "Option",
    "Range",
    "Seconds",
    "Size",
    "Timeout",
    "build",
    "check_arguments",
    "check_cc",
    "check_int",
    "check_options",
    "check_seconds",
    "check_type",
    "check_value",
    "fail",
    "options_of",
    "without_secrets",
]

T = TypeVar("T")

MAX_SECONDS = 10**10
"""The longest life of a payload, some three hundred years: a time that every medium can still write down."""

_REST = "**"  # the name under which a signature's `**options` stands among the options
_PASSWORD = re.compile(r"(//)\S*(?=@)|(password=)[^&\s'\"]+", re.IGNORECASE)


@dataclasses.dataclass(frozen=True, slots=True)
class Range:
    """What a number may be, both ends included."""

    minimum: float
    maximum: float = math.inf

    def allows(self, value: Any) -> bool:
        """Whether a number lies within."""
        return bool(self.minimum <= value <= self.maximum)

    def describe(self, kind: str) -> str:
        """Say what is expected of a ``kind``."""
        most = f" and at most {self.maximum}" if self.maximum < math.inf else ""
        return f"{kind} of at least {self.minimum}{most}"


@dataclasses.dataclass(frozen=True, slots=True)
class Check:
    """What a value has to pass beyond its type, and that in words."""

    allows: Callable[[Any], bool]
    expected: str

    def describe(self, kind: str) -> str:
        """Say what is expected; the words tell the kind already."""
        return self.expected


class _Secret:
    """Marks, in `typing.Annotated`, what is never quoted."""


SECRET = _Secret()
"""Put into `typing.Annotated`: no value from here on downwards is ever quoted."""

ByteCount = Annotated[int, Range(1)]
Count = Annotated[int, Range(1)]
Size = Annotated[int, Range(0)]
Seconds = Annotated[float, Range(0, MAX_SECONDS)]
Timeout = Annotated[float, Range(0.001, 86_400)]
AutoBytes = Size | Literal["auto"]


@dataclasses.dataclass(frozen=True, slots=True)
class Option:
    """What one key of a mapping may hold."""

    hint: Any
    required: bool


def fail(path: str, *, found: str, expected: str) -> NoReturn:
    """Raise the `ConfigError` for one place in the configuration."""
    raise ConfigError(f"{path}: found {found}, expected {expected}", path=path, found=found, expected=expected)


def without_secrets(text: str) -> str:
    """Take out of a text what stands before the host of an address, and passwords in a query."""
    return _PASSWORD.sub(r"\1\2***", text)


def options_of(target: Callable[..., Any]) -> dict[str, Option]:
    """Read the options of a class or function from its signature; with ``**options`` it takes any name."""
    function = target.__init__ if inspect.isclass(target) and not dataclasses.is_dataclass(target) else target
    hints = typing.get_type_hints(function, include_extras=True)
    parameters = inspect.signature(target).parameters.values()
    named = [p for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    options = {p.name: Option(hints.get(p.name, Any), p.default is p.empty) for p in named}
    for rest in (p for p in parameters if p.kind is p.VAR_KEYWORD):
        options[_REST] = Option(hints.get(rest.name, Any), required=False)
    return options


def build(target: type[T], raw: Any, path: str, *, secret: bool = False) -> T:
    """Make a dataclass from a mapping, nested ones included.

    Raises:
        ConfigError: With the path of the first thing that does not fit.
    """
    options = options_of(target)
    _no_placeholders(options, raw, path)
    return target(**check_options(options, raw, path, secret=secret))


def check_options(options: Mapping[str, Option], raw: Any, path: str, *, secret: bool = False) -> dict[str, Any]:
    """Check a mapping key by key and return its converted values.

    Args:
        options: What may stand there.
        raw: What stands there.
        path: Where, in the configuration.
        secret: Whether texts, and numbers where a text may stand, are kept out of errors.

    Raises:
        ConfigError: Unknown or missing key, wrong type, number out of range; names the nearest known key.
    """
    if not isinstance(raw, Mapping):
        fail(path or "configuration", found=_describe(raw, secret=secret), expected="a mapping")
    for name in raw:
        if name not in options and not (_REST in options and isinstance(name, str)):
            _unknown(name, options, path)
    for name, option in options.items():
        if option.required and name not in raw:
            fail(_join(path, name), found="nothing", expected=_expected(option.hint))
    hints = {name: options[name if name in options else _REST].hint for name in raw}
    return {name: _convert(hints[name], value, _join(path, name), secret) for name, value in raw.items()}


def check_arguments(target: Callable[..., Any], **arguments: Any) -> None:
    """Check arguments in a constructor as the configuration would have, for whoever calls it in Python.

    Raises:
        ConfigError: Its path is the argument's name; `claimcheck._registry.build_store` puts the store's before it.
    """
    options = {name: option for name, option in options_of(target).items() if name in arguments}
    check_options(options, arguments, "", secret=True)


def check_value(name: str, value: object, hint: object) -> None:
    """Check an argument against a type hint, whose `Range` and `Check` annotations count.

    Raises:
        ConfigError: It does not match; names the argument, what was found and what is expected.
    """
    _convert(hint, value, name, secret=False)


def check_int(name: str, value: object, *, minimum: int, maximum: float = math.inf) -> None:
    """Check that an argument is an integer within bounds; ``True`` and ``False`` are not integers.

    Raises:
        ConfigError: It is not; names the argument, what was found and what is expected.
    """
    check_value(name, value, Annotated[int, Range(minimum, maximum)])


def check_seconds(name: str, value: object, *, minimum: float = 0.0, allow_zero: bool = False) -> None:
    """Check that an argument is a time in seconds that a thread can wait for, so neither NaN nor infinite.

    Args:
        name: The argument's name.
        value: Its value.
        minimum: The smallest value.
        allow_zero: Whether 0 is allowed where ``minimum`` is 0.

    Raises:
        ConfigError: It is not; names the argument, what was found and what is expected.
    """
    if minimum or allow_zero:
        allowed: Range | Check = Range(minimum, threading.TIMEOUT_MAX)
    else:
        allowed = Check(lambda seconds: 0 < seconds <= threading.TIMEOUT_MAX, "a number of seconds above 0")
    check_value(name, value, Annotated[float, allowed])


def check_type(name: str, value: object, *, valid: bool, expected: str) -> None:
    """Check that an argument is the kind of object that is needed.

    Args:
        name: The argument's name.
        value: Its value, which is not quoted.
        valid: Whether it is such an object.
        expected: What is needed, for the error.

    Raises:
        ArgumentTypeError: It is not; a `ConfigError` that is also a `TypeError`.
    """
    if not valid:
        found = type(value).__name__
        text = f"{name}: found an object of type {found}, expected {expected}"
        raise ArgumentTypeError(text, path=name, found=found, expected=expected)


def check_cc(cc: object) -> None:
    """Check that an argument called ``cc`` is a `claimcheck.ClaimCheck`, which modules below it do not import.

    Raises:
        ArgumentTypeError: It is not, for example the path of a YAML file; says what to pass.
    """
    valid = all(hasattr(cc, name) for name in ("offload", "aresolve", "seal"))
    check_type(
        "cc", cc, valid=valid, expected="a claimcheck.ClaimCheck, for example claimcheck.load('claimcheck.yaml')"
    )


def _unknown(name: Any, options: Mapping[str, Option], path: str) -> NoReturn:
    near = difflib.get_close_matches(str(name), options, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    known = f"one of {', '.join(sorted(options))}{hint}" if options else "nothing: there are no options"
    fail(_join(path, str(name)), found="an unknown key", expected=known)


def _no_placeholders(options: Mapping[str, Option], raw: Any, path: str) -> None:
    """Outside of mappings of a user's own nobody would resolve them: a name would be taken for the value."""
    for name, value in raw.items() if isinstance(raw, Mapping) else ():
        if name in options and isinstance(value, str) and "${" in value:
            expected = f"{_expected(options[name].hint)}; placeholders work only in store options and signing keys"
            fail(_join(path, name), found="a placeholder", expected=expected)


def _convert(hint: Any, value: Any, path: str, secret: bool) -> Any:
    if typing.get_origin(hint) is Annotated:
        secret = secret or SECRET in hint.__metadata__
    bare = _bare(hint)
    if dataclasses.is_dataclass(bare) and isinstance(bare, type):
        return build(bare, value, path, secret=secret)
    origin = typing.get_origin(bare)
    if inspect.isclass(origin) and issubclass(origin, Mapping):
        return _convert_mapping(typing.get_args(bare)[1], value, path, secret)
    if not _fits(hint, value):
        fail(path, found=_describe(value, hint, secret=secret), expected=_expected(hint))
    return value


def _convert_mapping(hint: Any, value: Any, path: str, secret: bool) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        fail(path, found=_describe(value, secret=secret), expected="a mapping")
    for name in value:
        if not isinstance(name, str):
            found = f"a key that is {_describe(name, secret=True)}" if secret else f"the key {name!r}"
            fail(path, found=found, expected="names as text; put it in quotes")
    return {name: _convert(hint, item, _join(path, name), secret) for name, item in value.items()}


def _bare(hint: Any) -> Any:
    return typing.get_args(hint)[0] if typing.get_origin(hint) is Annotated else hint


def _constraints(hint: Any) -> list[Range | Check]:
    return [a for a in hint.__metadata__ if isinstance(a, (Range, Check))]


def _fits(hint: Any, value: Any) -> bool:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return True
    if origin is Annotated:
        fits = _fits(args[0], value)
        return fits and (value is None or all(constraint.allows(value) for constraint in _constraints(hint)))
    if origin in (typing.Union, types.UnionType):
        return any(_fits(arg, value) for arg in args)
    if origin is Literal:
        return any(type(value) is type(arg) and value == arg for arg in args)
    if hint in (int, float):  # a bool is an int to Python, never to a reader of YAML
        return not isinstance(value, bool) and isinstance(value, int if hint is int else (int, float))
    kind = origin or hint
    return isinstance(value, kind) if inspect.isclass(kind) else True


def _expected(hint: Any) -> str:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        return functools.reduce(lambda kind, each: each.describe(kind), _constraints(hint), _expected(args[0]))
    if origin in (typing.Union, types.UnionType):
        return " or ".join(_expected(arg) for arg in args)
    if origin is Literal:
        return " or ".join(repr(arg) for arg in args)
    names = {int: "an integer", float: "a number", str: "text", bool: "true or false", type(None): "nothing"}
    return names.get(hint, "a mapping" if dataclasses.is_dataclass(hint) else getattr(hint, "__name__", str(hint)))


def _describe(value: Any, hint: Any = Any, *, secret: bool = False) -> str:
    """Quote a value, or tell its kind only where it may be a secret: all texts, and numbers where no number belongs."""
    if value is None:
        return "nothing"
    if isinstance(value, (int, float)):
        return "a number" if secret and not {int, float}.issuperset(_leaves(hint)) else repr(value)
    if isinstance(value, str):
        hidden = secret or "://" in value or "@" in value or len(value) > 40  # may hold a password
        return "text" if hidden else repr(value)
    return f"a {'mapping' if isinstance(value, Mapping) else type(value).__name__}"


def _leaves(hint: Any) -> Iterator[Any]:
    """The plain types that a hint is made of."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        yield from map(type, args)
    elif origin in (Annotated, typing.Union, types.UnionType):
        for arg in args[:1] if origin is Annotated else args:
            yield from _leaves(arg)
    elif hint is not type(None):
        yield hint


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else str(name)
