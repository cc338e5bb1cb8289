"""``sweep``: what it prints, its exit codes, and that it survives a kill."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from claimcheck._store import StoreContext
from claimcheck.stores.filesystem import FilesystemStore
from tests.unit.cli.rig import command, is_one_line, ok, put, run

CONFIG = """
store: disk
stores:
  disk: {type: filesystem, path: claims, create: true, ttl_seconds: %d}
  side: {type: pulsar-topic, url: "pulsar://localhost:6650", topic: side}
"""


def configure(here: Path, *, ttl_seconds: int) -> None:
    (here / "claimcheck.yaml").write_text(CONFIG % ttl_seconds)


def stored(here: Path) -> list[Path]:
    return [path for path in (here / "claims").rglob("*") if path.is_file()]


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
        "  nothing was deleted: --yes deletes them",
        "  1 stay: not expired",
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


def test_the_default_grace_is_an_hour(here):
    expire(here, 1)

    assert "1 stay: not expired" in ok("sweep", "--yes").stdout


def test_the_limit_is_for_all_stores(here):
    expire(here, 3)

    result = ok("sweep", "--yes", "--grace", "0", "--limit", "2")

    assert "the limit was reached" in result.stdout
    assert len(stored(here)) == 1


def test_an_entry_that_cannot_be_deleted_is_an_exit_code(here, monkeypatch):
    expire(here, 1)

    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "unlink", refuse)
    result = run("sweep", "--yes", "--grace", "0")

    assert result.exit_code == 1
    assert "1 could not be deleted: store 'disk': delete of" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["--store", "side"], 1, "cannot list its payloads"),
        (["--store", "none"], 3, "no store is called 'none'"),
        (["--store", "disk"], 6, "does not exist on this machine"),
        (["--yes", "--dry-run"], 2, "exclude each other"),
        (["--grace", "soon"], 2, "not a duration"),
        (["--rate", "0/s"], 2, "not a rate"),
        (["--yes", "--state", "claimcheck.yaml"], 3, "not the state of a sweep"),
    ],
)
def test_exit_codes(here, arguments, code, text):
    configure(here, ttl_seconds=60)

    result = run("sweep", *arguments)

    assert (result.exit_code, text in result.stderr) == (code, True), result.stderr
    assert code == 2 or is_one_line(result)


def test_a_killed_sweep_continues_where_it_was(here):
    expire(here, 30)
    alive = put(b"alive")
    arguments = ("sweep", "--yes", "--grace", "0", "--state", "state")

    started = command(*arguments, "--rate", "5/s")
    with subprocess.Popen(**started, stdout=subprocess.DEVNULL) as process:
        while not (here / "state").exists():
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
    between = len(stored(here))
    position = json.loads((here / "state").read_text())

    assert process.returncode == -signal.SIGKILL
    assert 1 < between < 31
    assert position["store"] == "disk"
    ok(*arguments)
    assert len(stored(here)) == 1
    assert ok("get", "-", stdin=alive).stdout_bytes == b"alive"
    assert not (here / "state").exists()
