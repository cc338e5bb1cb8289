"""Sets up executors without claimcheck, and without network: they have only what is shipped to them."""

from __future__ import annotations

import importlib
import json
import os
import shutil
import site
import subprocess
import sys
import tarfile
import venv
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import claimcheck
from tests.real.spark_home import spark_home

FOLDER = Path(__file__).parent
WITHIN_SECONDS = 280.0
_FORGOTTEN = ("PYTHONPATH", "SPARK_HOME", "SPARK_REMOTE", "SPARK_CONF_DIR", "PYSPARK_SUBMIT_ARGS", "PYSPARK_PYTHON")


@dataclass(frozen=True)
class Ground:
    """The shared set-up of one test file.

    Attributes:
        folder: Where all of it lies.
        package: The folder ``claimcheck`` as a wheel has it, with its stores.
        archive: The same as a zip, which is what a wheel is.
        bare: An interpreter with everything that is installed here, and no claimcheck.
    """

    folder: Path
    package: Path
    archive: Path
    bare: Path

    def python_with_package(self) -> Path:
        """Make an interpreter with claimcheck, as after ``pip install``; the other packages come from `bare`."""
        python = self.folder / "environment" / "bin" / "python"
        if python.exists():
            return python
        _environment(python.parents[1])
        shutil.copytree(self.package, _site(python) / "claimcheck")
        (_site(python) / "rest.pth").write_text(f"{_site(self.bare)}\n")
        return python

    def packed_environment(self) -> Path:
        """Pack this environment, as venv-pack does."""
        target = self.folder / "environment.tar.gz"
        with tarfile.open(target, "w:gz", compresslevel=1) as tar:
            tar.add(self.python_with_package().parents[1], arcname=".")
        return target

    def wheel(self) -> Path:
        """Return the archive under the name of a wheel."""
        return Path(shutil.copy(self.archive, self.folder / "claimcheck_messaging-0.2.0-py3-none-any.whl"))

    def executor_logs(self) -> list[Path]:
        """Return the logs of executors in all jobs so far."""
        return [*self.folder.glob("spark/work/*/*/stderr"), *self.folder.glob("spark/work/*/*/stdout")]

    def environment(self, python: Path | str, **more: str) -> dict[str, str]:
        """Return variables for a driver with claimcheck and executors without it, unless `python` has it."""
        kept = {name: value for name, value in os.environ.items() if name not in _FORGOTTEN}
        home = str(spark_home(self.folder / "spark"))  # executors write into it
        told = {"SPARK_HOME": home, "SPARK_LOCAL_IP": "127.0.0.1", "PYTHONSAFEPATH": "1"}
        return kept | told | {"PYSPARK_PYTHON": str(python), "PYTHONPATH": _path(self.package)} | more


def staged(folder: Path) -> Path:
    """Copy the tested package, with its stores, to a folder of its own, as in a wheel."""
    package, ignore = folder / "package" / "claimcheck", shutil.ignore_patterns("__pycache__", "stores")
    stores = importlib.import_module("claimcheck.stores").__file__
    shutil.copytree(Path(claimcheck.__file__).parent, package, ignore=ignore)
    shutil.copytree(Path(str(stores)).parent, package / "stores", ignore=ignore)
    return package


def ground(folder: Path) -> Ground:
    """Set it up; takes a second or two."""
    package = staged(folder)
    archive = shutil.make_archive(str(folder / "claimcheck"), "zip", package.parent)
    return Ground(folder, package, Path(archive), _bare(folder / "bare"))


def run(program: str, given: Mapping[str, Any], env: Mapping[str, str], cwd: Path) -> Any:
    """Run a program of this folder with JSON as input; return the JSON in its last line of output."""
    done = subprocess.run(
        [sys.executable, str(FOLDER / program)],
        input=json.dumps(given),
        env=dict(env),
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=WITHIN_SECONDS,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-6000:]}"
    return json.loads(done.stdout.splitlines()[-1])


def _bare(folder: Path) -> Path:
    """Link all installed packages but one: nothing is copied or downloaded."""
    python = _environment(folder)
    for installed in filter(os.path.isdir, [*site.getsitepackages(), *_added()]):
        for entry in Path(installed).iterdir():
            link = _site(python) / entry.name
            if "claimcheck" not in entry.name.lower() and entry.name != "__pycache__" and not link.exists():
                link.symlink_to(entry)
    return python


def _added() -> list[str]:
    return [path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")]


def _environment(folder: Path) -> Path:
    venv.create(folder, symlinks=True, with_pip=False)
    return folder / "bin" / "python"


def _site(python: Path) -> Path:
    return next(python.parents[1].glob("lib/python3*/site-packages"))


def _path(package: Path) -> str:
    """Return the driver's PYTHONPATH: the package, and the entries of this process."""
    return os.pathsep.join([str(package.parent), *filter(None, [os.environ.get("PYTHONPATH")])])
