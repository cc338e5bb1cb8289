"""The command line looks at envelopes."""

from __future__ import annotations

import json
import os

import pytest

from claimcheck import HEADER
from claimcheck._wire.envelope import encode_chunk, encode_literal, encode_pointer
from claimcheck.cli._payloads import lines
from tests.content_oracle import VECTORS
from tests.unit.cli.rig import (
    SIGNED,
    claims,
    is_one_line,
    ok,
    put,
    run,
)

GOLDEN = {name: bytes.fromhex(text) for name, text in json.loads(VECTORS.read_text()).items()}


def test_inspect_a_pointer(here):
    (here / "claimcheck.yaml").write_text(SIGNED)
    text = ok("inspect", "-", stdin=put()).stdout
    shown = dict(line.split(maxsplit=1) for line in text.splitlines())
    assert (shown["kind"], shown["pointer_version"]) == ("pointer", "2")
    assert (shown["store"], shown["store_type"]) == ("disk", "filesystem")
    assert shown["size"] == "2.9 MiB (3,000,000 bytes)"
    assert "(in 7 days)" in shown["expires"]
    assert (shown["signature"], shown["key_id"]) == ("valid", "k1")
    assert shown["destination"] == "cli"
    assert "payload" not in text


def test_inspect_an_encrypted_message():
    content = GOLDEN["message_compressed"]
    text = ok("inspect", "-", stdin=HEADER + b"\x04" + content).stdout
    assert "encoded" in text
    for fact in ("1.4 KiB (1,400 bytes)", "Straße", "zstd", "AES256_GCM_HKDF_1MB", "k1"):
        assert fact in text
    facts = json.loads(ok("inspect", "-", "--json", stdin=HEADER + b"\x04" + content).stdout)
    assert (facts["kind"], facts["encryption_key_id"]) == ("encoded", "k1")
    damaged = run("inspect", "-", stdin=HEADER + b"\x04" + content[:50])
    assert damaged.exit_code != 0
    assert is_one_line(damaged)


def test_a_pointer_of_another_topic_is_refused_where_the_topic_is_given(here):
    (here / "claimcheck.yaml").write_text(SIGNED)
    envelope = put()
    ok("get", "-", "--destination", "cli", "-o", "back", stdin=envelope)
    result = run("get", "-", "-o", "stolen", "--destination", "salaries", stdin=envelope)
    assert result.exit_code == 7
    assert "was sent to 'cli', but read from 'salaries'" in result.stderr
    assert not (here / "stolen").exists()


def test_inspect_as_json(here):
    facts = json.loads(ok("inspect", "-", "--json", stdin=put()).stdout)
    assert facts["kind"] == "pointer"
    assert (facts["store"], facts["store_type"], facts["size"]) == ("disk", "filesystem", 3_000_000)
    assert (facts["expired"], facts["signature"]) == (False, "none")
    assert facts["expires_ms"] - facts["created_ms"] == 604_800_000


def test_a_payload_is_verified_without_keeping_it(here):
    envelope = put()
    ok("get", "-", "-o", os.devnull, stdin=envelope)
    claims(here)[0].write_bytes(b"changed")
    assert run("get", "-", "-o", os.devnull, stdin=envelope).exit_code == 5
    claims(here)[0].unlink()
    result = run("get", "-", "-o", os.devnull, stdin=envelope)
    assert (result.exit_code, is_one_line(result)) == (4, True)


def test_inspect_works_without_a_configuration(here):
    (here / "claimcheck.yaml").write_text(SIGNED)
    envelope = put()
    (here / "claimcheck.yaml").unlink()
    text = ok("inspect", "-", stdin=envelope).stdout
    assert "disk" in text
    assert "store_type" not in text
    assert "unchecked" in text
    assert "k1" in text
    assert run("--config", "other.yaml", "inspect", "-", stdin=envelope).exit_code == 3


def test_inspect_shows_what_readers_reject(here, monkeypatch):
    unsigned = put()
    (here / "claimcheck.yaml").write_text(SIGNED)
    for envelope, word in ((unsigned, "missing"), (put().replace(b'"size":3', b'"size":4'), "invalid")):
        result = run("inspect", "-", stdin=envelope)
        assert result.exit_code == 7
        assert word in result.stdout
    signed = put()
    for require in ("true", "false"):
        text = SIGNED.replace(":-a secret of tests", "").replace("require: true", f"require: {require}")
        (here / "claimcheck.yaml").write_text(text)
        assert json.loads(ok("inspect", "-", "--json", stdin=signed).stdout)["signature"] == "unchecked"


def test_inspect_tells_that_version_1_is_refused_where_there_are_keys(here):
    (here / "claimcheck.yaml").write_text(SIGNED.replace("require: true", "require: false"))
    result = run("inspect", "-", stdin=encode_pointer(b"\x01\0\0\0\x03kafka-over-redis-orders-1"))
    assert (result.exit_code, "missing" in result.stdout) == (7, True)


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (b"plain", ["plain", "5 bytes"]),
        (encode_literal(HEADER + b"!"), ["literal", "21 bytes"]),
        (
            encode_chunk("c588ed27-7265-4f4d-9d42-64e1de14b8c6", 2, 9, b"hello"),
            ["c588ed27", "position           2", "count              9", "5 bytes"],
        ),
        (HEADER + b"\x03c588ed27-7265-4f4d-9d42-64e1de14b8c6", ["abort", "c588ed27"]),
        (encode_pointer(b"\x01\0\0\0\x03kafka-over-redis-orders-1"), ["pointer_version    1", "segments           3"]),
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
    pointer = {
        "key": "\x1b[2J\r\nkey",
        "store": "\x9bstore",
        "size": 1,
        "segments": 1,
        "checksum": "crc32:0",
        "new": "\x07",
    }
    text = ok("inspect", "-", stdin=encode_pointer(b"\x02" + json.dumps(pointer).encode())).stdout
    assert " [2J  key" in text
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
    facts |= {"destination": None}
    shown = dict(line.split(maxsplit=1) for line in lines(facts, now=7200))
    assert shown["created"] == "1970-01-01T00:00:00+00:00 (2 hours ago)"
    assert "100000000000000000 ms" in shown["expires"]
    assert (shown["expired"], shown["segments"], shown["segment_bytes"]) == ("True", "3", "1 KiB (1,024 bytes)")
