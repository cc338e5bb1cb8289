"""From YAML to frozen dataclasses; every mistake names its place, what was found and what was expected."""

from __future__ import annotations

import dataclasses
import json
import pickle
import re
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

import claimcheck
from claimcheck import config as configuration
from claimcheck._config_file import from_dict, read_yaml
from claimcheck.config import ChunkingConfig, CompressionConfig, StoreConfig, expand, signing_key
from claimcheck.errors import ConfigError
from tests.config_schema import schema
from tests.unit import test_config

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


GOOD = {"strategy": "external", "store": "hot", "stores": {"hot": {"type": "memory"}}}


THIS = configuration.VERSION


def load(path):
    return from_dict(read_yaml(path))


def test_the_whole_file_loads_and_says_what_it_means(tmp_path):
    path = tmp_path / "claimcheck.yaml"
    path.write_text(DESIGN)
    config = load(path)
    assert config.stores["hot"] == StoreConfig(
        "redis", {"url": "redis://:${REDIS_PASSWORD:-}@localhost:6379/0", "ttl_seconds": 604800}
    )
    assert config.chunking == ChunkingConfig()
    assert config.header == claimcheck.HEADER
    assert config.for_destination("orders") is config
    audit = config.for_destination("audit.eu")
    assert (audit.strategy, audit.chunking.max_chunks, audit.chunking.max_pending_payloads) == ("chunking", 7, 100)
    assert config.for_destination("x.cold").store == "cold"
    assert config.for_destination("audit.cold").strategy == "chunking", "the first match wins"
    claimcheck.load(path)


def test_a_section_that_is_off_by_default_can_be_turned_on_and_off_per_destination():
    raw = {"destinations": {"images.*": {"compression": None}, "logs": {"compression": {"level": 9}}}}
    assert from_dict(GOOD | {"compression": None}).compression is None
    config = from_dict(GOOD | raw | {"compression": {"codec": "zstd", "min_bytes": 5}})
    assert config.for_destination("images.png").compression is None
    assert config.for_destination("logs").compression == CompressionConfig("zstd", 9, 5)
    assert config.for_destination("orders").compression == CompressionConfig("zstd", None, 5)


def test_the_version_is_that_of_the_project():
    pyproject = Path(__file__).parents[2] / "pyproject.toml"
    assert tomllib.loads(pyproject.read_text())["project"]["version"] == configuration.VERSION


SIGNED = GOOD | {"signing": {"keys": {"k": "0123456789abcdef"}, "require": True, "bind_destination": False}}


def test_another_version_refuses_a_pickled_configuration(monkeypatch):
    pickled = pickle.dumps(claimcheck.from_dict(SIGNED))
    monkeypatch.setattr(configuration, "VERSION", "9.9.9")

    with pytest.raises(ConfigError, match=rf"claimcheck {re.escape(THIS)}, .* has claimcheck 9\.9\.9"):
        pickle.loads(pickled)


@pytest.mark.parametrize("name", ["Config", "SigningConfig", "StoreConfig", "EncryptionConfig"])
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


def test_a_configuration_is_frozen_and_pickles_with_names_not_secrets(monkeypatch):
    monkeypatch.setenv("SECRET_PATH", "/very/secret")
    config = from_dict({"stores": {"disk": {"type": "filesystem", "path": "${SECRET_PATH}"}}})
    pickled = pickle.dumps(config)
    assert pickle.loads(pickled) == config
    assert b"secret" not in pickled.lower().replace(b"secret_path", b"")
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.strategy = "inline"


