"""Reads the configuration from a YAML file or a mapping, and refuses what is wrong in it.

Errors never quote a value that may be a secret.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from claimcheck._validation import Problems, build, check_options, describe, did_you_mean, fail, options_of
from claimcheck.config import (
    PLACEHOLDER,
    Config,
    StoreConfig,
    encryption_key,
    signing_key,
)
from claimcheck.errors import ConfigError

_MAX_FILE_BYTES = 256 << 10
_QUOTED = re.compile(r"'[^'\s]+'")

_UNKNOWN = "?"  # the name of a store that a problem hides; no such configuration is ever returned
OVERRIDABLE = (
    "strategy", "threshold_bytes", "store", "reads_from", "chunking", "hybrid", "limits", "compression",
)  # fmt: skip
"""The keys that a destination may override."""

# Readers know no destination and use these limits of the top level, so a destination's may only be lower.
_READERS = (
    ("limits", "max_payload_bytes"),
    ("limits", "max_pointer_bytes"),
    ("chunking", "max_payload_bytes"),
    ("chunking", "max_chunks"),
)


def from_dict(raw: object) -> Config:
    """Convert a mapping, shaped like the YAML file, to a configuration; raises one error with every problem."""
    problems = Problems()
    config = parse(raw, problems)
    problems.raise_all()
    return config


def parse(raw: object, problems: Problems) -> Config:
    """Return the valid parts of a mapping as a configuration, and add every problem to ``problems``."""
    if not isinstance(raw, Mapping):
        expected = "a mapping with strategy, store, stores, ..."
        problems.add("configuration", found=describe(raw, secret=True), expected=expected)
        return Config(store=_UNKNOWN)
    top = dict(raw)
    entries, patterns = (_mapping(top.pop(name, None), name, problems) for name in ("stores", "destinations"))
    names = None if entries is None else list(entries)
    stores = _stores(entries or {}, problems)
    base = _checked(top, "", stores, names, problems)
    wrong = problems.sections()  # reported once, and not again for every destination
    valid = {name: value for name, value in top.items() if name not in wrong}
    overrides = [(str(p), _override(base, valid, p, each, names, problems)) for p, each in (patterns or {}).items()]
    return replace(base, destinations=tuple(overrides))


def read_yaml(path: str | os.PathLike[str]) -> Any:
    """Read a YAML file of up to 256 KiB; a `ConfigError` names the line and never quotes the file."""
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


def _mapping(value: object, name: str, problems: Problems) -> Mapping[Any, object] | None:
    """A section with names of the user's own; empty if YAML has nothing there, ``None`` if it is wrong."""
    if value is None or isinstance(value, Mapping):
        return value or {}
    problems.add(name, found=describe(value, secret=True), expected="a mapping of names")
    return None


def _stores(entries: Mapping[Any, object], problems: Problems) -> dict[str, StoreConfig]:
    """The valid ones of these stores."""
    stores = {}
    for name, entry in entries.items():
        with problems:
            if not isinstance(name, str) or not name:
                fail(f"stores.{name}", found=f"the name {name!r}", expected="a name as text")
            if isinstance(entry, Mapping):
                options = {option: value for option, value in entry.items() if option != "type"}
                entry = {"type": entry.get("type"), "options": options}
            stores[name] = build(StoreConfig, entry, f"stores.{name}", secret=True)
    return stores


def _override(
    base: Config,
    top: Mapping[str, object],
    pattern: str,
    override: object,
    names: Sequence[str] | None,
    problems: Problems,
) -> Config:
    path = f"destinations.{pattern}"
    if not isinstance(override, Mapping):
        problems.add(path, found=describe(override, secret=True), expected="a mapping")
        return base
    merged = dict(top)
    for name, value in override.items():
        with problems:
            if name not in OVERRIDABLE:
                found = "a key that applies to all destinations" if name in options_of(Config) else "an unknown key"
                expected = f"one of {', '.join(OVERRIDABLE)}{did_you_mean(name, OVERRIDABLE)}"
                fail(f"{path}.{name}", found=found, expected=expected)
            inherited = top.get(name)
            if isinstance(value, Mapping) and isinstance(inherited, Mapping):
                value = {**inherited, **value}
            merged[name] = value
    config = _checked(merged, path, base.stores, names, problems)
    if config.store is None:
        config = replace(config, store=base.store)
    _check_readers(base, config, path, problems)
    return config


def _checked(
    top: Mapping[str, object],
    path: str,
    stores: Mapping[str, StoreConfig],
    names: Sequence[str] | None,
    problems: Problems,
) -> Config:
    """Check the top level, or a destination's view of it; a section with a problem gets its defaults."""
    prefix, own = f"{path}." if path else "", Problems()
    values = check_options(options_of(Config), top, path, problems=own, placeholders=False)
    config = Config(**{**values, "stores": stores})
    _check_keys(config, own)
    _check_pointer_versions(config, own)
    _check_chunking(config, prefix, own)
    _check_names(config, prefix, names, own)
    problems.extend(own)
    if config.store is not None:
        return config
    if names is None or f"{prefix}store" in {problem.path for problem in own}:
        return replace(config, store=_UNKNOWN)
    return replace(config, store=names[0] if len(names) == 1 else None)


