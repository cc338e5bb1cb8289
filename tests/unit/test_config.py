"""From YAML to frozen dataclasses and stores; every mistake names its place, what was found and what was expected."""

from __future__ import annotations

import dataclasses
import json
import math
import pickle
import re
import sys
import threading
import tomllib
import types
from functools import partial
from types import SimpleNamespace
from typing import Annotated, Any, Literal

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

import claimcheck
from claimcheck import config as configuration
from claimcheck._config_file import from_dict, read_yaml
from claimcheck._registry import build_store, check_store
from claimcheck._store.store import Store
from claimcheck._validation import Check, Range, build, check_arguments, check_int, check_seconds, fail, without_secrets
from claimcheck.config import ChunkingConfig, CompressionConfig, StoreConfig, expand, signing_key
from claimcheck.errors import ConfigError, MissingDependencyError, StoreError, StoreUnavailableError, import_vendor
from tests.config_schema import schema
from tests.docs_pages import ROOT

DESIGN = """
strategy: hybrid
threshold_bytes: auto
store: hot
stores:
  hot:  {type: redis, url: "redis://:${REDIS_PASSWORD:-}@localhost:6379/0", ttl_seconds: 604800}
  cold: {type: s3, bucket: payloads, prefix: claims/, endpoint_url: "${S3_ENDPOINT}"}
  disk: {type: filesystem, path: /var/lib/claims, create: false, ttl_seconds: 604800, fsync: false, mode: "0600"}
chunking: {max_message_bytes: auto, max_payload_bytes: 268435456, max_chunks: 100000, max_pending_payloads: 100,
           max_pending_bytes: 268435456, expire_after_seconds: 60, on_expire: redeliver, on_evict: redeliver}
hybrid:   {chunk_below_bytes: 0}
signing:  {key_id: k1, keys: {k1: "${CLAIMCHECK_SIGNING_SECRET}"}, require: true}
limits:   {max_payload_bytes: 5368709120, max_pointer_bytes: 8192}
envelope: {header: "PRF_wdkafcli_header_"}
destinations:
  "audit.*": {strategy: chunking, chunking: {max_chunks: 7}}
  "*.cold": {store: cold, threshold_bytes: 1000}
"""
GOOD: dict[str, Any] = {"strategy": "external", "store": "hot", "stores": {"hot": {"type": "memory"}}}
KEY = "A" * 42 + "E="


def load(path):
    return from_dict(read_yaml(path))


def with_store(**options):
    return {"stores": {"hot": options}}


# Configurations that load ----------------------------------------------------------------------------------------


def test_the_whole_file_loads_and_means_what_is_in_it(tmp_path):
    path = tmp_path / "claimcheck.yaml"
    path.write_text(DESIGN)
    config = load(path)
    assert config.stores["hot"] == StoreConfig(
        "redis", {"url": "redis://:${REDIS_PASSWORD:-}@localhost:6379/0", "ttl_seconds": 604800}
    )
    assert (config.chunking, config.header) == (ChunkingConfig(), claimcheck.HEADER)
    assert config.for_destination("orders") is config
    audit = config.for_destination("audit.eu")
    assert (audit.strategy, audit.chunking.max_chunks, audit.chunking.max_pending_payloads) == ("chunking", 7, 100)
    assert config.for_destination("x.cold").store == "cold"
    assert config.for_destination("audit.cold").strategy == "chunking", "the first match wins"
    claimcheck.load(path)


def test_a_key_may_be_merged_and_changed(tmp_path):
    path = tmp_path / "claimcheck.yaml"
    path.write_text(
        "stores:\n  a: &a {type: memory, space: x}\n  b: &b {<<: *a, space: y}\n  c: {<<: *b, space: z}\nstore: c"
    )
    assert [store.options["space"] for store in load(path).stores.values()] == ["x", "y", "z"]


def test_a_section_that_is_off_by_default_can_be_turned_on_and_off_per_destination():
    raw = {"destinations": {"images.*": {"compression": None}, "logs": {"compression": {"level": 9}}}}
    assert from_dict(GOOD | {"compression": None}).compression is None
    config = from_dict(GOOD | raw | {"compression": {"codec": "zstd", "min_bytes": 5}})
    assert config.for_destination("images.png").compression is None
    assert config.for_destination("logs").compression == CompressionConfig("zstd", 9, 5)
    assert config.for_destination("orders").compression == CompressionConfig("zstd", 1, 5)


