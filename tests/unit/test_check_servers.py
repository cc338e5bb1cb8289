"""The findings of the check that need no server, and how they are reported."""

from __future__ import annotations

import base64
import os
import re
import tempfile
import time

import pytest

import claimcheck
from claimcheck import Store
from claimcheck._operate.check_stores import _server
from claimcheck._operate.check_topics import Expectation, examine_settings
from claimcheck._operate.findings import WHY, examined, finding
from claimcheck._texts import duration
from claimcheck.testing import FaultyStore
from claimcheck.transports._common.topics import is_dead_letter_topic
from claimcheck.transports.kafka._queries import TopicSettings
from tests.check_rig import LIFETIME, configuration, diagnosed, ids, text
from tests.docs_pages import ROOT

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
    raw = {"stores": {"hot": {"type": "tests.unit.test_check_servers:Unlisted", "store": {"type": "memory"}}}}
    report = diagnosed(raw)
    assert text(report, "store-not-listable").startswith("info stores.hot: ")


class Unlisted(FaultyStore):
    """A third-party store without a listing."""

    def _scan(self, after):
        return Store._scan(self, after)


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
