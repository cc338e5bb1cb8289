"""What `cc.check` reports about a configuration that loads, and about stores that do not work."""

from __future__ import annotations

import base64
import os
import re
import sys
import tempfile
import time

import pytest

import claimcheck
from claimcheck import CheckReport, ConfigError, Store, StoreUnavailableError
from claimcheck._operate.check_stores import _server
from claimcheck._operate.check_topics import Expectation, examine_settings
from claimcheck._operate.findings import WHY, examined, finding
from claimcheck._texts import duration
from claimcheck.errors import MissingDependencyError
from claimcheck.testing import FaultyStore
from claimcheck.transports._common.topics import is_dead_letter_topic
from claimcheck.transports.kafka._queries import TopicSettings
from tests.check_rig import LIFETIME, configuration, diagnosed, ids, text
from tests.docs_pages import ROOT

QUIET = {
    "strategy": "external",
    "stores": {"hot": {"type": "redis", "url": "rediss://:${PASSWORD:-x}@cache.example.com:6379/0"}},
    "signing": {"key_id": "k1", "keys": {"k1": "${SIGNING_KEY}"}},
}


ENCRYPTION_KEY = base64.b64encode(b"hunter2 " * 4).decode()


ENCRYPTS = {"key_id": "e", "keys": {"e": "${KEY}"}}


SERVICE = "tests.unit.test_check:Service"


MEMORY = {"strategy": "external", "stores": {"m": {"type": "memory"}}}


def check(raw, **options):
    with claimcheck.from_dict(raw) as cc:
        return cc.check(**options)


def found(report: CheckReport, severity: str) -> dict[str, str]:
    return {each.path: each.message for each in report.findings if each.severity == severity}


def test_a_good_configuration_has_no_findings():
    assert check(QUIET) == CheckReport(())
    assert check(QUIET).ok


@pytest.mark.parametrize(
    ("change", "path", "words"),
    [
        ({"signing": {"keys": {"k1": "${KEY}"}, "require": False}}, "signing.require", "accept envelopes without"),
        (
            {"signing": {"keys": {"k1": "${KEY}"}, "bind_destination": False}},
            "signing.bind_destination",
            "from any topic",
        ),
        ({"signing": {"keys": {"k1": "hunter2 and so on"}}}, "signing.keys.k1", "in the configuration itself"),
        (
            {"signing": {"keys": {"k1": "${KEY}"}, "accept_from": {"*": ["a", "*"]}}},
            "signing.accept_from",
            "from any topic",
        ),
        ({"checksum": "crc32"}, "checksum", "crc32 can be forged"),
        ({"checksum": "xxh3-128"}, "checksum", "xxh3-128 can be forged"),
        ({"signing": {"keys": {"k1": "${KEY}", "k2": "${KEY}"}}}, "signing.keys.k2", "the same secret as signing.keys"),
        ({"encryption": {"keys": {"e": "${SIGNING_KEY}"}}}, "encryption.keys.e", "the same secret as signing.keys.k1"),
        (
            {"encryption": {"keys": {"e": "x"}, "provider": SERVICE, "options": {"token": "hunter2"}}},
            "encryption.options.token",
            "in the configuration itself",
        ),
        (
            {"stores": {"hot": {"type": "pulsar-topic", "url": "pulsar+ssl://h", "topic": "t", "token": "hunter2"}}},
            "stores.hot.token",
            "in the configuration itself",
        ),
        ({"strategy": "inline", "encryption": ENCRYPTS}, "encryption.inline", "all payloads of the strategy inline"),
        (
            {"destinations": {"a": {"strategy": "inline"}}, "encryption": ENCRYPTS},
            "encryption.inline",
            "all payloads of the strategy inline",
        ),
        ({"encryption": {"keys": {"k1": "${KEY}"}, "require": False}}, "encryption.require", "not encrypted"),
        ({"encryption": {"keys": {"k1": ENCRYPTION_KEY}}}, "encryption.keys.k1", "in the configuration itself"),
        ({"reads_from": []}, "reads_from", "cannot read from 'hot'"),
        ({"stores": {"hot": {"type": "memory"}}}, "stores.hot", "no other process can read them"),
    ],
)
def test_unwise_settings_are_warnings(change, path, words):
    report = check(QUIET | change)
    assert report.ok
    assert words in found(report, "warning")[path]
    assert "hunter2" not in str(report)
    assert ENCRYPTION_KEY not in str(report)