def test_readers_may_be_limited_to_some_stores():
    stores = {"stores": {"hot": {"type": "memory"}, "cold": {"type": "memory"}}}
    assert from_dict(GOOD | stores).readable == ("hot", "cold")
    limited = from_dict(GOOD | stores | {"reads_from": ["cold"], "destinations": {"a": {"store": "cold"}}})
    assert (limited.readable, limited.store, limited.for_destination("a").readable) == (("cold",), "hot", ("cold",))
    assert from_dict(GOOD | stores | {"reads_from": []}).readable == ()


@pytest.mark.parametrize(
    ("signing", "require"),
    [
        ({"require": None}, False),
        ({"keys": {"k1": "${CLAIM_SECRET}"}}, True),
        ({"keys": {"k1": "${CLAIM_SECRET}"}, "require": None}, True),
        ({"keys": {"k1": "${CLAIM_SECRET}"}, "require": False}, False),
    ],
)
def test_signatures_are_required_by_default_where_there_are_keys(signing, require):
    config = pickle.loads(pickle.dumps(from_dict(GOOD | {"signing": signing})))
    assert config.signing.require is require
    assert dataclasses.replace(config, store=None).signing.require is require


class Mine(claimcheck.Strategy):
    def _offload(self, message): ...


# Pickled configurations ------------------------------------------------------------------------------------------

THIS = configuration.VERSION
SIGNED = GOOD | {"signing": {"keys": {"k": "0123456789abcdef"}, "require": True, "bind_destination": False}}


def test_a_configuration_is_frozen_and_pickles_with_names_not_secrets(monkeypatch):
    monkeypatch.setenv("SECRET_PATH", "/very/secret")
    config = from_dict({"stores": {"disk": {"type": "filesystem", "path": "${SECRET_PATH}"}}})
    pickled = pickle.dumps(config)
    assert pickle.loads(pickled) == config
    assert b"secret" not in pickled.lower().replace(b"secret_path", b"")
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.strategy = "inline"


def test_another_version_refuses_a_pickled_configuration(monkeypatch):
    assert tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"] == THIS
    config = claimcheck.from_dict(SIGNED)
    pickled = pickle.dumps(config)
    monkeypatch.setattr(configuration, "VERSION", "9.9.9")
    with pytest.raises(ConfigError, match=rf"claimcheck {re.escape(THIS)}, .* has claimcheck 9\.9\.9"):
        pickle.loads(pickled)
    signing = config.config.signing
    with pytest.raises(ConfigError, match="claimcheck 0.1.0 or earlier"):
        type(signing).__setstate__(signing, [1, 2, 3])


@pytest.mark.parametrize("name", ["Config", "SigningConfig", "StoreConfig"])
@pytest.mark.parametrize("change", ["one more", "one less", "another name"])
def test_options_that_differ_are_never_taken_for_others(monkeypatch, name, change):
    """As between two builds of one version: by position, `signing.require` could become false."""
    kind = getattr(configuration, name)
    pickled, known = pickle.dumps(from_dict(SIGNED)), dataclasses.fields(kind)
    other = SimpleNamespace(name="strict_topics")
    there = {"one more": [other, *known], "one less": known[1:], "another name": [other, *known[1:]]}[change]
    monkeypatch.setattr(configuration, "fields", lambda of: there if of is kind else dataclasses.fields(of))
    with pytest.raises(ConfigError, match="with other options, and this process has"):
        pickle.loads(pickled)


# Mistakes --------------------------------------------------------------------------------------------------------

