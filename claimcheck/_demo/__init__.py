"""The main job on real input: files of a folder, through a small broker, and back through Spark; `run` does it all."""

from claimcheck._demo.files import FolderError
from claimcheck._demo.main import run

__all__ = ["FolderError", "run"]
