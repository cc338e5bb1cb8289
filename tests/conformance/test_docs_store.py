"""The store in the guide keeps every promise of a store, by the test in the guide."""

from __future__ import annotations

import sys
import types

import pytest

from tests.conformance.subsets import only
from tests.docs_pages import blocks

PAGE = "docs/guides/custom-stores.md"
STORE, LISTED, TEST = (block.code for block in blocks(PAGE) if block.note == "store")

module = types.ModuleType("mypackage")
sys.modules["mypackage"] = module
exec(compile(STORE.split("\nstore = ")[0], PAGE, "exec", dont_inherit=True), module.__dict__)
exec(compile(LISTED.split("\nswept = ")[0], PAGE, "exec", dont_inherit=True), module.__dict__)
exec(compile(TEST, PAGE, "exec", dont_inherit=True), globals())


@only(
    "test_listing_has_every_payload",
    "test_listing_can_be_continued",
    "test_delete_deletes_exactly_its_entries",
)
class TestListedStore(globals()["TestGzipStore"]):  # type: ignore[misc]
    @pytest.fixture
    def options(self, tmp_path):
        self.folder = tmp_path
        return {"type": "mypackage:SweptGzipStore", "folder": str(tmp_path)}


def test_the_store_of_the_guide_works_by_itself(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for code in (STORE, LISTED):
        exec(compile(code, PAGE, "exec", dont_inherit=True), names)
