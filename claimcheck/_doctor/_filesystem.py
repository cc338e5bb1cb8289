"""What can go wrong with a directory of payloads: free space, permissions, and the kind of its file system."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from itertools import islice
from pathlib import Path

from claimcheck._check import Finding
from claimcheck._doctor._findings import examined, finding
from claimcheck._texts import size_text
from claimcheck.stores.filesystem import FilesystemStore

_LEAST_FREE = 0.1
_SAMPLE = 1000
_SAMPLE_OF_DIRECTORY = 50
_MOUNTS = Path("/proc/self/mounts")
_MEMORY = {"tmpfs", "ramfs", "devtmpfs"}
_NETWORK = {"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "glusterfs", "lustre", "beegfs"}


def examine_filesystem(store: FilesystemStore, path: str) -> Iterator[Finding]:
    """Yield the findings about the directory of a store."""
    root, path = store._root, f"{path}.path"
    yield from examined("filesystem", path, "the free space", partial(_space, root, path))
    yield from examined("filesystem", path, "the permissions", partial(_permissions, root, path, store._mode))
    yield from examined("filesystem", path, "the kind of file system", partial(_kind, root, path))


def _space(root: Path, path: str) -> Iterator[Finding]:
    usage = shutil.disk_usage(root)
    if usage.free < _LEAST_FREE * usage.total:
        message = f"{size_text(usage.free)} of {size_text(usage.total)} are free"
        yield finding("warning", "filesystem-full", path, message, "Delete expired payloads, or enlarge the volume.")
    files = os.statvfs(root)
    if files.f_files and files.f_favail < _LEAST_FREE * files.f_files:  # 0: the file system has no fixed number
        message = f"{files.f_favail:,} of {files.f_files:,} files (inodes) are free"
        yield finding("warning", "filesystem-full", path, message, "Delete expired payloads, or enlarge the volume.")


def _permissions(root: Path, path: str, mode: int) -> Iterator[Finding]:
    if not all(each.stat().st_mode & stat.S_IXOTH for each in (root, *root.resolve().parents)):
        return  # no one else gets into this directory
    directories, files = _modes(root)
    files.append(mode)  # of new payloads
    rights = []
    if any(each & stat.S_IWOTH and not each & stat.S_ISVTX for each in directories):
        rights.append("replace and delete payloads")
    elif any(each & stat.S_IWOTH for each in directories):
        rights.append("add files")
    if any(each & stat.S_IROTH for each in files):
        rights.append("read payloads")
    if any(each & stat.S_IWOTH for each in files):
        rights.append("overwrite payloads")
    if rights:
        message = f"any user of this machine can {' and '.join(rights)} (mode {stat.S_IMODE(directories[0]):04o})"
        fix = f"Remove the rights of others: chmod o= {root}"
        yield finding("warning", "filesystem-permissions", path, message, fix)


def _modes(root: Path) -> tuple[list[int], list[int]]:
    """Return the modes of directories and of files that any user can get at: the root's first, and a sample."""
    pending, directories, files = [str(root)], list[int](), list[int]()
    while pending and len(directories) + len(files) < _SAMPLE:
        directory = pending.pop()
        with suppress(FileNotFoundError):  # deleted meanwhile
            mode = os.stat(directory).st_mode
            if mode & stat.S_IXOTH:
                directories.append(mode)
                with os.scandir(directory) as listing:
                    entries = list(islice(listing, _SAMPLE_OF_DIRECTORY))
                pending += [each.path for each in entries if each.is_dir(follow_symlinks=False)]
                regular = [each for each in entries if each.is_file(follow_symlinks=False)]
                files += [each.stat(follow_symlinks=False).st_mode for each in regular]
    return directories, files


def _kind(root: Path, path: str) -> Iterator[Finding]:
    kind = kind_of(_MOUNTS.read_text(encoding="utf-8", errors="replace"), os.path.realpath(root))
    if kind in _MEMORY:
        fix = "Use a directory on a disk."
        yield finding("warning", "filesystem-in-memory", path, f"{root} is in memory ({kind})", fix)
    if kind in _NETWORK or kind.startswith("fuse."):
        message = f"{root} is on a network file system ({kind})"
        fix = "Mount NFS with lookupcache=positive, and let readers retry if a payload is missing."
        yield finding("info", "filesystem-network", path, message, fix)


def kind_of(mounts: str, directory: str) -> str:
    """Return the type of the file system that has a directory, from the text of ``/proc/self/mounts``."""
    found = ("", "")
    for line in mounts.splitlines():
        _, point, kind, *_ = line.split(" ")
        point = point.encode().decode("unicode_escape").rstrip("/")
        if (directory == point or directory.startswith(f"{point}/")) and len(point) >= len(found[0]):
            found = (point, kind)  # of two mounts on one directory the later one is visible
    return found[1]
