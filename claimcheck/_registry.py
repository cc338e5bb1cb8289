"""Names to classes: the only place that turns a word of the configuration into code.

Built-in names map to strings, so that nothing is imported before its name is used, and they work without package
metadata (a zip on a Spark worker). Third parties register an entry point in the group ``claimcheck.stores`` or
``claimcheck.strategies``, or write ``module:Class`` as the type.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
from collections.abc import Mapping
from types import ModuleType
from typing import Any

from claimcheck._pointer import Pointer
from claimcheck._validation import Option, check_options, fail, options_of, without_secrets
from claimcheck.config import StoreConfig, expand
from claimcheck.errors import (
    ClaimCheckError,
    ConfigError,
    MissingDependencyError,
    PointerRejectedError,
    StoreError,
    StoreUnavailableError,
)

__all__ = [
    "STORES",
    "STRATEGIES",
    "UNUSABLE",
    "build_store",
    "check_store",
    "import_vendor",
    "load_class",
    "unusable",
]

STORES = {
    "filesystem": "claimcheck.stores.filesystem:FilesystemStore",
    "memory": "claimcheck.stores.memory:MemoryStore",
    "obstore": "claimcheck.stores.obstore:ObstoreStore",
    "pulsar-topic": "claimcheck.stores.pulsar_topic:PulsarTopicStore",
    "redis": "claimcheck.stores.redis:RedisStore",
    "s3": "claimcheck.stores.s3:S3Store",
}
_STORE = "claimcheck._store:Store"  # a name, because that module is above this one
STRATEGIES = {
    "chunking": "claimcheck._strategies.chunking:ChunkingStrategy",
    "external": "claimcheck._strategies.external:ExternalStrategy",
    "hybrid": "claimcheck._strategies.hybrid:HybridStrategy",
    "inline": "claimcheck._strategies.inline:InlineStrategy",
}

UNUSABLE = (ConfigError, MissingDependencyError)
"""What a store raises in a process that has not its driver, or a variable of its configuration."""


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
    if not attribute or not module or module.startswith("."):
        near = difflib.get_close_matches(name, builtin, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        expected = f"one of {', '.join(sorted(builtin))}, an entry point of {group}, or module:Class{hint}"
        fail(path, found=repr(name), expected=expected)
    try:
        found = getattr(importlib.import_module(module), attribute)
    except Exception as exc:  # a module may raise anything while it is imported
        why = exc if isinstance(exc, (ImportError, AttributeError)) else f"{type(exc).__name__}: {exc}"
        text = f"{path}: cannot import {target!r}: {without_secrets(str(why))}"
        raise ConfigError(text, path=path, found=name) from exc
    if not inspect.isclass(found):
        fail(path, found=f"{target!r}, a {type(found).__name__}", expected="a class")
    return found


def _entry_point(name: str, group: str) -> str:
    from importlib.metadata import entry_points  # slow to import, and needed for third-party names only

    return next((found.value for found in entry_points(group=group, name=name)), name)


def check_store(config: StoreConfig, *, path: str) -> type[Any]:
    """Check a store's type and options without opening it; placeholders are taken on trust.

    Raises:
        ConfigError: Unknown type, unknown or missing option, or an option of the wrong type.
    """
    cls, known = _store_class(config, path)
    late = {name for name, value in config.options.items() if _is_template(value) and _option(known, name)}
    check_options(
        {name: option for name, option in known.items() if name not in late},
        {name: value for name, value in config.options.items() if name not in late},
        path,
        secret=True,
    )
    return cls


def build_store(config: StoreConfig, *, path: str) -> Any:
    """Make the store that a configuration describes, its placeholders resolved here and now.

    Raises:
        ConfigError: An option is wrong, or a variable is not set.
        StoreError: The store's constructor failed on the medium; a built-in one does not touch it.
    """
    cls, known = _store_class(config, path)
    options = {name: _resolve(_option(known, name), value, f"{path}.{name}") for name, value in config.options.items()}
    checked = check_options(known, options, path, secret=True)
    try:
        return cls(**checked)
    except ConfigError as exc:
        raise _below(path, exc) from exc
    except ClaimCheckError:
        raise
    except Exception as exc:
        raise _construction_error(path, exc) from exc


def _store_class(config: StoreConfig, path: str) -> tuple[type[Any], Mapping[str, Option]]:
    cls = load_class(config.type, STORES, group="claimcheck.stores", path=f"{path}.type")
    if _STORE not in {f"{base.__module__}:{base.__qualname__}" for base in cls.__mro__} or inspect.isabstract(cls):
        fail(f"{path}.type", found=repr(config.type), expected="a class below claimcheck.Store with all of its methods")
    try:
        return cls, options_of(cls)
    except Exception as exc:  # annotations are third-party code, too
        text = f"{path}.type: cannot read the options of {config.type!r}: {type(exc).__name__}: {exc}"
        raise ConfigError(text, path=f"{path}.type", found=config.type) from exc


def _option(known: Mapping[str, Option], name: str) -> Option | None:
    return known.get(name) or known.get("**")


def _below(path: str, error: ConfigError) -> ConfigError:
    """The error of a constructor, which knows its own arguments only, with its whole path."""
    text = str(error)
    inside = f"{path}.{error.path}" if error.path else path
    joint = "." if error.path and text.startswith(error.path) else ": "
    return ConfigError(f"{path}{joint}{text}", path=inside, found=error.found, expected=error.expected)


def _construction_error(path: str, error: Exception) -> ClaimCheckError:
    store = path.removeprefix("stores.")
    text = f"store {store!r} ({path}) cannot be made: {type(error).__name__}: {without_secrets(str(error))}"
    if isinstance(error, (ConnectionError, TimeoutError)):
        return StoreUnavailableError(text, store=store)
    return StoreError(text, store=store) if isinstance(error, OSError) else ConfigError(text, path=path)


def unusable(store: str, pointer: Pointer, error: ClaimCheckError) -> PointerRejectedError:
    """Return the error for a message whose pointer names a store that this process cannot use.

    The sender of a pointer chooses which of the configured stores is opened. Where that store raises one of `UNUSABLE`,
    the error has to name the message, because this process may have no other use for the store.
    """
    text = f"the pointer to {pointer.key[:200]!r} names the store {store!r}, which this process cannot use: {error}"
    return PointerRejectedError(text, reason="store", store=store, key=pointer.key)


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


def _resolve(option: Option | None, value: Any, path: str) -> Any:
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
