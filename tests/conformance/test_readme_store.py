"""The store that the README shows keeps every promise of a store, by the test that the README shows."""

from __future__ import annotations

import re
import sys
import types
from pathlib import Path

README = Path(__file__).parent.parent.parent / "README.md"

(STORE,) = re.findall(r"```python\n(import gzip\n.*?)\n\n\nstore = ", README.read_text(), re.DOTALL)
(TEST,) = re.findall(r"```python\n(import pytest\n.*?)```", README.read_text(), re.DOTALL)

module = types.ModuleType("mypackage")
sys.modules["mypackage"] = module
exec(compile(STORE, str(README), "exec", dont_inherit=True), module.__dict__)
exec(compile("import gzip\n" + TEST, str(README), "exec", dont_inherit=True), globals())
