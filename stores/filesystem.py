"""The filesystem store: payloads as files in a directory, local or on a volume that writers and readers mount."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import re
import stat
import tempfile
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, NoReturn

from claimcheck._content.source import Source
from claimcheck._store.listing import Deletion, IncompleteScanError, KeyLifetime, StoreEntry
from claimcheck._store.store import Store
from claimcheck._validation import Check, Seconds, check_arguments
from claimcheck._wire.buffers import Reader
from claimcheck._wire.pointer import Pointer
from claimcheck.errors import KeyTakenError, StoreError, StoreUnavailableError
from claimcheck.stores._common import bounds, ranges
from claimcheck.stores._files import (
    PARTIAL_SUFFIX,
    FileReader,
    entry_of,
    folder_for,
    folder_of,
    fsync_directory,
    is_gone,
    is_irregular,
    leftover,
    link_new,
    open_without_links,
    parse_in,
    partial_name,
    reserve,
    version_of,
)

__all__ = ["FilesystemStore"]

_PATH = Check(lambda path: bool(re.fullmatch(r"(?!\w[\w+.-]+:/)[^\0]+", path)), "the path of a directory, not a URI")
_OCTAL = re.compile(r"0?o?[0-7]{3}")
_STEP_BYTES = 256 << 10  # small enough to be in the processor's cache still when it is checksummed
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # without waiting for the other end of a pipe
_DIRECTORY = getattr(os, "O_PATH", os.O_RDONLY) | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_CLOEXEC", 0)
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")
_HASH = re.compile(r"[0-9a-f]{2}")
_NO_PAYLOAD = {errno.ENAMETOOLONG, errno.ENOTDIR, errno.ELOOP}
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
    is renamed at the end. Keys begin with sub-folders, the date and two digits of a hash, so that no directory becomes
    large; keys of earlier releases, without folders, are still read.

    Args:
        path: The directory; ``~`` is the home directory. If it does not exist, reads and writes raise
            `StoreUnavailableError`, so that a volume that is not mounted is never mistaken for an empty one. Therefore
            the path should be a directory *on* the volume, not its mount point.
        create: Whether a write creates the directory and its parents.
        ttl_seconds: Written into pointers and keys. ``claimcheck sweep`` deletes payloads by it.
        fsync: Whether `write` returns only after file and name are on the disk, safe from a power failure.
        mode: Permissions of files, as a number or as octal text (``"0640"``). New directories get them, too, with
            search permission wherever there is read permission: 0600 becomes 0700, 0640 becomes 0750.
    """

    max_key_bytes = 255  # the longest file name on all common file systems

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
        self.root = Path(os.path.abspath(os.path.expanduser(path)))
        self._may_create = create
        self._fsync = fsync
        self.mode = _file_mode(mode) or 0o600
        self.ttl_seconds = ttl_seconds

    def __repr__(self) -> str:
        return f"<FilesystemStore {self.name!r} at {self.root}>"

    def uri(self, pointer: Pointer) -> str:
        """Return ``file:///...``."""
        return (self.root / pointer.key).as_uri()

    def check(self, pointer: Pointer) -> None:
        """Reject what the base class rejects, and keys that are not the name of a complete payload in its folder."""
        super().check(pointer)
        name = pointer.key[len(folder_of(pointer.key)) :]
        if not name or "/" in name or name.startswith("."):
            self.reject(pointer, "scope", "has a key that is not a plain file name")

    def _key(self, destination: str, unique: uuid.UUID, *, created_ms: int, expires_ms: int | None) -> str:
        name = super()._key(destination, unique, created_ms=created_ms, expires_ms=expires_ms)
        return f"{folder_for(name, created_ms)}{name}" if name[-37] == "." else name  # before the uuid: it has a time

    def _lifetime_of(self, key: str) -> KeyLifetime | None:
        folder, slash, name = key.rpartition("/")
        return parse_in(f"{folder}{slash}", name)

    def _write(self, pointer: Pointer, source: Source) -> None:
        """Write a hidden file, with a random part in its name, and rename it."""
        publish = link_new if self._is_exclusive(pointer) else os.replace
        folder, name = pointer.key.rpartition("/")[::2]
        partial = partial_name(name)
        path, directory, descriptor = self._create(folder, partial)
        try:
            try:
                self._fill(descriptor, source)
            finally:
                os.close(descriptor)
            publish(path + partial, path + name, src_dir_fd=directory, dst_dir_fd=directory)
        except BaseException:
            with contextlib.suppress(OSError):  # the first error is more useful
                os.unlink(path + partial, dir_fd=directory)
            self._remove_empty(folder)
            raise
        finally:
            if directory is not None:
                os.close(directory)
        if self._fsync:
            self._fsync_directories(folder)

    def _fill(self, descriptor: int, source: Source) -> None:
        if self.mode & 0o077:  # the umask may have taken permissions away, never the owner's own
            os.chmod(descriptor, self.mode)
        if source.size is None or source.size > _STEP_BYTES:  # otherwise the only write fails if the disk is full
            reserve(descriptor, source.size)
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
            return FileReader(descriptor, start)
        except BaseException:
            os.close(descriptor)
            raise

    def _delete(self, pointer: Pointer) -> None:
        folder, name = pointer.key.rpartition("/")[::2]
        try:
            with self._directory(folder) as directory:
                os.unlink(name, dir_fd=directory)
            self._remove_empty(folder)
        except FileNotFoundError as error:
            self._check_mounted(error)
        except OSError:  # a read-only disk refuses to delete even what does not exist
            if not is_gone(self.root / pointer.key):
                raise

    def _wrote_nothing(self, error: BaseException) -> bool:
        return super()._wrote_nothing(error) or isinstance(error.__cause__, FileNotFoundError)

    def _translate(self, error: Exception) -> type[StoreError] | None:
        if isinstance(error, OSError) and error.errno in _NOT_REACHED:
            return StoreUnavailableError
        return KeyTakenError if isinstance(error, FileExistsError) else super()._translate(error)

    @contextlib.contextmanager
    def _directory(self, folder: str) -> Iterator[int]:
        """Open a folder in a block."""
        directory = self._opened(folder)
        try:
            yield directory
        finally:
            os.close(directory)

    def _opened(self, folder: str, *, create: bool = False) -> int:
        """Return the descriptor of a folder; a link is followed only if it is the store's directory itself."""
        directory = os.open(self.root, _DIRECTORY)
        for part in filter(None, folder.split("/")):
            parent = directory
            try:
                directory = self._opened_in(parent, part, create=create)
            finally:
                os.close(parent)
        return directory

    def _opened_in(self, parent: int, name: str, *, create: bool) -> int:
        if create:
            with contextlib.suppress(FileExistsError):
                os.mkdir(name, _search_mode(self.mode), dir_fd=parent)
                if self.mode & 0o077:  # the umask may have taken permissions away, never the owner's own
                    os.chmod(name, _search_mode(self.mode), dir_fd=parent)
        return os.open(name, _DIRECTORY | os.O_NOFOLLOW, dir_fd=parent)

    def _create(self, folder: str, name: str) -> tuple[str, int | None, int]:
        """Open a new file."""
        path = f"{self.root}/{folder}/" if folder else f"{self.root}/"
        descriptor = open_without_links(path + name, _CREATE, self.mode)
        return (path, None, descriptor) if descriptor is not None else ("", *self._create_in(folder, name))

    def _create_in(self, folder: str, name: str, attempts: int = 20) -> tuple[int, int]:
        """Open a new file and its folder; creates the folder, and the store's directory if configured."""
        try:
            directory = self._opened(folder, create=True)
            try:
                return directory, os.open(name, _CREATE, self.mode, dir_fd=directory)
            except BaseException:
                os.close(directory)
                raise
        except FileNotFoundError as error:
            if attempts == 1:
                raise
            if self._may_create:
                make_directory(self.root, _search_mode(self.mode))
            self._check_mounted(error)
            return self._create_in(folder, name, attempts - 1)

    def _remove_empty(self, folder: str) -> None:
        """Delete a folder, and the one above it, if they are empty."""
        with contextlib.suppress(OSError):
            while folder:
                os.rmdir(self.root / folder)
                folder = os.path.dirname(folder)

    def _fsync_directories(self, folder: str) -> None:
        """Write the file's name to the disk, and those of its folders, which may be new."""
        parts = folder.split("/") if folder else []
        for depth in range(len(parts), -1, -1):
            fsync_directory(self.root.joinpath(*parts[:depth]))

    def _descriptor(self, pointer: Pointer) -> int:
        """Open a file without following a link."""
        descriptor = open_without_links(f"{self.root}/{pointer.key}", _READ)
        if descriptor is not None:
            return descriptor
        folder, name = pointer.key.rpartition("/")[::2]
        try:
            with self._directory(folder) as directory:
                return os.open(name, _READ, dir_fd=directory)
        except FileNotFoundError as error:
            self._check_mounted(error)
            raise
        except OSError as error:  # a link, a socket, or lost+found
            if error.errno in _NO_PAYLOAD and self.root.is_dir():
                self._not_a_payload(pointer)
            if is_irregular(self.root / pointer.key):
                self._not_a_payload(pointer)
            raise

    # Listing ---------------------------------------------------------------------------------------------------

    def _scan(self) -> Iterator[StoreEntry]:
        return self._scan_partition("")

    def _scan_partitions(self, count: int) -> list[str]:
        """Divide the folders, in the order of the listing, into ranges."""
        folders: list[str] = []
        for folder in self._folders(""):
            folders.append(folder)
            if _DATE.fullmatch(folder):
                folders += [f"{folder}/{name}" for name in self._folders(folder)]
        return ranges(folders, count)

    def _folders(self, folder: str) -> list[str]:
        """Return the names of the folders in a folder, sorted."""
        try:
            with os.scandir(self.root / folder) as files:
                return sorted(file.name for file in files if file.is_dir(follow_symlinks=False))
        except FileNotFoundError as error:  # deleted meanwhile, or not created yet
            if not self._may_create:
                self._check_mounted(error)
            return []

    def _scan_partition(self, partition: str) -> Iterator[StoreEntry]:
        """List one folder after the other."""
        start, stop = bounds(partition)
        folders: list[str] = []
        errors: list[StoreError] = []
        if start:
            folders = self._folders("")
        else:
            yield from self._list("", folders)
        for folder in sorted(folders):
            if _HASH.fullmatch(folder) and _is_between(start, folder, stop):
                yield from self._list_or_note(folder, [], errors)
            elif _DATE.fullmatch(folder) and start[: len(folder)] <= folder and (not stop or folder < stop):
                yield from self._scan_date(folder, start, stop, errors)
        if errors:
            more = f"; and {len(errors) - 1} more" if errors[1:] else ""
            raise IncompleteScanError(f"{errors[0]}{more}", store=self.name, errors=tuple(errors))

    def _scan_date(self, date: str, start: str, stop: str, errors: list[StoreError]) -> Iterator[StoreEntry]:
        folders: list[str] = []
        yield from (e for e in self._list_or_note(date, folders, errors) if _is_between(start, date, stop))
        for folder in sorted(filter(_HASH.fullmatch, folders)):
            if _is_between(start, f"{date}/{folder}", stop):
                yield from self._list_or_note(f"{date}/{folder}", [], errors)

    def _list_or_note(self, folder: str, folders: list[str], errors: list[StoreError]) -> Iterator[StoreEntry]:
        """List one folder; adds an error about this folder alone to ``errors``."""
        try:
            yield from self._list(folder, folders)
        except OSError as error:
            if error.errno in _NOT_REACHED:
                raise
            text = f"store {self.name!r}: the folder {folder} cannot be listed: {error.strerror}"
            errors.append(StoreError(text, store=self.name))

    def _list(self, folder: str, folders: list[str]) -> Iterator[StoreEntry]:
        """Yield the entries of one folder, and add the names of the folders in it."""
        is_empty, parent = True, f"{folder}/" if folder else ""
        try:
            with os.scandir(self.root / folder) as files:
                for file in files:
                    is_empty = False
                    if file.is_dir(follow_symlinks=False):
                        folders.append(file.name)
                    elif (entry := entry_of(parent, file)) is not None:
                        yield entry
        except FileNotFoundError as error:  # deleted meanwhile, or not created yet
            if not self._may_create:
                self._check_mounted(error)
            return
        if is_empty and folder:
            with contextlib.suppress(FileNotFoundError):
                yield leftover(f"{folder}/", os.lstat(self.root / folder))

    def _server_time(self) -> float:
        """Return the time of a new file, which a file server sets."""
        with tempfile.NamedTemporaryFile(dir=self.root, prefix=".", suffix=PARTIAL_SUFFIX) as file:
            return os.fstat(file.fileno()).st_mtime

    def _discard(self, entries: Sequence[StoreEntry]) -> Iterator[Deletion]:
        for folder, group in itertools.groupby(entries, key=lambda entry: entry.key.rstrip("/").rpartition("/")[0]):
            some = list(group)
            try:
                with self._directory(folder) as directory:
                    yield from (self._discard_one(entry, directory) for entry in some)
                self._remove_empty(folder)
            except FileNotFoundError as error:  # the folder is gone, with all that was in it
                self._check_mounted(error)
                yield from (Deletion(entry, "gone") for entry in some)
            except OSError as error:
                yield from (self._failed(entry, error) for entry in some)

    def _discard_one(self, entry: StoreEntry, directory: int) -> Deletion:
        name = entry.key.rstrip("/").rpartition("/")[2]
        try:
            if entry.key.endswith("/"):
                os.rmdir(name, dir_fd=directory)
            elif entry.kind == "leftover" and entry.version != version_of(os.stat(name, dir_fd=directory)):
                return Deletion(entry, "changed")
            else:
                os.unlink(name, dir_fd=directory)
        except FileNotFoundError:
            return Deletion(entry, "gone")
        except OSError as error:
            if error.errno == errno.ENOTEMPTY:  # a folder that is in use again
                return Deletion(entry, "changed")
            return self._failed(entry, error)
        return Deletion(entry, "deleted")

    def _check_mounted(self, error: Exception) -> None:
        """Raise an error if the directory does not exist: its payloads may not be gone, but not mounted."""
        if not self.root.is_dir():
            raise not_mounted(self.root, store=self.name) from error

    def _not_a_payload(self, pointer: Pointer) -> NoReturn:
        self.reject(pointer, "scope", "does not name a regular file")


def _is_between(start: str, folder: str, stop: str) -> bool:
    """Whether a folder is in a range; an empty end is no limit."""
    return start <= folder and (not stop or folder < stop)


def _search_mode(mode: int) -> int:
    """Return the permissions of folders: search permission wherever there is read permission."""
    return mode | (mode & 0o444) >> 2


def not_mounted(directory: str | Path, *, store: str) -> StoreUnavailableError:
    """Return the error for a store whose directory does not exist."""
    return StoreUnavailableError(
        f"store {store!r}: the directory {directory} does not exist on this machine. Is its volume mounted? If it is "
        "new, create it; with 'create: true' the first write does that",
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
