"""What `cc.check` reports about a configuration that loads, and about stores and keys that do not work."""

from __future__ import annotations

import base64
import os
import sys
import tempfile
import time

import pytest

import claimcheck
from claimcheck import CheckReport, ConfigError, Store, StoreUnavailableError
from claimcheck._operate.check_topics import Expectation, examine_settings
from claimcheck.errors import MissingDependencyError
from claimcheck.testing import FaultyStore
from claimcheck.transports.kafka._queries import TopicSettings
from tests.check_rig import LIFETIME, configuration, diagnosed, ids, text

DAY = 86_400
KEY = base64.b64encode(bytes(range(32))).decode()
OTHER_KEY = base64.b64encode(bytes(range(1, 33))).decode()
GUESSED = base64.b64encode(b"hunter2 " * 4).decode()
QUIET = {
    "strategy": "external",
    "stores": {"hot": {"type": "redis", "url": "rediss://:${PASSWORD:-x}@cache.example.com:6379/0"}},
    "signing": {"key_id": "k1", "keys": {"k1": "${SIGNING_KEY}"}},
}
ENCRYPTS = {"key_id": "e", "keys": {"e": "${NOT_SET}"}}
SERVICE = "tests.unit.test_check:Service"


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


class Faulty(FaultyStore):
    """A third-party store, of which nothing is known: it cannot be read, cannot delete, or cannot be listed."""

    def __init__(self, *, store, fault=""):
        super().__init__(store=store)
        self.fault = fault
        if fault == "read":
            self.fail("read", error=ConnectionError("redis://me:hunter2@host refused"))

    def _delete(self, pointer):
        if self.fault == "delete":
            raise ZeroDivisionError("division by zero")
        super()._delete(pointer)

    def _scan(self):
        return Store._scan(self)


def third_party(fault=""):
    return {"type": "tests.unit.test_check:Faulty", "store": {"type": "memory", "space": "check"}, "fault": fault}


@pytest.fixture(autouse=True)
def _environment(monkeypatch):
    monkeypatch.delenv("NOT_SET", raising=False)
    for name, value in {"KEY": KEY, "SAME": KEY, "OTHER": OTHER_KEY, "GUESSED": GUESSED}.items():
        monkeypatch.setenv(name, value)


def check(raw, **options):
    with claimcheck.from_dict(raw) as cc:
        return cc.check(**options)


def found(report: CheckReport, severity: str) -> dict[str, str]:
    return {each.path: each.message for each in report.findings if each.severity == severity}


# Settings ----------------------------------------------------------------------------------------------------------


def signing(secret="${NOT_SET}", **more):
    return {"signing": {"key_id": "k1", "keys": {"k1": secret}, **more}}


def store(type, **options):  # noqa: A002 - the name of the option
    return {"stores": {"hot": {"type": type, **options}}}


