"""The files of the filesystem store: names and folders, what a listing finds, and system calls."""

from __future__ import annotations

import ctypes
import errno
import functools
import os
import re
import secrets
import stat
import struct
import sys
import zlib
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from claimcheck._store.listing import KeyLifetime, StoreEntry, parse_name

_OPENAT2 = 437  # the number of the system call on all architectures but alpha
_RESOLVE_NO_SYMLINKS = 0x04
_ANY_DIRECTORY = -100  # AT_FDCWD: the path is absolute
_NO_FALLOCATE = {errno.EOPNOTSUPP, errno.EINVAL, errno.ENODEV, errno.ENOSYS}
_NO_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}
_FOLDER = re.compile(r"(?:\d{4}-\d{2}-\d{2}/)?[0-9a-f]{2}/")
_TOKEN = re.compile(r"[0-9a-f]{8}")
_UUID_CHARACTERS = 36
_DAY_MS = 86_400_000

PARTIAL_SUFFIX = ".partial"
"""The suffix of the hidden file that a payload is written to first; an old one is left from a writer that died."""

_WHOLE_BYTES = 1 << 20  # files up to this size are read by one system call


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
        if self._ended:
            return 0
        count = os.preadv(self._descriptor, [buffer], self._position)
        self._position += count
        return count

    def whole(self, size: int) -> bytes | None:
        """Return the file if it has exactly ``size`` bytes, and these are few; otherwise ``None``."""
        if self._position or size > _WHOLE_BYTES:
            return None
        content = os.pread(self._descriptor, size + 1, 0)
        self._ended = len(content) == size
        return content if self._ended else None

    def close(self) -> None:
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


def folder_of(key: str) -> str:
    """Return the folders at the beginning of a key, with a slash at the end; empty if there are none."""
    match = _FOLDER.match(key)
    return "" if match is None else match[0]


def partial_name(name: str) -> str:
    return f".{name}.{secrets.token_hex(4)}{PARTIAL_SUFFIX}"


def version_of(status: os.stat_result) -> str:
    return f"{status.st_mtime_ns}/{status.st_ino}"


def folder_for(name: str, created_ms: int | None) -> str:
    """Return the folders that a name with a lifetime belongs in, with a slash at the end."""
    date = "" if created_ms is None else _date(created_ms // _DAY_MS)
    return f"{date}{zlib.crc32(bytes.fromhex(name[-_UUID_CHARACTERS:].replace('-', ''))) & 0xFF:02x}/"


@functools.lru_cache(maxsize=1024)
def _date(day: int) -> str:
    return datetime.fromtimestamp(day * _DAY_MS // 1000, UTC).strftime("%Y-%m-%d/")


@functools.lru_cache(maxsize=2048)  # a sweep parses a key again when it deletes the entry
def parse_in(folder: str, name: str) -> KeyLifetime | None:
    """Return what the name of a file in a folder says; ``None`` if it is not the store's, or in another folder."""
    known = None if name.endswith("}") else parse_name(name)
    if known is None:
        return None
    is_in_place = folder == folder_for(name, known.created_ms) or (known.created_ms is None and not folder)
    return known if is_in_place else None


def _is_partial(key: str) -> bool:
    """Whether this is a file that an interrupted write left behind."""
    folder, name = key.rpartition("/")[::2]
    if not (name.startswith(".") and name.endswith(PARTIAL_SUFFIX)):
        return False
    final, _, token = name[1 : -len(PARTIAL_SUFFIX)].rpartition(".")
    return _TOKEN.fullmatch(token) is not None and parse_in(f"{folder}/" if folder else "", final) is not None


def entry_of(parent: str, file: os.DirEntry[str]) -> StoreEntry | None:
    key, known = f"{parent}{file.name}", parse_in(parent, file.name)
    if known is None and not _is_partial(key):
        return None
    try:
        status = file.stat(follow_symlinks=False)
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(status.st_mode):
        return None
    if known is None:
        return leftover(key, status)
    return StoreEntry.of(key, known, size=status.st_size, stored_ms=-(-status.st_mtime_ns // 1_000_000))


def leftover(key: str, status: os.stat_result) -> StoreEntry:
    return StoreEntry(
        kind="leftover",
        key=key,
        size=0 if stat.S_ISDIR(status.st_mode) else status.st_size,
        created_ms=-(-status.st_mtime_ns // 1_000_000),
        version=version_of(status),
    )