@pytest.mark.parametrize(
    "change",
    [
        {"checksum": "crc32", "encryption": ENCRYPTS},  # the encryption authenticates the content
        {"strategy": "inline", "encryption": ENCRYPTS | {"inline": True}},
        {"signing": {"key_id": "k1", "keys": {"k1": "${KEY}"}, "accept_from": {"dlq": ["*"], "*": ["orders"]}}},
        {"encryption": {"keys": {"a": "key", "b": "key"}, "provider": SERVICE, "options": {"token": "${TOKEN}"}}},
    ],
)
def test_sound_settings_are_no_warnings(change):
    assert found(check(QUIET | change), "warning") == {}


def test_that_small_payloads_are_not_encrypted_is_said():
    findings = found(check(QUIET | {"encryption": ENCRYPTS}), "info")
    assert "payloads up to the threshold are sent as they are" in findings["encryption.inline"]
    assert found(check(QUIET | {"encryption": ENCRYPTS | {"inline": True}}), "info") == {}


@pytest.mark.parametrize(
    ("options", "option", "words"),
    [
        ({"type": "redis", "url": "redis://cache.example.com"}, "url", "cache.example.com are not encrypted"),
        ({"type": "redis", "url": "redis+cluster://127.0.0.1:1,10.1.1.1:2"}, "url", "10.1.1.1 are not encrypted"),
        ({"type": "redis", "url": "${NOT_SET:-redis://cache.example.com}"}, "url", "not encrypted"),
        ({"type": "redis", "url": "rediss://h?ssl_cert_reqs=none"}, "url", "certificates are not verified"),
        ({"type": "redis", "url": "rediss://:hunter2@h"}, "url", "the password is in the configuration itself"),
        ({"type": "redis", "url": "rediss://h?ssl_check_hostname=false"}, "url", "any valid certificate"),
        ({"type": "redis", "url": "rediss://h", "ttl_seconds": 60}, "ttl_seconds", "expire after 60 s;"),
        ({"type": "redis", "url": "rediss://h", "ttl_seconds": None}, "ttl_seconds", "no lifetime"),
        (
            {"type": "s3", "bucket": "b", "endpoint_url": "http://s3.lan:9000"},
            "endpoint_url",
            "s3.lan are not encrypted",
        ),
        ({"type": "filesystem", "path": "/tmp/claims"}, "path", "may be emptied at any time"),
        ({"type": "filesystem", "path": "claims"}, "path", "different directory in every process"),
    ],
)
def test_unwise_settings_of_stores_are_warnings(monkeypatch, options, option, words):
    monkeypatch.delenv("NOT_SET", raising=False)
    monkeypatch.chdir("/")
    report = check(QUIET | {"stores": {"hot": options}})
    assert report.ok
    assert words in found(report, "warning")[f"stores.hot.{option}"]
    assert "hunter2" not in str(report)