@pytest.mark.parametrize(
    ("change", "warnings"),
    [
        ({}, {}),
        (signing(require=False), {"signing.require": "accept envelopes without"}),
        (signing(bind_destination=False), {"signing.bind_destination": "from any topic"}),
        (signing(accept_from={"*": ["a", "*"]}), {"signing.accept_from": "from any topic"}),
        ({"checksum": "crc32"}, {"checksum": "crc32 can be forged"}),
        ({"checksum": "crc32", "encryption": ENCRYPTS}, {}),  # the encryption authenticates the content
        (
            {"destinations": {"a": {"strategy": "inline"}}, "encryption": ENCRYPTS},
            {"encryption.inline": "all payloads of the strategy inline"},
        ),
        ({"encryption": {"keys": {"k1": "${KEY}"}, "require": False}}, {"encryption.require": "not encrypted"}),
        ({"encryption": ENCRYPTS, "signing": {}}, {"signing": "payloads are encrypted, but messages are not signed"}),
        ({"reads_from": []}, {"reads_from": "cannot read from 'hot'"}),
        (store("memory"), {"stores.hot": "no other process can read them"}),
        # Secrets that load, and are none
        (signing("hunter2 and so on"), {"signing.keys.k1": "in the configuration itself"}),
        (signing("${NOPE:-" + KEY + "}"), {"signing.keys.k1": "has a default"}),
        *((signing(secret), {"signing.keys.k1": "can be guessed"}) for secret in ("a" * 16, "Change-Me-Now-Please!")),
        (signing("${GUESSED}"), {}),  # not as text
        *(
            ({"encryption": {"keys": {"e": base64.b64encode(key).decode()}}}, {"encryption.keys.e": "can be guessed"})
            for key in (bytes(32), b"password" * 4)
        ),
        (signing("${KEY}") | {"encryption": {"keys": {"e": "${SAME}"}}}, {"encryption.keys.e": "as signing.keys.k1"}),
        (
            {"encryption": {"keys": {"a": "key", "b": "key"}, "provider": SERVICE, "options": {"token": "hunter2"}}},
            {"encryption.options.token": "in the configuration itself"},
        ),
        (
            store("pulsar-topic", url="pulsar+ssl://h", topic="t", token="hunter2"),
            {"stores.hot.token": "in the configuration itself"},
        ),
        # Stores
        (store("redis", url="redis://cache.example.com"), {"stores.hot.url": "cache.example.com are not encrypted"}),
        (store("redis", url="rediss://h?ssl_cert_reqs=none"), {"stores.hot.url": "certificates are not verified"}),
        (store("redis", url="rediss://:hunter2@h"), {"stores.hot.url": "the password is in the configuration itself"}),
        (store("redis", url="rediss://h", ttl_seconds=60), {"stores.hot.ttl_seconds": "expire after 60 s;"}),
        (store("redis", url="rediss://h", ttl_seconds=None), {"stores.hot.ttl_seconds": "no lifetime"}),
        *(
            (store("redis", url=url), {})
            for url in ("redis://localhost:6379", "redis://[::1]:6379", "unix:///run/redis.sock", "${NOT_SET}")
        ),
        (store("s3", bucket="b"), {"stores.hot.ttl_seconds": "no sweep deletes them"}),
        (store("filesystem", path="/var/lib/claims", ttl_seconds=None), {"stores.hot.ttl_seconds": "no sweep deletes"}),
        (
            store("s3", bucket="b", ttl_seconds=DAY, endpoint_url="http://s3.lan:9000"),
            {"stores.hot.endpoint_url": "s3.lan are not encrypted"},
        ),
        (store("filesystem", path="/tmp/claims", ttl_seconds=DAY), {"stores.hot.path": "may be emptied at any time"}),
        (store("filesystem", path="claims", ttl_seconds=DAY), {"stores.hot.path": "different directory in every"}),
        *((store("filesystem", path=path, ttl_seconds=DAY), {}) for path in ("/var/lib/claims", "${CLAIMS_DIR}")),
        ({"stores": {"hot": third_party()}}, {}),
    ],
)  # fmt: skip
def test_unwise_settings_are_warnings_and_sound_ones_are_not(monkeypatch, change, warnings):
    monkeypatch.chdir("/")
    report = check(QUIET | change)
    assert report.ok
    shown = {path: [each.message for each in report.findings if each.path == path] for path in found(report, "warning")}
    assert shown.keys() == warnings.keys()
    for path, words in warnings.items():
        assert any(words in message for message in shown[path])
    assert not any(secret in str(report) for secret in ("hunter2", KEY, GUESSED))


def test_a_good_configuration_has_no_findings_and_that_small_payloads_are_not_encrypted_is_mentioned():
    assert check(QUIET) == CheckReport(())
    findings = found(check(QUIET | {"encryption": ENCRYPTS}), "info")
    assert "payloads up to the threshold are sent as they are" in findings["encryption.inline"]
    assert found(check(QUIET | {"encryption": ENCRYPTS | {"inline": True}}), "info") == {}


# Opening -----------------------------------------------------------------------------------------------------------


def test_open_writes_reads_and_deletes_a_payload_in_every_store_also_if_others_do_not_work(monkeypatch, tmp_path):
    events = []
    monkeypatch.setitem(sys.modules, "redis", None)
    disk = {"type": "filesystem", "path": str(tmp_path / "claims"), "create": True}
    missing = {"type": "filesystem", "path": "/nowhere/at/all"}
    stores = {"r": third_party("read"), "d": third_party("delete"), "missing": missing, "disk": disk}
    stores |= {"redis": {"type": "redis", "url": "redis://localhost"}, "unset": {"type": "redis", "url": "${NOT_SET}"}}
    raw = {"strategy": "inline", "stores": stores, "signing": {"key_id": "k", "keys": {"k": "${NOT_SET}"}}}
    with claimcheck.from_dict(raw, hooks=[events.append]) as cc:
        report = cc.check(open=True)
    done = [event.operation for event in events if event.phase == "completed" and event.store == "disk"]
    assert done == ["write", "read", "rollback"]
    assert list((tmp_path / "claims").iterdir()) == []
    assert "wrote, read and deleted" in found(report, "info")["stores.disk"]
    errors = {each.path: each for each in report.findings if each.severity == "error"}
    expected = {"stores.r", "stores.d", "stores.missing", "stores.redis", "stores.unset.url", "signing.keys.k"}
    assert (errors.keys(), report.ok) == (expected, False)
    assert isinstance(errors["stores.r"].error, StoreUnavailableError)
    assert "claimcheck-messaging[redis]" in errors["stores.redis"].message
    assert all("NOT_SET" in errors[path].message for path in ("stores.unset.url", "signing.keys.k"))
    assert all(each.fix for each in errors.values())
    assert errors["stores.missing"].fix.startswith("Start the server or mount the volume")
    assert "hunter2" not in str(report)


