"""Checks values against type hints: the configuration's mappings, and arguments of constructors.

One checker serves the configuration's dataclasses, the constructors of stores (third-party stores included) and those
of the transports' wrappers. It needs the standard library only, because Spark workers that open stores may have
nothing else. Errors never quote a value that may be a secret; they name its key and its type.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import math
import re
import threading
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Annotated, Any, Literal, NoReturn, TypeVar

from claimcheck.errors import ArgumentTypeError, ConfigError

T = TypeVar("T")

MAX_SECONDS = 10**10
"""The longest lifetime of a payload, about three hundred years: every store can represent that time."""

REST = "**"
"""The name of a signature's ``**options`` among its options."""

_PASSWORD = re.compile(r"(//)\S*(?=@)|(password=)[^&\s'\"]+|[\w.+-]*:[^\s/]\S*(?=@)", re.IGNORECASE)


@dataclasses.dataclass(frozen=True, slots=True)
class Range:
    """Bounds of a number, both inclusive."""

    minimum: float
    maximum: float = math.inf

    def allows(self, value: Any) -> bool:
        """Whether a number is within the bounds."""
        return bool(self.minimum <= value <= self.maximum)

    def describe(self, kind: str) -> str:
        """Return a description of a valid value; ``kind`` describes its type."""
        upper = f" and at most {self.maximum}" if self.maximum < math.inf else ""
        return f"{kind} of at least {self.minimum}{upper}"


@dataclasses.dataclass(frozen=True, slots=True)
class Check:
    """A condition on a value beyond its type, with its description."""

    allows: Callable[[Any], bool]
    expected: str

    def describe(self, kind: str) -> str:
        """Return the description, which includes the type."""
        return self.expected


SECRET = object()
"""In `typing.Annotated`: errors never quote this value or anything inside it."""

ByteCount = Annotated[int, Range(1)]
Count = Annotated[int, Range(1)]
Size = Annotated[int, Range(0)]
Seconds = Annotated[float, Range(0, MAX_SECONDS)]
Timeout = Annotated[float, Range(0.001, 86_400)]
Function = Annotated[str, Check(lambda name: re.fullmatch(r"\w[\w.]*:\w+", name) is not None, "module:function")]
AutoBytes = Size | Literal["auto"]


@dataclasses.dataclass(frozen=True, slots=True)
class Option:
    """The type hint of one key of a mapping."""

    hint: object
    required: bool


class Problems:
    """Collects the `ConfigError` of each ``with`` block, so that one error can report all of them."""

    def __init__(self) -> None:
        self._problems: dict[str, ConfigError] = {}

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: object, traceback: object) -> bool:
        if not isinstance(error, ConfigError) or isinstance(error, TypeError):
            return False  # a wrong argument is a mistake in the program, not in the configuration
        self.extend(error.problems)
        return True

    def __iter__(self) -> Iterator[ConfigError]:
        return iter(self._problems.values())

    def add(self, path: str, *, found: str, expected: str) -> None:
        """Add the problem of one key; see `fail`."""
        with self:
            fail(path, found=found, expected=expected)

    def extend(self, problems: Iterable[ConfigError]) -> None:
        """Add problems; one that is already present is ignored."""
        for problem in problems:
            self._problems.setdefault(str(problem), problem.with_traceback(None))

    def sections(self, prefix: str = "") -> set[str]:
        """Return the top-level keys that have a problem, below a prefix that ends with a dot."""
        paths = [problem.path for problem in self]
        return {path.removeprefix(prefix).partition(".")[0] for path in paths if path.startswith(prefix)}

    def raise_all(self) -> None:
        """Raise one error for all problems, if there are any."""
        if not self._problems:
            return
        first, count = next(iter(self)), len(self._problems)
        lines = [f"\n  {problem}" for problem in self]
        text = str(first) if count == 1 else f"the configuration has {count} problems:{''.join(lines)}"
        facts = {"path": first.path, "found": first.found, "expected": first.expected}
        raise ConfigError(text, **facts, _problems=tuple(self))


def fail(path: str, *, found: str, expected: str) -> NoReturn:
    """Raise the `ConfigError` for one key of the configuration."""
    raise ConfigError(f"{path}: found {found}, expected {expected}", path=path, found=found, expected=expected)


def without_secrets(text: str) -> str:
    """Replace user names and passwords in URLs, and passwords in queries."""
    return _PASSWORD.sub(lambda match: f"{match[1] or match[2] or ''}***", text)


def did_you_mean(name: object, known: Iterable[str]) -> str:
    """Return the end of an error text that names the most similar valid name, or an empty text."""
    near = _similar(name, known)
    return f"; did you mean {near[0]!r}?" if near else ""


