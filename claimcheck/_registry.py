"""Finds the classes of stores, strategies and key providers by the names in a configuration.

Built-in names map to strings, so that nothing is imported before its name is used, and they work without package
metadata (a zip on a Spark worker). Third parties register an entry point in the group ``claimcheck.stores`` or
``claimcheck.strategies``, or write ``module:Class`` as the type.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
from collections.abc import Mapping
from typing import Any

from claimcheck._validation import (
    Option,
    check_options,
    did_you_mean,
    fail,
    is_placeholder,
    option_of,
    options_of,
    plain_types,
    without_secrets,
)
from claimcheck.config import StoreConfig, expand
from claimcheck.errors import ClaimCheckError, ConfigError, StoreError, StoreUnavailableError

STORES = {
    "filesystem": "claimcheck.stores.filesystem:FilesystemStore",
    "memory": "claimcheck.stores.memory:MemoryStore",
    "obstore": "claimcheck.stores.obstore:ObstoreStore",
    "pulsar-topic": "claimcheck.stores.pulsar_topic:PulsarTopicStore",
    "redis": "claimcheck.stores.redis:RedisStore",
    "s3": "claimcheck.stores.s3:S3Store",
}
_STORE = "claimcheck._store.store:Store"  # a name, because that module is in a higher layer
STRATEGIES = {
    "chunking": "claimcheck._send.strategies:ChunkingStrategy",
    "external": "claimcheck._send.strategies:ExternalStrategy",
    "hybrid": "claimcheck._send.strategies:HybridStrategy",
    "inline": "claimcheck._send.strategies:InlineStrategy",
}
KEY_PROVIDERS = {
    "aws-kms": "claimcheck._content.data_keys:AwsKms",
    "local": "claimcheck._content.data_keys:LocalKeys",
}


def load_class(name: str, builtin: Mapping[str, str], *, group: str, path: str) -> type[object]:
    target = builtin.get(name) or (name if ":" in name else _entry_point(name, group))
    module, _, attribute = target.partition(":")
    if not attribute or not module or module.startswith("."):
        known = f"one of {', '.join(sorted(builtin))}, an entry point of {group}, or module:Class"
        expected = f"{known}{did_you_mean(name, builtin)}"
        fail(path, found=repr(name), expected=expected)
    cls = _imported(target, path, found=name)
    if not inspect.isclass(cls):
        fail(path, found=f"{target!r}, a {type(cls).__name__}", expected="a class")
    return cls


def _imported(target: str, path: str, *, found: str) -> Any:
    module, _, attribute = target.partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except Exception as exc:  # a module may raise anything while it is imported
        why = exc if isinstance(exc, (ImportError, AttributeError)) else f"{type(exc).__name__}: {exc}"
        text = f"{path}: cannot import {target!r}: {without_secrets(str(why))}"
        raise ConfigError(text, path=path, found=found) from exc


def made_by(function: str | None, *, path: str) -> Any:
    """Call the function that an option ``client`` names; returns a native client, or keyword arguments for one."""
    if function is None:
        return {}
    make = _imported(function, path, found=function)
    made = make() if callable(make) else None
    if made is None:
        fail(path, found=repr(function), expected="a function that returns a client, or a dict of arguments for one")
    return made


def _entry_point(name: str, group: str) -> str:
    from importlib.metadata import entry_points  # slow to import, and needed for third-party names only

    return next((point.value for point in entry_points(group=group, name=name)), name)


def check_store(config: StoreConfig, *, path: str) -> type[Any]:
    """Return the class of a store after checking all options that need no environment variable."""
    cls, known = _store_class(config, path)
    check_unresolved(known, config.options, path)
    return cls


def build_store(config: StoreConfig, *, path: str) -> Any:
    """Create the store that a configuration describes, with its environment variables resolved."""
    cls, known = _store_class(config, path)
    checked = resolved_options(known, config.options, path)
    try:
        return cls(**checked)
    except ConfigError as exc:
        raise _below(path, exc) from exc
    except ClaimCheckError:
        raise
    except Exception as exc:
        raise _construction_error(path, exc) from exc


def check_unresolved(known: Mapping[str, Option], options: Mapping[str, object], path: str) -> None:
    """Check the options that need no environment variable."""
    late = {name for name, value in options.items() if is_placeholder(value) and option_of(known, name)}
    early = {name: option for name, option in known.items() if name not in late}
    check_options(early, {name: value for name, value in options.items() if name not in late}, path, secret=True)


def resolved_options(known: Mapping[str, Option], options: Mapping[str, object], path: str) -> dict[str, Any]:
    """Return options with their environment variables resolved, after checking them."""
    values = {name: _resolve(option_of(known, name), value, f"{path}.{name}") for name, value in options.items()}
    return check_options(known, values, path, secret=True)


def _store_class(config: StoreConfig, path: str) -> tuple[type[Any], Mapping[str, Option]]:
    cls = load_class(config.type, STORES, group="claimcheck.stores", path=f"{path}.type")
    if _STORE not in {f"{base.__module__}:{base.__qualname__}" for base in cls.__mro__} or inspect.isabstract(cls):
        expected = "a subclass of claimcheck.Store that implements all of its abstract methods"
        fail(f"{path}.type", found=repr(config.type), expected=expected)
    try:
        return cls, options_of(cls)
    except Exception as exc:  # annotations are third-party code, too
        text = f"{path}.type: cannot read the options of {config.type!r}: {type(exc).__name__}: {exc}"
        raise ConfigError(text, path=f"{path}.type", found=config.type) from exc


def _below(path: str, error: ConfigError) -> ConfigError:
    """Add a store's path to an error of its constructor, which knows only its own arguments."""
    text = str(error)
    inside = f"{path}.{error.path}" if error.path else path
    joint = "." if error.path and text.startswith(error.path) else ": "
    return ConfigError(f"{path}{joint}{text}", path=inside, found=error.found, expected=error.expected)


def _construction_error(path: str, error: Exception) -> ClaimCheckError:
    store = path.removeprefix("stores.")
    text = f"store {store!r} ({path}) cannot be created: {type(error).__name__}: {without_secrets(str(error))}"
    if isinstance(error, (ConnectionError, TimeoutError)):
        return StoreUnavailableError(text, store=store)
    return StoreError(text, store=store) if isinstance(error, OSError) else ConfigError(text, path=path)


def _resolve(option: Option | None, value: object, path: str) -> object:
    """Resolve the placeholders of a value, and convert it to the number or boolean that its option takes."""
    text: object = expand(value, path=path)
    if not is_placeholder(value) or option is None or not isinstance(text, str):
        return text
    kinds = plain_types(option.hint)
    if bool in kinds and text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind in (int, float):
        if kind in kinds and str not in kinds:
            with contextlib.suppress(ValueError):
                return kind(text)
    return text