@pytest.mark.parametrize(
    ("change", "path", "found", "expected"),
    [
        ({"strateggy": "external"}, "strateggy", "unknown key", "did you mean 'strategy'"),
        ({"strategy": 3}, "strategy", "3", "text"),
        ({"threshold_bytes": -1}, "threshold_bytes", "-1", "at least 0 or 'auto'"),
        ({"threshold_bytes": "big"}, "threshold_bytes", "'big'", "an integer"),
        ({"threshold_bytes": True}, "threshold_bytes", "True", "an integer"),
        ({"threshold_bytes": 1.5}, "threshold_bytes", "1.5", "an integer"),
        ({"store": "hott"}, "store", "'hott'", "hot"),
        ({"stores": []}, "stores", "list", "mapping"),
        ({"stores": {"hot": {}}}, "stores.hot.type", "nothing", "store type"),
        ({"stores": {"hot": "redis://me:hunter2@host"}}, "stores.hot", "text", "a mapping with type: a store type"),
        ({"stores": {"hot": {"type": 5}}}, "stores.hot.type", "a number", "store type"),
        ({"stores": {"hot": {"type": "${TYPE}"}}}, "stores.hot.type", "a placeholder", "placeholders work only"),
        ({"stores": {1: {"type": "memory"}}}, "stores.1", "1", "text"),
        ({"chunking": {"max_chunks": 0}}, "chunking.max_chunks", "0", "at least 1"),
        ({"chunking": {"on_evict": "drop"}}, "chunking.on_evict", "'drop'", "'redeliver'"),
        ({"chunking": None}, "chunking", "nothing", "mapping"),
        ({"limits": {"max_payload_byte": 1}}, "limits.max_payload_byte", "unknown key", "'max_payload_bytes'"),
        ({"signing": {"require": True}}, "signing.keys", "nothing", "at least one key"),
        ({"signing": {"key_id": "k2", "keys": {"k1": "x"}}}, "signing.key_id", "no key", "below signing.keys"),
        ({"signing": {"keys": {"k1": 5}}}, "signing.keys.k1", "a number", "text"),
        ({"signing": {"keys": {"k1": "x" * 15}}}, "signing.keys.k1", "too short", "at least 16 bytes"),
        ({"signing": {"keys": {"k1": ""}}}, "signing.keys.k1", "too short", "at least 16 bytes"),
        ({"signing": {"keys": {"k1": "\ud800" * 16}}}, "signing.keys.k1", "too short", "at least 16 bytes of text"),
        ({"reads_from": "hot"}, "reads_from", "'hot'", "a list of texts"),
        ({"reads_from": ["hot", "cold"]}, "reads_from", "'cold'", "names below stores (hot)"),
        ({"reads_from": [["hot"]]}, "reads_from.0", "a list", "text"),
        (
            {"destinations": {"a": {"reads_from": ["x"]}}},
            "destinations.a.reads_from",
            "'x'",
            "below stores (hot)",
        ),
        (
            {"reads_from": [], "destinations": {"a": {"reads_from": ["hot"]}}},
            "destinations.a.reads_from",
            "hot",
            "none",
        ),
        ({"signing": {"require_envelope": True}}, "signing.keys", "nothing", "signing.require_envelope is true"),
        ({"signing": {"max_age_seconds": 5}}, "signing.keys", "nothing", "signing.max_age_seconds is set"),
        ({"signing": {"accept_from": {"a": "b"}}}, "signing.accept_from.a", "text", "a list"),
        ({"signing": {"accept_from": {"a": [5]}}}, "signing.accept_from.a.0", "a number", "text"),
        (
            {"threshold_bytes": "${TH:-1000}"},
            "threshold_bytes",
            "a placeholder",
            "or 'auto'; placeholders work only in",
        ),
        ({"envelope": {"header": "${HEADER}"}}, "envelope.header", "a placeholder", "store options and keys"),
        ({"chunking": {"max_message_bytes": 199}}, "chunking.max_message_bytes", "199", "at least 200 or 'auto'"),
        ({"chunking": {"expire_after_seconds": float("inf")}}, "chunking.expire_after_seconds", "inf", "at most 10000"),
        ({"limits": {"max_pointer_bytes": 511}}, "limits.max_pointer_bytes", "511", "at least 512"),
        (
            {"chunking": {"max_pending_bytes": 1000}},
            "chunking.max_pending_bytes",
            "1000",
            "max_payload_bytes (268435456)",
        ),
        (
            {"destinations": {"a": {"chunking": {"max_pending_bytes": 5}}}},
            "destinations.a.chunking.max_pending_bytes",
            "5",
            "at least chunking.max_payload_bytes",
        ),
        ({"envelope": {"header": "ü" * 20}}, "envelope.header", "ü", "ASCII"),
        ({"envelope": {"header": "\xfcmlaut"}}, "envelope.header", "ü", "ASCII"),
        (None, "configuration", "nothing", "a mapping"),
        ([], "configuration", "a list", "a mapping"),
        ("hybrid", "configuration", "text", "a mapping"),
        (
            {"encryption": {"key_id": "k", "keys": {"k": "A" * 42 + "E="}, "provider": "vualt"}},
            "encryption.provider",
            "'vualt'",
            "aws-kms",
        ),
        (
            {"encryption": {"key_id": "k", "keys": {"k": "A" * 42 + "E="}, "options": {"region": "x"}}},
            "encryption.options.region",
            "unknown key",
            "nothing",
        ),
        ({"envelope": {"header": ""}}, "envelope.header", "''", "4 to 64"),
        ({"destinations": {"a": {"stores": {}}}}, "destinations.a.stores", "applies to all", "strategy"),
        ({"destinations": {"a": {"threshold_bytes": -5}}}, "destinations.a.threshold_bytes", "-5", "at least 0"),
        ({"destinations": {"a": 1}}, "destinations.a", "a number", "mapping"),
        ({"destinations": 5}, "destinations", "a number", "mapping"),
        ({"compression": "zstd"}, "compression", "'zstd'", "a mapping"),
        ({"compression": {"codec": "gzip"}}, "compression.codec", "'gzip'", "'zstd' or 'lz4'"),
        ({"compression": {"level": 20}}, "compression.level", "20", "a level of zstd, from 1 to 19"),
        ({"compression": {"codec": "lz4", "level": 13}}, "compression.level", "13", "a level of lz4, from 0 to 12"),
        (
            {"compression": {"level": 15}, "destinations": {"a": {"compression": {"codec": "lz4"}}}},
            "destinations.a.compression.level",
            "15",
            "a level of lz4",
        ),
    ],
)
def test_each_mistake_names_its_place(change, path, found, expected):
    with pytest.raises(ConfigError) as caught:
        claimcheck.from_dict(GOOD | change if isinstance(change, dict) else change)
    error = caught.value
    assert error.path == path
    assert found in error.found
    assert expected in error.expected
    assert path in str(error)