@pytest.mark.parametrize(
    ("package", "change", "path", "extra"),
    [
        ("xxhash", {"checksum": "xxh3-128"}, "checksum", "fast"),
        ("zstandard", {"destinations": {"a": {"compression": {}}}}, "compression", "compression"),
        ("cryptography", {"encryption": {"keys": {"k": "x"}, "provider": SERVICE}}, "encryption", "encryption"),
    ],
)
def test_open_finds_a_missing_package_of_a_setting(monkeypatch, package, change, path, extra):
    raw = {"strategy": "chunking"} | change
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, package, None)
        report = check(raw, open=True)
    assert f"claimcheck-messaging[{extra}]" in found(report, "error")[path]
    assert all(isinstance(each.error, MissingDependencyError) for each in report.findings if each.severity == "error")
    assert check(raw, open=True).ok


@pytest.mark.parametrize(
    ("encryption", "id", "words"),
    [
        ({"key_id": "k1", "keys": {"k1": "${KEY}"}}, "encryption-works", "wrapped and unwrapped a data key"),
        ({"key_id": "k", "keys": {"k": "x"}, "provider": SERVICE}, "encryption-works", f"provider {SERVICE}"),
        ({"keys": {"k1": "${KEY}"}}, "encryption-works", "created the provider"),  # this process only reads
        ({"key_id": "down", "keys": {"down": "x"}, "provider": SERVICE}, "encryption-key-failed", "keys.down"),
        (
            {"key_id": "k1", "keys": {"k1": "x"}, "provider": SERVICE, "options": {"wrong": True}},
            "encryption-key-failed",
            "unwraps a data key as another one",
        ),
        ({"key_id": "k1", "keys": {"k1": "${KEY}", "k0": "${NOT_SET}"}}, "encryption-key-failed", "keys.k0"),
    ],
)
def test_open_uses_the_keys_of_encryption(encryption, id, words):  # noqa: A002
    stores = {"m": {"type": "memory", "space": "check-encryption"}}
    report = check({"strategy": "external", "stores": stores, "encryption": encryption}, open=True)
    (each,) = [each for each in report.findings if each.id == id]
    assert words in f"{each.path} {each.message}"
    assert "hunter2" not in str(report)
    if id == "encryption-works":
        assert (report.ok, ids(report, "store-works")) == (True, ["store-works"])
    elif "down" in words:
        assert isinstance(each.error, StoreUnavailableError)
    else:
        assert (isinstance(each.error, ConfigError), bool(each.fix)) == (True, True)


# Servers -----------------------------------------------------------------------------------------------------------


def disk(path, **more):
    return configuration({"type": "filesystem", "path": str(path), "create": True, **more})


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


# Values ------------------------------------------------------------------------------------------------------------


def settings(**values):
    defaults = {"retention_ms": 3 * DAY * 1000, "segment_ms": DAY * 1000, "max_message_bytes": 1_048_588}
    named = {**defaults, **values}
    config = TopicSettings.of({name.replace("_", "."): str(value) for name, value in named.items()})
    expected = {"path": "topic t", "strategy": "external", "store": "hot", "lifetime": 7.0 * DAY}
    wanted = Expectation(**expected, threshold=None, chunk_bytes=None)
    return [(each.severity, each.id) for each in examine_settings(config, wanted)]


def test_a_payload_must_outlive_its_message_and_not_longer():
    assert settings(retention_ms=7 * DAY * 1000, segment_ms=0) == []
    assert settings(retention_ms=7 * DAY * 1000 + 1, segment_ms=0) == [("warning", "kafka-retention")]
    assert settings(retention_ms=6 * DAY * 1000 + 1) == [("info", "kafka-retention")]
    assert settings(retention_ms=-1) == [("warning", "kafka-retention")]
    assert TopicSettings.of({"cleanup.policy": "compact", "retention.ms": "1000"}).retention is None
    tiered = {"remote_storage_enable": "true", "local_retention_ms": 3600 * 1000}  # a real broker needs a plug-in
    assert settings(**tiered) == []
    assert settings(retention_ms=30 * DAY * 1000, **tiered) == [("warning", "kafka-retention")]
