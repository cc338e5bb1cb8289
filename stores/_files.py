"""System calls on files: open a path without links in it, publish a finished file, read from a position."""

from __future__ import annotations

import ctypes
import errno
import functools
import os
import stat
import struct
import sys
from collections.abc import Callable
from pathlib import Path

_OPENAT2 = 437  # the number of the system call on all architectures but alpha
_RESOLVE_NO_SYMLINKS = 0x04
_ANY_DIRECTORY = -100  # AT_FDCWD: the path is absolute
_NO_FALLOCATE = {errno.EOPNOTSUPP, errno.EINVAL, errno.ENODEV, errno.ENOSYS}
_NO_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}
WHOLE_BYTES = 1 << 20
"""Files up to this size are read by one system call."""


def open_without_links(path: str, flags: int, mode: int = 0) -> int | None:
    """Open an absolute path if no part of it is a symbolic link, with one system call; see openat2(2)."""
    call = _openat2()
    if call is None:
        return None
    descriptor = call(_OPENAT2, _ANY_DIRECTORY, os.fsencode(path), _how(flags, mode), 24)
    return descriptor if descriptor >= 0 else None


@functools.cache
def _openat2() -> Callable[[int, int, bytes, bytes, int], int] | None:
    if not sys.platform.startswith("linux"):
        return None
    try:
        call = ctypes.CDLL(None).syscall
    except (OSError, AttributeError):
        return None
    call.argtypes = [ctypes.c_long, ctypes.c_int, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_size_t]
    call.restype = ctypes.c_long
    syscall: Callable[[int, int, bytes, bytes, int], int] = call
    return syscall


@functools.lru_cache(maxsize=16)
def _how(flags: int, mode: int) -> bytes:
    return struct.pack("QQQ", flags | getattr(os, "O_CLOEXEC", 0), mode, _RESOLVE_NO_SYMLINKS)


def link_new(partial: str, name: str, *, src_dir_fd: int | None = None, dst_dir_fd: int | None = None) -> None:
    """Rename a file as `os.replace` does, but raise a `FileExistsError` if there is one with the new name."""
    try:
        os.link(partial, name, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        os.replace(partial, name, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)
    else:
        os.unlink(partial, dir_fd=src_dir_fd)


class FileReader:
    """A `Reader` with its own position, because a forked process would move the file's."""

    def __init__(self, descriptor: int, start: int) -> None:
        self._descriptor = descriptor
        self._position = start
        self._ended = False

    def readinto(self, buffer: memoryview, /) -> int:
        """Fill the beginning of a buffer."""
        if self._ended:
            return 0
        count = os.preadv(self._descriptor, [buffer], self._position)
        self._position += count
        return count

    def whole(self, size: int) -> bytes | None:
        """Return the file if it has exactly ``size`` bytes, and these are few; otherwise ``None``."""
        if self._position or size > WHOLE_BYTES:
            return None
        content = os.pread(self._descriptor, size + 1, 0)
        self._ended = len(content) == size
        return content if self._ended else None

    def close(self) -> None:
        """Close the file."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def __del__(self) -> None:
        self.close()


def reserve(descriptor: int, size: int | None) -> None:
    """Allocate the file at once, so that a full disk is an error before the first byte."""
    if not size or not hasattr(os, "posix_fallocate"):
        return
    try:
        os.posix_fallocate(descriptor, 0, size)
    except OSError as error:
        if error.errno not in _NO_FALLOCATE:
            raise


def fsync_directory(path: Path) -> None:
    """Write a directory's entries to the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def is_irregular(path: Path) -> bool:
    """Whether a path names something that exists and is not a regular file."""
    try:
        return not stat.S_ISREG(os.lstat(path).st_mode)
    except OSError:
        return False


def is_gone(path: Path) -> bool:
    """Whether a path certainly names nothing."""
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        pass
    return False
