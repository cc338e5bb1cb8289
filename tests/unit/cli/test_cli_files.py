"""What the command line writes: whole files or none."""

from __future__ import annotations

import os
import subprocess

import pytest

from claimcheck import HEADER
from claimcheck._receive.messages import MessageReader
from tests.unit.cli.rig import (
    PAYLOAD,
    claims,
    command,
    full_disk,
    is_one_line,
    ok,
    proc,
    put,
    run,
    start,
    visible,
)


def test_nothing_is_replaced(here):
    envelope = put()
    (here / "there").write_text("precious")
    result = run("get", "-", "-o", "there", stdin=envelope)
    assert (result.exit_code, is_one_line(result)) == (1, True)
    assert "already exists" in result.stderr
    assert (here / "there").read_text() == "precious"


def test_a_file_that_comes_up_meanwhile_is_not_replaced(here, monkeypatch):
    envelope = put()
    read = MessageReader.open

    def slow(self, message):
        (here / "back").write_text("precious")
        return read(self, message)

    monkeypatch.setattr(MessageReader, "open", slow)
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


@pytest.mark.parametrize("size", [len(PAYLOAD) - 1, len(PAYLOAD) + 1, None])
def test_a_damaged_payload_leaves_no_file(here, size):
    (here / "envelope").write_bytes(put())
    if size is None:
        claims(here)[0].write_bytes(PAYLOAD[:-1] + bytes([PAYLOAD[-1] ^ 1]))
    else:
        os.truncate(claims(here)[0], size)
    result = run("get", "envelope", "-o", "back")
    assert (result.exit_code, is_one_line(result)) == (5, True)
    assert visible(here) == {"envelope"}


@pytest.mark.parametrize("target", ["nowhere/envelope", "claimcheck.yaml/envelope"])
def test_a_target_that_cannot_be_is_refused(here, target):
    result = run("get", "-", "-o", target, stdin=put())
    assert (result.exit_code, is_one_line(result)) == (1, True)


@full_disk
def test_a_full_disk_is_said_in_one_line(here):
    result = run("get", "-", "-o", "/dev/full", stdin=put())
    assert (result.exit_code, is_one_line(result)) == (1, True)
    assert "cannot write /dev/full: No space left" in result.stderr


@pytest.mark.parametrize("target", ["there", "nowhere", os.devnull, "link"])
def test_a_symbolic_link_is_never_followed(here, target):
    envelope = put()
    (here / "there").write_text("precious")
    (here / "link").symlink_to(target)  # to a file, to nothing, to a device, to itself
    result = run("get", "-", "-o", "link", stdin=envelope)
    assert (result.exit_code, is_one_line(result)) == (1, True)
    assert "link is a symbolic link: name the file itself" in result.stderr
    assert visible(here) == {"there", "link"}
    assert ((here / "there").read_text(), os.readlink(here / "link")) == ("precious", target)


@pytest.mark.parametrize("links", [True, False])
def test_a_symbolic_link_that_comes_up_meanwhile_is_not_followed(here, monkeypatch, links):
    envelope = put()
    (here / "there").write_text("precious")
    read = MessageReader.open

    def slow(self, message):
        (here / "back").symlink_to("there")
        return read(self, message)

    def link(*args: object) -> None:
        raise OSError("not supported")

    monkeypatch.setattr(MessageReader, "open", slow)
    if not links:
        monkeypatch.setattr(os, "link", link)
    assert run("get", "-", "-o", "back", stdin=envelope).exit_code == 1
    assert (here / "there").read_text() == "precious"
    assert visible(here) == {"there", "back"}


def test_a_folder_may_be_a_symbolic_link(here):
    (here / "folder").mkdir()
    (here / "link").symlink_to("folder")
    ok("get", "-", "-o", "link/back", stdin=put())
    assert (here / "folder" / "back").read_bytes() == PAYLOAD


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o277])
def test_what_is_written_is_for_its_owner_alone(here, umask):
    envelope = put()
    before = os.umask(umask)
    try:
        ok("get", "-", "-o", "back", stdin=envelope)
    finally:
        os.umask(before)
    assert (here / "back").stat().st_mode & 0o777 == 0o600 & ~umask


@full_disk
def test_devices_and_pipes_are_written_to(here):
    envelope = put()
    ok("get", "-", "-o", os.devnull, stdin=envelope)
    assert not os.path.isfile(os.devnull)
    os.mkfifo(here / "pipe")
    with subprocess.Popen(**command("get", "-", "-o", "pipe"), stdin=subprocess.PIPE) as process:
        process.stdin.write(envelope)
        process.stdin.close()
        assert (here / "pipe").read_bytes() == PAYLOAD
    assert process.returncode == 0
    done = start("get", "-", "-o", "/dev/stdout", input=envelope)
    assert (done.returncode, done.stdout) == (0, PAYLOAD)


def test_a_reader_that_stops_early_is_no_drama(here):
    (here / "envelope").write_bytes(put())
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as closed:
        done = start("get", "envelope", stdout=closed)
    assert done.returncode == 1
    assert b"Traceback" not in done.stderr


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
