"""The report: one HTML page that needs no network."""

from __future__ import annotations

import os

from claimcheck._compare._model import Comparison
from claimcheck._registry import import_vendor

__all__ = ["check_packages", "write_html"]


def check_packages() -> None:
    """Check that a report can be written, before the comparison runs.

    Raises:
        MissingDependencyError: A package is not installed; names the extra to install.
    """
    for package in ("jinja2", "matplotlib"):
        import_vendor(package, extra="compare")


def write_html(comparison: Comparison, path: str | os.PathLike[str]) -> None:
    """Write the report.

    Raises:
        CompareError: The file cannot be written.
        MissingDependencyError: A package is not installed; names the extra to install.
    """
    check_packages()
    raise NotImplementedError