VALIDATOR = Draft202012Validator(schema())
REDIS = {"type": "redis", "url": "redis://x"}
MISTAKES: list[tuple[Any, str, str]] = [
    ({"strateggy": "external"}, "strateggy", "found an unknown key, .*; did you mean 'strategy'"),
    ({"strategy": 3}, "strategy", "found 3, expected text"),
    ({"strategy": "hybird"}, "strategy", "found 'hybird', .*did you mean 'hybrid'"),
    ({"threshold_bytes": -1}, "threshold_bytes", "found -1, .* at least 0 or 'auto'"),
    ({"threshold_bytes": "big"}, "threshold_bytes", "found 'big', expected an integer"),
    ({"threshold_bytes": "${TH:-1000}"}, "threshold_bytes", "found a placeholder, .*placeholders work only in"),
    ({"stores": []}, "stores", "found a list, expected a mapping"),
    ({"stores": {"hot": "redis://me:hunter2@host"}}, "stores.hot", "found text, expected a mapping with type: a store"),
    (with_store(type="${TYPE}"), "stores.hot.type", "found a placeholder, .*placeholders work only"),
    (with_store(type="reddis"), "stores.hot.type", "filesystem, memory, obstore, pulsar-topic, redis, s3"),
    (with_store(type="memory", spcae="${X}"), "stores.hot.spcae", "did you mean 'space'"),
    (with_store(type="memory", ttl_seconds="soon"), "stores.hot.ttl_seconds", "expected a number"),
    (with_store(type="redis"), "stores.hot.url", "redis://"),
    (with_store(type="s3", bucket="b", endpoint_url="localhost:7070"), "stores.hot.endpoint_url", "http://host"),
    ({"chunking": {"on_evict": "drop"}}, "chunking.on_evict", "found 'drop', .*'redeliver'"),
    ({"signing": {"keys": {"k1": 5}}}, "signing.keys.k1", "found a number, expected text"),
    ({"signing": {"accept_from": {"a": "b"}}}, "signing.accept_from.a", "found text, expected a list"),
    ({"reads_from": [["hot"]]}, "reads_from.0", "found a list, expected text"),
    ({"destinations": {"a": {"stores": {}}}}, "destinations.a.stores", "applies to all .*strategy"),
]
BEYOND_THE_SCHEMA: list[tuple[Any, str, str]] = [
    # Each of these would be two mistakes if what follows from the first one were reported, too
    ({"store": {"hot": {"type": "memory"}}}, "store", "expected text"),
    ({"stores": {"hot": 5}, "destinations": {"a": {"strategy": "hybrid"}}}, "stores.hot", "found a number"),
    ({"chunking": {"max_chunks": 0}, "destinations": {"a": {"chunking": {"max_chunks": 5}}}}, "chunking.max_chunks",
     "found 0"),
    ({"store": "hott", "destinations": {"a": {"threshold_bytes": 5}}}, "store", "found 'hott'.*; did you mean 'hot'"),
    ({"chunking": {"max_pending_bytes": 1000}, "destinations": {"a": {}}}, "chunking.max_pending_bytes", "found 1000"),
    ({"encryption": {"require": True}}, "encryption.keys", "found nothing"),
    ({"encryption": {"key_id": "k9", "keys": {"k1": KEY}}}, "encryption.key_id", "found"),
    ({"encryption": {"key_id": "k9"}}, "encryption.key_id", "found"),
    ({"encryption": {"keys": {"k1": KEY[:-4]}}}, "encryption.keys.k1", "^[^A]*$"),  # the key is not quoted
    ({"encryption": {"keys": {"k1": "hunter2!"}}}, "encryption.keys.k1", "found"),
    ({"stores": {"hot": {"type": "memory"}, 1: {"type": "memory"}}}, "stores.1", "found the name 1, expected a name"),
    ({"reads_from": ["hot", "cold"]}, "reads_from", "found 'cold', .*names below stores \\(hot\\)"),
    ({"reads_from": [], "destinations": {"a": {"reads_from": ["hot"]}}}, "destinations.a.reads_from", "hot.*none"),
    (with_store(type="claimcheck._wire.pointer:slug"), "stores.hot.type", "a class"),
    (with_store(**REDIS, ttl_seconds=math.inf), "stores.hot.ttl_seconds", "found inf"),
    (with_store(type="redis", url="${URL}", key_prefix="/app/"), "stores.hot.key_prefix", "begins with no slash"),
    (with_store(**REDIS, key_prefix="../a/"), "stores.hot.key_prefix", "printable"),
    (with_store(**REDIS, key_prefix="ü" * 451), "stores.hot.key_prefix", "900 bytes"),
    (with_store(type="s3", bucket=""), "stores.hot.bucket", "a bucket"),
    (with_store(type="filesystem", path=""), "stores.hot.path", "a directory"),
    (with_store(type="filesystem", path="dbfs:/Volumes/claims"), "stores.hot.path", "not a URI"),
    ({"signing": {"require": True}}, "signing.keys", "found nothing, .*at least one key"),
    ({"signing": {"require_envelope": True}}, "signing.keys", "found nothing, .*signing.require_envelope is true"),
    ({"signing": {"max_age_seconds": 5}}, "signing.keys", "found nothing, .*signing.max_age_seconds is set"),
    ({"signing": {"key_id": "k2", "keys": {"k1": "x" * 16}}}, "signing.key_id", "no key.*below signing.keys"),
    ({"signing": {"keys": {"k1": "x" * 15}}}, "signing.keys.k1", "too short.*at least 16 bytes"),
    ({"signing": {"keys": {"k1": "\ud800" * 16}}}, "signing.keys.k1", "too short.*at least 16 bytes of text"),
    ({"envelope": {"header": "${HEADER}"}}, "envelope.header", "a placeholder.*store options and keys"),
    ({"envelope": {"header": "\xfcmlaut"}}, "envelope.header", "ü.*ASCII"),
    ({"strategy": "chunking", "chunking": {"max_chunks": 10, "max_pending_messages": 9}},
     "chunking.max_pending_messages", r"found 9, expected at least chunking\.max_chunks \(10\)"),
    ({"chunking": {"expire_after_seconds": math.inf}}, "chunking.expire_after_seconds", "found inf, .*at most 10000"),
    ({"destinations": {"a": {"chunking": {"max_pending_bytes": 5}}}},
     "destinations.a.chunking.max_pending_bytes", "found 5, .*at least chunking.max_payload_bytes"),
    ({"encryption": {"key_id": "k", "keys": {"k": KEY}, "provider": "vualt"}}, "encryption.provider", "'vualt'.*aws"),
    ({"encryption": {"keys": {"k": KEY}, "options": {"region": "x"}}}, "encryption.options.region", "unknown key"),
    *(
        ({section: {name: 1000}, "destinations": {"a": {section: {name: 1001}}}}, f"destinations.a.{section}.{name}",
         "at most 1000: readers use the top-level limits")
        for section in ("limits", "chunking") for name in ("max_payload_bytes", "max_pointer_bytes", "max_chunks")
        if hasattr(getattr(configuration.Config(), section), name)
    ),
]  # fmt: skip


