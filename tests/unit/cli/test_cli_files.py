"""What the command line writes: whole files or none."""

from __future__ import annotations

import os

import pytest

import claimcheck
from tests.unit.cli.rig import (
    PAYLOAD,
    claims,
    full_disk,
    is_one_line,
    ok,
    put,
    run,
    start,
    visible,
)


def test_nothing_is_replaced_without_force(here):
    envelope = put()
    (here / "there").write_text("precious")
    for arguments in (("put", "payload", "-o", "there"), ("get", "-", "-o", "there")):
        result = run(*arguments, stdin=envelope)
        assert (result.exit_code, is_one_line(result)) == (1, True)
        assert "--force" in result.stderr
    assert (here / "there").read_text() == "precious"
    assert len(claims(here)) == 1  # refused before anything was stored
    ok("put", "payload", "-o", "there", "--force")
    ok("get", "-", "-o", "there", "--force", stdin=envelope)
    assert (here / "there").read_bytes() == PAYLOAD


def test_a_file_that_comes_up_meanwhile_is_not_replaced(here, monkeypatch):
    envelope = put()
    read = claimcheck.ClaimCheck.open

    def slow(self, message):
        (here / "back").write_text("precious")
        return read(self, message)

    monkeypatch.setattr(claimcheck.ClaimCheck, "open", slow)
    result = run("get", "-", "-o", "back", stdin=envelope)
    assert result.exit_code == 1
    assert (here / "back").read_text() == "precious"
    assert visible(here) == {"back"}


def test_a_file_system_without_hard_links(here, monkeypatch):
    def link(*args: object) -> None:
        raise OSError("not supported")

    monkeypatch.setattr(os, "link", link)
    ok("get", "-", "-o", "back", stdin=put())
    assert (here / "back").read_bytes() == PAYLOAD


@pytest.mark.parametrize("force", [(), ("--force",)])
@pytest.mark.parametrize("size", [len(PAYLOAD) - 1, len(PAYLOAD) + 1, None])
def test_a_damaged_payload_leaves_no_file_and_replaces_none(here, force, size):
    (here / "envelope").write_bytes(put())
    if size is None:
        claims(here)[0].write_bytes(PAYLOAD[:-1] + bytes([PAYLOAD[-1] ^ 1]))
    else:
        os.truncate(claims(here)[0], size)
    if force:
        (here / "back").write_text("precious")
    result = run("get", "envelope", "-o", "back", *force)
    assert (result.exit_code, is_one_line(result)) == (5, True)
    assert visible(here) == ({"envelope", "back"} if force else {"envelope"})
    assert not force or (here / "back").read_text() == "precious"


@full_disk
def test_a_payload_whose_envelope_cannot_be_written_is_removed_again(here):
    result = run("put", "payload", "-o", "/dev/full")
    assert (result.exit_code, is_one_line(result)) == (1, True)
    assert "cannot write /dev/full: No space left" in result.stderr
    assert claims(here) == []


@full_disk
def test_a_failing_removal_is_mentioned(here, monkeypatch):
    def rollback(self, pointer):
        raise claimcheck.StoreUnavailableError("the volume is gone")

    monkeypatch.setattr(claimcheck.Store, "rollback", rollback)
    result = run("put", "payload", "-o", "/dev/full")
    assert "No space left" in result.stderr
    assert "could not be removed again: the volume is gone" in result.stderr


@pytest.mark.parametrize("target", ["nowhere/envelope", "claimcheck.yaml/envelope"])
def test_a_target_that_cannot_be_is_refused_before_anything_is_stored(here, target):
    result = run("put", "payload", "-o", target)
    assert (result.exit_code, is_one_line(result)) == (1, True)
    assert claims(here) == []


def test_links_and_devices_stay_what_they_are(here):
    envelope = put()
    (here / "target").write_text("old")
    (here / "link").symlink_to("target")
    ok("get", "-", "-o", "link", "--force", stdin=envelope)
    assert (here / "link").is_symlink()
    assert (here / "target").read_bytes() == PAYLOAD
    ok("get", "-", "-o", os.devnull, stdin=envelope)
    assert not os.path.isfile(os.devnull)


def test_a_reader_that_stops_early_is_no_drama(here):
    (here / "envelope").write_bytes(put())
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as closed:
        done = start("get", "envelope", stdout=closed)
    assert done.returncode == 1
    assert b"Traceback" not in done.stderr