def is_placeholder(value: object) -> bool:
    """Whether a value has a ``${NAME}`` in it."""
    return isinstance(value, str) and "${" in value


def options_of(target: Callable[..., object]) -> dict[str, Option]:
    """Return the options of a class or function from its signature; ``**options`` has the name `REST`."""
    function = target.__init__ if inspect.isclass(target) and not dataclasses.is_dataclass(target) else target
    hints = typing.get_type_hints(function, include_extras=True)
    parameters = inspect.signature(target).parameters.values()
    named = [p for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    options = {p.name: Option(hints.get(p.name, Any), p.default is p.empty) for p in named}
    for rest in (p for p in parameters if p.kind is p.VAR_KEYWORD):
        options[REST] = Option(hints.get(rest.name, Any), required=False)
    return options


def build(target: type[T], raw: object, path: str, *, secret: bool = False) -> T:
    """Make a dataclass from a mapping, nested dataclasses included."""
    return target(**check_options(options_of(target), raw, path, secret=secret, placeholders=False))


def check_options(
    options: Mapping[str, Option],
    raw: object,
    path: str,
    *,
    problems: Problems | None = None,
    secret: bool = False,
    placeholders: bool = True,
) -> dict[str, Any]:
    """Return the converted values of the valid keys; the other ones become ``problems``, or else one error."""
    found = Problems() if problems is None else problems
    if not isinstance(raw, Mapping):
        required = "".join(f" with {name}: {_expected(each.hint)}" for name, each in options.items() if each.required)
        found.add(path or "configuration", found=describe(raw, secret=secret), expected=f"a mapping{required}")
        raw, options = {}, {}
    misspelled = {near for name in raw if name not in options for near in _similar(name, options)}
    for name, option in options.items():
        if option.required and name not in raw and name not in misspelled:
            found.add(_join(path, name), found="nothing", expected=_expected(option.hint))
    values = {}
    for name, value in raw.items():
        with found:
            option, key = _option(options, name, path), _join(path, name)
            if not placeholders and is_placeholder(value):  # it would never be resolved
                expected = f"{_expected(option.hint)}; placeholders work only in store options and keys"
                fail(key, found="a placeholder", expected=expected)
            values[name] = _convert(option.hint, value, key, secret)
    if problems is None:
        found.raise_all()
    return values


def check_arguments(target: Callable[..., object], **arguments: object) -> None:
    """Check arguments in a constructor as the configuration does, for callers in Python."""
    options = {name: option for name, option in options_of(target).items() if name in arguments}
    check_options(options, arguments, "", secret=True)


def check_value(name: str, value: object, hint: object) -> None:
    """Check an argument against a type hint and the hint's `Range` and `Check` annotations."""
    _convert(hint, value, name, secret=False)


def check_int(name: str, value: object, *, minimum: int, maximum: float = math.inf) -> None:
    """Check that an argument is an integer within bounds; ``True`` and ``False`` are not integers."""
    check_value(name, value, Annotated[int, Range(minimum, maximum)])


def check_seconds(name: str, value: object, *, allow_zero: bool = False) -> None:
    """Check that an argument is a number of seconds that a thread can wait for, neither NaN nor infinite."""
    if allow_zero:
        allowed: Range | Check = Range(0.0, threading.TIMEOUT_MAX)
    else:
        allowed = Check(lambda seconds: 0 < seconds <= threading.TIMEOUT_MAX, "a number of seconds above 0")
    check_value(name, value, Annotated[float, allowed])


def check_type(name: str, value: object, *, valid: bool, expected: str) -> None:
    if not valid:
        found = type(value).__name__
        text = f"{name}: found an object of type {found}, expected {expected}"
        raise ArgumentTypeError(text, path=name, found=found, expected=expected)


def check_cc(cc: object) -> None:
    """Check that an argument called ``cc`` is a `claimcheck.ClaimCheck`, which lower modules do not import."""
    valid = all(hasattr(cc, name) for name in ("offload", "aresolve", "seal"))
    check_type("cc", cc, valid=valid, expected="a ClaimCheck, as claimcheck.load returns")


def constraints(hint: object) -> list[Range | Check]:
    """Return the `Range` and `Check` annotations of an `Annotated` type hint."""
    return [each for each in getattr(hint, "__metadata__", ()) if isinstance(each, (Range, Check))]


# Keys ----------------------------------------------------------------------------------------------------------


def option_of(options: Mapping[str, Option], name: object) -> Option | None:
    """Return the option of a name, which may be one of ``**options``."""
    return options.get(name) or options.get(REST) if isinstance(name, str) else None


def _option(options: Mapping[str, Option], name: object, path: str) -> Option:
    if option := option_of(options, name):
        return option
    known = f"one of {', '.join(sorted(options))}{did_you_mean(name, options)}"
    fail(
        _join(path, str(name)), found="an unknown key", expected=known if options else "nothing: this takes no options"
    )


def _similar(name: object, known: Iterable[str]) -> list[str]:
    import difflib  # slow to import

    return difflib.get_close_matches(str(name), list(known), n=1)


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else str(name)


# Values --------------------------------------------------------------------------------------------------------


def _convert(hint: object, value: object, path: str, secret: bool) -> Any:
    secret = secret or SECRET in getattr(hint, "__metadata__", ())
    bare = _bare(hint)
    if value is None and _fits(hint, None):
        return None
    if dataclasses.is_dataclass(bare) and isinstance(bare, type):
        return build(bare, value, path, secret=secret)
    origin = typing.get_origin(bare)
    if inspect.isclass(origin) and issubclass(origin, Mapping):
        return _convert_mapping(typing.get_args(bare)[1], value, path, secret)
    if origin is tuple and isinstance(value, (list, tuple)):
        item = typing.get_args(bare)[0]
        return tuple(_convert(item, each, f"{path}.{number}", secret) for number, each in enumerate(value))
    if not _fits(hint, value):
        fail(path, found=describe(value, hint, secret=secret), expected=_expected(hint))
    return value


def _convert_mapping(hint: object, value: object, path: str, secret: bool) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        fail(path, found=describe(value, secret=secret), expected="a mapping")
    problems, converted = Problems(), {}
    for name, item in value.items():
        with problems:
            if not isinstance(name, str):
                found = f"a key that is {describe(name, secret=True)}" if secret else f"the key {name!r}"
                fail(path, found=found, expected="names as text; put it in quotes")
            converted[name] = _convert(hint, item, _join(path, name), secret)
    problems.raise_all()
    return converted


def _bare(hint: object) -> Any:
    """Return a hint without its annotations, and without ``None`` if one alternative remains."""
    bare = typing.get_args(hint)[0] if typing.get_origin(hint) is Annotated else hint
    others = [each for each in typing.get_args(bare) if each is not type(None)] if _is_union(bare) else []
    return _bare(others[0]) if len(others) == 1 else bare


def _fits(hint: object, value: object) -> bool:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return True
    if origin is Annotated:
        return _fits(args[0], value) and (value is None or all(each.allows(value) for each in constraints(hint)))
    if _is_union(hint):
        return any(_fits(arg, value) for arg in args)
    if origin is Literal:
        return any(type(value) is type(arg) and value == arg for arg in args)
    if hint in (int, float):  # a bool is an int to Python, never to a reader of YAML
        return not isinstance(value, bool) and isinstance(value, int if hint is int else (int, float))
    kind = origin or hint
    return isinstance(value, kind) if inspect.isclass(kind) else True


def _expected(hint: object) -> str:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        return functools.reduce(lambda kind, each: each.describe(kind), constraints(hint), _expected(args[0]))
    if _is_union(hint):
        return " or ".join(_expected(arg) for arg in args)
    if origin is Literal:
        return " or ".join(repr(arg) for arg in args)
    names: dict[object, str] = {
        int: "an integer",
        float: "a number",
        str: "text",
        bool: "true or false",
        tuple[str, ...]: "a list of texts",
        type(None): "nothing",
    }
    return names.get(hint, "a mapping" if dataclasses.is_dataclass(hint) else getattr(hint, "__name__", str(hint)))


def describe(value: object, hint: object = Any, *, secret: bool = False) -> str:
    """Quote a value, or only name its type where it may be a secret: any text, or a number where none is valid."""
    if value is None:
        return "nothing"
    if isinstance(value, (int, float)):
        kinds = plain_types(hint)
        return repr(value) if not secret or (kinds and kinds <= {int, float}) else "a number"
    if isinstance(value, str):
        hidden = secret or "://" in value or "@" in value or len(value) > 40  # may hold a password
        return "text" if hidden else repr(value)
    return f"a {'mapping' if isinstance(value, Mapping) else type(value).__name__}"


def _is_union(hint: object) -> bool:
    return typing.get_origin(hint) in (typing.Union, types.UnionType)


def plain_types(hint: object) -> set[object]:
    """The plain types in a hint. The texts of a `Literal` do not count: any other value may be text or a number."""
    args = typing.get_args(hint)
    if typing.get_origin(hint) is Literal:
        return {type(arg) for arg in args if type(arg) is not str}
    if typing.get_origin(hint) is Annotated or _is_union(hint):
        inner = args if _is_union(hint) else args[:1]
        return set[object]().union(*map(plain_types, inner))
    return {hint} - {type(None)}
