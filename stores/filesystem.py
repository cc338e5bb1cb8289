"""Payloads as files below one directory: a local disk, or a volume that all writers and readers mount."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, NoReturn

from claimcheck.errors import PointerRejectedError, StoreError, StoreUnavailableError
from claimcheck.payload import Source
from claimcheck.pointer import Pointer
from claimcheck.reading import Reader
from claimcheck.store import RangeStore
from claimcheck.validation import Check, Seconds, check_arguments

__all__ = ["PARTIAL_SUFFIX", "FilesystemStore"]

PARTIAL_SUFFIX = ".partial"
"""How the hidden name of an unfinished payload ends; one that is long untouched was left by a writer that died."""

_PATH = Check(lambda path: bool(path) and "\0" not in path, "the path of a directory")
_STEP_BYTES = 256 << 10  # little enough to lie in the processor's cache still when it was written and is checksummed
_NO_FALLOCATE = {errno.EOPNOTSUPP, errno.EINVAL, errno.ENODEV, errno.ENOSYS}
_NOT_REACHED = {errno.ESTALE, errno.ENOTCONN, errno.EHOSTDOWN, errno.EHOSTUNREACH}


class FilesystemStore(RangeStore):
    """One file per payload, complete or not there at all, for threads and processes alike.

    A payload grows under a hidden name in the same directory and gets its own name when it is whole.

    Args:
        path: The directory, made at the first write; ``~`` is the home directory.
        ttl_seconds: Written into pointers; files are removed by ``claimcheck sweep``, not by time.
        fsync: Whether `write` returns only when file and name are on the disk, safe from a power cut.
    """

    def __init__(self, *, path: Annotated[str, _PATH], ttl_seconds: Seconds | None = None, fsync: bool = False) -> None:
        check_arguments(FilesystemStore, path=os.fspath(path))
        self._root = Path(os.path.abspath(os.path.expanduser(path)))
        self._fsync = fsync
        self.ttl_seconds = ttl_seconds

    def __repr__(self) -> str:
        return f"<FilesystemStore {self.name!r} at {self._root}>"

    def check(self, pointer: Pointer) -> None:
        """Refuse what the base refuses, and every key that is not the plain name of a finished payload."""
        super().check(pointer)
        if "/" in pointer.key or pointer.key.startswith("."):
            self._reject(pointer, "scope", "has a key that is no plain file name")

    def _write(self, pointer: Pointer, source: Source) -> None:
        partial = os.path.join(self._root, f".{pointer.key}.{secrets.token_hex(4)}{PARTIAL_SUFFIX}")
        try:
            with self._create(partial) as descriptor:
                _reserve(descriptor, source.size)
                for piece in source.pieces(_STEP_BYTES):
                    _write_all(descriptor, piece)
                if self._fsync:
                    os.fsync(descriptor)
            os.replace(partial, os.path.join(self._root, pointer.key))
        except BaseException:
            with contextlib.suppress(OSError):  # the first error says more, and a sweep knows these names
                Path(partial).unlink()
            raise
        if self._fsync:
            _fsync_directory(self._root)

    def _open(self, pointer: Pointer, start: int, stop: int | None) -> Reader:
        descriptor = self._descriptor(pointer)
        try:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode):
                self._not_a_payload(pointer)
            self.check_size(pointer, found.st_size)
            return _FileReader(descriptor, start)
        except BaseException:
            os.close(descriptor)
            raise

    def _delete(self, pointer: Pointer) -> None:
        path = self._root / pointer.key
        try:
            path.unlink(missing_ok=True)
        except OSError:  # a read-only disk refuses to remove even what is not there
            if not _is_gone(path):
                raise

    def _translate(self, error: Exception) -> type[StoreError] | None:
        if isinstance(error, OSError) and error.errno in _NOT_REACHED:
            return StoreUnavailableError
        return super()._translate(error)

    @contextlib.contextmanager
    def _create(self, path: str) -> Iterator[int]:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            descriptor = os.open(path, flags, 0o666)
        except FileNotFoundError:
            self._root.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(path, flags, 0o666)
        with _closing(descriptor):
            yield descriptor

    def _descriptor(self, pointer: Pointer) -> int:
        """Open without following a link and without waiting for the other end of a pipe."""
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            return os.open(os.path.join(self._root, pointer.key), flags)
        except FileNotFoundError as error:
            self._check_mounted(pointer, error)
            raise
        except OSError as error:
            if error.errno == errno.ELOOP:
                self._not_a_payload(pointer)
            raise

    def _check_mounted(self, pointer: Pointer, error: Exception) -> None:
        """A volume that is not mounted must not look like payloads that are gone."""
        if not self._root.is_dir():
            raise StoreUnavailableError(
                f"store {self.name!r}: there is no directory {self._root} on this machine; is its volume mounted?",
                store=self.name,
                key=pointer.key,
            ) from error

    def _not_a_payload(self, pointer: Pointer) -> NoReturn:
        raise PointerRejectedError(
            f"store {self.name!r} will not follow the pointer to {pointer.key!r}: there is no plain file of that name",
            reason="scope",
            store=pointer.store,
            key=pointer.key,
        )


class _FileReader:
    """Reads at places that it knows itself: a process that was forked meanwhile would move on in the same file."""

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


@contextlib.contextmanager
def _closing(descriptor: int) -> Iterator[None]:
    try:
        yield
    finally:
        os.close(descriptor)


def _is_gone(path: Path) -> bool:
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        pass
    return False


def _reserve(descriptor: int, size: int | None) -> None:
    """Have a full disk said before the first byte, and the file laid out in one go."""
    if not size or not hasattr(os, "posix_fallocate"):
        return
    try:
        os.posix_fallocate(descriptor, 0, size)
    except OSError as error:
        if error.errno not in _NO_FALLOCATE:
            raise


def _write_all(descriptor: int, piece: memoryview) -> None:
    while len(piece):
        piece = piece[os.write(descriptor, piece) :]


def _fsync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    with _closing(descriptor):
        os.fsync(descriptor)