@pytest.mark.parametrize(
    "options",
    [
        {"type": "redis", "url": "redis://localhost:6379"},
        {"type": "redis", "url": "redis://127.0.0.1"},
        {"type": "redis", "url": "redis://[::1]:6379"},
        {"type": "redis", "url": "unix:///run/redis.sock"},
        {"type": "redis", "url": "${NOT_SET_ANYWHERE}"},
        {"type": "s3", "bucket": "b", "ttl_seconds": 86400},
        {"type": "s3", "bucket": "b", "ttl_seconds": 86400, "endpoint_url": "http://localhost:9000"},
        {"type": "filesystem", "path": "/var/lib/claims", "ttl_seconds": 86400},
        {"type": "filesystem", "path": "${CLAIMS_DIR}", "ttl_seconds": 86400},
        {"type": "tests.unit.test_check:Slow", "store": {"type": "memory"}},
    ],
)
def test_sound_settings_of_stores_are_no_warnings(options):
    assert found(check(QUIET | {"stores": {"hot": options}}), "warning") == {}


class Slow(FaultyStore):
    """A third-party store, of which nothing is known."""


class Broken(FaultyStore):
    """Fails every read."""

    def __init__(self, *, store):
        super().__init__(store=store)
        self.fail("read", error=ConnectionError("redis://me:hunter2@host refused"))


class Odd(FaultyStore):
    """Has a defect."""

    def _delete(self, pointer):
        raise ZeroDivisionError("division by zero")


FAULTY, INNER = "tests.unit.test_check:Broken", {"type": "memory", "space": "check"}


def test_open_writes_reads_and_deletes_a_payload_in_every_store(tmp_path):
    events = []
    disk = {"type": "filesystem", "path": str(tmp_path / "claims"), "create": True}
    raw = {"strategy": "inline", "stores": {"m": {"type": "memory"}, "disk": disk}}
    with claimcheck.from_dict(raw, hooks=[events.append]) as cc:
        report = cc.check(open=True)
    assert report.ok
    done = [(event.store, event.operation) for event in events if event.phase == "completed"]
    assert done == [(name, operation) for name in ("m", "disk") for operation in ("write", "read", "rollback")]
    assert list((tmp_path / "claims").iterdir()) == []
    assert "wrote, read and deleted" in found(report, "info")["stores.disk"]


def test_a_store_that_does_not_work_is_an_error_and_the_others_are_still_opened():
    stores = {"f": {"type": FAULTY, "store": INNER}, "o": {"type": "tests.unit.test_check:Odd", "store": INNER}}
    report = check({"strategy": "inline", "stores": {**stores, "m": {"type": "memory"}}}, open=True)
    assert not report.ok
    errors = {each.path: each for each in report.findings if each.severity == "error"}
    assert set(errors) == {"stores.f", "stores.o"}
    assert isinstance(errors["stores.f"].error, StoreUnavailableError)
    assert "hunter2" not in str(errors)
    assert "wrote" in found(report, "info")["stores.m"]


def test_a_missing_driver_or_variable_is_an_error(monkeypatch):
    monkeypatch.setitem(sys.modules, "redis", None)
    monkeypatch.delenv("NOT_SET", raising=False)
    stores = {"r": {"type": "redis", "url": "redis://localhost"}, "e": {"type": "redis", "url": "${NOT_SET}"}}
    report = check({"strategy": "inline", "stores": stores, "signing": {"keys": {"k": "${NOT_SET}"}}}, open=True)
    errors = {each.path: each for each in report.findings if each.severity == "error"}
    assert set(errors) == {"stores.r", "stores.e.url", "signing.keys.k"}
    assert isinstance(errors["stores.r"].error, MissingDependencyError)
    assert "claimcheck-messaging[redis]" in errors["stores.r"].message
    assert "NOT_SET" in errors["stores.e.url"].message


@pytest.mark.parametrize(
    ("package", "change", "path", "extra"),
    [
        ("xxhash", {"checksum": "xxh3-128"}, "checksum", "fast"),
        ("zstandard", {"compression": {}}, "compression", "compression"),
        ("lz4.frame", {"destinations": {"a": {"compression": {"codec": "lz4"}}}}, "compression", "compression"),
        ("cryptography", {"encryption": {"keys": {"k": "x"}, "provider": SERVICE}}, "encryption", "encryption"),
    ],
)
def test_open_finds_a_missing_package_of_a_setting(monkeypatch, package, change, path, extra):
    monkeypatch.setitem(sys.modules, package, None)
    raw = {"strategy": "chunking"} | change
    report = check(raw, open=True)
    assert f"claimcheck-messaging[{extra}]" in found(report, "error")[path]
    assert all(isinstance(each.error, MissingDependencyError) for each in report.findings if each.severity == "error")
    monkeypatch.undo()
    assert check(raw, open=True).ok