@pytest.mark.parametrize(("change", "path", "text"), [*MISTAKES, *BEYOND_THE_SCHEMA])
def test_one_mistake_is_one_problem_that_names_its_place(change, path, text):
    with pytest.raises(ConfigError) as caught:
        claimcheck.from_dict(GOOD | change)
    (problem,) = caught.value.problems
    assert (caught.value.path, problem.path) == (path, path)
    assert str(caught.value).startswith(f"{path}: ")
    assert re.search(text, str(problem))
    assert "hunter2" not in str(caught.value)


def test_all_problems_are_named_at_once():
    with pytest.raises(ConfigError) as caught:
        claimcheck.from_dict(
            {
                "strategy": "hybird",
                "store": "hott",
                "max_chunks": 4,
                "chunking": {"max_chunks": 0, "on_expire": "later"},
                "signing": {"key_id": "k2", "keys": {"k1": "short"}},
                "stores": {"hot": {"type": "reddis"}, "cold": {"type": "redis", "ulr": "x"}, "bad": 5},
                "destinations": {"a": {"threshold_bytes": -1, "streategy": 1}, "b": 7},
            }
        )
    error = caught.value
    assert [problem.path for problem in error.problems] == [
        *("stores.bad", "max_chunks", "chunking.max_chunks", "chunking.on_expire", "signing.key_id"),
        *("signing.keys.k1", "store", "destinations.a.streategy", "destinations.a.threshold_bytes", "destinations.b"),
        *("strategy", "stores.hot.type", "stores.cold.ulr"),
    ]
    first = error.problems[0]
    assert (error.path, error.found, error.expected) == (first.path, first.found, first.expected)
    assert all(str(problem) in str(error) for problem in error.problems)
    copy = pickle.loads(pickle.dumps(error))
    assert [(str(each), vars(each)) for each in copy.problems] == [(str(each), vars(each)) for each in error.problems]


