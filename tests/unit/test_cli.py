"""The command line: payloads through files and pipes, exit codes for scripts, and nothing half done."""

from __future__ import annotations

import inspect
import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import claimcheck
from claimcheck import HEADER, errors
from claimcheck.cli.commands import commands
from claimcheck.cli.errors import exit_code, one_line
from claimcheck.cli.inspect import human_bytes, lines
from claimcheck.demo.files import DemoError
from claimcheck.envelope import encode_chunk, encode_literal, encode_pointer

PAYLOAD = os.urandom(3_000_000)
UUID = "c588ed27-7265-4f4d-9d42-64e1de14b8c6"
ROOT = Path(__file__).resolve().parents[2]
CONFIG = """
store: disk
stores:
  disk: {type: filesystem, path: claims, ttl_seconds: 604800}
  other: {type: filesystem, path: elsewhere}
  gone: {type: memory}
"""
SIGNED = CONFIG + "signing: {key_id: k1, keys: {k1: '${TEST_KEY:-secret}'}, require: true}\n"

# A process that is started does not see what conftest.py does for a checkout that is not installed.
CODE = f"""
import atexit, importlib.util, os, sys
import claimcheck
if importlib.util.find_spec("claimcheck.stores") is None:
    claimcheck.__path__.append({str(ROOT)!r})
if "SHOW_MEMORY" in os.environ:  # not ru_maxrss, which begins with the memory of whoever started this process
    peak = lambda: next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM"))
    atexit.register(lambda: print(int(peak()) >> 10, file=sys.stderr))
from claimcheck.cli import main
main()
"""

# A payload that never ends.
SLOW = f"""
import io, time
import claimcheck
class Slow(io.RawIOBase):
    def read(self, size=-1):
        time.sleep(0.01)
        return b"x"
claimcheck.ClaimCheck.open = lambda self, message: Slow()
{CODE}"""

proc = pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="no /proc here")
full_disk = pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full here")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CLAIMCHECK_CONFIG", raising=False)
    (tmp_path / "claimcheck.yaml").write_text(CONFIG)
    (tmp_path / "payload").write_bytes(PAYLOAD)
    return tmp_path


def run(*arguments: object, stdin: bytes | None = None) -> Result:
    return CliRunner().invoke(commands, [str(argument) for argument in arguments], input=stdin)


def ok(*arguments: object, stdin: bytes | None = None) -> Result:
    result = run(*arguments, stdin=stdin)
    assert result.exit_code == 0, result.output
    return result


