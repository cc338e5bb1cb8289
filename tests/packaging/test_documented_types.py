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
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
EXAMPLES = sorted(path for path in (ROOT / "examples").rglob("*.py") if not path.name.startswith("test_"))
SOURCES = {path.relative_to(ROOT).as_posix(): path for path in [*DOCUMENTS, *EXAMPLES]}
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


@dataclass(frozen=True)
class Project:
    """A user's project: one file per document, and an environment in which claimcheck is installed."""

    folder: Path
    python: Path
    files: dict[str, Path]

    def by_source(self, problems: list[tuple[str, str]]) -> dict[str, list[str]]:
        """Group messages, given as pairs of file name and text, by the document they belong to."""
        names = {path.name: source for source, path in self.files.items()}
        found: dict[str, list[str]] = {source: [] for source in self.files}
        for name, text in problems:
            found[names[Path(name).name]].append(text)
        return found


def code_of(document: Path) -> str:
    """Return the Python blocks of a document as one module, each at its line of the document."""
    text, code = document.read_text(), ""
    for block in BLOCK.finditer(text):
        if NOT_RUN.search(text, 0, block.start()):
            continue
        code += "\n" * (text.count("\n", 0, block.start(1)) - code.count("\n")) + textwrap.dedent(block[1])
    return code


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    folder = tmp_path_factory.mktemp("project")
    venv.create(folder / "venv", symlinks=True)
    [packages] = (folder / "venv").glob("lib/python*/site-packages")
    shutil.copytree(ROOT / "claimcheck", packages / "claimcheck", ignore=shutil.ignore_patterns("__pycache__"))
    (packages / "drivers.pth").write_text(sysconfig.get_path("purelib"))  # all else as it is installed here
    files = {}
    for source, path in SOURCES.items():
        name = path.name if path.suffix == ".py" else re.sub(r"\W", "_", source) + ".py"
        files[source] = folder / "src" / name
        files[source].parent.mkdir(exist_ok=True)
        files[source].write_text(path.read_text() if path.suffix == ".py" else code_of(path))
    return Project(folder, folder / "venv" / "bin" / "python", files)


@pytest.fixture(scope="module")
def mypy_errors(project):
    (project.folder / "mypy.ini").write_text(MYPY)
    result = _run("mypy", "--python-executable", str(project.python), "--output", "json", "src", cwd=project.folder)
    errors = [json.loads(line) for line in result.stdout.splitlines() if line.startswith("{")]
    assert result.returncode == (1 if errors else 0), result.stdout + result.stderr
    texts = [(each["file"], f"{each['line']}: {each['message']} [{each['code']}]") for each in errors]
    return project.by_source(texts)


@pytest.fixture(scope="module")
def pyright_errors(project):
    (project.folder / "pyrightconfig.json").write_text(json.dumps({"include": ["src"], **PYRIGHT}))
    result = _run("pyright", "--outputjson", "--pythonpath", str(project.python), cwd=project.folder)
    found = json.loads(result.stdout)
    assert found["summary"]["filesAnalyzed"] == len(project.files), result.stdout
    errors = [each for each in found["generalDiagnostics"] if each["severity"] == "error"]
    lines = [each["range"]["start"]["line"] + 1 for each in errors]
    texts = [f"{line}: {each['message']} [{each.get('rule')}]" for line, each in zip(lines, errors, strict=True)]
    return project.by_source([(each["file"], text) for each, text in zip(errors, texts, strict=True)])


def _run(tool, *arguments, cwd):
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "MYPYPATH")}
    command = [sys.executable, "-m", tool, *arguments]
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)


def test_the_project_uses_the_installed_package(project):
    command = [project.python, "-I", "-c", "import claimcheck.stores.memory; print(claimcheck.__file__)"]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "site-packages/claimcheck" in result.stdout


@pytest.mark.parametrize("source", SOURCES)
def test_mypy_accepts(mypy_errors, source):
    assert mypy_errors[source] == []


@pytest.mark.parametrize("source", SOURCES)
def test_pyright_accepts(pyright_errors, source):
    assert pyright_errors[source] == []
