"""Check plain data (what YAML gives) against the type hints of what it is to become.

One checker serves the configuration's dataclasses and the constructors of stores, strangers' stores included. It
needs the standard library only, because the second job is also done in Spark workers that have nothing else.
"""

from __future__ import annotations

import dataclasses
import difflib
import inspect
import types
import typing
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, NoReturn, TypeVar

from claimcheck.errors import ConfigError

__all__ = [
    "AutoBytes",
    "ByteCount",
    "Count",
    "Option",
    "Range",
    "Seconds",
    "Size",
    "build",
    "check_options",
    "fail",
    "options_of",
]

T = TypeVar("T")


@dataclasses.dataclass(frozen=True, slots=True)
class Range:
    """The least number that an option may be."""

    minimum: float


ByteCount = Annotated[int, Range(1)]
Count = Annotated[int, Range(1)]
Size = Annotated[int, Range(0)]
Seconds = Annotated[float, Range(0)]
AutoBytes = Size | Literal["auto"]


@dataclasses.dataclass(frozen=True, slots=True)
class Option:
    """What one key of a mapping may hold."""

    hint: Any
    required: bool


def fail(path: str, *, found: str, expected: str) -> NoReturn:
    """Raise the `ConfigError` for one place in the configuration."""
    raise ConfigError(f"{path}: found {found}, expected {expected}", path=path, found=found, expected=expected)


def options_of(target: Callable[..., Any]) -> dict[str, Option]:
    """Read the options of a class or function from its signature."""
    function = target.__init__ if inspect.isclass(target) and not dataclasses.is_dataclass(target) else target
    hints = typing.get_type_hints(function, include_extras=True)
    parameters = inspect.signature(target).parameters.values()
    named = [p for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    return {p.name: Option(hints.get(p.name, Any), p.default is p.empty) for p in named}


def build(target: type[T], raw: Any, path: str) -> T:
    """Make a dataclass from a mapping, nested ones included.

    Raises:
        ConfigError: With the path of the first thing that does not fit.
    """
    return target(**check_options(options_of(target), raw, path))


def check_options(options: Mapping[str, Option], raw: Any, path: str) -> dict[str, Any]:
    """Check a mapping key by key and return its converted values.

    Raises:
        ConfigError: Unknown or missing key, wrong type, number out of range; names the nearest known key.
    """
    if not isinstance(raw, Mapping):
        fail(path or "configuration", found=_describe(raw), expected="a mapping")
    for name in raw:
        if name not in options:
            _unknown(name, options, path)
    for name, option in options.items():
        if option.required and name not in raw:
            fail(_join(path, name), found="nothing", expected=_expected(option.hint))
    return {name: _convert(options[name].hint, value, _join(path, name)) for name, value in raw.items()}


def _unknown(name: Any, options: Mapping[str, Option], path: str) -> NoReturn:
    near = difflib.get_close_matches(str(name), options, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    fail(_join(path, str(name)), found="an unknown key", expected=f"one of {', '.join(sorted(options))}{hint}")


def _convert(hint: Any, value: Any, path: str) -> Any:
    origin = typing.get_origin(hint)
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return build(hint, value, path)
    if origin is not None and inspect.isclass(origin) and issubclass(origin, Mapping):
        if not isinstance(value, Mapping):
            fail(path, found=_describe(value), expected="a mapping")
        return {
            _key(name, path): _convert(typing.get_args(hint)[1], item, _join(path, name))
            for name, item in value.items()
        }
    if not _fits(hint, value):
        fail(path, found=_describe(value), expected=_expected(hint))
    return value


def _key(name: Any, path: str) -> str:
    if not isinstance(name, str):
        fail(path, found=f"the key {name!r}", expected="names as text; put it in quotes")
    return name


def _fits(hint: Any, value: Any) -> bool:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return True
    if origin is Annotated:
        bounds = [a.minimum for a in hint.__metadata__ if isinstance(a, Range)]
        return _fits(args[0], value) and (value is None or all(value >= low for low in bounds))
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
        low = [a.minimum for a in hint.__metadata__ if isinstance(a, Range)]
        return _expected(args[0]) + (f" of at least {low[0]:g}" if low else "")
    if origin in (typing.Union, types.UnionType):
        return " or ".join(_expected(arg) for arg in args)
    if origin is Literal:
        return " or ".join(repr(arg) for arg in args)
    names = {int: "an integer", float: "a number", str: "text", bool: "true or false", type(None): "nothing"}
    return names.get(hint, "a mapping" if dataclasses.is_dataclass(hint) else getattr(hint, "__name__", str(hint)))


def _describe(value: Any) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, str):
        return "text" if "://" in value or "@" in value or len(value) > 40 else repr(value)  # may hold a password
    return f"a {'mapping' if isinstance(value, Mapping) else type(value).__name__}"


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else str(name)
