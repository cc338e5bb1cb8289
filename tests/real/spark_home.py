"""A ``SPARK_HOME`` in which Spark's processes start fast."""

from __future__ import annotations

import contextlib
import importlib.util
import os
from pathlib import Path

CLASSES = "classes.jsa"
"""Archive of loaded classes in a ``SPARK_HOME``; .ci/run writes it."""


def spark_home(folder: Path) -> Path | None:
    """Link the installed Spark into a folder, but not the archive of its Python package.

    A Python process that Spark starts would import pyspark from that archive and compile it each time, which takes most
    of a second of CPU time. It finds the installed package instead. Executors write into the folder.

    Returns:
        The folder, or ``None`` where pyspark is not installed.
    """
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        return None
    folder.mkdir(exist_ok=True)
    for name in ("bin", "jars", "sbin"):
        with contextlib.suppress(FileExistsError):
            (folder / name).symlink_to(os.path.relpath(Path(spec.origin).with_name(name), folder))
    return folder
