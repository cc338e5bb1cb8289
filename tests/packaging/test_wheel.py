"""The built wheel, as a user gets it: exactly these files, importing little, naming the extra that is missing.

On PyPI the plain name is another project, which no text may tell anyone to install.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import textwrap
import tomllib
import venv
import zipfile
from pathlib import Path, PurePosixPath

import pytest

from claimcheck.errors import distribution_name, pip_install

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
NAME = PROJECT["project"]["name"]
ROOMS = {"claimcheck": ROOT / "claimcheck", "claimcheck/stores": ROOT / "stores"}
# Reading YAML needs two of them, and only then; everything else is the user's choice.
OPTIONAL = ["boto3", "cattrs", "click", "confluent_kafka", "pandas", "pulsar", "pyarrow", "pyspark", "redis", "yaml"]
COMMAND = re.compile(
    r"(?:pip|uv|pipx|poetry|conda)3?\s(?:[^`\n]*\s)?['\"]?claimcheck(?![\w-])|(?<![\w-])claimcheck\[[a-z$*]"
)
SUFFIXES = {".py", ".md", ".toml", ".yaml", ".yml", ".sh", ".cfg", ".ipynb", ".json", ""}

pytestmark = pytest.mark.timeout(600)  # pip builds and installs over the network


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel, built from the source distribution, which proves that both are complete."""
    source, target = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("dist")
    for name in ("claimcheck", "stores"):  # a copy: setuptools writes into the folder that it builds
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__", "stores"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    _run(sys.executable, "-m", "build", "--outdir", target, source)
    return next(target.glob("*.whl"))


