"""The JSON Schema accepts every configuration that loads, and rejects typical mistakes."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml
from jsonschema import Draft202012Validator

import claimcheck
from tests.config_schema import schema
from tests.unit import test_config

ROOT = Path(__file__).resolve().parents[2]
FILE = ROOT / "docs" / "reference" / "claimcheck.schema.json"
VALIDATOR = Draft202012Validator(schema())
GOOD = {"strategy": "external", "store": "hot", "stores": {"hot": {"type": "memory"}}}


def blocks() -> list[str]:
    """The YAML blocks of the documentation."""
    texts = [path.read_text() for path in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]]
    return [block for text in texts for block in re.findall(r"```ya?ml[^\n]*\n(.*?)```", text, re.DOTALL)]


def loads(text: str) -> bool:
    try:
        claimcheck.from_dict(yaml.safe_load(text))
    except claimcheck.ConfigError:
        return False
    return True


def test_the_schema_is_valid():
    Draft202012Validator.check_schema(schema())


def test_the_file_in_the_documentation_is_up_to_date():
    assert json.loads(FILE.read_text()) == schema(), (
        "run: python -m tests.config_schema > docs/reference/claimcheck.schema.json"
    )


def test_every_configuration_of_the_documentation_is_valid():
    examples = [block for block in blocks() if loads(block)]
    assert examples
    for example in examples:
        VALIDATOR.validate(yaml.safe_load(example))


@pytest.mark.parametrize(
    "raw",
    [
        yaml.safe_load(test_config.DESIGN),
        {},
        {"stores": None, "destinations": None, "reads_from": None, "store": None},
        GOOD | {"stores": {"hot": {"type": "mypackage.stores:TapeStore", "anything": [1]}}},
        GOOD | {"strategy": "mypackage.strategies:Mine"},
        GOOD | {"stores": {"hot": {"type": "memory", "ttl_seconds": "${TTL:-60}"}}},
        GOOD | {"stores": {"hot": {"type": "filesystem", "path": "/x", "mode": 0o640, "fsync": True}}},
        GOOD | {"stores": {"hot": {"type": "redis", "url": "${REDIS_URL}", "tls_ca_file": None}}},
        GOOD | {"stores": {"hot": {"type": "redis", "url": "redis+sentinel://a,b/main", "pointer_version": 1}}},
        GOOD | {"stores": {"hot": {"type": "obstore", "url": "az://container/prefix"}}},
        GOOD | {"stores": {"hot": {"type": "pulsar-topic", "url": "pulsar+ssl://h:6651", "topic": "t"}}},
    ],
)
def test_valid_configurations(raw):
    VALIDATOR.validate(raw)


@pytest.mark.parametrize(
    "change",
    [
        {"strateggy": "external"},
        {"strategy": "hybird"},
        {"strategy": 3},
        {"threshold_bytes": -1},
        {"threshold_bytes": "big"},
        {"threshold_bytes": True},
        {"store": {"hot": {"type": "memory"}}},
        {"stores": []},
        {"stores": {"hot": {}}},
        {"stores": {"hot": "redis://localhost"}},
        {"stores": {"hot": {"type": "reddis"}}},
        {"stores": {"hot": {"type": "memory", "spcae": "x"}}},
        {"stores": {"hot": {"type": "redis"}}},
        {"stores": {"hot": {"type": "redis", "url": "localhost:6379"}}},
        {"stores": {"hot": {"type": "redis", "url": "redis://x", "ttl_seconds": "soon"}}},
        {"stores": {"hot": {"type": "redis", "url": "redis://x", "ttl_seconds": 0}}},
        {"stores": {"hot": {"type": "redis", "url": "redis://x", "pointer_version": 3}}},
        {"stores": {"hot": {"type": "s3", "bucket": "b", "endpoint_url": "localhost:9000"}}},
        {"chunking": {"max_chunks": 0}},
        {"chunking": {"on_evict": "drop"}},
        {"chunking": None},
        {"limits": {"max_pointer_bytes": 511}},
        {"signing": {"keys": {"k1": 5}}},
        {"reads_from": "hot"},
        {"destinations": {"a": {"stores": {}}}},
        {"destinations": {"a": {"threshold_bytes": -5}}},
        {"destinations": 5},
    ],
)
def test_typical_mistakes(change):
    assert not VALIDATOR.is_valid(GOOD | change)
    with pytest.raises(claimcheck.ConfigError):
        claimcheck.from_dict(GOOD | change)


def test_every_option_has_a_description():
    for name, definition in schema()["$defs"].items():
        for option, value in definition.get("properties", {}).items():
            assert "description" in value or "const" in value, f"{name}.{option}"
