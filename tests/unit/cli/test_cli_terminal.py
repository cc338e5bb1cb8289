"""The command line on a terminal, and its demo."""

from __future__ import annotations

import inspect
import os
import pty
import subprocess

import pytest

from claimcheck._demo.send import DemoError
from tests.unit.cli.rig import (
    command,
    is_one_line,
    ok,
    put,
    run,
)


def on_terminal(*arguments: object, stderr_only: bool = False) -> tuple[int, str]:
    """Run with a terminal; returns the exit code and what it shows."""
    master, slave = pty.openpty()
    started = command(*arguments, TERM="xterm", COLUMNS="100")
    out = subprocess.DEVNULL if stderr_only else slave
    with subprocess.Popen(**started, stdin=subprocess.DEVNULL, stdout=out, stderr=slave) as process:
        os.close(slave)
        shown = b"".join(_read_to_end(master))
    os.close(master)
    return process.returncode, shown.decode()


def _read_to_end(master: int):
    try:
        while piece := os.read(master, 65536):
            yield piece
    except OSError:  # Linux says so when the other end is closed
        return


def test_a_terminal_shows_a_bar_and_how_it_went(here):
    code, shown = on_terminal("put", "payload", "-o", "envelope")
    assert code == 0
    assert "storing" in shown
    assert "Stored 2.9 MiB (3,000,000 bytes) in disk as 20" in shown
    code, shown = on_terminal("get", "envelope", stderr_only=True)
    assert code == 0
    assert "reading" in shown
    assert "Wrote 2.9 MiB" in shown


def test_a_payload_never_goes_to_a_terminal_by_accident(here):
    (here / "envelope").write_bytes(put(b"\x1b[2J"))
    code, shown = on_terminal("get", "envelope")
    assert code == 2
    assert "-o FILE" in shown
    code, shown = on_terminal("get", "envelope", "-o", "-")
    assert code == 0


def test_a_terminal_gets_a_table(here):
    (here / "envelope").write_bytes(put())
    code, shown = on_terminal("inspect", "envelope", "--read")
    assert code == 0
    assert "read and verified" in shown


def test_the_demo_is_run_with_its_folder_and_its_code(here, monkeypatch):
    demo = pytest.importorskip("claimcheck._demo")
    seen = []

    def fake(directory, *, console):
        seen.append(directory)
        return 1 if directory else 0

    assert list(inspect.signature(demo.run).parameters) == list(inspect.signature(fake).parameters)
    monkeypatch.setattr(demo, "run", fake)
    ok("demo")
    assert run("demo", "--dir", here).exit_code == 1
    assert run("demo", "--dir", "nowhere").exit_code == 2
    assert seen == [None, here]


def test_a_folder_that_cannot_be_used_is_wrong_usage_and_other_troubles_of_the_demo_are_not(here, monkeypatch):
    pytest.importorskip("pyspark")
    demo = pytest.importorskip("claimcheck._demo")
    (here / "void").mkdir()
    result = run("demo", "--dir", "void")
    assert result.exit_code == 2
    assert "it holds no files" in result.stderr

    def fake(directory, *, console):
        raise DemoError("Spark did not start")

    monkeypatch.setattr(demo, "run", fake)
    result = run("demo")
    assert (result.exit_code, is_one_line(result)) == (1, True)