def _check_names(config: Config, prefix: str, stores: Sequence[str] | None, problems: Problems) -> None:
    """Check that the names of stores are among these, valid or not; ``None`` if they are unknown."""
    named = [("store", config.store, "a name"), *(("reads_from", name, "names") for name in config.reads_from or ())]
    for key, name, kind in named:
        if name is not None and stores is not None and name not in stores:
            known = sorted(map(str, stores))
            expected = (
                f"{kind} below stores ({', '.join(known) or 'no store is configured'}){did_you_mean(name, known)}"
            )
            problems.add(f"{prefix}{key}", found=repr(name), expected=expected)


def _check_keys(config: Config, problems: Problems) -> None:
    """Check that there are keys where options need them, that writers have theirs, and keys without placeholders."""
    needy = ["require", "require_envelope", "max_age_seconds"] + ["accept_from"] * (not config.encryption.keys)
    is_local = config.encryption.provider == "local"
    sections: list[tuple[str, Any, list[str], Callable[..., bytes] | None]] = [
        ("signing", config.signing, needy, signing_key),
        ("encryption", config.encryption, ["require"], encryption_key if is_local else None),
    ]
    for path, section, options, resolve in sections:
        needs = next((name for name in options if getattr(section, name)), None)
        if needs and not section.keys:
            why = f"{path}.{needs} is {'true' if getattr(section, needs) is True else 'set'}"
            problems.add(f"{path}.keys", found="nothing", expected=f"at least one key, because {why}")
        if section.key_id is not None and section.key_id not in section.keys:
            expected = f"the id of a key below {path}.keys"
            problems.add(f"{path}.key_id", found="an id that has no key", expected=expected)
        for name, text in section.keys.items():
            with problems:
                if resolve is not None and not PLACEHOLDER.search(text):
                    resolve(text, path=f"{path}.keys.{name}")


def _check_pointer_versions(config: Config, problems: Problems) -> None:
    """Pointers of version 1 have no signature, and do not tell readers how a payload was encoded."""
    why = {
        "version 1 has no signature, and signing.keys is configured": config.signing.keys,
        "version 1 cannot mark encrypted payloads, and encryption.key_id is set": config.encryption.key_id is not None,
        "version 1 cannot mark encrypted payloads, and encryption.require is true": config.encryption.require,
        "version 1 cannot mark compressed payloads, and compression is configured": config.compression is not None,
    }
    reason = next((reason for reason, applies in why.items() if applies), None)
    for name, store in config.stores.items():
        if reason and store.options.get("pointer_version") == 1:
            problems.add(f"stores.{name}.pointer_version", found="1", expected=f"2: {reason}")


def _check_chunking(config: Config, prefix: str, problems: Problems) -> None:
    """A payload larger than what a reader may hold at once could be sent, but never be reassembled."""
    for pending, payload in (("max_pending_bytes", "max_payload_bytes"), ("max_pending_messages", "max_chunks")):
        held, largest = getattr(config.chunking, pending), getattr(config.chunking, payload)
        if held < largest:
            expected = f"at least chunking.{payload} ({largest}): raise this or lower that"
            problems.add(f"{prefix}chunking.{pending}", found=str(held), expected=expected)


def _check_readers(base: Config, config: Config, path: str, problems: Problems) -> None:
    wrong = problems.sections() | problems.sections(f"{path}.")
    more = sorted(set(config.readable) - set(base.readable))
    if more and not wrong & {"reads_from", "stores"}:
        expected = f"stores that the top level reads from ({', '.join(base.readable) or 'none'})"
        problems.add(f"{path}.reads_from", found=", ".join(more), expected=expected)
    for section, name in _READERS:
        limit, value = (getattr(getattr(each, section), name) for each in (base, config))
        if value > limit and section not in wrong:
            expected = f"at most {limit}: readers use the top-level limits"
            problems.add(f"{path}.{section}.{name}", found=str(value), expected=expected)


# YAML


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
        """PyYAML's loader; it rejects duplicate keys, of which the last one would win."""

        def compose_mapping_node(self, anchor: Any) -> Any:
            node, seen = super().compose_mapping_node(anchor), set()
            for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode) and key.value != "<<"):
                if (key.tag, key.value) in seen:
                    raise yaml.MarkedYAMLError(
                        problem="this key appears twice in one mapping", problem_mark=key.start_mark
                    )
                seen.add((key.tag, key.value))
            return node

    return Loader
