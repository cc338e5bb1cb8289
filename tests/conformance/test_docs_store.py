"""The store in the guide keeps every promise of a store, by the test in the guide."""

from __future__ import annotations

import sys
import types

from tests.docs_pages import blocks

PAGE = "docs/guides/custom-stores.md"
STORE, TEST = (block.code for block in blocks(PAGE) if block.note == "store")

module = types.ModuleType("mypackage")
sys.modules["mypackage"] = module
exec(compile(STORE.split("\nstore = ")[0], PAGE, "exec", dont_inherit=True), module.__dict__)
exec(compile(TEST, PAGE, "exec", dont_inherit=True), globals())


def test_the_store_of_the_guide_works_by_itself(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exec(compile(STORE, PAGE, "exec", dont_inherit=True), {})
