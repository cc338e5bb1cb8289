"""The command line: payloads through files and pipes, there and back."""

from __future__ import annotations

import pytest

from claimcheck import HEADER
from tests.unit.cli.rig import (
    PAYLOAD,
    ok,
    proc,
    put,
    run,
    start,
    visible,
)


def test_files(here):
    (here / "envelope").write_bytes(put())
    result = ok("get", "envelope", "-o", "back")
    assert (here / "back").read_bytes() == PAYLOAD
    assert result.output == ""
    assert visible(here) == {"envelope", "back"}


@pytest.mark.parametrize("payload", [b"", b"x", HEADER + b"\x02looks like a pointer", PAYLOAD])
def test_standard_input_and_output(here, payload):
    envelope = put(payload)
    assert ok("get", "-", stdin=envelope).stdout_bytes == payload
    assert ok("get", "-", "-o", "-", stdin=envelope).stdout_bytes == payload


def test_real_pipes(here):
    back = start("get", "-", input=put())
    assert (back.returncode, back.stderr, back.stdout) == (0, b"", PAYLOAD)


def test_the_configuration_can_be_named_by_the_environment(here, monkeypatch):
    (here / "claimcheck.yaml").rename(here / "mine.yaml")
    assert run("check").exit_code == 3
    monkeypatch.setenv("CLAIMCHECK_CONFIG", "mine.yaml")
    ok("check")
    monkeypatch.delenv("CLAIMCHECK_CONFIG")
    ok("--config", "mine.yaml", "check")


@proc
def test_a_payload_passes_through_in_bounded_memory(here):
    with open(here / "large", "wb") as large:
        large.truncate(200 << 20)
    with open(here / "large", "rb") as large:
        (here / "envelope").write_bytes(put(large))
    done = start("get", "envelope", "-o", "back", environment={"SHOW_MEMORY": "1"})
    assert done.returncode == 0, done.stderr
    assert int(done.stderr) < 150  # MiB
    assert (here / "back").stat().st_size == 200 << 20
