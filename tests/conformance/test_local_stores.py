"""The store kit on memory, on folders, and on the stores of the guide and of the example."""

from __future__ import annotations

import os
import subprocess
import sys
import types
import uuid
from pathlib import Path
from typing import ClassVar

import pytest

import claimcheck
from claimcheck.stores import memory
from claimcheck.testing import StoreConformance
from tests.conformance.subsets import FewerPayloads, only
from tests.docs_pages import blocks


class TestMemoryStore(StoreConformance):
    skip: ClassVar = {"test_large_payload_in_bounded_memory": "it keeps its payloads in memory"}

    @pytest.fixture
    def options(self):
        space = uuid.uuid4().hex
        self.payloads = memory._SPACES.setdefault(space, {})
        yield {"type": "memory", "space": space}
        del memory._SPACES[space]

    def peek(self, pointer):
        return self.payloads.get(pointer.key)

    def damage(self, pointer, payload):
        self.payloads.pop(pointer.key)
        if payload is not None:
            self.payloads[pointer.key] = payload


class TestFilesystemStore(StoreConformance):
    @pytest.fixture
    def options(self, tmp_path):
        self.root = tmp_path / "made" / "at first use"
        return {"type": "filesystem", "path": str(self.root), "create": True, "ttl_seconds": 600, "fsync": False}

    def peek(self, pointer):
        """Includes unfinished files: only complete payloads may remain."""
        folder, _, name = pointer.key.rpartition("/")
        found = [path for path in (self.root / folder).glob("*") if name in path.name]
        return found[0].read_bytes() if found else None

    def damage(self, pointer, payload):
        (self.root / pointer.key).unlink()
        if payload is not None:
            (self.root / pointer.key).write_bytes(payload)


# The store of the guide --------------------------------------------------------------------------------------------


PAGE = "docs/guides/extending.md"
STORE, LISTED, TEST = (block.code for block in blocks(PAGE) if block.note == "store")

module = types.ModuleType("mypackage")
sys.modules["mypackage"] = module
exec(compile(STORE.split("\nstore = ")[0], PAGE, "exec", dont_inherit=True), module.__dict__)
exec(compile(LISTED.split("\nswept = ")[0], PAGE, "exec", dont_inherit=True), module.__dict__)
exec(compile(TEST, PAGE, "exec", dont_inherit=True), globals())


class TestGzipStore(FewerPayloads, globals()["TestGzipStore"]):  # type: ignore[misc]
    """Without payloads of every shape, which are the base class's business, as compressing takes its time."""


@only("test_listing_has_every_payload", "test_delete_deletes_exactly_its_entries")
class TestListedStore(TestGzipStore):
    @pytest.fixture
    def options(self, tmp_path):
        self.folder = tmp_path
        return {"type": "mypackage:SweptGzipStore", "folder": str(tmp_path)}


def test_the_store_of_the_guide_works_by_itself(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for code in (STORE, LISTED):
        exec(compile(code, PAGE, "exec", dont_inherit=True), names)


# The example of a third party --------------------------------------------------------------------------------------


FOLDER = Path(__file__).resolve().parents[2] / "examples" / "third_party_store"


@pytest.mark.slow
def test_its_conformance_file_passes_in_its_own_folder(tmp_path):
    """With the library under test, and nothing else of this project."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", os.devnull]
    command += ["--rootdir", str(FOLDER), f"--basetemp={tmp_path / 'its'}", str(FOLDER)]
    environment = {**os.environ, "PYTHONPATH": str(Path(claimcheck.__file__).parents[1])}
    result = subprocess.run(command, cwd=FOLDER, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    assert " passed" in result.stdout


def test_its_yaml_opens_it_and_it_is_as_short_as_promised(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    monkeypatch.setenv("PAYLOADS", str(tmp_path / "payloads.sqlite"))
    with claimcheck.load(FOLDER / "claimcheck.yaml") as cc:
        store = cc.store("ours")
        assert store.read(store.write(b"payload", destination="orders")) == b"payload"
    assert (tmp_path / "payloads.sqlite").exists()
    assert len((FOLDER / "sqlite_store.py").read_text().splitlines()) < 60