# Encryption ----------------------------------------------------------------------------------------------------


class Service:
    """A key service."""

    def __init__(self, *, keys, wrong=False, token=""):
        self.wrong = wrong

    def wrap(self, data_key, *, key_id, context):
        if key_id == "down":
            raise ConnectionError("https://me:hunter2@vault refused")
        return data_key[::-1]

    def unwrap(self, wrapped, *, key_id, context):
        return wrapped if self.wrong else wrapped[::-1]


def opened(**encryption):
    """Return the findings about encryption of a configuration with a memory store, by id."""
    raw = MEMORY | {"stores": {"m": {"type": "memory", "space": "check-encryption"}}, "encryption": encryption}
    report = check(raw, open=True)
    assert "hunter2" not in str(report)
    return {each.id: each for each in report.findings}


def test_open_wraps_and_unwraps_a_data_key(monkeypatch):
    monkeypatch.setenv("KEY", ENCRYPTION_KEY)
    for options in ({"keys": {"k1": "${KEY}"}}, {"keys": {"k1": "transit/orders"}, "provider": SERVICE}):
        findings = opened(key_id="k1", **options)
        assert "wrapped and unwrapped a data key" in findings["encryption-works"].message
        assert "store-works" in findings
    assert f"provider {SERVICE}" in findings["encryption-works"].message


@pytest.mark.parametrize(
    ("key_id", "options", "error"),
    [("down", {}, StoreUnavailableError), ("k1", {"wrong": True}, ConfigError)],
)
def test_a_key_service_that_does_not_work_is_an_error(key_id, options, error):
    failed = opened(key_id=key_id, keys={key_id: "x"}, provider=SERVICE, options=options)["encryption-key-failed"]
    assert isinstance(failed.error, error)
    assert f"encryption.keys.{key_id}" in f"{failed.path} {failed.message}"


def test_every_local_key_must_be_set(monkeypatch):
    monkeypatch.setenv("KEY", ENCRYPTION_KEY)
    monkeypatch.delenv("NOT_SET", raising=False)
    failed = opened(key_id="k1", keys={"k1": "${KEY}", "k0": "${NOT_SET}"})["encryption-key-failed"]
    assert failed.path == "encryption.keys.k0"
    assert "NOT_SET" in failed.message


@pytest.mark.parametrize("options", [{"type": "s3", "bucket": "b"}, {"type": "filesystem", "path": "/var/lib/claims"}])
def test_a_store_that_keeps_payloads_for_ever_is_a_warning(options):
    for lifetime in ({}, {"ttl_seconds": None}):
        report = check(QUIET | {"stores": {"hot": options | lifetime}})
        assert "no sweep deletes them" in found(report, "warning")["stores.hot.ttl_seconds"]


def test_every_error_says_what_to_do(monkeypatch):
    monkeypatch.delenv("NOT_SET", raising=False)
    keys = {"key_id": "k", "keys": {"k": "${NOT_SET}"}}
    stores = {
        "missing": {"type": "filesystem", "path": "/nowhere/at/all"},
        "invalid": {"type": "redis", "url": "${NOT_SET}"},
    }
    errors = []
    for raw in ({"signing": keys}, {"encryption": keys}, {"stores": stores, "store": "missing"}):
        report = claimcheck.from_dict({"strategy": "inline", **raw}).check(open=True)
        errors += [each for each in report.findings if each.severity == "error"]
    expected = {"signing-key-missing", "encryption-key-failed", "store-failed", "store-invalid"}
    assert {each.id for each in errors} == expected
    assert all(each.fix for each in errors)
    (missing,) = [each for each in errors if each.path == "stores.missing"]
    assert missing.fix.startswith("Start the server or mount the volume")


