"""The JSON Schema of the configuration, generated from its dataclasses and the constructors of stores.

python -m tests.config_schema > docs/reference/claimcheck.schema.json
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import math
import re
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Literal

from claimcheck._config_file import OVERRIDABLE
from claimcheck._registry import KEY_PROVIDERS, STORES, STRATEGIES, load_class
from claimcheck._validation import REST, Option, Range, constraints, options_of
from claimcheck.config import Config

Schema = dict[str, object]

_MODULE_CLASS = r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$"
_SECTION = re.compile(r"^(?:Args|Attributes):\n((?:    .*\n|\n)+)", re.MULTILINE)
_ENTRY = re.compile(r"^    (\w+): ((?:.*\n)(?:     .*\n)*)", re.MULTILINE)
_SCHEME = re.compile(r"([a-z0-9+]+)://")
_TYPES: dict[object, str] = {int: "integer", float: "number", str: "string", bool: "boolean", type(None): "null"}


def schema() -> Schema:
    """Return the JSON Schema (draft 2020-12) of a configuration file."""
    definitions: dict[str, Schema] = {}
    top = _object(Config, definitions)
    properties = typing.cast("dict[str, Schema]", top["properties"])
    properties["strategy"] |= _named(STRATEGIES)
    encryption = typing.cast("dict[str, Schema]", definitions["EncryptionConfig"]["properties"])
    encryption["provider"] |= _named(KEY_PROVIDERS)
    overridable = {name: properties[name] for name in OVERRIDABLE}
    for name, item in (("stores", "store"), ("destinations", "destination")):
        description = {"description": properties[name]["description"]}
        properties[name] = description | _mapping({"$ref": f"#/$defs/{item}"}, null=True)
    del definitions["StoreConfig"]
    named = {name: _store(name, target) for name, target in sorted(STORES.items())}
    definitions |= {
        "destination": {"type": "object", "properties": overridable, "additionalProperties": False},
        "placeholder": {"type": "string", "pattern": r"\$\{"},
        "store": _any_store([*named]),
        **{f"store-{name}": store for name, store in named.items()},
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "claimcheck",
        **top,
        "$defs": definitions,
    }


# Stores --------------------------------------------------------------------------------------------------------


def _any_store(names: list[str]) -> Schema:
    rules = [
        {
            "if": {"properties": {"type": {"const": name}}, "required": ["type"]},
            "then": {"$ref": f"#/$defs/store-{name}"},
        }
        for name in names
    ]
    text = "The type of store: a name, or module:Class of a third-party store."
    kind = {"description": text, "type": "string", **_named(names)}
    return {"type": "object", "required": ["type"], "properties": {"type": kind}, "allOf": rules}


def _store(name: str, target: str) -> Schema:
    cls = load_class(name, {name: target}, group="claimcheck.stores", path=name)
    options, texts = options_of(cls), _descriptions(cls)
    properties: dict[str, Schema] = {"type": {"const": name}}
    properties |= {key: _store_option(option, texts.get(key, "")) for key, option in options.items() if key != REST}
    required = ["type", *(key for key, option in options.items() if option.required)]
    closed = {} if REST in options else {"additionalProperties": False}
    return {"type": "object", "description": _summary(cls), "properties": properties, "required": required, **closed}


def _store_option(option: Option, text: str) -> Schema:
    value = _value(option.hint, {})
    if value != {"type": "string"}:
        value = {"anyOf": [*_alternatives(value), {"$ref": "#/$defs/placeholder"}]}
    return {"description": text, **value} if text else value


# Type hints ----------------------------------------------------------------------------------------------------


def _object(cls: type[object], definitions: dict[str, Schema]) -> Schema:
    texts = _descriptions(cls)
    defaults = {field.name: field.default for field in dataclasses.fields(typing.cast("typing.Any", cls))}
    properties = {}
    for name, option in options_of(cls).items():
        described = {"description": texts[name]} if name in texts else {}
        default = defaults[name]
        known = {"default": default} if isinstance(default, (str, int, float)) else {}
        properties[name] = {**described, **_value(option.hint, definitions), **known}
    return {"description": _summary(cls), "type": "object", "properties": properties, "additionalProperties": False}


def _value(hint: object, definitions: dict[str, Schema]) -> Schema:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        return _value(args[0], definitions) | _limits(hint)
    if origin in (typing.Union, types.UnionType):
        return {"anyOf": [each for arg in args for each in _alternatives(_value(arg, definitions))]}
    if origin is Literal:
        return {"enum": list(args)}
    if inspect.isclass(origin) and issubclass(origin, Mapping):
        return _mapping(_value(args[1], definitions))
    if origin is tuple:
        return {"type": "array", "items": _value(args[0], definitions)}
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        if hint is not Config and hint.__name__ not in definitions:
            definitions[hint.__name__] = _object(hint, definitions)
        return {"$ref": f"#/$defs/{getattr(hint, '__name__', '')}"}
    return {"type": _TYPES[hint]} if hint in _TYPES else {}


def _limits(hint: object) -> Schema:
    limits: Schema = {}
    for constraint in constraints(hint):
        if isinstance(constraint, Range):
            limits["minimum"] = constraint.minimum
            if constraint.maximum < math.inf:
                limits["maximum"] = constraint.maximum
        elif schemes := sorted(set(_SCHEME.findall(constraint.expected))):
            limits["pattern"] = f"^({'|'.join(map(re.escape, schemes))})://"
    return limits


def _alternatives(value: Schema) -> list[object]:
    nested = value.get("anyOf")
    return nested if isinstance(nested, list) else [value]


def _mapping(values: Schema, *, null: bool = False) -> Schema:
    return {"type": ["object", "null"] if null else "object", "additionalProperties": values}


def _named(names: Iterable[str]) -> Schema:
    return {"anyOf": [{"enum": sorted(names)}, {"pattern": _MODULE_CLASS}]}


# Docstrings ----------------------------------------------------------------------------------------------------


def _summary(target: Callable[..., object]) -> str:
    return _plain((inspect.getdoc(target) or "").partition("\n\n")[0])


def _descriptions(target: Callable[..., object]) -> dict[str, str]:
    section = _SECTION.search((inspect.getdoc(target) or "") + "\n")
    return {name: _plain(text) for name, text in _ENTRY.findall(section[1])} if section else {}


def _plain(text: str) -> str:
    text = " ".join(text.split()).replace("``", "`")
    return text[:1].upper() + text[1:]


if __name__ == "__main__":
    print(json.dumps(schema(), indent=2))