@pytest.mark.parametrize("place", ["", "destinations.a."])
@pytest.mark.parametrize(
    ("strategy", "path", "text"),
    [
        ("hybird", "strategy", "'hybird'.*did you mean 'hybrid'"),
        *((name, "strategy", "strategy: ") for name in ("no.such:Strategy", "builtins:dict", ":X", ".a:X", "a:")),
        ("claimcheck._store.store:Store", "strategy", "strategy: "),
        ("hybrid", "store", "found nothing, expected the name of a store"),
        ("tests.unit.test_config:Mine", "store", "found nothing, expected the name of a store"),
    ],
)
def test_a_strategy_that_is_none_or_lacks_its_store(place, strategy, path, text):
    raw = {"strategy": strategy}
    with pytest.raises(ConfigError, match=text) as caught:
        claimcheck.from_dict({"strategy": "inline"} | ({"destinations": {"a": raw}} if place else raw))
    assert caught.value.path == f"{place}{path}"


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"encryption": {"keys": {"k": "${KEY}"}}}, "encryption.require is true"),
        ({"encryption": {"keys": {"k": "${KEY}"}, "key_id": "k", "require": False}}, "encryption.key_id is set"),
        ({"signing": {"keys": {"k": "0123456789abcdef"}, "require": False}}, "no signature"),
        ({"compression": {"codec": "zstd"}}, "compression is configured"),
        ({"destinations": {"orders": {"compression": {"level": 5}}}}, "compression is configured"),
    ],
)
def test_version_1_pointers_cannot_be_signed_nor_mark_encrypted_or_compressed_payloads(options, reason):
    raw = GOOD | with_store(**REDIS, pointer_version=1)
    with pytest.raises(ConfigError, match=f"expected 2: .*{reason}") as caught:
        claimcheck.from_dict(raw | options)
    assert caught.value.path == "stores.hot.pointer_version"
    claimcheck.from_dict(raw | {"encryption": {"keys": {"k": "${KEY}"}, "require": False}}).close()


# Files -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("", "expected a mapping"),
        ("\x00", "not YAML"),
        # Where it is wrong, and where that began
        ("a:\n\tb: x\n", r"not YAML: line 2, .*found character '\\t' \(a tab\) that cannot start any token"),
        ("a:\nb: {c: {d: e}\nf: {}\n", "line 3, .*a flow mapping that begins at line 2, expected ',' or '}'"),
        # Keys that appear twice
        ("stores:\n  hot: {type: memory}\n  hot: {type: redis}", "line 3, column 3: this key appears twice"),
        ("signing: {keys: {k1: x}}\nhunter2: 1\nhunter2: 2\n", "line 3, column 1: this key appears twice"),
        # Texts that may have a secret where it cannot be parsed
        ("url: redis://me:hunter2@host: [", "not YAML: line 1"),
        ("key: !hunter2 x", "not YAML: line 1"),
        ("key: *hunter2", r"line 1, column 6: found undefined alias \.\.\.$"),
        ("key: !!int hunter2", "not YAML: it cannot be read"),
        ("a: " + "[" * 5000, "not YAML: it is nested too deeply"),
        # No document of text
        (b"stores:\n  \xe9: {type: memory}\n", "not YAML: it is not UTF-8 text$"),
        (b"a: 1\n---\nb: 1\n", "line 2, column 1: expected a single document in the stream, but found another"),
    ],
)
def test_a_file_that_is_no_configuration_says_where_and_is_never_quoted(tmp_path, content, why):
    path = tmp_path / "claimcheck.yaml"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ConfigError, match=why) as caught:
        load(path)
    assert "hunter2" not in f"{caught.value}{vars(caught.value)}"
    assert (caught.value.__cause__, caught.value.__context__) == (None, None)


def test_a_path_that_leads_to_no_file_or_to_a_huge_one(tmp_path):
    for path in (None, 5, "nul\0nul", "nothing.yaml"):
        with pytest.raises(ConfigError):
            load(path)
    with (tmp_path / "claimcheck.yaml").open("wb") as file:
        file.truncate(1 << 40)  # sparse
    with pytest.raises(ConfigError, match="a smaller YAML file"):
        load(tmp_path / "claimcheck.yaml")


# Placeholders and secrets ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "environ", "result"),
    [
        ("x${A}y${B:-b}", {"A": "1"}, "x1yb"),
        ("${A:-}", {}, ""),
        ("${A:-d}", {"A": ""}, "d"),
        ("${A}", {"A": ""}, ""),
        ("$A {A}", {"A": "1"}, "$A {A}"),
        (5, {}, 5),
    ],
)
def test_placeholders(text, environ, result):
    assert expand(text, path="p", environ=environ) == result


