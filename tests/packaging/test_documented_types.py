"""mypy --strict and pyright in strict mode accept what the documents show, checked against an installed claimcheck."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import textwrap
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
EXAMPLES = sorted(path for path in (ROOT / "examples").rglob("*.py") if not path.name.startswith("test_"))
SOURCES = [*DOCUMENTS, *EXAMPLES]
BLOCK = re.compile(r"^ *```python[^\n]*\n(.*?)^ *```$", re.DOTALL | re.MULTILINE)
NOT_RUN = re.compile(r"<!-- not run:[^\n]*-->\n\Z")  # before a block that needs a package which is not installed

# The only exceptions: some drivers have no types, and confluent_kafka re-exports names without declaring it.
MYPY = """\
[mypy]
strict = true
allow_redefinition = true
disable_error_code = import-untyped
[mypy-confluent_kafka.*]
implicit_reexport = true
"""
PYRIGHT = {
    "typeCheckingMode": "strict",
    "reportMissingTypeStubs": False,
    "reportPrivateImportUsage": False,
    "reportDuplicateImport": False,  # blocks of one document are checked as one module
    "reportUnknownMemberType": False,
    "reportUnknownVariableType": False,
    "reportUnknownArgumentType": False,
}


def code_of(document: Path) -> str:
    """Return the Python blocks of a document as one module, each at its line of the document."""
    text, code = document.read_text(), ""
    for block in BLOCK.finditer(text):
        if NOT_RUN.search(text, 0, block.start()):
            continue
        code += "\n" * (text.count("\n", 0, block.start(1)) - code.count("\n")) + textwrap.dedent(block[1])
    return code


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A user's project: one file per document, and an environment in which claimcheck is installed."""
    folder = tmp_path_factory.mktemp("project")
    venv.create(folder / "venv", symlinks=True)
    [packages] = (folder / "venv").glob("lib/python*/site-packages")
    shutil.copytree(ROOT / "claimcheck", packages / "claimcheck", ignore=shutil.ignore_patterns("__pycache__"))
    (packages / "drivers.pth").write_text(sysconfig.get_path("purelib"))  # all else as it is installed here
    (folder / "src").mkdir()
    for path in SOURCES:
        name = path.name if path.suffix == ".py" else re.sub(r"\W", "_", str(path.relative_to(ROOT))) + ".py"
        (folder / "src" / name).write_text(path.read_text() if path.suffix == ".py" else code_of(path))
    return folder


def _run(*command, cwd):
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "MYPYPATH")}
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)


def test_mypy_accepts_what_the_documents_show(folder):
    (folder / "mypy.ini").write_text(MYPY)
    result = _run(sys.executable, "-m", "mypy", "--python-executable", "venv/bin/python", "src", cwd=folder)
    assert result.stdout == f"Success: no issues found in {len(SOURCES)} source files\n", result.stderr


def test_pyright_accepts_what_the_documents_show(folder):
    (folder / "pyrightconfig.json").write_text(json.dumps({"include": ["src"], **PYRIGHT}))
    python = folder / "venv/bin/python"
    result = _run(sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", python, cwd=folder)
    found = json.loads(result.stdout)
    assert found["summary"]["filesAnalyzed"] == len(SOURCES), result.stdout
    assert not [each for each in found["generalDiagnostics"] if each["severity"] == "error"]