def problems_of(raw):
    with pytest.raises(ConfigError) as caught:
        claimcheck.from_dict(raw)
    return caught.value


def test_all_problems_are_named_at_once():
    error = problems_of(
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
    assert [problem.path for problem in error.problems] == [
        "stores.bad",
        "max_chunks",
        "chunking.max_chunks",
        "chunking.on_expire",
        "signing.key_id",
        "signing.keys.k1",
        "store",
        "destinations.a.streategy",
        "destinations.a.threshold_bytes",
        "destinations.b",
        "strategy",
        "stores.hot.type",
        "stores.cold.ulr",
    ]
    first = error.problems[0]
    assert (error.path, error.found, error.expected) == (first.path, first.found, first.expected)
    assert all(str(problem) in str(error) for problem in error.problems)
    copy = pickle.loads(pickle.dumps(error))
    assert [(str(each), vars(each)) for each in copy.problems] == [(str(each), vars(each)) for each in error.problems]


@pytest.mark.parametrize(
    "raw",
    [
        {"strategy": "external", "store": {"hot": {"type": "memory"}}},  # no second error about a missing store
        {"strategy": "external", "stores": ["hot"], "store": "hot", "reads_from": ["hot"]},
        {"strategy": "external", "stores": {"hot": 5}},
        {"strategy": "external", "stores": {"hot": 5}, "destinations": {"a": {"strategy": "hybrid"}}},
        GOOD | {"chunking": {"max_chunks": 0}, "destinations": {"a": {"chunking": {"max_chunks": 5}}}},
        GOOD | {"limits": {"max_payload_bytes": 0}, "destinations": {"a": {}, "b": {}}},
        GOOD | {"strategy": "hybird", "destinations": {"a": {"store": "hot"}}},
        GOOD | {"store": "hott", "destinations": {"a": {"threshold_bytes": 5}}},
        GOOD | {"chunking": {"max_pending_bytes": 1000}, "destinations": {"a": {}}},
        GOOD | {"stores": {"hot": {"type": "filesystem", "pth": "x"}}},  # and not that `path` is missing
    ],
)
def test_one_mistake_is_one_problem(raw):
    assert len(problems_of(raw).problems) == 1


@pytest.mark.parametrize(
    ("raw", "hint"),
    [
        ({"stroes": {"hot": {"type": "memory"}}, "strategy": "inline"}, "'stores'"),
        (GOOD | {"store": "hto"}, "'hot'"),
        (GOOD | {"reads_from": ["hto"]}, "'hot'"),
        (GOOD | {"destinations": {"a": {"stor": "hot"}}}, "'store'"),
    ],
)
def test_the_error_suggests_the_right_key(raw, hint):
    assert f"; did you mean {hint}" in problems_of(raw).expected


@pytest.mark.parametrize(
    ("section", "name", "value"),
    [
        ("limits", "max_payload_bytes", 1001),
        ("limits", "max_pointer_bytes", 1001),
        ("chunking", "max_payload_bytes", 1001),
        ("chunking", "max_chunks", 1001),
    ],
)
def test_writers_of_a_destination_stay_within_what_readers_take(section, name, value):
    top = GOOD | {section: {name: 1000}}
    assert from_dict(top | {"destinations": {"a": {section: {name: 1000}}}})
    assert from_dict(top | {"destinations": {"a": {section: {name: 999}}}})
    with pytest.raises(ConfigError, match="at most 1000: readers use the top-level limits") as caught:
        from_dict(top | {"destinations": {"a": {section: {name: value}}}})
    assert caught.value.path == f"destinations.a.{section}.{name}"


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("- 1", "expected a mapping"),
        ("", "expected a mapping"),
        ("\x00", "not YAML"),
        ("a: [", "not YAML"),
        # Where it is wrong, and where that began
        ("a:\n\tb: x\n", r"not YAML: line 2, .*found character '\\t' \(a tab\) that cannot start any token"),
        ("a:\nb: {c: {d: e}\nf: {}\n", "line 3, .*a flow mapping that begins at line 2, expected ',' or '}'"),
        ('a: 1\nb: "x\nc: [\n', "a quoted scalar that begins at line 2, found unexpected end of stream"),
        # Keys that appear twice
        ("store: a\nstore: b", "not YAML: line 2, column 1: this key appears twice"),
        ("stores:\n  hot: {type: memory}\n  hot: {type: redis}", "line 3, column 3: this key appears twice"),
        ("a: {b: 1, b: 2}", "line 1, column 11: this key appears twice"),
        ("signing: {keys: {k1: x}}\nhunter2: 1\nhunter2: 2\n", "line 3, column 1: this key appears twice"),
        # Texts that may have a secret where it cannot be parsed
        ("url: redis://me:hunter2@host: [", "not YAML: line 1"),
        ("url: 'redis://me:hunter2@host", "not YAML: line 1"),
        ("key: !hunter2 x", "not YAML: line 1"),
        ("key: *hunter2", r"line 1, column 6: found undefined alias \.\.\.$"),
        ("key: @hunter2", "not YAML: line 1"),
        ("key: !!int hunter2", "not YAML: it cannot be read"),
        ("key: !!timestamp 2001-99-99hunter2", "not YAML: it cannot be read"),
        ("key: hunter2\n\tx: 1", "not YAML: line 2"),
        ("a: " + "[" * 5000, "not YAML: it is nested too deeply"),
        # No document of text
        (b"\xff\xfes\x00", "not YAML: it is not UTF-8 text$"),
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


@pytest.mark.parametrize("path", [None, 5, "nul\0nul", "nothing.yaml"])
def test_a_path_that_leads_to_no_file(path):
    with pytest.raises(ConfigError):
        load(path)


def test_a_file_of_any_size_is_not_read_whole(tmp_path):
    path = tmp_path / "claimcheck.yaml"
    with path.open("wb") as file:
        file.truncate(1 << 40)  # sparse
    with pytest.raises(ConfigError, match="a smaller YAML file"):
        load(path)


def test_a_key_may_be_merged_and_changed(tmp_path):
    path = tmp_path / "claimcheck.yaml"
    path.write_text(
        "stores:\n  a: &a {type: memory, space: x}\n  b: &b {<<: *a, space: y}\n  c: {<<: *b, space: z}\nstore: c"
    )
    assert [store.options["space"] for store in load(path).stores.values()] == ["x", "y", "z"]


@pytest.mark.parametrize(
    ("store", "path", "why"),
    [
        ({"type": "reddis"}, "stores.hot.type", "filesystem, memory, obstore, pulsar-topic, redis, s3"),
        ({"type": "no.such.module:Store"}, "stores.hot.type", "cannot import"),
        ({"type": "claimcheck._wire.pointer:slug"}, "stores.hot.type", "a class"),
        ({"type": "memory", "spcae": "x"}, "stores.hot.spcae", "did you mean 'space'"),
        ({"type": "memory", "spcae": "${X}"}, "stores.hot.spcae", "did you mean 'space'"),
        ({"type": "memory", "ttl_seconds": "soon"}, "stores.hot.ttl_seconds", "a number"),
        ({"type": "memory", "ttl_seconds": -1}, "stores.hot.ttl_seconds", "at least 0"),
        ({"type": "redis"}, "stores.hot.url", "redis://"),
        ({"type": "redis", "url": ""}, "stores.hot.url", "redis://"),
        ({"type": "redis", "url": "redis://x", "segment_bytes": 999999999999}, "stores.hot.segment_bytes", "at most"),
        ({"type": "redis", "url": "redis://x", "ttl_seconds": float("inf")}, "stores.hot.ttl_seconds", "found inf"),
        ({"type": "redis", "url": "redis://x", "ttl_seconds": float("nan")}, "stores.hot.ttl_seconds", "found nan"),
        ({"type": "redis", "url": "redis://x", "timeout_seconds": 0}, "stores.hot.timeout_seconds", "at least 0.001"),
        ({"type": "s3", "bucket": "b", "timeout_seconds": 0}, "stores.hot.timeout_seconds", "at least"),
        ({"type": "redis", "url": "${URL}", "key_prefix": "/app/"}, "stores.hot.key_prefix", "begins with no slash"),
        ({"type": "redis", "url": "redis://x", "key_prefix": "../a/"}, "stores.hot.key_prefix", "printable"),
        ({"type": "redis", "url": "redis://x", "key_prefix": "a\t"}, "stores.hot.key_prefix", "printable"),
        ({"type": "redis", "url": "redis://x", "key_prefix": "ü" * 451}, "stores.hot.key_prefix", "900 bytes"),
        ({"type": "s3", "bucket": "b", "prefix": "../a/"}, "stores.hot.prefix", "printable"),
        ({"type": "s3", "bucket": "b", "endpoint_url": "localhost:7070"}, "stores.hot.endpoint_url", "http://host"),
        ({"type": "s3", "bucket": ""}, "stores.hot.bucket", "a bucket"),
        ({"type": "filesystem", "path": ""}, "stores.hot.path", "a directory"),
        ({"type": "builtins:dict"}, "stores.hot.type", "a subclass of claimcheck.Store"),
        ({"type": "claimcheck._store.store:Store"}, "stores.hot.type", "a subclass of claimcheck.Store"),
        ({"type": "redis", "url": "redis://x", "pointer_version": 3}, "stores.hot.pointer_version", "1 or 2"),
    ],
)
def test_store_options_are_checked_when_the_file_is_loaded(store, path, why):
    with pytest.raises(ConfigError, match=why) as caught:
        claimcheck.from_dict(GOOD | {"stores": {"hot": store}})
    assert caught.value.path == path


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"encryption": {"keys": {"k": "${KEY}"}}}, "encryption.require is true"),
        ({"encryption": {"keys": {"k": "${KEY}"}, "key_id": "k", "require": False}}, "encryption.key_id is set"),
        ({"signing": {"keys": {"k": "0123456789abcdef"}}}, "no signature"),
        ({"signing": {"keys": {"k": "0123456789abcdef"}, "require": False}}, "no signature"),
        ({"compression": {"codec": "zstd"}}, "compression is configured"),
        ({"destinations": {"orders": {"compression": {"codec": "lz4"}}}}, "compression is configured"),
    ],
)
def test_version_1_pointers_cannot_be_signed_nor_mark_encrypted_or_compressed_payloads(options, reason):
    store = {"type": "redis", "url": "redis://x", "pointer_version": 1}
    with pytest.raises(ConfigError, match=f"expected 2: .*{reason}") as caught:
        claimcheck.from_dict(GOOD | {"stores": {"hot": store}, **options})
    assert caught.value.path == "stores.hot.pointer_version"
    reader = {"encryption": {"keys": {"k": "${KEY}"}, "require": False}}
    claimcheck.from_dict(GOOD | {"stores": {"hot": store}, **reader}).close()


