"""``rewrap``: what it prints, and its exit codes."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest

import claimcheck
from tests.unit.cli.rig import is_one_line, ok, run

pytest.importorskip("cryptography")

KEYS = {name: base64.b64encode(name.encode() * 16).decode() for name in ("k1", "k2")}
CONFIG = f"""
store: disk
stores:
  disk: {{type: filesystem, path: claims, create: true, ttl_seconds: 604800}}
  side: {{type: pulsar-topic, url: "pulsar://localhost:6650", topic: side}}
encryption: {{key_id: %s, keys: {json.dumps(KEYS)}}}
"""


@pytest.fixture(autouse=True)
def written(here: Path) -> list[claimcheck.Pointer]:
    """Two payloads with the old key; the configuration has the new one."""
    (here / "claimcheck.yaml").write_text(CONFIG % "k1")
    with claimcheck.load("claimcheck.yaml") as cc:
        pointers = [cc.store("disk").write(b"payload", destination="orders") for _ in range(2)]
    (here / "claimcheck.yaml").write_text(CONFIG % "k2")
    return pointers


def contents(here: Path) -> set[bytes]:
    return {path.read_bytes() for path in (here / "claims").rglob("*") if path.is_file()}


@pytest.mark.parametrize("options", [(), ("--dry-run",)])
def test_without_yes_nothing_changes(here: Path, options: tuple[str, ...]) -> None:
    before = contents(here)
    result = ok("rewrap", *options)
    assert result.stdout.splitlines()[-3:] == [
        "disk: 2 of 2 payloads to rewrap with the key 'k2'",
        "  nothing was changed: use --yes to rewrap them",
        "  2 are encrypted with k1",
    ]
    assert "'side': PulsarTopicStore cannot list" in result.output
    assert contents(here) == before


def test_with_yes_no_payload_needs_the_old_key(here: Path, written: list[claimcheck.Pointer]) -> None:
    assert "disk: 2 of 2 payloads rewrapped with the key 'k2'" in ok("rewrap", "--yes").stdout
    assert "disk: 0 of 2 payloads to rewrap" in ok("rewrap").stdout
    without = CONFIG.replace(json.dumps(KEYS), json.dumps({"k2": KEYS["k2"]})) % "k2"
    (here / "claimcheck.yaml").write_text(without)
    with claimcheck.load("claimcheck.yaml") as cc:
        assert [cc.store("disk").read(pointer) for pointer in written] == [b"payload"] * 2


def test_json() -> None:
    result = ok("rewrap", "--json", "--store", "disk", "--yes")
    report = json.loads(result.stdout)
    assert report["ok"] is True
    assert report["stores"][0] | {"rewrapped": 2, "failed": 0, "errors": [], "by_key": {"k1": 2}} == report["stores"][0]


def test_json_names_the_stores_that_may_still_need_the_old_key() -> None:
    report = json.loads(ok("rewrap", "--json").stdout)
    assert [store["store"] for store in report["stores"]] == ["disk"]
    assert "cannot list" in report["not_listed"]["side"]


def test_a_payload_that_could_not_be_changed_is_exit_code_1(here: Path) -> None:
    path = next(path for path in (here / "claims").rglob("*") if path.is_file())
    path.write_bytes(path.read_bytes().replace(b'"key_id":"k1"', b'"key_id":"k9"'))
    result = run("rewrap", "--yes", "--store", "disk")
    assert result.exit_code == 1
    assert "1 of 2 payloads rewrapped" in result.stdout
    assert "1 failed: " in result.stdout
    assert "'k9'" in result.stdout
    assert not any(key in result.output for key in KEYS.values())
    assert json.loads(run("rewrap", "--json", "--yes", "--store", "disk").stdout)["ok"] is False


def test_a_store_that_cannot_be_listed_is_an_error_if_it_is_named() -> None:
    result = run("rewrap", "--store", "side")
    assert result.exit_code != 0
    assert is_one_line(result)
    assert "cannot list" in result.stderr


@pytest.mark.parametrize(
    ("options", "why"),
    [(("--yes", "--dry-run"), "--dry-run"), (("--store", "other"), "other"), (("--what",), "--what")],
)
def test_wrong_options(options: tuple[str, ...], why: str) -> None:
    result = run("rewrap", *options)
    assert result.exit_code != 0
    assert why in result.stderr


def test_a_configuration_without_a_key_to_encrypt_with(here: Path) -> None:
    (here / "claimcheck.yaml").write_text("store: disk\nstores: {disk: {type: filesystem, path: claims}}\n")
    result = run("rewrap")
    assert result.exit_code != 0
    assert "encryption.key_id" in result.stderr
