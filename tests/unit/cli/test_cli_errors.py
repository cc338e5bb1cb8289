"""What goes wrong on the command line: codes for scripts, one line for people."""

from __future__ import annotations

import json
import sys

import pytest

import claimcheck
from claimcheck import HEADER, errors
from claimcheck._wire.envelope import encode_literal, encode_pointer
from claimcheck.cli._commands import exit_code, one_line
from tests.unit.cli.rig import (
    CODE,
    SIGNED,
    claims,
    is_one_line,
    ok,
    put,
    run,
    start,
    visible,
)


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
        pointer = json.dumps({"key": key, "store": store, "size": 1, "segments": 1, "checksum": "crc32:0"}).encode()
        result = run("get", "-", stdin=encode_pointer(b"\x02" + pointer))
        assert (result.exit_code, is_one_line(result)) == (7, True)


def test_a_plain_message_is_no_envelope(here):
    assert run("get", "-", stdin=b"plain").exit_code == 5
    assert ok("get", "-", stdin=encode_literal(HEADER + b"!")).stdout_bytes == HEADER + b"!"


@pytest.mark.parametrize("command", ["get", "inspect"])
def test_what_is_no_message(here, command):
    assert run(command, "-", stdin=b"").exit_code == 5
    with open("large", "wb") as large:
        large.truncate((64 << 20) + 1)
    assert run(command, "large").exit_code == 5


@pytest.mark.parametrize("url", ["redis://localhost", "redis://:${NEVER_SET_HERE}@localhost"])
def test_a_store_that_this_machine_cannot_use_is_a_matter_of_its_configuration(here, monkeypatch, url):
    monkeypatch.setitem(sys.modules, "redis", None)
    (here / "claimcheck.yaml").write_text(f"stores: {{hot: {{type: redis, url: '{url}'}}}}")
    pointer = json.dumps({"key": "claimcheck:k", "store": "hot", "size": 1, "segments": 1, "checksum": "crc32:0"})
    result = run("get", "-", "-o", "back", stdin=encode_pointer(b"\x02" + pointer.encode()))
    assert (result.exit_code, is_one_line(result), visible(here)) == (3, True, set())


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ("[1, 2]", "expected a mapping"),
        ("store: [", "is not YAML"),
        ("stores: {disk: {type: filesystm, path: x}}", "filesystm"),
        ("stores: {disk: {type: filesystem, pth: x}}", "did you mean 'path'"),
        ("stores: {disk: {type: filesystem, path: '${NOT_SET_ANYWHERE}'}}", "NOT_SET_ANYWHERE"),
    ],
)
def test_configurations_that_cannot_be_used(here, config, words):
    (here / "claimcheck.yaml").write_text(config)
    result = run("sweep")
    assert (result.exit_code, is_one_line(result)) == (3, True)
    assert words in result.stderr


@pytest.mark.parametrize("arguments", [("get", "nothing"), ("get",), ("get", "."), ("sing",), ("get", "payload", "-x")])
def test_wrong_usage(arguments):
    assert run(*arguments).exit_code == 2


def test_every_error_has_its_code():
    kinds = {name: getattr(errors, name) for name in errors.__all__}
    codes = {name: exit_code(kind("text")) for name, kind in kinds.items() if issubclass(kind, Exception)}
    assert {name for name, code in codes.items() if code == 1} == {
        "ClaimCheckError",
        "KeyTakenError",
        "PayloadError",
        "PayloadTooLargeError",
        "PayloadTypeError",
        "ScanNotSupportedError",
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
        assert text.index("  check") < text.index("  sweep") < text.index("  get") < text.index("  inspect")


def test_an_error_that_nobody_expected_is_one_line_unless_debugging(here, monkeypatch):
    def broken(self, name):
        raise ValueError("first\nsecond\x1b[2J")

    monkeypatch.setattr(claimcheck.ClaimCheck, "store", broken)
    result = run("gc", "--kafka", "localhost:1", "--topic", "orders")
    assert (result.exit_code, is_one_line(result)) == (1, True)
    assert result.stderr == "claimcheck: unexpected ValueError: first second [2J (--debug shows the traceback)\n"
    result = run("--debug", "gc", "--kafka", "localhost:1", "--topic", "orders")
    assert isinstance(result.exception, ValueError)


def test_files_that_cannot_be_read_are_named():
    assert one_line(PermissionError(13, "Permission denied", "secret")) == "secret: Permission denied"


def test_a_missing_package_is_named_with_its_extra():
    done = start("check", code=f"import sys\nsys.modules['click'] = None\n{CODE}")
    assert done.returncode == 3
    assert "needs the package click: pip install 'claimcheck-messaging[cli]'" in done.stderr.decode()
    assert b"Traceback" not in done.stderr


def test_all_problems_of_a_configuration_are_named_one_per_line(here):
    (here / "claimcheck.yaml").write_text("strategy: hybird\nstores: {disk: {type: filesystm}}")
    result = run("sweep")
    first, second = result.stderr.splitlines()
    assert first.startswith("claimcheck: strategy: found 'hybird'")
    assert second.startswith("claimcheck: stores.disk.type: found 'filesystm'")