class TestSecrets:
    """Secrets that load, and are none."""

    GOOD = base64.b64encode(bytes(range(32))).decode()

    def ids(self, monkeypatch, *, signing: str | None = None, encryption: str | None = None, **environ: str):
        for name, value in environ.items():
            monkeypatch.setenv(name, value)
        config: dict[str, object] = {"strategy": "inline"}
        if signing is not None:
            config["signing"] = {"key_id": "k", "keys": {"k": signing}}
        if encryption is not None:
            config["encryption"] = {"key_id": "k", "keys": {"k": encryption}}
        found = {each.id: each.severity for each in claimcheck.from_dict(config).check().findings}
        secrets = {name: severity for name, severity in found.items() if name.startswith("secret-")}
        assert set(secrets.values()) <= {"warning"}
        return {name.removeprefix("secret-") for name in secrets} - {"in-file"}

    @pytest.mark.parametrize("secret", ["a" * 16, "change me change me", "Change-Me-Now-Please!", "0" * 20])
    def test_a_signing_secret_that_can_be_guessed(self, monkeypatch, secret):
        assert self.ids(monkeypatch, signing=secret) == {"weak"}
        assert self.ids(monkeypatch, signing="${SECRET}", SECRET=secret) == {"weak"}

    @pytest.mark.parametrize("key", [bytes(32), b"password" * 4, b"ab" * 16])
    def test_an_encryption_key_that_can_be_guessed(self, monkeypatch, key):
        assert self.ids(monkeypatch, encryption=base64.b64encode(key).decode()) == {"weak"}

    def test_a_default(self, monkeypatch):
        assert self.ids(monkeypatch, signing="${NOPE_SECRET:-change-me-change-me}") == {"default", "weak"}
        assert self.ids(monkeypatch, signing="${NOPE_SECRET:-" + self.GOOD + "}") == {"default"}

    def test_one_value_for_two_purposes(self, monkeypatch):
        values = {"signing": "${A_SECRET}", "encryption": "${B_SECRET}"}
        assert self.ids(monkeypatch, **values, A_SECRET=self.GOOD, B_SECRET=self.GOOD) == {"reused"}
        other = base64.b64encode(bytes(range(1, 33))).decode()
        assert self.ids(monkeypatch, **values, A_SECRET=self.GOOD, B_SECRET=other) == set()

    def test_a_variable_that_is_not_set_here_is_no_finding(self, monkeypatch):
        assert self.ids(monkeypatch, signing="${X}", encryption="${DEFAULT}") == set()

    def test_encryption_without_signing_is_a_warning(self):
        config = {"strategy": "inline", "encryption": {"key_id": "k", "keys": {"k": "${KEY}"}}}
        found = {each.id: each.severity for each in claimcheck.from_dict(config).check().findings}
        assert found["encryption-without-signing"] == "warning"
        assert "signing-off" not in found


DAY = 86_400


# Filesystem ------------------------------------------------------------------------------------------------------


def disk(path, **more):
    top = {name: more.pop(name) for name in ("encryption",) if name in more}
    return configuration({"type": "filesystem", "path": str(path), "create": True, **more}, **top)


def test_a_good_directory_has_no_finding_and_nothing_is_left_in_it(tmp_path):
    report = diagnosed(disk(tmp_path / "claims"))
    assert set(ids(report, "filesystem-", "store-")) <= {"filesystem-temporary", "store-works", "store-no-expiry"}
    assert list((tmp_path / "claims").iterdir()) == []