def test_a_signing_key_is_checked_when_it_is_resolved():
    with pytest.raises(ConfigError, match=r"signing\.keys\.k1: .*too short.*at least 16 bytes") as caught:
        signing_key("${A:-hunter2}", path="signing.keys.k1", environ={})
    assert "hunter2" not in f"{caught.value}{vars(caught.value)}"
    assert signing_key("${A}", path="p", environ={"A": "é" * 8}) == ("é" * 8).encode()
    assert signing_key("${A}", path="p", environ={"A": "\udcff" * 16}) == b"\xff" * 16  # bytes of the environment


@pytest.mark.parametrize(
    "raw",
    [
        *(with_store(type="redis", url=url) for url in ("hunter2:6379", "me:hunter2@localhost:6379", ["hunter2"])),
        *(with_store(type="redis", url=url) for url in (4711, "4711", "hunter2.x@localhost")),
        with_store(type="redis", url="redis://:47/11@host", ttl_seconds=60),
        with_store(**REDIS, ttl_seconds="4711"),
        with_store(**REDIS, pointer_version="4711"),
        *({"signing": value} for value in ("hunter2", 4711)),
        *({"signing": {"keys": value}} for value in ("hunter2", ["hunter2"], 4711)),
        *({"signing": {"keys": {"k": value}}} for value in (["hunter2"], 4711)),
        *({"signing": {"key_id": value, "keys": {"k": "x"}}} for value in ("hunter2", ["hunter2"], 4711)),
        *({"signing": {"require": value}} for value in ("hunter2", 4711)),
    ],
)
def test_what_may_be_a_secret_is_never_quoted(raw):
    with pytest.raises(ConfigError) as caught:
        claimcheck.from_dict(GOOD | raw)
    error = caught.value
    assert (error.path or "").startswith(("signing", "stores.hot."))
    shown = f"{error} {error.found} {error.expected} {error.problems}"
    assert not {"hunter2", "4711", "47", "11"} & set(re.findall(r"\w+", shown))


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("at http://host/path, 10:15: a@b", "at http://host/path, 10:15: a@b"),
        ("at redis://me:hunter2@host/0 now", "at redis://***@host/0 now"),
        ("at redis://:hun/ter2@host", "at redis://***@host"),
        ("at redis://:hun@ter2@host", "at redis://***@host"),
        ("invalid host: me:hunter2@host:6650", "invalid host: ***@host:6650"),
        ("at unix:///socket?db=1&password=hunter2&x=1", "at unix:///socket?db=1&password=***&x=1"),
    ],
)
def test_texts_lose_their_passwords(text, clean):
    assert without_secrets(text) == clean


# The schema ------------------------------------------------------------------------------------------------------


def test_the_schema_in_the_documentation_is_valid_complete_and_up_to_date():
    Draft202012Validator.check_schema(schema())
    page = ROOT / "docs" / "reference" / "claimcheck.schema.json"
    assert json.loads(page.read_text()) == schema(), (
        "run: python -m tests.config_schema > docs/reference/claimcheck.schema.json"
    )
    for name, definition in schema()["$defs"].items():
        for option, value in definition.get("properties", {}).items():
            assert "description" in value or "const" in value, f"{name}.{option}"


def test_the_schema_accepts_what_loads_and_refuses_typical_mistakes():
    for raw in (
        yaml.safe_load(DESIGN),
        {"stores": None, "destinations": None, "reads_from": None, "store": None},
        GOOD | {"strategy": "mypackage.strategies:Mine"} | with_store(type="mypackage.stores:TapeStore", anything=[1]),
        GOOD | with_store(type="memory", ttl_seconds="${TTL:-60}"),
        GOOD | with_store(type="filesystem", path="/x", mode=0o640, fsync=True),
        GOOD | with_store(type="redis", url="redis+sentinel://a,b/main", pointer_version=1, tls_ca_file=None),
        GOOD | with_store(type="obstore", url="az://container/prefix"),
    ):
        VALIDATOR.validate(raw)
    assert [change for change, _, _ in MISTAKES if VALIDATOR.is_valid(GOOD | change)] == []


