"""The filesystem store: payloads as files in a directory, local or on a volume that writers and readers mount."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import stat
from pathlib import Path
from typing import Annotated, NoReturn

from claimcheck._payload import Source
from claimcheck._payload_reader import Reader
from claimcheck._pointer import Pointer
from claimcheck._store import Store
from claimcheck._validation import Check, Seconds, check_arguments
from claimcheck.errors import PointerRejectedError, StoreError, StoreUnavailableError

__all__ = ["FilesystemStore"]

PARTIAL_SUFFIX = ".partial"
"""Suffix of the hidden file that a payload is written to first; an old one is left from a writer that died."""

MAX_NAME_BYTES = 255
"""The longest file name on all common file systems."""

_PATH = Check(lambda path: bool(path) and "\0" not in path, "the path of a directory")
_OCTAL = re.compile(r"0?o?[0-7]{3}")
_STEP_BYTES = 256 << 10  # small enough to be in the processor's cache still when it is checksummed
_NO_FALLOCATE = {errno.EOPNOTSUPP, errno.EINVAL, errno.ENODEV, errno.ENOSYS}
_NOT_REACHED = {errno.ESTALE, errno.ENOTCONN, errno.EHOSTDOWN, errno.EHOSTUNREACH}


def _file_mode(mode: int | str) -> int | None:
    """Return the permissions as a number; ``None`` if they are not valid."""
    if isinstance(mode, str):
        mode = int(mode.replace("o", ""), 8) if _OCTAL.fullmatch(mode) else -1
    return mode if mode >= 0 and mode & ~0o066 == 0o600 else None


_MODE = Check(
    lambda mode: _file_mode(mode) is not None,
    "octal read and write permissions that include the owner's, such as '0600' or '0640'",
)


class FilesystemStore(Store):
    """Stores each payload as one file, which appears under its name only when it is complete.

    Safe to use from several threads and processes. A payload is written to a hidden file in the same directory, which
    is renamed at the end.

    Args:
        path: The directory; ``~`` is the home directory. If it does not exist, reads and writes raise
            `StoreUnavailableError`, so that a volume that is not mounted is never mistaken for an empty one. Therefore
            the path should be a directory *on* the volume, not its mount point.
        create: Whether a write creates the directory and its parents.
        ttl_seconds: Written into pointers. The store never deletes payloads by age.
        fsync: Whether `write` returns only after file and name are on the disk, safe from a power failure.
        mode: Permissions of files, as a number or as octal text (``"0640"``). New directories get them, too, with
            search permission wherever there is read permission: 0600 becomes 0700, 0640 becomes 0750.
    """

    max_key_bytes = MAX_NAME_BYTES

    def __init__(
        self,
        *,
        path: Annotated[str, _PATH],
        create: bool = False,
        ttl_seconds: Seconds | None = None,
        fsync: bool = False,
        mode: Annotated[int | str, _MODE] = 0o600,
    ) -> None:
        check_arguments(FilesystemStore, path=os.fspath(path), create=create, mode=mode)
        self._root = Path(os.path.abspath(os.path.expanduser(path)))
        self._may_create = create
        self._fsync = fsync
        self._mode = _file_mode(mode) or 0o600
        self.ttl_seconds = ttl_seconds

    def __repr__(self) -> str:
        return f"<FilesystemStore {self.name!r} at {self._root}>"

    def check(self, pointer: Pointer) -> None:
        """Reject what the base class rejects, and keys that are not the plain name of a complete payload."""
        super().check(pointer)
        if "/" in pointer.key or pointer.key.startswith("."):
            self._reject(pointer, "scope", "has a key that is not a plain file name")

    def _write(self, pointer: Pointer, source: Source) -> None:
        partial = os.path.join(self._root, f".{pointer.key}.{secrets.token_hex(4)}{PARTIAL_SUFFIX}")
        try:
            descriptor = self._create(partial)
            try:
                self._fill(descriptor, source)
            finally:
                os.close(descriptor)
            os.replace(partial, os.path.join(self._root, pointer.key))
        except BaseException:
            with contextlib.suppress(OSError):  # the first error is more useful
                Path(partial).unlink()
            raise
        if self._fsync:
            _fsync_directory(self._root)

    def _fill(self, descriptor: int, source: Source) -> None:
        if self._mode & 0o077:  # the umask may have taken permissions away, never the owner's own
            os.chmod(descriptor, self._mode)
        _reserve(descriptor, source.size)
        for piece in source.pieces(_STEP_BYTES):
            written = os.write(descriptor, piece)
            while written < len(piece):
                written += os.write(descriptor, piece[written:])
        if self._fsync:
            os.fsync(descriptor)

    def _open(self, pointer: Pointer, start: int, stop: int | None) -> Reader:
        descriptor = self._descriptor(pointer)
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                self._not_a_payload(pointer)
            self.check_size(pointer, status.st_size)
            return _FileReader(descriptor, start)
        except BaseException:
            os.close(descriptor)
            raise

    def _delete(self, pointer: Pointer) -> None:
        path = self._root / pointer.key
        try:
            path.unlink()
        except FileNotFoundError as error:
            self._check_mounted(error)
        except OSError:  # a read-only disk refuses to delete even what does not exist
            if not _is_gone(path):
                raise

    def _wrote_nothing(self, error: BaseException) -> bool:
        return super()._wrote_nothing(error) or isinstance(error.__cause__, FileNotFoundError)

    def _translate(self, error: Exception) -> type[StoreError] | None:
        if isinstance(error, OSError) and error.errno in _NOT_REACHED:
            return StoreUnavailableError
        return super()._translate(error)

    def _create(self, path: str) -> int:
        """Open a new file; creates its directory if configured."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            return os.open(path, flags, self._mode)
        except FileNotFoundError as error:
            if not self._may_create:
                self._check_mounted(error)
            make_directory(self._root, self._mode | (self._mode & 0o444) >> 2)
            return os.open(path, flags, self._mode)

    def _descriptor(self, pointer: Pointer) -> int:
        """Open a file without following a link and without waiting for the other end of a pipe."""
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        path = os.path.join(self._root, pointer.key)
        try:
            return os.open(path, flags)
        except FileNotFoundError as error:
            self._check_mounted(error)
            raise
        except OSError as error:  # a link, a socket, or lost+found
            if error.errno == errno.ENAMETOOLONG or _is_irregular(path):
                self._not_a_payload(pointer)
            raise

    def _check_mounted(self, error: Exception) -> None:
        """Raise an error if the directory does not exist: its payloads may not be gone, but not mounted."""
        if not self._root.is_dir():
            raise not_mounted(self._root, store=self.name) from error

    def _not_a_payload(self, pointer: Pointer) -> NoReturn:
        raise PointerRejectedError(
            f"store {self.name!r} rejected the pointer to {pointer.key!r}: it does not name a regular file",
            reason="scope",
            store=pointer.store,
            key=pointer.key,
        )


