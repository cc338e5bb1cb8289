"""The command line on a terminal."""

from __future__ import annotations

import os
import pty
import subprocess

from tests.unit.cli.rig import (
    command,
    put,
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
    (here / "envelope").write_bytes(put())
    code, shown = on_terminal("get", "envelope", stderr_only=True)
    assert code == 0
    assert "reading  [####" in shown
    assert "Wrote 2.9 MiB" in shown


def test_a_terminal_shows_what_a_sweep_does(here):
    code, shown = on_terminal("sweep", stderr_only=True)
    assert code == 0
    assert "listing ..." in shown
    assert "disk: 0 listed, 0 expired, 0 deleted" in shown
    assert shown.endswith("\r\x1b[K")


def test_a_terminal_gets_the_same_facts(here):
    (here / "envelope").write_bytes(put())
    code, shown = on_terminal("inspect", "envelope")
    assert code == 0
    assert "pointer_version    2" in shown
