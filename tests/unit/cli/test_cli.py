"""The command line: payloads through files and pipes, there and back."""

from __future__ import annotations

import pytest

import claimcheck
from claimcheck import HEADER
from tests.unit.cli.rig import (
    CONFIG,
    PAYLOAD,
    SIGNED,
    claims,
    ok,
    proc,
    put,
    run,
    start,
    visible,
)


def test_files(here):
    ok("put", "payload", "-o", "envelope")
    assert (here / "envelope").stat().st_size < 500
    result = ok("get", "envelope", "-o", "back")
    assert (here / "back").read_bytes() == PAYLOAD
    assert result.output == ""
    assert visible(here) == {"envelope", "back"}


@pytest.mark.parametrize("payload", [b"", b"x", HEADER + b"\x02looks like a pointer", PAYLOAD])
def test_standard_input_and_output(here, payload):
    envelope = put(payload)
    assert envelope.startswith(HEADER + b"\x02")  # stored whatever its size
    assert ok("get", "-", stdin=envelope).stdout_bytes == payload
    assert ok("get", "-", "-o", "-", stdin=envelope).stdout_bytes == payload


def test_real_pipes(here):
    with open(here / "payload", "rb") as payload:
        stored = start("put", "-", stdin=payload)
    assert (stored.returncode, stored.stderr) == (0, b"")
    back = start("get", "-", input=stored.stdout)
    assert (back.returncode, back.stderr, back.stdout) == (0, b"", PAYLOAD)


def test_the_envelope_is_what_readers_understand(here):
    (here / "claimcheck.yaml").write_text(SIGNED)
    with claimcheck.load("claimcheck.yaml") as cc:
        assert cc.resolve(put(), destination="cli") == PAYLOAD


def test_destination_and_store_can_be_chosen(here):
    ok("put", "payload", "--store", "other", "--destination", "orders/eu", "-o", "envelope")
    (claim,) = claims(here, "elsewhere")
    assert claim.name.startswith("orders_eu-")
    ok("get", "envelope", "-o", "back")


def test_a_destination_chooses_its_store(here):
    (here / "claimcheck.yaml").write_text(CONFIG + "destinations: {'audit.*': {store: other}}\n")
    ok("put", "payload", "--destination", "audit.eu", "-o", "envelope")
    assert len(claims(here, "elsewhere")) == 1


def test_the_configuration_can_be_named_by_the_environment(here, monkeypatch):
    (here / "claimcheck.yaml").rename(here / "mine.yaml")
    assert run("put", "payload").exit_code == 3
    monkeypatch.setenv("CLAIMCHECK_CONFIG", "mine.yaml")
    put()
    monkeypatch.delenv("CLAIMCHECK_CONFIG")
    ok("--config", "mine.yaml", "put", "payload")


@proc
def test_a_payload_passes_through_in_bounded_memory(here):
    with open(here / "large", "wb") as large:
        large.truncate(200 << 20)
    with open(here / "large", "rb") as large:
        for arguments, options in (
            (("put", "-", "-o", "envelope"), {"stdin": large}),
            (("get", "envelope", "-o", "back"), {}),
        ):
            done = start(*arguments, environment={"SHOW_MEMORY": "1"}, **options)
            assert done.returncode == 0, done.stderr
            assert int(done.stderr) < 150  # MiB
    assert (here / "back").stat().st_size == 200 << 20
