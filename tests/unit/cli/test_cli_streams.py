"""Streams that are closed, and a command line that is told to end."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import time
from collections.abc import Callable

import pytest

from tests.unit.cli.rig import (
    CODE,
    PAYLOAD,
    SLOW,
    command,
    put,
    start,
    visible,
)


@pytest.mark.parametrize("arguments", [("get", "-"), ("inspect", "-")])
def test_a_closed_standard_input_is_said_in_one_line(here, arguments):
    done = start(*arguments, preexec_fn=lambda: os.close(0))
    assert (done.returncode, done.stderr) == (1, b"claimcheck: standard input is closed: name a file\n")


@pytest.mark.parametrize("arguments", [("get", "envelope"), ("inspect", "envelope"), ("inspect", "envelope", "--json")])
def test_a_closed_standard_output_is_said_before_anything_is_done(here, arguments):
    (here / "envelope").write_bytes(put(b"small"))
    done = start(*arguments, preexec_fn=lambda: os.close(1))
    assert done.returncode == 1
    assert done.stderr == b"claimcheck: standard output is closed: use -o FILE\n"


def test_a_closed_standard_error_is_no_error(here):
    (here / "envelope").write_bytes(put())
    assert start("get", "envelope", "-o", "back", preexec_fn=lambda: os.close(2)).returncode == 0
    assert (here / "back").read_bytes() == PAYLOAD
    assert start("get", "nothing", preexec_fn=lambda: os.close(2)).returncode == 2


def test_ended_while_writing_nothing_is_left(here):
    (here / "envelope").write_bytes(put())
    process = subprocess.Popen(**command("get", "envelope", "-o", "back", code=SLOW))
    _until(lambda: visible(here) - {"envelope"})
    process.terminate()
    process.terminate()  # `timeout` does it twice
    assert process.wait(20) == 128 + signal.SIGTERM
    assert visible(here) == {"envelope"}


def test_who_ignores_the_signal_goes_on_doing_so(here):
    ignoring = f"import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n{CODE}"
    os.mkfifo(here / "pipe")
    with subprocess.Popen(**command("get", "-", "-o", "pipe", code=ignoring), stdin=subprocess.PIPE) as process:
        process.stdin.write(put())
        process.stdin.close()
        with open(here / "pipe", "rb") as pipe:  # it has begun to write
            process.terminate()
            assert pipe.read() == PAYLOAD
        assert process.wait(20) == 0


def _until(done: Callable[[], object]) -> None:
    for _ in range(2000):
        if done():
            return
        time.sleep(0.01)
    pytest.fail("it did not come to that")


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
    assert "1 MiB of 2.861 MiB" in shown
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
