"""``sweep``: what it prints, its exit codes, and that it reports what it did before it failed."""

from __future__ import annotations

import itertools
import json
import os
import time
from pathlib import Path

import pytest

from claimcheck._store.contract import StoreContext
from claimcheck.stores.filesystem import FilesystemStore
from tests.unit.cli.rig import claims, is_one_line, ok, put, run

CONFIG = """
store: disk
stores:
  disk: {type: filesystem, path: claims, create: true, ttl_seconds: 604800}
  side: {type: pulsar-topic, url: "pulsar://localhost:6650", topic: side}
"""


def expire(here: Path, count: int) -> None:
    """Write payloads whose lifetime ended a minute ago."""
    (here / "claimcheck.yaml").write_text(CONFIG)
    store = FilesystemStore(path=str(here / "claims"), create=True, ttl_seconds=1)
    store.context = StoreContext(name="disk", clock=lambda: time.time() - 61)
    for _ in range(count):
        store.write(b"payload", destination="orders")


def test_it_counts_first_and_deletes_what_has_expired_with_yes(here):
    expire(here, 2)
    alive = put(b"alive")

    counted = ok("sweep", "--grace", "0")
    before = len(claims(here))
    facts = json.loads(ok("sweep", "--yes", "--grace", "0s", "--json").stdout)

    assert counted.stdout.splitlines()[:3] == [
        "disk: 2 of 3 entries expired, 0 leftovers, 14 bytes",
        "  nothing was deleted: use --yes to delete them",
        "  1 kept: not expired, or within the grace period",
    ]
    assert "'side': PulsarTopicStore cannot list" in counted.stdout
    assert (before, facts["ok"], list(facts["not_listed"])) == (3, True, ["side"])
    (disk,) = facts["stores"]
    assert (disk["store"], disk["deleted"], disk["kept"], disk["finished"]) == ("disk", 2, {"alive": 1}, True)
    assert ok("get", "-", stdin=alive).stdout_bytes == b"alive"
    assert len(claims(here)) == 1


def test_an_entry_that_cannot_be_deleted_is_an_exit_code(here, monkeypatch):
    expire(here, 1)

    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "unlink", refuse)
    result = run("sweep", "--yes", "--grace", "0")

    assert result.exit_code == 1
    assert "1 failed: store 'disk': delete of" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["--store", "side"], 1, "cannot list its payloads"),
        (["--store", "disk", "--store", "none"], 3, "no store is called 'none'"),
        (["--store", "missing"], 6, "does not exist on this machine"),
        (["--grace", "soon"], 2, "not a duration"),
        (["--rate", "0"], 2, "not in the range"),
        (["--rate", "9999999"], 2, "Invalid value for '--rate'"),
        (["--grace", "99999999999999d"], 3, "grace_seconds"),
    ],
)
def test_wrong_arguments_delete_nothing(here, arguments, code, text):
    expire(here, 1)
    with (here / "claimcheck.yaml").open("a") as file:
        file.write("  missing: {type: filesystem, path: missing}\n")

    result = run("sweep", "--yes", "--grace", "0", *arguments)

    assert (result.exit_code, text in result.stderr) == (code, True), result.stderr
    assert code == 2 or is_one_line(result)
    assert len(claims(here)) == 1


def test_a_store_that_is_down_does_not_stop_the_others(here):
    expire(here, 2)
    down = 'stores:\n  down: {type: redis, url: "redis://127.0.0.1:1"}'
    (here / "claimcheck.yaml").write_text(CONFIG.replace("stores:", down))

    result = run("sweep", "--grace", "0")
    facts = run("sweep", "--yes", "--grace", "0", "--json")

    assert (result.exit_code, facts.exit_code, is_one_line(facts)) == (6, 6, True)
    assert result.stdout.startswith("down: not swept: store 'down':")
    assert "disk: 2 of 2 entries expired" in result.stdout
    report = json.loads(facts.stdout)
    down, disk = report["stores"]
    assert (report["ok"], down["finished"], "store 'down'" in down["error"]) == (False, False, True)
    assert (disk["deleted"], disk["finished"], disk["error"]) == (2, True, None)
    assert claims(here) == []


@pytest.mark.parametrize(
    ("error", "code", "text", "as_json"),
    [(TimeoutError("no answer"), 6, "no answer", False), (KeyboardInterrupt(), 1, "interrupted", True)],
)
def test_a_sweep_that_ends_early_prints_its_report(here, monkeypatch, error, code, text, as_json):
    expire(here, 3)
    scan = FilesystemStore._scan

    def fail(store):
        yield from itertools.islice(scan(store), 2)
        raise error

    monkeypatch.setattr(FilesystemStore, "_scan", fail)
    result = run("sweep", "--yes", "--grace", "0", "--rate", "2", *["--json"] * as_json)

    assert result.exit_code == code
    assert (result.stderr.strip() == "Aborted!") is isinstance(error, KeyboardInterrupt)
    if as_json:
        facts = json.loads(result.stdout)
        disk = facts["stores"][0]
        assert (facts["ok"], disk["deleted"], text in disk["error"]) == (False, 2, True)
    else:
        assert "at least 2 deleted" in result.stdout
        assert "  not finished: " in result.stdout
        assert text in result.stdout
    assert len(claims(here)) == 1