class _FileReader:
    """A `Reader` with its own position, because a forked process would move the file's."""

    def __init__(self, descriptor: int, start: int) -> None:
        self._file = os.fdopen(descriptor, "rb", buffering=0)
        self._position = start

    def readinto(self, buffer: memoryview, /) -> int:
        """Fill the beginning of a buffer."""
        count = os.preadv(self._file.fileno(), [buffer], self._position)
        self._position += count
        return count

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def not_mounted(directory: str | Path, *, store: str) -> StoreUnavailableError:
    """Return the error for a store whose directory does not exist."""
    return StoreUnavailableError(
        f"store {store!r}: the directory {directory} does not exist on this machine. Is its volume mounted? Create the "
        "directory, or set 'create: true'",
        store=store,
    )


def make_directory(path: Path, mode: int) -> None:
    """Create a directory, and those above it, with the same permissions."""
    try:
        path.mkdir(mode)
    except FileExistsError:
        return
    except FileNotFoundError:
        make_directory(path.parent, mode)
        path.mkdir(mode, exist_ok=True)
    if mode & 0o077:  # the umask may have taken permissions away, never the owner's own
        path.chmod(mode)


def _is_irregular(path: str) -> bool:
    """Whether a path names something that exists and is not a regular file."""
    try:
        return not stat.S_ISREG(os.lstat(path).st_mode)
    except OSError:
        return False


def _is_gone(path: Path) -> bool:
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        pass
    return False


def _reserve(descriptor: int, size: int | None) -> None:
    """Allocate the file at once, so that a full disk is an error before the first byte."""
    if not size or not hasattr(os, "posix_fallocate"):
        return
    try:
        os.posix_fallocate(descriptor, 0, size)
    except OSError as error:
        if error.errno not in _NO_FALLOCATE:
            raise


def _fsync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