# The checker that the configuration and all constructors share ---------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Sample:
    count: Annotated[int, Range(1, 9)] = 1
    rate: Annotated[float, Range(0.001, 86_400)] | None = 1
    even: Annotated[int, Check(lambda n: n % 2 == 0, "an even number")] | None = None


@given(st.integers(-5, 15), st.none() | st.floats() | st.integers(-5, 90_000), st.none() | st.integers(0, 9))
def test_arguments_are_checked_under_their_own_names(count, rate, even):
    valid = {
        "count": 1 <= count <= 9,
        "rate": rate is None or 0.001 <= rate <= 86_400,
        "even": even is None or even % 2 == 0,
    }
    values = {"count": count, "rate": rate, "even": even}
    if all(valid.values()):
        assert build(Sample, values, "") == Sample(**values)
        check_arguments(Sample, **values)
        return
    with pytest.raises(ConfigError) as caught:
        build(Sample, values, "x")
    wrong = [name for name, holds in valid.items() if not holds]
    assert [problem.path for problem in caught.value.problems] == [f"x.{name}" for name in wrong]
    expected = {
        "count": "an integer of at least 1 and at most 9",
        "rate": "a number of at least 0.001 and at most 86400 or nothing",
        "even": "an even number or nothing",
    }[wrong[0]]
    assert (caught.value.found, caught.value.expected) == (str(values[wrong[0]]), expected)
    with pytest.raises(ConfigError) as caught:
        check_arguments(Sample, **values)
    assert caught.value.path == wrong[0]


BAD = [0, -1, True, "2", None, math.nan]
TOO_LONG = [math.inf, threading.TIMEOUT_MAX * 2]


@pytest.mark.parametrize(
    ("check", "values", "expected"),
    [
        (partial(check_int, minimum=1), [*BAD, 1.5], "an integer of at least 1$"),
        (check_seconds, [*BAD, *TOO_LONG], "a number of seconds above 0$|a number of at least"),
        (partial(check_seconds, allow_zero=True), [*BAD[1:], *TOO_LONG], "a number of at least 0"),
    ],
)
def test_other_arguments_than_integers_and_times_are_refused(check, values, expected):
    for value in values:
        with pytest.raises(ConfigError, match=f"^wait: found .*, expected {expected}") as caught:
            check("wait", value)
        assert caught.value.path == "wait"


# Classes and stores ------------------------------------------------------------------------------------------------


class VendorStore(Store):
    def _write(self, pointer, source): ...
    def _read(self, pointer): ...
    def _delete(self, pointer): ...


@pytest.fixture
def use(monkeypatch):
    """Put a class where a configuration finds it."""

    def put(cls, **options):
        module = types.ModuleType("third_party")
        module.Its = cls
        monkeypatch.setitem(sys.modules, "third_party", module)
        return StoreConfig("third_party:Its", options)

    return put


def failing_with(error):
    class Its(VendorStore):
        def __init__(self, *, drive: int = 0) -> None:
            raise error

    return Its


@pytest.mark.parametrize(
    ("raised", "expected"),
    [
        (OSError("no such tape at ftp://me:hunter2@host"), StoreError),
        (ConnectionError("down"), StoreUnavailableError),
        (TimeoutError("slow"), StoreUnavailableError),
        (ValueError("there is no drive 9"), ConfigError),
        (RuntimeError("odd"), ConfigError),
        (MissingDependencyError("no driver"), None),
        (StoreError("ours already"), None),
    ],
)
def test_what_a_constructor_raises_is_ours_and_names_the_store(use, raised, expected):
    text = r"store 'hot' \(stores.hot\) cannot be created" if expected else str(raised)
    with pytest.raises(expected or type(raised), match=text) as caught:
        build_store(use(failing_with(raised)), path="stores.hot")
    if expected is None:
        assert caught.value is raised
        return
    assert type(caught.value) is expected
    assert caught.value.__cause__ is raised
    assert str(raised).replace("me:hunter2", "***") in str(caught.value)
    assert getattr(caught.value, "store", "hot") == "hot"
    assert getattr(caught.value, "path", "stores.hot") == "stores.hot"
    pickle.loads(pickle.dumps(caught.value))