def command(*arguments: object, code: str = CODE, **more: str) -> dict:
    """What starts the command line in a process of its own."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path), **more}
    return {"args": [sys.executable, "-c", code, *(str(argument) for argument in arguments)], "env": environment}


def start(*arguments: object, code: str = CODE, environment: dict[str, str] | None = None, **options):
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
    return subprocess.run(**command(*arguments, code=code, **(environment or {})), check=False, **options)


def put(payload: bytes = PAYLOAD) -> bytes:
    return ok("put", "-", stdin=payload).stdout_bytes


def claims(here: Path, store: str = "claims") -> list[Path]:
    return list((here / store).iterdir()) if (here / store).exists() else []


def visible(here: Path) -> set[str]:
    return {path.name for path in here.iterdir()} - {"claimcheck.yaml", "payload", "claims"}


def is_one_line(result: Result) -> bool:
    return result.stderr.startswith("claimcheck: ") and result.stderr.count("\n") == 1


# There and back


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
        assert cc.resolve(put()) == PAYLOAD


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
    ok("put", "payload", "--config", "mine.yaml")


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


# What is written


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


# What goes wrong: codes for scripts, one line for people


def test_a_payload_that_is_gone(here):
    envelope = put()
    claims(here)[0].unlink()
    result = run("get", "-", stdin=envelope)
    assert (result.exit_code, is_one_line(result), result.stdout) == (4, True, "")
    assert "is gone (written 20" in result.stderr


def test_a_store_that_is_down(here):
    envelope = put()
    (here / "claims").rename(here / "unmounted")
    result = run("get", "-", stdin=envelope)
    assert (result.exit_code, is_one_line(result)) == (6, True)


def test_a_store_that_cannot_be_written_to(here):
    (here / "claims").write_text("a file where the directory should be")
    result = run("put", "payload")
    assert (result.exit_code, is_one_line(result)) == (1, True)
    assert result.stdout == ""


def test_every_cut_of_an_envelope_is_an_error(here):
    envelope = put(b"small")
    codes = {run("get", "-", "-o", "back", stdin=envelope[:length]).exit_code for length in range(len(envelope))}
    assert codes == {5}
    assert visible(here) == set()


def test_a_signature_that_is_wrong_or_missing(here):
    unsigned = put()
    (here / "claimcheck.yaml").write_text(SIGNED)
    forged = put().replace(b'"size":3000000', b'"size":3000001')
    for envelope in (unsigned, forged):
        result = run("get", "-", stdin=envelope)
        assert (result.exit_code, is_one_line(result)) == (7, True)


def test_pointers_that_nobody_follows(here):
    for key, store in (("../payload", "disk"), ("/etc/passwd", "disk"), ("x", "nobody's")):
        pointer = json.dumps({"key": key, "store": store, "size": 1, "segments": 1}).encode()
        result = run("get", "-", stdin=encode_pointer(b"\x02" + pointer))
        assert (result.exit_code, is_one_line(result)) == (7, True)


def test_chunks_are_refused_with_the_way_to_go(here):
    chunk = encode_chunk(UUID, 0, 2, b"piece")
    result = run("get", "-", stdin=chunk)
    assert result.exit_code == 5
    assert "resolver" in result.stderr


def test_a_plain_message_has_to_be_wanted(here):
    assert run("get", "-", stdin=b"plain").exit_code == 5
    assert ok("get", "-", "--plain", stdin=b"plain").stdout_bytes == b"plain"
    assert ok("get", "-", stdin=encode_literal(HEADER + b"!")).stdout_bytes == HEADER + b"!"


@pytest.mark.parametrize("command", ["get", "inspect"])
def test_what_is_no_message(here, command):
    assert run(command, "-", stdin=b"").exit_code == 5
    with open("large", "wb") as large:
        large.truncate((64 << 20) + 1)
    assert run(command, "large").exit_code == 5


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ("[1, 2]", "expected a mapping"),
        ("store: [", "is no YAML"),
        ("stores: {disk: {type: filesystm, path: x}}", "filesystm"),
        ("stores: {disk: {type: filesystem, pth: x}}", "did you mean 'path'"),
        ("stores: {disk: {type: filesystem, path: '${NOT_SET_ANYWHERE}'}}", "NOT_SET_ANYWHERE"),
        ("strategy: chunking", "--store"),
    ],
)
def test_configurations_that_cannot_be_used(here, config, words):
    (here / "claimcheck.yaml").write_text(config)
    result = run("put", "payload")
    assert (result.exit_code, is_one_line(result)) == (3, True)
    assert words in result.stderr


@pytest.mark.parametrize("store", ["nobody", "gone"])
def test_stores_that_cannot_be_used(here, store):
    result = run("put", "payload", "--store", store)
    assert (result.exit_code, is_one_line(result)) == (3, True)


@pytest.mark.parametrize("arguments", [("put", "nothing"), ("put",), ("put", "."), ("sing",), ("get", "payload", "-x")])
def test_wrong_usage(arguments):
    assert run(*arguments).exit_code == 2


def test_every_error_has_its_code():
    codes = {name: exit_code(getattr(errors, name)("text")) for name in errors.__all__}
    assert {name for name, code in codes.items() if code == 1} == {
        "ClaimCheckError",
        "KeyTakenError",
        "PayloadError",
        "PayloadTooLargeError",
        "PayloadTypeError",
        "StoreError",
        "TransportError",
    }
    assert codes["MissingDependencyError"] == codes["ConfigError"] == 3
    assert codes["UnknownVersionError"] == codes["ChunkConflictError"] == 5
    assert exit_code(OSError()) == 1


def test_the_codes_are_in_the_help():
    for arguments in (("--help",), ("-h",)):
        text = ok(*arguments).stdout
        assert "Exit codes:" in text
        assert text.index("demo") < text.index("  put") < text.index("  get") < text.index("  inspect")


def test_an_error_that_nobody_expected_is_one_line_unless_debugging(here, monkeypatch):
    def broken(self, pointer):
        raise ValueError("first\nsecond\x1b[2J")

    monkeypatch.setattr(claimcheck.ClaimCheck, "seal", broken)
    result = run("put", "payload")
    assert (result.exit_code, is_one_line(result)) == (1, True)
    assert result.stderr == "claimcheck: unexpected ValueError: first second [2J (--debug shows where)\n"
    assert claims(here) == []
    assert isinstance(run("--debug", "put", "payload").exception, ValueError)


def test_files_that_cannot_be_read_are_named():
    assert one_line(PermissionError(13, "Permission denied", "secret")) == "secret: Permission denied"


@pytest.mark.parametrize("package", ["click", "rich"])
def test_a_missing_package_is_named_with_its_extra(package):
    done = start("--help", code=f"import sys\nsys.modules[{package!r}] = None\n{CODE}")
    assert done.returncode == 3
    assert f"needs the package {package}: pip install 'claimcheck[cli]'" in done.stderr.decode()
    assert b"Traceback" not in done.stderr


# Streams that are closed, and being told to end


@pytest.mark.parametrize("arguments", [("put", "-"), ("get", "-"), ("inspect", "-")])
def test_a_closed_standard_input_is_said_in_one_line(here, arguments):
    done = start(*arguments, preexec_fn=lambda: os.close(0))
    assert (done.returncode, done.stderr) == (1, b"claimcheck: standard input is closed: name a file\n")
    assert claims(here) == []


@pytest.mark.parametrize(
    "arguments", [("put", "payload"), ("get", "envelope"), ("inspect", "envelope"), ("inspect", "envelope", "--json")]
)
def test_a_closed_standard_output_is_said_before_anything_is_done(here, arguments):
    (here / "envelope").write_bytes(put(b"small"))
    done = start(*arguments, preexec_fn=lambda: os.close(1))
    assert done.returncode == 1
    assert done.stderr == b"claimcheck: standard output is closed: there is nowhere to write to\n"
    assert len(claims(here)) == 1


def test_a_closed_standard_error_is_no_error(here):
    assert start("put", "payload", "-o", "envelope", preexec_fn=lambda: os.close(2)).returncode == 0
    assert start("get", "envelope", "-o", "back", preexec_fn=lambda: os.close(2)).returncode == 0
    assert (here / "back").read_bytes() == PAYLOAD
    assert start("get", "nothing", preexec_fn=lambda: os.close(2)).returncode == 2


def test_ended_while_storing_nothing_is_left(here):
    process = subprocess.Popen(**command("put", "-"), stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with process:
        process.stdin.write(PAYLOAD)
        process.stdin.flush()
        _until(lambda: claims(here))
        time.sleep(0.3)  # by now it waits for the rest of the payload, which never comes
        process.terminate()
        assert process.wait(20) == 128 + signal.SIGTERM
    assert claims(here) == []


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
    process = subprocess.Popen(**command("put", "-", code=ignoring), stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    with process:
        process.stdin.write(PAYLOAD)
        process.stdin.flush()
        _until(lambda: claims(here))
        process.terminate()
        process.stdin.close()
        assert process.wait(20) == 0


def _until(done: Callable[[], object]) -> None:
    for _ in range(2000):
        if done():
            return
        time.sleep(0.01)
    pytest.fail("it did not come to that")


# Looking at envelopes


def test_inspect_a_pointer(here):
    (here / "claimcheck.yaml").write_text(SIGNED)
    text = ok("inspect", "-", stdin=put()).stdout
    assert "pointer of version 2" in text
    assert "disk (filesystem)" in text
    assert "2.9 MiB (3,000,000 bytes)" in text
    assert "(in 7 days)" in text
    assert "valid, key k1" in text
    assert "payload" not in text


def test_inspect_as_json(here):
    facts = json.loads(ok("inspect", "-", "--json", stdin=put()).stdout)
    assert facts["kind"] == "pointer"
    assert (facts["store"], facts["store_type"], facts["size"]) == ("disk", "filesystem", 3_000_000)
    assert (facts["expired"], facts["signature"]) == (False, "none")
    assert facts["expires_ms"] - facts["created_ms"] == 604_800_000


def test_inspect_asks_no_store_unless_told_to(here):
    envelope = put()
    claims(here)[0].unlink()
    ok("inspect", "-", stdin=envelope)
    result = run("inspect", "-", "--read", stdin=envelope)
    assert result.exit_code == 4
    assert "NOT READABLE" in result.stdout  # the facts are shown all the same
    assert is_one_line(result)


def test_inspect_reads_and_verifies(here):
    envelope = put()
    assert "read and verified, 2.9 MiB" in ok("inspect", "-", "--read", stdin=envelope).stdout
    assert json.loads(ok("inspect", "-", "--read", "--json", stdin=envelope).stdout)["payload"] == "verified"
    claims(here)[0].write_bytes(b"changed")
    assert run("inspect", "-", "--read", stdin=envelope).exit_code == 5


def test_inspect_works_without_a_configuration(here):
    (here / "claimcheck.yaml").write_text(SIGNED)
    envelope = put()
    (here / "claimcheck.yaml").unlink()
    text = ok("inspect", "-", stdin=envelope).stdout
    assert "disk (not in the configuration)" in text
    assert "not checked, key k1" in text
    assert run("inspect", "-", "--read", stdin=envelope).exit_code == 3
    assert run("inspect", "-", "--config", "other.yaml", stdin=envelope).exit_code == 3


def test_inspect_shows_what_readers_reject(here, monkeypatch):
    unsigned = put()
    (here / "claimcheck.yaml").write_text(SIGNED)
    for envelope, word in ((unsigned, "MISSING"), (put().replace(b'"size":3', b'"size":4'), "WRONG")):
        result = run("inspect", "-", stdin=envelope)
        assert result.exit_code == 7
        assert word in result.stdout
    signed = put()
    (here / "claimcheck.yaml").write_text(SIGNED.replace(":-secret", ""))
    assert json.loads(ok("inspect", "-", "--json", stdin=signed).stdout)["signature"] == "unchecked"


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (b"plain", ["none: a plain message", "5 bytes"]),
        (encode_literal(HEADER + b"!"), ["literal", "21 bytes"]),
        (
            encode_chunk("c588ed27-7265-4f4d-9d42-64e1de14b8c6", 2, 9, b"hello"),
            ["c588ed27", "number 3 of 9", "5 bytes"],
        ),
        (HEADER + b"\x03c588ed27-7265-4f4d-9d42-64e1de14b8c6", ["abort", "c588ed27"]),
        (encode_pointer(b"\x01\0\0\0\x03kafka-over-redis-orders-1"), ["version 1", "segments   3", "unknown"]),
    ],
)
def test_inspect_other_envelopes(message, words):
    text = ok("inspect", "-", stdin=message).stdout
    assert all(word in text for word in words)
    json.loads(ok("inspect", "-", "--json", stdin=message).stdout)


def test_inspect_damaged_ones(here):
    envelope = put(b"small")
    codes = {run("inspect", "-", stdin=envelope[:length]).exit_code for length in range(21, len(envelope))}
    assert codes == {5}


def test_inspect_never_sends_an_envelopes_codes_to_the_terminal(here):
    pointer = {"key": "\x1b[2J\r\nkey", "store": "\x9bstore", "size": 1, "segments": 1, "new": "\x07"}
    text = ok("inspect", "-", stdin=encode_pointer(b"\x02" + json.dumps(pointer).encode())).stdout
    assert "\\x1b[2J\\r\\nkey" in text
    assert all(ch.isprintable() or ch == "\n" for ch in text)


def test_inspect_says_when_it_has_expired():
    facts = {
        "kind": "pointer",
        "message_bytes": 300,
        "pointer_version": 2,
        "store": "s",
        "store_type": None,
        "key": "k",
    }
    facts |= {"size": 1, "segments": 3, "segment_bytes": 1024, "checksum": None, "created_ms": 0, "expires_ms": 10**17}
    facts |= {"expired": True, "codec": None, "encryption": None, "extra": None, "signature": "none", "key_id": None}
    shown = {label: text for label, text, _ in lines(facts, now=7200)}
    assert shown["written"] == "1970-01-01 00:00:00 UTC (2 hours ago)"
    assert "100000000000000000 ms after 1970" in shown["expired"]
    assert shown["segments"] == "3 of 1.0 KiB (1,024 bytes)"


def test_sizes_for_people():
    assert [human_bytes(n) for n in (0, 1, 1023, 1536, 5 << 30)] == [
        "0 bytes",
        "1 byte",
        "1,023 bytes",
        "1.5 KiB (1,536 bytes)",
        "5.0 GiB (5,368,709,120 bytes)",
    ]


# On a terminal


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
    assert "Stored 2.9 MiB (3,000,000 bytes) in disk as cli-" in shown
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


# The demo


def test_the_demo_is_run_with_its_folder_and_its_code(here, monkeypatch):
    demo = pytest.importorskip("claimcheck.demo")
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
    demo = pytest.importorskip("claimcheck.demo")
    (here / "void").mkdir()
    result = run("demo", "--dir", "void")
    assert result.exit_code == 2
    assert "it holds no files" in result.stderr

    def fake(directory, *, console):
        raise DemoError("Spark did not start")

    monkeypatch.setattr(demo, "run", fake)
    result = run("demo")
    assert (result.exit_code, is_one_line(result)) == (1, True)
