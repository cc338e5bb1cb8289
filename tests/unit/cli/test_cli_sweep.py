"""``sweep``: what it prints, its exit codes, and that it survives a kill."""

from __future__ import annotations

import itertools
import json
import os
import time
from pathlib import Path

import pytest

from claimcheck._store.contract import StoreContext
from claimcheck.stores.filesystem import FilesystemStore
from tests.unit.cli.rig import is_one_line, ok, put, run

CONFIG = """
store: disk
stores:
  disk: {type: filesystem, path: claims, create: true, ttl_seconds: %d}
  side: {type: pulsar-topic, url: "pulsar://localhost:6650", topic: side}
"""


def configure(here: Path, *, ttl_seconds: int) -> None:
    (here / "claimcheck.yaml").write_text(CONFIG % ttl_seconds)


def stored(here: Path) -> list[Path]:
    """Return the payloads; a sweep may remove folders meanwhile, which `os.walk` leaves out."""
    return [Path(folder, name) for folder, _, names in os.walk(here / "claims") for name in names]


def expire(here: Path, count: int) -> None:
    """Write payloads whose lifetime ended a minute ago."""
    configure(here, ttl_seconds=604800)
    store = FilesystemStore(path=str(here / "claims"), create=True, ttl_seconds=1)
    store.context = StoreContext(name="disk", clock=lambda: time.time() - 61)
    for _ in range(count):
        store.write(b"payload", destination="orders")


def test_without_yes_nothing_is_deleted(here):
    expire(here, 2)
    put(b"alive")

    result = ok("sweep", "--grace", "0")

    assert result.stdout.splitlines()[:3] == [
        "disk: 2 of 3 entries expired, 0 leftovers, 14 bytes",
        "  nothing was deleted: use --yes to delete them",
        "  1 kept: not expired, or within the grace period",
    ]
    assert "'side': PulsarTopicStore cannot list" in result.stdout
    assert len(stored(here)) == 3


def test_with_yes_what_has_expired_is_deleted(here):
    expire(here, 2)
    alive = put(b"alive")

    facts = json.loads(ok("sweep", "--yes", "--grace", "0s", "--json").stdout)
    assert facts["ok"]
    assert list(facts["not_listed"]) == ["side"]
    (disk,) = facts["stores"]
    assert (disk["store"], disk["deleted"], disk["kept"], disk["finished"]) == ("disk", 2, {"alive": 1}, True)
    assert ok("get", "-", stdin=alive).stdout_bytes == b"alive"
    assert len(stored(here)) == 1


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
        (["--store", "none"], 3, "no store is called 'none'"),
        (["--store", "missing"], 6, "does not exist on this machine"),
        (["--grace", "soon"], 2, "not a duration"),
        (["--rate", "0"], 2, "not in the range"),
        (["--rate", "9999999"], 2, "Invalid value for '--rate'"),
        (["--grace", "99999999999999d"], 3, "grace_seconds"),
    ],
)
def test_exit_codes(here, arguments, code, text):
    configure(here, ttl_seconds=60)
    with (here / "claimcheck.yaml").open("a") as file:
        file.write("  missing: {type: filesystem, path: missing}\n")

    result = run("sweep", *arguments)

    assert (result.exit_code, text in result.stderr) == (code, True), result.stderr
    assert code == 2 or is_one_line(result)


TWO = """
store: disk
stores:
  down: {type: redis, url: "redis://127.0.0.1:1"}
  disk: {type: filesystem, path: claims, create: true, ttl_seconds: 60}
"""


def test_a_store_that_is_down_does_not_stop_the_others(here):
    expire(here, 2)
    (here / "claimcheck.yaml").write_text(TWO)

    result = run("sweep", "--grace", "0")
    facts = run("sweep", "--yes", "--grace", "0", "--json")

    assert (result.exit_code, facts.exit_code) == (6, 6)
    assert result.stdout.startswith("down: not swept: store 'down':")
    assert "disk: 2 of 2 entries expired" in result.stdout
    down, disk = json.loads(facts.stdout)["stores"]
    assert not json.loads(facts.stdout)["ok"]
    assert (down["finished"], "store 'down'" in down["error"]) == (False, True)
    assert (disk["deleted"], disk["finished"], disk["error"]) == (2, True, None)
    assert is_one_line(facts)
    assert stored(here) == []


def test_an_unknown_store_is_an_error_before_anything_is_deleted(here):
    expire(here, 1)

    assert run("sweep", "--yes", "--grace", "0", "--store", "disk", "--store", "none").exit_code == 3
    assert len(stored(here)) == 1


def fail_after(count: int, error: BaseException):
    """Return a listing that fails after some entries."""
    scan = FilesystemStore._scan

    def fail(store):
        yield from itertools.islice(scan(store), count)
        raise error

    return fail


def test_a_store_that_fails_half_way_has_a_report(here, monkeypatch):
    expire(here, 3)

    monkeypatch.setattr(FilesystemStore, "_scan", fail_after(2, TimeoutError("no answer")))
    result = run("sweep", "--yes", "--grace", "0", "--json", "--rate", "2")

    (disk,) = json.loads(result.stdout)["stores"]
    assert (result.exit_code, disk["deleted"], "no answer" in disk["error"]) == (6, 2, True)


@pytest.mark.parametrize("as_json", [True, False])
def test_an_interrupted_sweep_prints_its_report(here, monkeypatch, as_json):
    expire(here, 3)

    monkeypatch.setattr(FilesystemStore, "_scan", fail_after(2, KeyboardInterrupt()))
    result = run("sweep", "--yes", "--grace", "0", "--rate", "2", *["--json"] * as_json)

    assert (result.exit_code, result.stderr.strip()) == (1, "Aborted!")
    assert len(stored(here)) == 1
    if as_json:
        facts = json.loads(result.stdout)
        disk = facts["stores"][0]
        assert (facts["ok"], disk["deleted"], disk["error"]) == (False, 2, "interrupted")
    else:
        assert "at least 2 deleted" in result.stdout
        assert "  not finished: interrupted" in result.stdout
