"""Reads YAML files with bounds for their size and their aliases. Errors never quote the file: it may hold secrets."""

from __future__ import annotations

import functools
import os
import re
from pathlib import Path
from typing import Any

from claimcheck._validation import fail
from claimcheck.errors import ConfigError

_MAX_FILE_BYTES = 256 << 10
_MAX_VALUES = 100_000  # after the expansion of aliases and merge keys
_QUOTED = re.compile(r"'[^'\s]+'")


def read_yaml(path: str | os.PathLike[str]) -> Any:
    """Read a YAML file of up to 256 KiB and 100,000 values; errors name the line and never quote the file.

    Raises:
        ConfigError: The file cannot be read, is not YAML, is too large, or has a key twice in one mapping.
    """
    import yaml

    if not isinstance(path, (str, os.PathLike)):
        fail("configuration", found=f"a {type(path).__name__}", expected="the path of a YAML file")
    name = os.fspath(path)
    try:
        return yaml.load(_text(path), Loader=_loader())
    except OSError as exc:
        raise ConfigError(f"cannot read {name}: {exc.strerror or exc}", path=name) from exc
    except ConfigError:
        raise
    except Exception as exc:  # tags that do not fit their values make PyYAML raise anything
        why = _why(exc)
    raise ConfigError(f"{name} is not YAML: {why}", path=name)  # not chained: the error of PyYAML quotes the file


def _text(path: str | os.PathLike[str]) -> str:
    with Path(path).open("rb") as file:
        data = file.read(_MAX_FILE_BYTES + 1)
    if len(data) > _MAX_FILE_BYTES:
        fail("configuration", found=f"a file of more than {_MAX_FILE_BYTES} bytes", expected="a smaller YAML file")
    return data.decode()


def _why(error: Exception) -> str:
    if isinstance(error, UnicodeDecodeError):
        return "it is not UTF-8 text"
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
    if problem is None:
        return f"it cannot be read ({type(error).__name__})"
    context, begin = getattr(error, "context", None), getattr(error, "context_mark", None)
    if context is not None:
        start = f" that begins at line {begin.line + 1}" if begin is not None and context.startswith("while") else ""
        problem = f"{context}{start}, {problem}"
    where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark is not None else ""
    return where + _QUOTED.sub(_unless_text, problem)


def _unless_text(quoted: re.Match[str]) -> str:
    """Return a quoted token or sign of YAML's syntax; anything else may be a secret of the file."""
    if quoted[0] == r"'\t'":
        return r"'\t' (a tab)"
    return quoted[0] if re.fullmatch(r"'(<[a-z ]+>|\W)'", quoted[0]) else "..."


@functools.cache
def _loader() -> type[Any]:
    import yaml

    class Loader(yaml.SafeLoader):
        """PyYAML's loader with a limit for aliases; it rejects duplicate keys, of which the last one would win."""

        def get_single_node(self) -> Any:
            node = super().get_single_node()
            _count_values(node, {})
            return node

        def compose_mapping_node(self, anchor: Any) -> Any:
            node = super().compose_mapping_node(anchor)
            _no_duplicates([key for key, _ in node.value if isinstance(key, yaml.ScalarNode)])
            return node

    return Loader


def _count_values(node: Any, known: dict[int, int]) -> int:
    """Count the values below a node as if aliases and merge keys were expanded; an alias may contain itself."""
    children = node.value if node is not None and isinstance(node.value, list) else ()
    if id(node) not in known:
        known[id(node)] = _MAX_VALUES + 1  # until its children are counted: none may contain this node
        flat = [child for each in children for child in (each if isinstance(each, tuple) else (each,))]
        known[id(node)] = 1 + sum(_count_values(child, known) for child in flat)
    if known[id(node)] > _MAX_VALUES:
        found = f"more than {_MAX_VALUES} values, counting each alias in full"
        fail("configuration", found=found, expected="fewer aliases and merge keys")
    return known[id(node)]


def _no_duplicates(keys: list[Any]) -> None:
    import yaml

    seen = set()
    for key in keys:
        if (key.tag, key.value) in seen and key.value != "<<":
            raise yaml.MarkedYAMLError(problem="this key appears twice in one mapping", problem_mark=key.start_mark)
        seen.add((key.tag, key.value))
