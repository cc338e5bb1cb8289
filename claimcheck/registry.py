"""Names to classes: the only place that turns a word of the configuration into code.

Built-in names map to strings, so that nothing is imported before its name is used, and they work without package
metadata (a zip on a Spark worker). Strangers register an entry point in the group ``claimcheck.stores`` or
``claimcheck.strategies``, or write ``module:Class`` as the type.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Mapping
from types import ModuleType
from typing import Any

from claimcheck.config import StoreConfig, expand
from claimcheck.errors import ConfigError, MissingDependencyError
from claimcheck.validation import check_options, fail, options_of

__all__ = ["STORES", "STRATEGIES", "build_store", "check_store", "import_vendor", "load_class"]

STORES = {
    "filesystem": "claimcheck.stores.filesystem:FilesystemStore",
    "memory": "claimcheck.stores.memory:MemoryStore",
    "redis": "claimcheck.stores.redis:RedisStore",
    "s3": "claimcheck.stores.s3:S3Store",
}
STRATEGIES = {
    "chunking": "claimcheck.strategies.chunking:ChunkingStrategy",
    "external": "claimcheck.strategies.external:ExternalStrategy",
    "hybrid": "claimcheck.strategies.hybrid:HybridStrategy",
    "inline": "claimcheck.strategies.inline:InlineStrategy",
}


def load_class(name: str, builtin: Mapping[str, str], *, group: str, path: str) -> type[Any]:
    """Find the class that a name of the configuration stands for.

    Args:
        name: A built-in name, an entry point's name, or ``module:Class``.
        builtin: Built-in names and where their classes live.
        group: The entry-point group to look in.
        path: Where the name stands in the configuration.

    Raises:
        ConfigError: Nothing is called so, or what is there is no class.
    """
    target = builtin.get(name) or _entry_point(name, group)
    module, _, attribute = target.partition(":")
    if not attribute:
        fail(
            path,
            found=repr(name),
            expected=f"one of {', '.join(sorted(builtin))}, an entry point of {group}, or module:Class",
        )
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as exc:
        raise ConfigError(f"{path}: cannot import {target!r}: {exc}", path=path, found=name) from exc
    if not inspect.isclass(found):
        fail(path, found=f"{target!r}, a {type(found).__name__}", expected="a class")
    return found


def _entry_point(name: str, group: str) -> str:
    from importlib.metadata import entry_points  # slow to import, and only strangers' names need it

    return next((found.value for found in entry_points(group=group, name=name)), name)


def check_store(config: StoreConfig, *, path: str) -> type[Any]:
    """Check a store's type and options without opening it; placeholders are taken on trust.

    Raises:
        ConfigError: Unknown type, unknown or missing option, or an option of the wrong type.
    """
    cls = load_class(config.type, STORES, group="claimcheck.stores", path=f"{path}.type")
    known = options_of(cls)
    late = {name for name, value in config.options.items() if name in known and _is_template(value)}
    check_options(
        {name: option for name, option in known.items() if name not in late},
        {name: value for name, value in config.options.items() if name not in late},
        path,
    )
    return cls


def build_store(config: StoreConfig, *, path: str) -> Any:
    """Make the store that a configuration describes, its placeholders resolved here and now.

    Raises:
        ConfigError: An option is wrong, or a variable is not set.
    """
    cls = load_class(config.type, STORES, group="claimcheck.stores", path=f"{path}.type")
    known = options_of(cls)
    options = {name: _resolve(known.get(name), value, f"{path}.{name}") for name, value in config.options.items()}
    return cls(**check_options(known, options, path))


def import_vendor(module: str, *, extra: str) -> ModuleType:
    """Import an optional package.

    Raises:
        MissingDependencyError: It is not installed; names the extra that brings it.
    """
    try:
        return importlib.import_module(module)
    except ImportError as exc:
        package = module.partition(".")[0]
        raise MissingDependencyError(
            f"this needs the package {package}: pip install 'claimcheck[{extra}]'", package=package, extra=extra
        ) from exc


def _is_template(value: Any) -> bool:
    return isinstance(value, str) and "${" in value


def _resolve(option: Any, value: Any, path: str) -> Any:
    text = expand(value, path=path)
    if not _is_template(value) or option is None:
        return text
    return _as_number(text, option.hint)


def _as_number(text: str, hint: Any) -> Any:
    """Text from the environment, as the number or truth that the option wants."""
    wanted = inspect.formatannotation(hint)
    if "bool" in wanted and text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind in (int, float):
        if kind.__name__ in wanted and "str" not in wanted:
            try:
                return kind(text)
            except ValueError:
                continue
    return text
