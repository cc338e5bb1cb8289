"""``claimcheck demo``: sends the files of a folder through a small broker and reads them back with Spark."""

from claimcheck._demo.main import run
from claimcheck._demo.send import FolderError

__all__ = ["FolderError", "run"]
