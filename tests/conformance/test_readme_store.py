"""The store that the README shows keeps every promise of a store."""

from __future__ import annotations

import gzip
import re
import sys
import types
from pathlib import Path

import pytest

from claimcheck.testing import StoreConformance

README = Path(__file__).parent.parent.parent / "README.md"


class TestReadmeStore(StoreConformance):
    @pytest.fixture
    def options(self, tmp_path, monkeypatch):
        (code,) = re.findall(r"```python\n(import gzip\n.*?)\n\n\nstore = ", README.read_text(), re.DOTALL)
        module = types.ModuleType("readme_store")
        exec(compile(code, str(README), "exec", dont_inherit=True), module.__dict__)
        monkeypatch.setitem(sys.modules, "readme_store", module)
        self.folder = tmp_path
        return {"type": "readme_store:GzipStore", "folder": str(tmp_path)}

    def peek(self, pointer):
        path = self.folder / pointer.key
        return gzip.decompress(path.read_bytes()) if path.exists() else None

    def damage(self, pointer, payload):
        path = self.folder / pointer.key
        path.unlink() if payload is None else path.write_bytes(gzip.compress(payload))