@pytest.mark.parametrize(
    ("directory", "files", "words"),
    [
        (0o777, "0600", "can replace and delete payloads (mode 0777)"),
        (0o1777, "0600", "can add files (mode 1777)"),
        (0o755, "0644", "can read payloads (mode 0755)"),
        (0o755, "0600", None),
        (0o770, "0660", None),
    ],
)
def test_permissions_of_others_are_a_warning(directory, files, words):
    with tempfile.TemporaryDirectory() as parent:  # pytest's own folders are closed to others
        os.chmod(parent, 0o755)
        os.mkdir(f"{parent}/claims")
        os.chmod(f"{parent}/claims", directory)
        report = diagnosed(disk(f"{parent}/claims", mode=files))
        assert ids(report, "filesystem-permissions") == (["filesystem-permissions"] if words else [])
        assert words is None or words in text(report, "filesystem-permissions")
        os.chmod(parent, 0o700)
        assert ids(diagnosed(disk(f"{parent}/claims", mode=files)), "filesystem-permissions") == []


def test_expired_payloads_that_no_sweep_deleted_are_a_warning(tmp_path):
    raw = disk(tmp_path / "claims")
    with claimcheck.from_dict(raw) as cc:
        cc.store("hot").write(b"payload", destination="orders")
    later = time.time() + LIFETIME
    assert ids(diagnosed(raw, clock=lambda: later + 2 * DAY), "store-not-swept") == []
    report = diagnosed(raw, clock=lambda: later + 5 * DAY)
    assert text(report, "store-not-swept") == "warning stores.hot: there are payloads that expired up to 5 days ago"


KEYS = {f"k{number}": base64.b64encode(bytes([number]) * 32).decode() for number in range(3)}


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ({"type": "pulsar-topic", "url": "pulsar://localhost", "topic": "t"}, ["pulsar-not-examined"]),
        ({"type": "pulsar-topic", "url": "pulsar://localhost", "topic": "t", "admin_url": "http://localhost"}, []),
        ({"type": "obstore", "url": "s3://bucket"}, []),
    ],
)
def test_what_a_type_of_store_does_not_tell_is_named(options, found):
    with claimcheck.from_dict({"stores": {"hot": options}}) as cc:
        assert [each.id for each in _server(cc.config.stores["hot"], cc.store("hot"), "stores.hot", time.time)] == found


def test_a_store_that_cannot_be_listed_is_named():
    raw = {"stores": {"hot": {"type": "tests.unit.test_check:Unlisted", "store": {"type": "memory"}}}}
    report = diagnosed(raw)
    assert text(report, "store-not-listable").startswith("info stores.hot: ")


class Unlisted(FaultyStore):
    """A third-party store without a listing."""

    def _scan(self):
        return Store._scan(self)


def test_a_directory_that_is_missing_is_one_error_and_nothing_else_is_looked_at(tmp_path):
    report = diagnosed(configuration({"type": "filesystem", "path": str(tmp_path / "none")}))
    assert [each.id for each in report.findings if each.severity == "error"] == ["store-failed"]
    assert ids(report, "filesystem-") == ["filesystem-temporary"]
    assert not any("Grant the permission" in each.fix for each in report.findings)


def test_a_store_whose_variable_is_not_set_is_invalid_and_not_out_of_order(monkeypatch):
    monkeypatch.delenv("NOT_SET", raising=False)
    report = diagnosed({"stores": {"hot": {"type": "redis", "url": "${NOT_SET}"}}})
    assert text(report, "store-invalid") == (
        "error stores.hot.url: found ${NOT_SET}, which is not set, expected the environment variable NOT_SET"
    )
    assert ids(report, "store-failed") == []


# Values ----------------------------------------------------------------------------------------------------------


def expectation(**more):
    values = {"path": "topic t", "strategy": "external", "store": "hot", "lifetime": 7.0 * DAY}
    return Expectation(**{**values, "threshold": None, "chunk_bytes": None, **more})


