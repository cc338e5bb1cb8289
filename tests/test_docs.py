"""README and docs: everything that needs no server runs, and what the pages name exists."""

from __future__ import annotations

import base64
import dataclasses
import functools
import importlib
import importlib.metadata
import importlib.util
import os
import re
import shlex
import subprocess
import sys
import tomllib

import pytest
import yaml
from jsonschema import Draft202012Validator

import claimcheck
from claimcheck._operate.findings import WHY
from tests.config_schema import schema
from tests.docs_pages import PAGES, ROOT, SERVERS, blocks, cases, run, write_yaml
from tests.unit.cli.rig import ok

NOTES = r"needs:( (kafka|pulsar|redis|s3|spark))+|run|pytest|store|fails: \w+|not run: .+|"
# Programs of others: their options are not checked.
FOREIGN = {
    ".venv/bin/pytest", "aws", "cd", "cmp", "docker", "export", "git", "mv", "openssl", "pip-audit", "pulsar-admin",
    "python", "redis-cli", "spark-submit",
}  # fmt: skip


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty working folder, and the variables that examples use."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CLAIMCHECK_SIGNING_SECRET", "0123456789abcdef")
    monkeypatch.setenv("CLAIMCHECK_SIGNING_SECRET_OLD", "fedcba9876543210")
    monkeypatch.setenv("CLAIMCHECK_ENCRYPTION_SECRET", base64.b64encode(bytes(32)).decode())
    return tmp_path


def test_every_note_and_server_is_known():
    for page in PAGES:
        for block in blocks(page):
            assert re.fullmatch(NOTES, block.note), (page, block.line, block.note)
            assert block.needs <= set(SERVERS)
            assert block.language in ("python", "yaml", "shell", "text", "json"), (page, block.line)


@pytest.mark.parametrize(("page", "needs"), cases())
def test_python_runs_from_top_to_bottom(folder, page, needs):
    run(page, needs, folder, {})


@pytest.mark.parametrize("page", [page for page in PAGES if any(block.note == "pytest" for block in blocks(page))])
def test_tests_on_a_page_pass(folder, page):
    write_yaml(page, folder, {})
    for number, block in enumerate(block for block in blocks(page) if block.note == "pytest"):
        (folder / f"test_page_{number}.py").write_text(block.code)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(folder), str(folder)]
    if not importlib.metadata.entry_points(group="pytest11", name="claimcheck"):  # a checkout that is not installed
        command += ["-p", "claimcheck.testing._pytest_plugin"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:]


@pytest.mark.parametrize("page", PAGES)
def test_yaml_loads(folder, page):
    for block in blocks(page):
        if block.language == "yaml" and not block.note:
            raw = yaml.safe_load(block.code)
            stores = {name: {"type": "memory"} for name in raw.get("reads_from", ["m"])}
            claimcheck.from_dict({"stores": stores, **raw})
            Draft202012Validator(schema()).validate(raw)


def _commands(page):
    for block in blocks(page):
        if block.language == "shell":
            for line in block.code.replace("\\\n", " ").splitlines():
                for command in re.split(r"\s(?:&&|\|)\s", line):
                    words = shlex.split(command, comments=True)
                    if words:
                        yield block.line, words


@pytest.mark.parametrize("page", PAGES)
def test_commands_exist(page):
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    extras = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])
    for line, (program, *words) in _commands(page):
        where = (page, line, program, *words)
        if program == "make":
            assert {word for word in words if "=" not in word} <= targets, where
        elif program == "pip":
            named = re.findall(r"(?:claimcheck-messaging|\.)\[([\w,]+)\]", " ".join(words))
            assert set(",".join(named).split(",")) - {""} <= extras, where
        elif program == "claimcheck":
            _check_options(words, where)
        else:
            assert program in FOREIGN, where


def _check_options(words, where):
    """Its help names the command and every option."""
    words = words[2:] if words[:1] == ["--config"] else words
    known = _options_of(*words[:1] if words and not words[0].startswith("-") else [])
    options = {word.split("=")[0] for word in words if word.startswith("-") and word != "-"}
    assert options <= known, where


@functools.cache
def _options_of(*subcommand):
    return set(re.findall(r"-[\w-]+", ok(*subcommand, "--help").stdout))


