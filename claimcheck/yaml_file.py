"""A YAML file as plain data: every key stands there once, and no error quotes what may be a secret."""

from __future__ import annotations

import functools
import os
import re
from pathlib import Path
from typing import Any

from claimcheck.errors import ConfigError
from claimcheck.validation import fail

__all__ = ["read_yaml"]

_QUOTED = re.compile(r"'(?!<)[^']{2,}'")  # a tag or an alias; the parser's own words stand in <>


def read_yaml(path: str | os.PathLike[str]) -> Any:
    """Read a YAML file of which every key stands there once; nothing of its text gets into an error.

    Raises:
        ConfigError: There is no such file, or it is no YAML; names the line.
    """
    import yaml

    if not isinstance(path, (str, os.PathLike)):
        fail("configuration", found=f"a {type(path).__name__}", expected="the path of a YAML file")
    name = os.fspath(path)
    try:
        return yaml.load(Path(path).read_text(encoding="utf-8"), Loader=_loader())
    except OSError as exc:
        raise ConfigError(f"cannot read {name}: {exc.strerror or exc}", path=name) from exc
    except ConfigError:
        raise
    except Exception as exc:  # tags that do not fit their values make PyYAML raise anything
        why = _why(exc)
    raise ConfigError(f"{name} is no YAML: {why}", path=name)  # not from the error, which quotes what may be a secret


def _why(error: Exception) -> str:
    mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
    where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark is not None else ""
    return where + (_QUOTED.sub("...", problem) if problem else f"it cannot be read ({type(error).__name__})")


@functools.cache
def _loader() -> type[Any]:
    import yaml

    class Loader(yaml.SafeLoader):
        """PyYAML's own, but for keys that stand there twice: the last one would win in silence."""

        def compose_mapping_node(self, anchor: Any) -> Any:
            node = super().compose_mapping_node(anchor)
            _no_duplicates([key for key, _ in node.value if isinstance(key, yaml.ScalarNode)])
            return node

    return Loader


def _no_duplicates(keys: list[Any]) -> None:
    seen = set()
    for key in keys:
        if (key.tag, key.value) in seen and key.value != "<<":
            line = key.start_mark.line + 1
            raise ConfigError(f"line {line}: the key {key.value!r} stands there twice", path=key.value, found="twice")
        seen.add((key.tag, key.value))