def settings(**values):
    defaults = {"retention_ms": 3 * DAY * 1000, "segment_ms": DAY * 1000, "max_message_bytes": 1_048_588}
    named = {**defaults, **values}
    config = TopicSettings.of({name.replace("_", "."): str(value) for name, value in named.items()})
    return [(each.severity, each.id) for each in examine_settings(config, expectation())]


def test_tiered_storage_counts_as_retention():
    """A real broker needs a plug-in for it."""
    tiered = {"remote_storage_enable": "true", "local_retention_ms": 3600 * 1000}
    assert settings(**tiered) == []
    assert settings(retention_ms=30 * DAY * 1000, **tiered) == [("warning", "kafka-retention")]


def test_a_payload_must_outlive_its_message_and_not_longer():
    assert settings(retention_ms=7 * DAY * 1000, segment_ms=0) == []
    assert settings(retention_ms=7 * DAY * 1000 + 1, segment_ms=0) == [("warning", "kafka-retention")]
    assert settings(retention_ms=6 * DAY * 1000 + 1) == [("info", "kafka-retention")]
    assert settings(retention_ms=-1) == [("warning", "kafka-retention")]
    assert TopicSettings.of({"cleanup.policy": "compact", "retention.ms": "1000"}).retention is None


@pytest.mark.parametrize("suffix", ["-dlq", ".DLT", "_dead_letter", "-dead-letters", ".deadletter", "-errors"])
def test_names_of_dead_letter_topics(suffix):
    assert is_dead_letter_topic(f"orders{suffix}", "orders")
    assert not is_dead_letter_topic(f"orders-v2{suffix}", "orders")


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [(1, "1 second"), (0.25, "0.2 seconds"), (59.98, "1 minute"), (5400, "1.5 hours"), (DAY, "1 day"),
     (604_800, "7 days"), (86_400 * 3650, "3,650 days")],
)  # fmt: skip
def test_time_spans(seconds, expected):
    assert duration(seconds) == expected


def test_what_was_found_before_a_look_fails_is_kept():
    def look():
        yield finding("warning", "redis-eviction", "p", "m")
        raise ConnectionError("redis://me:hunter2@host refused")

    found = examined("redis", "p", "INFO", look)
    assert [each.id for each in found] == ["redis-eviction", "redis-not-examined"]
    assert found[1].message.startswith("could not examine INFO: ConnectionError: ")
    assert "hunter2" not in found[1].message


def test_every_id_is_documented_and_every_documented_id_exists():
    page = (ROOT / "docs/guides/operations.md").read_text()
    rows = re.findall(r"^\| `([a-z0-9]+(?:-[a-z0-9]+)+)` \| (?:error|warning|info)", page, re.MULTILINE)
    assert sorted(rows) == sorted(WHY)


def test_every_id_is_used():
    texts = [path.read_text() for path in (ROOT / "claimcheck/_operate").glob("check*.py")]
    texts.append((ROOT / "claimcheck/_operate/findings.py").read_text().partition("@dataclass")[2])  # after the table
    used = {name for text in texts for name in re.findall(r'"([\w-]+)"', text)}
    used |= {f"{vendor}-not-examined" for text in texts for vendor in re.findall(r'examined\("(\w+)"', text)}
    assert set(WHY) - used == set()


def test_a_store_that_is_down_is_one_error_and_asks_for_no_permission():
    report = diagnosed(configuration({"type": "redis", "url": "redis://127.0.0.1:1/0"}))
    (error,) = [each for each in report.findings if each.severity != "info"]
    assert error.id == "store-failed"
    assert error.fix.startswith("Start the server")
    assert not any("Grant" in each.fix for each in report.findings)


def test_a_process_that_only_reads_encrypted_payloads_has_no_error(monkeypatch):
    monkeypatch.setenv("KEY", ENCRYPTION_KEY)
    findings = opened(keys={"k1": "${KEY}"})
    assert [each for each in findings.values() if each.severity == "error"] == []
