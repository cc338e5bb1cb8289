"""``get`` and ``inspect``: whole files or none, codes for scripts, one line for people."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys

import pytest

import claimcheck
from claimcheck import HEADER, errors
from claimcheck._receive.messages import MessageReader
from claimcheck._wire.envelope import encode_chunk, encode_literal, encode_pointer
from claimcheck.cli._commands import exit_code, one_line
from tests.real.process import wait_until
from tests.unit.cli.rig import CODE, PAYLOAD, SIGNED, SLOW, claims, command, is_one_line, ok, put, run, start, visible
from tests.vectors import CONTENT

LITERAL = encode_literal(HEADER + b"!")
VERSION_1 = encode_pointer(b"\x01\0\0\0\x03kafka-over-redis-orders-1")


needs_proc = pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="no /proc here")
needs_full_disk = pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full here")


def pointer_to(key: str, store: str = "disk") -> bytes:
    facts = {"key": key, "store": store, "size": 1, "segments": 1, "checksum": "crc32:0", "new": "\x07"}
    return encode_pointer(b"\x02" + json.dumps(facts).encode())


# What is written -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("payload", [b"", HEADER + b"\x02looks like a pointer", PAYLOAD])
def test_a_payload_is_written_to_a_file_and_to_standard_output(here, payload):
    (here / "envelope").write_bytes(put(payload))
    assert ok("get", "envelope", "-o", "back").output == ""
    assert (here / "back").read_bytes() == payload
    assert visible(here) == {"envelope", "back"}
    for target in ((), ("-o", "-")):
        assert ok("get", "-", *target, stdin=(here / "envelope").read_bytes()).stdout_bytes == payload


@needs_full_disk
def test_devices_and_pipes_are_written_to(here):
    envelope = put()
    os.mkfifo(here / "pipe")
    with subprocess.Popen(**command("get", "-", "-o", "pipe"), stdin=subprocess.PIPE) as process:
        process.stdin.write(envelope)
        process.stdin.close()
        assert (here / "pipe").read_bytes() == PAYLOAD
    assert process.returncode == 0
    full = run("get", "-", "-o", "/dev/full", stdin=envelope)
    assert (full.exit_code, is_one_line(full)) == (1, True)
    assert "cannot write /dev/full: No space left" in full.stderr


@pytest.mark.parametrize("target", [None, "there", "nowhere"])
def test_nothing_is_replaced_and_no_symbolic_link_is_followed(here, target):
    envelope = put()
    (here / "there").write_text("precious")
    if target is not None:
        (here / "link").symlink_to(target)
    result = run("get", "-", "-o", "there" if target is None else "link", stdin=envelope)
    assert (result.exit_code, is_one_line(result)) == (1, True)
    assert "already exists" in result.stderr
    assert (here / "there").read_text() == "precious"
    assert not (here / "nowhere").exists()


def no_links(*args: object) -> None:
    raise OSError("not supported")


@pytest.mark.parametrize("links", [True, False])
@pytest.mark.parametrize("symbolic", [True, False])
def test_what_comes_up_meanwhile_is_neither_replaced_nor_followed(here, monkeypatch, links, symbolic):
    envelope, read = put(), MessageReader.open

    def slow(self, message):
        (here / "there").write_text("precious")
        (here / "back").symlink_to("there") if symbolic else (here / "there").rename(here / "back")
        return read(self, message)

    monkeypatch.setattr(MessageReader, "open", slow)
    if not links:
        monkeypatch.setattr(os, "link", no_links)
    assert run("get", "-", "-o", "back", stdin=envelope).exit_code == 1
    assert (here / "back").read_text() == "precious"
    assert visible(here) == ({"there", "back"} if symbolic else {"back"})


@pytest.mark.parametrize("links", [True, False])
def test_what_is_written_is_for_its_owner_alone_also_in_a_folder_that_is_a_symbolic_link(here, monkeypatch, links):
    (here / "folder").mkdir()
    (here / "link").symlink_to("folder")
    envelope, before = put(), os.umask(0)
    if not links:
        monkeypatch.setattr(os, "link", no_links)
    try:
        ok("get", "-", "-o", "link/back", stdin=envelope)
    finally:
        os.umask(before)
    written = here / "folder" / "back"
    assert (written.read_bytes(), written.stat().st_mode & 0o777) == (PAYLOAD, 0o600)


@needs_proc
def test_a_payload_passes_through_in_bounded_memory(here):
    with open(here / "large", "wb") as large:
        large.truncate(200 << 20)
    with open(here / "large", "rb") as large:
        (here / "envelope").write_bytes(put(large))
    done = start("get", "envelope", "-o", "back", environment={"SHOW_MEMORY": "1"})
    assert done.returncode == 0, done.stderr
    assert int(done.stderr) < 150  # MiB
    assert (here / "back").stat().st_size == 200 << 20


# Errors ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("damage", ["gone", "down", "short", "changed"])
def test_a_payload_that_cannot_be_read_whole_has_its_code_and_leaves_no_file(here, damage):
    (here / "envelope").write_bytes(put())
    (file,) = claims(here)
    if damage == "down":
        (here / "claims").rename(here / "elsewhere")
    elif damage == "gone":
        file.unlink()
    else:
        file.write_bytes(PAYLOAD[:-1] + (b"" if damage == "short" else bytes([PAYLOAD[-1] ^ 1])))
    for target in ("back", os.devnull):
        result = run("get", "envelope", "-o", target)
        assert (result.exit_code, is_one_line(result)) == ({"gone": 4, "down": 6}.get(damage, 5), True)
        assert damage != "gone" or "is gone (written 20" in result.stderr
    assert visible(here) <= {"envelope", "elsewhere"}


@pytest.mark.parametrize("verb", ["get", "inspect"])
def test_cuts_of_an_envelope_and_what_is_no_message_is_an_error(here, verb):
    envelope = put(b"small")
    cuts = {21, *range(21 if verb == "inspect" else 0, len(envelope), 5), len(envelope) - 1}  # shorter ones are plain
    assert {run(verb, "-", stdin=envelope[:length]).exit_code for length in cuts} == {5}
    assert run(verb, "-", stdin=b"").exit_code == 5
    with open("large", "wb") as large:
        large.truncate((64 << 20) + 1)
    assert run(verb, "large").exit_code == 5
    assert run("get", "-", stdin=b"plain").exit_code == 5
    assert ok("get", "-", stdin=LITERAL).stdout_bytes == HEADER + b"!"


def test_signatures_that_are_missing_wrong_or_of_another_topic_are_refused_and_shown(here):
    unsigned = put()
    (here / "claimcheck.yaml").write_text(SIGNED)
    signed = put()
    for envelope, word in ((unsigned, "missing"), (signed.replace(b'"size":3', b'"size":4'), "invalid")):
        got, inspected = run("get", "-", stdin=envelope), run("inspect", "-", stdin=envelope)
        assert (got.exit_code, is_one_line(got), inspected.exit_code) == (7, True, 7)
        assert word in inspected.stdout
    ok("get", "-", "--destination", "cli", "-o", "back", stdin=signed)
    stolen = run("get", "-", "-o", "stolen", "--destination", "salaries", stdin=signed)
    assert (stolen.exit_code, (here / "stolen").exists()) == (7, False)
    assert "was sent to 'cli', but read from 'salaries'" in stolen.stderr
    for require in ("true", "false"):
        text = SIGNED.replace(":-a secret of tests", "").replace("require: true", f"require: {require}")
        (here / "claimcheck.yaml").write_text(text)
        assert json.loads(ok("inspect", "-", "--json", stdin=signed).stdout)["signature"] == "unchecked"
    (here / "claimcheck.yaml").write_text(SIGNED.replace("require: true", "require: false"))
    old = run("inspect", "-", stdin=VERSION_1)
    assert (old.exit_code, "missing" in old.stdout) == (7, True)


@pytest.mark.parametrize("url", ["redis://localhost", "redis://:${NEVER_SET_HERE}@localhost"])
def test_a_store_that_this_machine_cannot_use_is_a_matter_of_its_configuration(here, monkeypatch, url):
    monkeypatch.setitem(sys.modules, "redis", None)
    (here / "claimcheck.yaml").write_text(f"stores: {{hot: {{type: redis, url: '{url}'}}}}")
    result = run("get", "-", "-o", "back", stdin=pointer_to("claimcheck:k", "hot"))
    assert (result.exit_code, is_one_line(result), visible(here)) == (3, True, set())


def test_the_configuration_can_be_named_by_an_option_or_the_environment(here, monkeypatch):
    (here / "claimcheck.yaml").rename(here / "mine.yaml")
    assert run("check").exit_code == 3
    ok("--config", "mine.yaml", "check")
    monkeypatch.setenv("CLAIMCHECK_CONFIG", "mine.yaml")
    ok("check")


def test_every_error_has_its_code_and_the_help_lists_them():
    kinds = {name: getattr(errors, name) for name in errors.__all__}
    codes = {name: exit_code(kind("text")) for name, kind in kinds.items() if issubclass(kind, Exception)}
    general = "ClaimCheckError KeyTakenError PayloadError PayloadTooLargeError PayloadTypeError ScanNotSupportedError"
    assert {name for name, code in codes.items() if code == 1} == {*general.split(), "StoreError", "TransportError"}
    assert codes["MissingDependencyError"] == codes["ConfigError"] == 3
    assert codes["UnknownVersionError"] == codes["ChunkConflictError"] == 5
    assert exit_code(OSError()) == 1
    assert one_line(PermissionError(13, "Permission denied", "secret")) == "secret: Permission denied"
    assert "Exit codes:" in ok("-h").stdout


def test_an_error_that_nobody_expected_is_one_line_unless_debugging(here, monkeypatch):
    def broken(self, name):
        raise ValueError("first\nsecond\x1b[2J")

    monkeypatch.setattr(claimcheck.ClaimCheck, "store", broken)
    result = run("gc", "--kafka", "localhost:1", "--topic", "orders")
    assert result.exit_code == 1
    assert result.stderr == "claimcheck: unexpected ValueError: first second [2J (--debug shows the traceback)\n"
    result = run("--debug", "gc", "--kafka", "localhost:1", "--topic", "orders")
    assert isinstance(result.exception, ValueError)


def test_a_missing_package_is_named_with_its_extra():
    done = start("check", code=f"import sys\nsys.modules['click'] = None\n{CODE}")
    assert (done.returncode, b"Traceback" in done.stderr) == (3, False)
    assert "needs the package click: pip install 'claimcheck-messaging[cli]'" in done.stderr.decode()


# Inspecting ------------------------------------------------------------------------------------------------------


def test_inspect_a_pointer(here):
    (here / "claimcheck.yaml").write_text(SIGNED)
    envelope = put()
    shown = dict(line.split(maxsplit=1) for line in ok("inspect", "-", stdin=envelope).stdout.splitlines())
    assert (shown["kind"], shown["pointer_version"], shown["destination"]) == ("pointer", "2", "cli")
    assert (shown["store"], shown["store_type"]) == ("disk", "filesystem")
    assert shown["size"] == "2.9 MiB (3,000,000 bytes)"
    assert "(in 7 days)" in shown["expires"]
    assert (shown["signature"], shown["key_id"]) == ("valid", "k1")
    facts = json.loads(ok("inspect", "-", "--json", stdin=envelope).stdout)
    assert (facts["store_type"], facts["size"], facts["expired"]) == ("filesystem", 3_000_000, False)
    assert facts["expires_ms"] - facts["created_ms"] == 604_800_000
    (here / "claimcheck.yaml").unlink()
    assert "unchecked" in ok("inspect", "-", stdin=envelope).stdout


UUID = "c588ed27-7265-4f4d-9d42-64e1de14b8c6"
ENCODED = HEADER + b"\x04" + CONTENT["message_compressed"]


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (b"plain", ["plain", "5 bytes"]),
        (LITERAL, ["literal", "21 bytes"]),
        (encode_chunk(UUID, 2, 9, b"hello"), ["c588ed27", "position           2", "count              9", "5 bytes"]),
        (HEADER + b"\x03" + UUID.encode(), ["abort", "c588ed27"]),
        (VERSION_1, ["pointer_version    1", "segments           3"]),
        (ENCODED, ["encoded", "1.4 KiB (1,400 bytes)", "Straße", "zstd", "AES256_GCM_HKDF_1MB", "k1"]),
    ],
)
def test_inspect_other_messages(message, words):
    text = ok("inspect", "-", stdin=message).stdout
    assert all(word in text for word in words)
    assert json.loads(ok("inspect", "-", "--json", stdin=message).stdout)["kind"] == text.split()[1]


def test_inspect_never_sends_an_envelopes_codes_to_the_terminal(here):
    text = ok("inspect", "-", stdin=pointer_to("\x1b[2J\r\nkey", "\x9bstore")).stdout
    assert " [2J  key" in text
    assert all(ch.isprintable() or ch == "\n" for ch in text)
    damaged = run("inspect", "-", stdin=ENCODED[:70])
    assert (damaged.exit_code, is_one_line(damaged)) == (5, True)


# Streams, signals and terminals ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "closed", "code", "text"),
    [
        (("get", "-"), 0, 1, b"claimcheck: standard input is closed: name a file\n"),
        (("inspect", "-"), 0, 1, b"claimcheck: standard input is closed: name a file\n"),
        (("get", "envelope"), 1, 1, b"claimcheck: standard output is closed: use -o FILE\n"),
        (("inspect", "envelope", "--json"), 1, 1, b"claimcheck: standard output is closed: use -o FILE\n"),
        (("get", "envelope", "-o", "back"), 2, 0, b""),
        (("get", "nothing"), 2, 2, b""),
    ],
)
def test_a_closed_stream(here, arguments, closed, code, text):
    (here / "envelope").write_bytes(put(b"small"))
    done = start(*arguments, preexec_fn=lambda: os.close(closed))
    assert (done.returncode, done.stderr) == (code, text)


def test_a_reader_that_stops_early_gets_no_traceback(here):
    (here / "envelope").write_bytes(put())
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as closed:
        done = start("get", "envelope", stdout=closed)
    assert done.returncode == 1
    assert b"Traceback" not in done.stderr


def test_ended_while_writing_nothing_is_left(here):
    (here / "envelope").write_bytes(put())
    process = subprocess.Popen(**command("get", "envelope", "-o", "back", code=SLOW))
    wait_until(lambda: bool(visible(here) - {"envelope"}), "a part is written")
    process.terminate()
    process.terminate()  # `timeout` does it twice
    assert process.wait(20) == 128 + signal.SIGTERM
    assert visible(here) == {"envelope"}


def on_terminal(*arguments: object, stderr_only: bool) -> str:
    """Run with a terminal; returns what it shows."""
    master, slave = pty.openpty()
    started = command(*arguments, TERM="xterm", COLUMNS="100")
    out = subprocess.DEVNULL if stderr_only else slave
    with subprocess.Popen(**started, stdin=subprocess.DEVNULL, stdout=out, stderr=slave) as process:
        os.close(slave)
        shown = b"".join(_read_to_end(master))
    os.close(master)
    assert process.returncode == 0
    return shown.decode()


def _read_to_end(master: int):
    try:
        while piece := os.read(master, 65536):
            yield piece
    except OSError:  # Linux reports it when the other end is closed
        return


def test_a_terminal_shows_progress_and_the_same_facts(here):
    (here / "envelope").write_bytes(put())
    shown = on_terminal("get", "envelope", stderr_only=True)
    assert "1 MiB of 2.861 MiB" in shown
    assert "Wrote 2.9 MiB" in shown
    assert "pointer_version    2" in on_terminal("inspect", "envelope", stderr_only=False)
    shown = on_terminal("sweep", stderr_only=True)
    assert "disk: 1 listed, 0 expired, 0 deleted" in shown
    assert shown.endswith("\r\x1b[K")
