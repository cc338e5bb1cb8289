"""The files below a folder."""

from __future__ import annotations

import os
import shutil
import stat
from dataclasses import dataclass
from pathlib import Path

LARGEST = 256 << 20
"""Larger files are skipped: it is the default limit of chunked payloads."""


@dataclass(frozen=True)
class Folder:
    """Names and sizes of the files below a folder, and why others are skipped."""

    root: Path
    sizes: dict[str, int]
    skipped: dict[str, str]

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(self.sizes.values())

    def check_space(self, scratch: Path) -> None:
        """Raise `ValueError` if the files do not fit into the folder for temporary files, twice as SQLite may need."""
        needed, free = 2 * self.size + LARGEST, shutil.disk_usage(scratch).free
        if free < needed:
            text = f"{scratch.parent} has {free >> 20:,} MiB, but {needed >> 20:,} MiB are needed"
            raise ValueError(f"{text}: name a smaller folder, or a larger disk with TMPDIR")


def find(root: Path) -> Folder:
    """Return the files below a folder; raises `ValueError` without any. Links to folders are not followed."""
    if not root.is_dir():
        raise ValueError(f"{root} is not a folder")
    sizes, skipped = dict[str, int](), dict[str, str]()
    for folder, _, names in os.walk(root):
        for name in names:
            path = Path(folder, name)
            reason = unusable(path)
            if reason is None:
                sizes[os.path.relpath(path, root)] = path.stat().st_size
            else:
                skipped[os.path.relpath(path, root)] = reason
    if not sizes:
        raise ValueError(f"found no files to send below {root}")
    return Folder(root, dict(sorted(sizes.items())), skipped)


def unusable(path: Path) -> str | None:
    """Return why a file cannot be sent."""
    try:
        status = path.stat()
    except OSError as error:
        return "a broken link" if path.is_symlink() else str(error.strerror)
    if not stat.S_ISREG(status.st_mode):  # reading a pipe or a device could block forever
        return "not a regular file"
    if status.st_size > LARGEST:
        return f"larger than {LARGEST >> 20} MiB"
    return None if os.access(path, os.R_OK) else "permission denied"