@pytest.mark.parametrize(
    ("signing", "require"),
    [
        ({}, False),
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


def test_a_signing_key_is_checked_when_it_is_resolved():
    with pytest.raises(ConfigError, match=r"signing\.keys\.k1: .*too short.*at least 16 bytes") as caught:
        signing_key("${A:-hunter2}", path="signing.keys.k1", environ={})
    assert "hunter2" not in f"{caught.value}{vars(caught.value)}"
    assert signing_key("${A}", path="p", environ={"A": "é" * 8}) == ("é" * 8).encode()
    assert signing_key("${A}", path="p", environ={"A": "\udcff" * 16}) == b"\xff" * 16  # bytes of the environment


def test_readers_may_be_limited_to_some_stores():
    stores = {"stores": {"hot": {"type": "memory"}, "cold": {"type": "memory"}}}
    assert from_dict(GOOD | stores).readable == ("hot", "cold")
    limited = from_dict(GOOD | stores | {"reads_from": ["cold"], "destinations": {"a": {"store": "cold"}}})
    assert (limited.readable, limited.store, limited.for_destination("a").readable) == (("cold",), "hot", ("cold",))
    assert from_dict(GOOD | stores | {"reads_from": []}).readable == ()


@pytest.mark.parametrize("place", ["", "destinations.a."])
@pytest.mark.parametrize(
    ("strategy", "path", "text"),
    [
        ("hybird", "strategy", "'hybird'.*did you mean 'hybrid'"),
        ("no.such:Strategy", "strategy", "strategy: "),
        ("claimcheck._store.store:Store", "strategy", "strategy: "),
        ("builtins:dict", "strategy", "strategy: "),
        (":X", "strategy", "strategy: "),
        (".a:X", "strategy", "strategy: "),
        ("a:", "strategy", "strategy: "),
        ("hybrid", "store", "found nothing, expected the name of a store"),
        ("external", "store", "found nothing, expected the name of a store"),
        ("tests.unit.test_config:Mine", "store", "found nothing, expected the name of a store"),
    ],
)
def test_a_strategy_that_is_none_or_lacks_its_store(place, strategy, path, text):
    raw = {"strategy": strategy}
    with pytest.raises(ConfigError, match=text) as caught:
        claimcheck.from_dict({"strategy": "inline"} | ({"destinations": {"a": raw}} if place else raw))
    assert caught.value.path == f"{place}{path}"


def test_strategies_that_need_no_store():
    for strategy in ("chunking", "inline", "tests.unit.test_config:MineWithoutStore"):
        assert claimcheck.from_dict({"strategy": strategy}).config.store is None


class Mine(claimcheck.Strategy):
    def _offload(self, message): ...


class MineWithoutStore(Mine):
    needs_store = False


@pytest.mark.parametrize(
    ("text", "environ", "result"),
    [
        ("${A}", {"A": "1"}, "1"),
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


def test_numbers_may_come_from_the_environment(monkeypatch):
    monkeypatch.setenv("TTL", "60")
    cc = claimcheck.from_dict(GOOD | {"stores": {"hot": {"type": "memory", "ttl_seconds": "${TTL}"}}})
    assert cc.store("hot").ttl_seconds == 60
    monkeypatch.setenv("TTL", "soon")
    with pytest.raises(ConfigError, match="a number"):
        claimcheck.ClaimCheck(cc.config).store("hot")


SECRET_OPTIONS: list[Any] = [
    *({"url": url} for url in ("hunter2", "hunter2:6379", "me:hunter2@localhost:6379", "hunter2.x@localhost")),
    {"url": ["hunter2"]},
    {"url": 4711},
    {"url": "4711"},
    {"url": "redis://:47/11@host", "ttl_seconds": 60},
    {"url": "redis://x", "ttl_seconds": "4711"},
    {"url": "redis://x", "ttl_seconds": "redis://u:hunter2@h"},
    {"url": "redis://x", "pointer_version": "4711"},
]


@pytest.mark.parametrize(
    "raw",
    [
        *({"stores": {"hot": {"type": "redis"} | options}} for options in SECRET_OPTIONS),
        *({"signing": value} for value in ("hunter2", 4711)),
        *({"signing": {"keys": value}} for value in ("hunter2", ["hunter2"], 4711)),
        *({"signing": {"keys": {"k": value}}} for value in (["hunter2"], 4711)),
        *({"signing": {"key_id": value, "keys": {"k": "x"}}} for value in ("hunter2", ["hunter2"], 4711)),
        *({"signing": {"require": value}} for value in ("hunter2", 4711)),
    ],
)
def test_what_may_be_a_secret_is_never_quoted(raw):
    error = problems_of(GOOD | raw)
    assert (error.path or "").startswith(("signing", "stores.hot."))
    shown = f"{error} {error.found} {error.expected} {error.problems}"
    assert not {"hunter2", "4711", "47", "11"} & set(re.findall(r"\w+", shown))


ROOT = Path(__file__).resolve().parents[2]


FILE = ROOT / "docs" / "reference" / "claimcheck.schema.json"


VALIDATOR = Draft202012Validator(schema())


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


def test_a_configuration_of_the_first_release_is_refused():
    config, values = from_dict(SIGNED), [1, 2, 3]
    with pytest.raises(ConfigError, match="claimcheck 0.1.0 or earlier"):
        type(config.signing).__setstate__(config.signing, values)
