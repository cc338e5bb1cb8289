"""The options by which stores verify servers with TLS."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from claimcheck._validation import Check, fail

__all__ = ["CaFile", "check_ca_file"]

CaFile = Annotated[str, Check(bool, "the path of a file with certificates in PEM format")]
"""An option: the certificates of the authorities that may sign a server's certificate."""


def check_ca_file(path: str | None, *, store: str) -> None:
    """Make sure that the file exists, before a driver reports its absence in words of its own.

    Raises:
        ConfigError: It does not exist on this machine.
    """
    if path is not None and not Path(path).is_file():
        where = f"stores.{store}.tls_ca_file"
        fail(where, found=f"{path!r}, which is not a file on this machine", expected="certificates in PEM format")