@pytest.fixture(scope="module")
def clean_python(wheel, tmp_path_factory):
    """The interpreter of an environment that holds the wheel and its core dependencies, and no extra."""
    folder = tmp_path_factory.mktemp("clean") / "venv"
    venv.create(folder, with_pip=True, symlinks=True)
    _run(folder / "bin" / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", wheel)
    return folder / "bin" / "python"


@pytest.fixture(scope="module")
def zipped(wheel, tmp_path_factory):
    """The wheel under a name that `spark-submit --py-files` puts on the path."""
    return shutil.copy(wheel, tmp_path_factory.mktemp("zip") / "claimcheck.zip")


def test_the_wheel_holds_exactly_the_sources(wheel):
    info = _info(wheel)
    metadata = {"METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE", "top_level.txt"}
    expected = {str(path) for path in _shipped("*")} | {f"{info}/{name}" for name in metadata}
    with zipfile.ZipFile(wheel) as archive:
        assert set(archive.namelist()) == expected
    _run(sys.executable, "-m", "check_wheel_contents", "--config", ROOT / "pyproject.toml", wheel)


def test_importing_loads_nothing_that_was_not_asked_for(zipped):
    # With this interpreter, where all of them are installed and any of them could slip in.
    code = f"""
import sys
sys.path.insert(0, {str(zipped)!r})
import claimcheck, claimcheck.config, claimcheck.spark
print(claimcheck.__file__, [name for name in {OPTIONAL!r} if name in sys.modules])
"""
    assert _python(sys.executable, code) == f"{zipped}/claimcheck/__init__.py []"


def test_the_wheel_as_zip_imports_with_nothing_but_the_standard_library(zipped):
    # What a Spark worker imports, given the zip alone.
    modules = "claimcheck, claimcheck.config, claimcheck._receive.resolver, claimcheck.stores.memory"
    code = f"import sys; sys.path.insert(0, {str(zipped)!r}); import {modules}; print('ok')"
    assert _python(sys.executable, "-S", code) == "ok"


@pytest.mark.parametrize(
    ("extra", "options"),
    [
        ("redis", {"type": "redis", "url": "redis://localhost:1/0"}),
        ("s3", {"type": "s3", "bucket": "payloads", "endpoint_url": "http://localhost:1"}),
    ],
)
def test_a_store_without_its_extra_names_the_extra(clean_python, extra, options):
    config = {"strategy": "external", "store": "hot", "stores": {"hot": options}}
    code = f"""
import claimcheck
try:
    claimcheck.from_dict({config!r}).store("hot").write(b"x")
except claimcheck.MissingDependencyError as error:
    print(error)
"""
    assert f"claimcheck-messaging[{extra}]" in _python(clean_python, code)


def test_the_command_line_without_its_extra_names_the_extra(clean_python):
    command = clean_python.parent / "claimcheck"
    for arguments in (["--version"], ["put", "x"]):
        result = subprocess.run([command, *arguments], capture_output=True, text=True, env=_environment(), check=False)
        assert result.returncode == 3
        assert "claimcheck-messaging[cli]" in result.stderr
        assert "Traceback" not in result.stderr


# Types: mypy and pyright, both strict, accept what the documents show -------------------------------------------

DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
EXAMPLES = sorted(path for path in (ROOT / "examples").rglob("*.py") if not path.name.startswith("test_"))
# Libraries of the cookbook have no types: make lint checks its programs.
SOURCES = [*DOCUMENTS, *(path for path in EXAMPLES if path.parent.name != "cookbook")]
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
def project(tmp_path_factory):
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


def test_mypy_accepts_what_the_documents_show(project):
    (project / "mypy.ini").write_text(MYPY)
    found = _run(sys.executable, "-m", "mypy", "--python-executable", "venv/bin/python", "src", cwd=project)
    assert found == f"Success: no issues found in {len(SOURCES)} source files\n"


def test_pyright_accepts_what_the_documents_show(project):
    (project / "pyrightconfig.json").write_text(json.dumps({"include": ["src"], **PYRIGHT}))
    python = project / "venv/bin/python"
    found = json.loads(_run(sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", python, cwd=project))
    assert found["summary"]["filesAnalyzed"] == len(SOURCES), found


# The name -------------------------------------------------------------------------------------------------------


def _texts():
    for folder in ("claimcheck", "stores", "docs", "examples", "tests", ".ci"):
        for file in sorted((ROOT / folder).rglob("*")):
            if file.is_file() and file.suffix in SUFFIXES and "__pycache__" not in file.parts:
                yield file
    for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "Makefile", "pyproject.toml"):
        yield ROOT / name


def test_no_text_tells_to_install_another_project():
    found = [
        f"{file.relative_to(ROOT)}:{number}: {line.strip()}"
        for file in _texts()
        if file != Path(__file__).resolve()
        for number, line in enumerate(file.read_text(errors="replace").splitlines(), 1)
        if COMMAND.search(line)
    ]
    assert not found


def test_errors_name_the_distribution_with_and_without_metadata(tmp_path):
    """A zip on a Spark worker has none."""
    assert distribution_name() == NAME
    assert pip_install("redis") == f"pip install '{NAME}[redis]'"
    (tmp_path / "claimcheck").symlink_to(ROOT / "claimcheck")
    code = "from claimcheck.errors import distribution_name; print(distribution_name())"
    done = subprocess.run([sys.executable, "-S", "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == NAME


def test_the_documented_wheel_is_this_version():
    for page in (ROOT / "docs").rglob("*.md"):
        for version in re.findall(r"claimcheck_messaging-([\d.]+)-py3", page.read_text()):
            assert version == PROJECT["project"]["version"], page


# Helpers --------------------------------------------------------------------------------------------------------


def _shipped(pattern):
    """Path in the wheel of each source file that matches."""
    for room, folder in ROOMS.items():
        for file in folder.rglob(pattern):
            if file.is_file() and "__pycache__" not in file.parts:
                yield PurePosixPath(room, file.relative_to(folder))


def _info(wheel):
    name, version, *_ = wheel.name.split("-")
    return f"{name}-{version}.dist-info"


def _python(interpreter, *arguments):
    *options, code = arguments
    return _run(interpreter, "-I", *options, "-c", code).strip()


def _run(*command, cwd=None):
    result = subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=_environment(), check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def _environment():
    """The caller's, so that pip finds its way; without what would let this checkout or another environment in."""
    return {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "MYPYPATH", "VIRTUAL_ENV")}


def test_the_extra_for_clusters_fits_the_pins_of_a_platform():
    """And `spark` does not: it asks for a newer protobuf, for the state of pyspark 4."""

    def solve(*extras):
        command = ["uv", "pip", "compile", "--quiet", "--no-header", "--no-annotate", "--python-version", "3.12"]
        command += [part for extra in extras for part in ("--extra", extra)]
        command += ["--constraint", "tests/packaging/databricks-18.txt", "pyproject.toml"]
        done = subprocess.run([sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True, timeout=300)
        return {line.partition("==")[0] for line in done.stdout.splitlines()}, done.stderr

    found, error = solve("cluster", "redis", "obstore", "kafka", "pulsar", "encryption", "compression")
    assert {"pyarrow", "pandas", "redis", "obstore"} <= found, error
    assert not {"pyspark", "protobuf", "boto3"} & found
    assert "protobuf" in solve("spark")[1]
