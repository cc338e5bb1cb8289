"""Makes an environment with the oldest version of each dependency that pyproject.toml allows.

    python tests/oldest.py FOLDER

The versions come from pyproject.toml alone. Only wheels are installed: with the oldest supported Python, a lower bound
must be a version that has a wheel. A newer Python gets the oldest version that has one. Needs the extra `test`, which
has uv.
"""

from __future__ import annotations

import subprocess
import sys
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[1]
TOOLS = {"unit", "test", "docs", "bench"}
SPARK = {"spark", "cluster", "java", "all"}  # `make spark-versions` tests the versions of Spark
_LOWER = {">=", "~=", "=="}


def lower_bounds(project: dict[str, Any]) -> dict[str, Version]:
    """Return the lower bound of each package that users install; raises `ValueError` for one without."""
    bounds: dict[str, Version] = {}
    found = {"": project["dependencies"], **project["optional-dependencies"]}
    for extra, requirement in ((extra, Requirement(text)) for extra, texts in found.items() for text in texts):
        if canonicalize_name(requirement.name) == canonicalize_name(project["name"]):
            continue
        lower = [Version(each.version) for each in requirement.specifier if each.operator in _LOWER]
        if not lower:
            raise ValueError(f"pyproject.toml: {requirement} in {extra or 'dependencies'} has no lower bound")
        if extra not in TOOLS | SPARK:
            name = canonicalize_name(requirement.name)
            bounds[name] = max([*lower, bounds.get(name, lower[0])])
    return bounds


def not_installable(bounds: dict[str, Version], pins: Iterable[str]) -> list[str]:
    """Return the lower bounds that are not the oldest version that can be installed, which ``name==version`` pins."""
    pairs = (pin.split("==") for pin in pins)
    found: dict[str, Version] = {canonicalize_name(name): Version(version) for name, version in pairs}
    return [
        f"{name}>={bound}, but the oldest version that can be installed is {found[name]}"
        for name, bound in bounds.items()
        if name in found and found[name] != bound
    ]


def main(folder: Path) -> None:
    """Resolve the oldest versions, and install claimcheck with them and the newest test tools."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    bounds = lower_bounds(project)
    extras = [extra for extra in project["optional-dependencies"] if extra not in TOOLS | SPARK]
    pins = _uv("pip", "compile", "-q", "pyproject.toml", "--resolution=lowest-direct", "--only-binary=:all:",
               "--no-header", "--no-annotate", f"--python={sys.executable}",
               *(f"--extra={extra}" for extra in extras))  # fmt: skip
    lowest_python = "{}.{}".format(*sys.version_info) in project["requires-python"]
    if lowest_python and (wrong := not_installable(bounds, pins.splitlines())):
        raise SystemExit("\n".join(["Raise these lower bounds in pyproject.toml:", *wrong]))
    _uv("venv", "-q", "--allow-existing", f"--python={sys.executable}", str(folder))
    constraints = folder / "constraints.txt"
    constraints.write_text(pins)
    _uv("pip", "install", "-q", f"--python={folder}/bin/python", f"--constraint={constraints}",
        "--editable", f".[{','.join([*extras, 'unit'])}]")  # fmt: skip
    constraints.replace(folder / "oldest.txt")  # at the end: `make` repeats an interrupted installation


def _uv(*arguments: str) -> str:
    program = Path(sys.executable).with_name("uv")
    run = subprocess.run([program, *arguments], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    if run.returncode:
        raise SystemExit(run.returncode)  # uv has printed why
    return run.stdout


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute())