def test_what_a_constructor_finds_wrong_gets_its_whole_path(use):
    class Its(VendorStore):
        def __init__(self, *, drive: int) -> None:
            fail("drive", found=str(drive), expected="1 to 8")

    with pytest.raises(ConfigError, match=r"^stores\.hot\.drive: found 9, expected 1 to 8$") as caught:
        build_store(use(Its, drive=9), path="stores.hot")
    assert (caught.value.path, caught.value.found, caught.value.expected) == ("stores.hot.drive", "9", "1 to 8")


@pytest.mark.parametrize("url", ["", "not a url", "redis://:47/11@host"])
def test_an_address_from_the_environment_is_judged_when_the_store_is_opened(monkeypatch, url):
    monkeypatch.setenv("REDIS_URL", url)
    config = StoreConfig("redis", {"url": "${REDIS_URL}"})
    check_store(config, path="stores.r")
    with pytest.raises(ConfigError, match=r"^stores\.r\.url: found text, expected redis://") as caught:
        build_store(config, path="stores.r")
    assert caught.value.path == "stores.r.url"


class Unfinished(Store):
    def _write(self, pointer, source): ...


class Unreadable(VendorStore):
    def __init__(self, *, drive: NoSuchName) -> None: ...  # type: ignore[name-defined]  # noqa: F821


@pytest.mark.parametrize(
    ("target", "text"),
    [
        *((target, "type: ") for target in (dict, object, failing_with, "text", types.ModuleType("m"))),
        (Unfinished, "all of its abstract methods"),
        (Unreadable, "NoSuchName"),
    ],
)
def test_what_is_no_store_that_can_be_made(use, target, text):
    for check in (check_store, build_store):
        with pytest.raises(ConfigError, match=text) as caught:
            check(use(target), path="stores.hot")
        assert caught.value.path == "stores.hot.type"


@pytest.mark.parametrize("source", ["1/0", "raise OSError('disk')", "import no_such_module", "x = "])
def test_modules_that_cannot_be_imported(tmp_path, monkeypatch, source):
    (tmp_path / "broken_third_party.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match=r"^stores\.hot\.type: cannot import") as caught:
        check_store(StoreConfig("broken_third_party:Its"), path="stores.hot")
    assert caught.value.__cause__ is not None


class TestOptions:
    def test_of_a_store_that_takes_any(self, use, monkeypatch):
        class Its(VendorStore):
            def __init__(self, *, drive: int, **options: int) -> None:
                self.got = options | {"drive": drive}

        monkeypatch.setenv("SPEED", "5")
        config = use(Its, drive=3, speed="${SPEED}", heads=2)
        check_store(config, path="stores.hot")
        assert build_store(config, path="stores.hot").got == {"drive": 3, "speed": 5, "heads": 2}
        with pytest.raises(ConfigError) as caught:
            check_store(use(Its, drive=3, heads="many"), path="stores.hot")
        assert caught.value.path == "stores.hot.heads"
        with pytest.raises(ConfigError, match="unknown key"):
            build_store(StoreConfig("third_party:Its", {"drive": 3, 5: 5}), path="stores.hot")

    def test_of_a_store_that_takes_none(self, use):
        build_store(use(VendorStore), path="stores.hot")
        with pytest.raises(ConfigError, match="expected nothing: this takes no options"):
            check_store(use(VendorStore, drive=3), path="stores.hot")

    def test_are_never_quoted_where_they_may_be_secret(self, use):
        class Its(VendorStore):
            def __init__(
                self, *, token: str = "", count: int = 0, both: int | str = 0, auto: int | Literal["auto"] = 0
            ) -> None: ...

        for options in ({"token": 4711}, {"count": "4711"}, {"both": ["4711"]}, {"token": None}, {"both": 47.11}):
            with pytest.raises(ConfigError) as caught:
                check_store(use(Its, **options), path="stores.hot")
            assert "4711" not in str(caught.value).replace(".", "")
        for options in ({"count": 1.5}, {"auto": 1.5}):
            with pytest.raises(ConfigError, match=r"found 1\.5"):
                check_store(use(Its, **options), path="stores.hot")


def test_a_missing_vendor_names_its_extra():
    with pytest.raises(MissingDependencyError, match=r"claimcheck-messaging\[s3\]") as caught:
        import_vendor("no_such_vendor.errors", extra="s3")
    assert (caught.value.package, caught.value.extra) == ("no_such_vendor", "s3")