@pytest.mark.parametrize("page", [page for page in PAGES if any(block.note == "run" for block in blocks(page))])
def test_shell_blocks_run(folder, page):
    write_yaml(page, folder, {})
    (folder / "big.bin").write_bytes(payload := os.urandom(3_000_000))
    with claimcheck.load(folder / "claimcheck.yaml") as cc:
        (folder / "envelope.bin").write_bytes(cc.seal(cc.store("disk").write(payload)))
    command = folder / "claimcheck"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m claimcheck "$@"\n')
    command.chmod(0o755)
    environment = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}
    for block in blocks(page):
        if block.note == "run":
            done = subprocess.run(["bash", "-ec", block.code], capture_output=True, check=False, env=environment)
            assert done.returncode == 0, (page, block.line, done.stderr[-2000:])


@pytest.mark.parametrize("page", PAGES)
def test_links_and_names_of_files_lead_somewhere(page):
    text = (ROOT / page).read_text()
    outside = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    links = [each for each in re.findall(r"\]\(([^)#]+?)(?:#[\w-]+)?\)", outside) if "://" not in each]
    named = re.findall(r"`((?:examples|tests|docs|claimcheck|stores)/[\w./]+)`", text)
    places = [*((ROOT / page).parent / link for link in links), *(ROOT / name for name in named)]
    assert [place for place in places if not place.exists()] == []


@pytest.mark.parametrize("page", PAGES)
def test_code_fits_the_column_of_the_site(page):
    wide = [line for block in blocks(page) for line in block.code.splitlines() if len(line) > 88]
    assert wide == []


def test_readme_is_one_page():
    assert len((ROOT / "README.md").read_bytes()) <= 9 * 1024


def test_every_page_is_in_the_navigation():
    named = set(re.findall(r"([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE))
    assert {page.removeprefix("docs/") for page in PAGES if page.startswith("docs/")} <= named


def test_all_defaults_are_as_shown(folder):
    write_yaml("docs/guides/configuration.md", folder, {})
    shown = claimcheck.load("all.yaml").config
    real = claimcheck.from_dict({"stores": {"m": {"type": "memory"}}}).config
    for section in ("strategy", "threshold_bytes", "chunking", "hybrid", "limits", "envelope"):
        assert getattr(shown, section) == getattr(real, section)


REFERENCE = {
    "claimcheck": "reference/api.md guides/errors.md reference/wire-format.md",
    "claimcheck.errors": "guides/errors.md",
    "claimcheck.hooks": "guides/operations.md",
    "claimcheck.spark": "reference/api.md",
    "claimcheck.testing": "reference/api.md",
    "claimcheck.transports.kafka": "reference/api.md",
    "claimcheck.transports.pulsar": "reference/api.md",
}


def test_the_reference_lists_every_public_name_and_option():
    for module, pages in REFERENCE.items():
        names = importlib.import_module(module).__all__
        there = "".join((ROOT / "docs" / page).read_text() for page in pages.split())
        if module in ("claimcheck.errors", "claimcheck.hooks"):
            names = [f"`{name}`" for name in names if name.endswith(("Error", "Event")) and name != "Event"]
        assert not [name for name in names if not re.search(rf"(?<!\w){name}(?!\w)", there)], module
    spec = importlib.util.spec_from_file_location("docs_hooks", ROOT / "docs/_hooks.py")
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    tables = made.with_tables((ROOT / "docs/guides/configuration.md").read_text())
    for section in ("", "Chunking", "Compression", "Encryption", "Hybrid", "Limits", "Signing"):
        options = dataclasses.fields(getattr(claimcheck.config, f"{section}Config" if section else "Config"))
        assert not [each.name for each in options if f"\n| `{each.name}` |" not in tables], section
    page = made.with_tables((ROOT / "docs/guides/operations.md").read_text())
    findings = re.findall(r"^\| `([\w-]+)` \| (?:error|warning|info)", page, re.MULTILINE)
    assert sorted(findings) == sorted(WHY)
    commands = made.with_tables((ROOT / "docs/reference/cli.md").read_text())
    assert all(f"| `{option}" in commands for option in ("--servers", "--grace TIME", "--consumed", "--from TOPIC"))


@pytest.mark.parametrize("page", ["docs/guides/configuration.md", "docs/guides/security.md"])
def test_variables_of_secrets_have_names_that_spark_redacts(page):
    redacted = re.compile("(?i)secret|password|token|access[.]?key")  # the default of spark.redaction.regex
    credentials = r"keys: \{\w+: \"\$\{(\w+)|k\d: \"\$\{(\w+)|://[^@/\s]*:\$\{(\w+)[^}]*\}@"
    names = {name for found in re.findall(credentials, (ROOT / page).read_text()) for name in found if name}
    assert "CLAIMCHECK_SIGNING_SECRET" in names
    assert not [name for name in names if not redacted.search(name)]
