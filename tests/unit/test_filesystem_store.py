"""What only files and disks can do wrong; tests/conformance has the rest."""

import contextlib
import errno
import os
import resource
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from claimcheck._content.source import Source
from claimcheck._wire.pointer import Pointer
from claimcheck.errors import ConfigError, IntegrityError, PointerRejectedError, StoreError, StoreUnavailableError
from claimcheck.stores import filesystem
from claimcheck.stores._files import PARTIAL_SUFFIX, link_new
from claimcheck.stores.filesystem import FilesystemStore
from tests.fault.rig import MIB, READINGS, TriggerFile, assert_healthy, content

PAYLOAD = content(5 * MIB + 1000)


@pytest.fixture
def store(tmp_path):
    return FilesystemStore(path=str(tmp_path))


def pointer_to(name):
    return Pointer(key=name, store="store", size=6)


def files(folder):
    return [path for path in folder.rglob("*") if not path.is_dir()]


def test_a_payload_is_never_seen_before_it_is_whole(store, tmp_path):
    """A sweep finds by its name what a writer that was killed has left: see tests/unit/test_deletion.py."""
    seen = []

    class Curious:
        parts = [b"one", b"two"]

        def read(self, size):
            seen.extend(path.name for path in files(tmp_path))
            return self.parts.pop(0) if self.parts else b""

    store.write(Curious(), destination="orders")
    assert len(seen) > 2
    assert all(name.startswith(".orders-") and name.endswith(PARTIAL_SUFFIX) for name in seen)


def test_a_link_is_not_followed_unless_it_is_the_directory_itself(store, tmp_path):
    secret = tmp_path.parent / f"{tmp_path.name}-secret"
    secret.write_bytes(b"secret")
    (tmp_path / "link").symlink_to(secret)
    os.mkfifo(tmp_path / "pipe")
    os.mkdir(tmp_path / "real")
    for name in ("link", "pipe", "real"):  # none of which is waited for
        with pytest.raises(PointerRejectedError, match="regular file"):
            store.read(pointer_to(name))
    store.rollback(pointer_to("link"))
    assert secret.read_bytes() == b"secret"
    (tmp_path / "folder").symlink_to(tmp_path / "real")
    other = FilesystemStore(path=str(tmp_path / "folder"))
    assert other.read(other.write(b"payload")) == b"payload"


@pytest.mark.parametrize(
    "key",
    [
        *("a/b", ".hidden", ".orders-1.partial", "ab/.hidden", "2026-01-01/b", "ab/cd/ef", "ab/"),
        *("a" * 256, "\u6f22" * 86),
    ],
)
def test_only_names_of_finished_payloads_are_keys(store, monkeypatch, key):
    monkeypatch.setattr(os, "open", lambda *_: pytest.fail("it was opened"))
    with pytest.raises(PointerRejectedError, match="255 bytes" if len(key) > 85 else "plain file name"):
        store.read(pointer_to(key))


def test_a_volume_that_is_not_mounted_is_unavailable(tmp_path, caplog):
    store = FilesystemStore(path=str(tmp_path / "mnt"))
    orders = pointer_to("orders-1")
    for use, argument in ((store.read, orders), (store.write, b"payload"), (store.rollback, orders)):
        with pytest.raises(StoreUnavailableError, match="mounted") as caught:
            use(argument)
        assert not hasattr(caught.value, "__notes__")
    with pytest.raises(StoreUnavailableError, match="Is its volume mounted"):
        list(store.scan())
    assert caplog.text == ""
    assert not (tmp_path / "mnt").exists()


def test_a_directory_that_the_first_write_creates_is_empty_until_then(tmp_path):
    store = FilesystemStore(path=str(tmp_path / "new"), create=True)
    assert [entry for part in (None, *store.partitions(4)) for entry in store.scan(partition=part)] == []
    assert not (tmp_path / "new").exists()


def permissions(path):
    return oct(path.stat().st_mode & 0o777)


@pytest.mark.parametrize(
    ("mode", "file", "directory"),
    [({}, "0o600", "0o700"), ({"mode": "0640"}, "0o640", "0o750"), ({"mode": 0o666}, "0o666", "0o777")],
    ids=["default", "text", "number"],
)
def test_permissions(tmp_path, mode, file, directory):
    before = os.umask(0o027)
    try:
        pointer = FilesystemStore(path=str(tmp_path / "a" / "b"), create=True, **mode).write(b"payload")
    finally:
        os.umask(before)
    assert [permissions(tmp_path / "a"), permissions(tmp_path / "a" / "b")] == [directory, directory]
    assert permissions(tmp_path / "a" / "b" / pointer.key) == file


@pytest.mark.parametrize("mode", [640, 0o440, 0o755, 0o1600, -1, 0, "640x", "", "rw-------", True, 1.5])
def test_permissions_that_are_none(tmp_path, mode):
    with pytest.raises(ConfigError, match="mode"):
        FilesystemStore(path=str(tmp_path), mode=mode)


def refusing(error):
    def refuse(*_, **__):
        raise OSError(error, os.strerror(error))

    return refuse


@pytest.mark.parametrize(
    ("call", "error", "expected"),
    [
        ("open", errno.ENAMETOOLONG, PointerRejectedError),  # a file system with shorter names
        ("open", errno.ESTALE, StoreUnavailableError),
        ("fstat", errno.ESTALE, StoreUnavailableError),  # a network file system whose server is away
        ("fstat", errno.EIO, StoreError),  # a worn disk
    ],
)
def test_what_the_system_refuses_is_no_payload_that_is_gone(store, monkeypatch, call, error, expected):
    pointer = store.write(b"payload")
    monkeypatch.setattr(filesystem, "open_without_links", lambda *_: None)
    monkeypatch.setattr(os, call, refusing(error))
    for read in READINGS.values():
        with pytest.raises(expected) as caught:
            read(store, pointer)
        assert type(caught.value) is expected
    monkeypatch.undo()


@pytest.mark.parametrize("refused", [errno.EROFS, errno.EACCES])
def test_what_cannot_be_removed_is_said_unless_it_is_gone(store, monkeypatch, refused):
    there, gone = store.write(b"there"), store.write(b"gone")
    store.rollback(gone)
    monkeypatch.setattr(os, "unlink", refusing(refused))
    store.rollback(gone)
    with pytest.raises(StoreError):
        store.rollback(there)


@pytest.mark.parametrize("refused", [errno.EOPNOTSUPP, errno.EINVAL])
def test_disks_that_cannot_reserve(store, monkeypatch, refused):
    monkeypatch.setattr(os, "posix_fallocate", refusing(refused))
    assert store.read(store.write(bytes(1 << 20))) == bytes(1 << 20)


@pytest.mark.parametrize("part", [0, 1])
def test_a_folder_that_is_a_link_is_not_followed(store, tmp_path, part):
    """Not for reading, and not for writing: what is behind it is not the store's."""
    pointer = store.write(b"payload")
    folder = tmp_path / "/".join(pointer.key.split("/")[: part + 1])
    elsewhere = tmp_path.parent / f"{tmp_path.name}-elsewhere"
    folder.rename(elsewhere)
    folder.symlink_to(elsewhere)
    before = files(elsewhere)
    with pytest.raises(PointerRejectedError, match="regular file"):
        store.read(pointer)
    with pytest.raises(OSError, match=r"Not a directory|Too many levels"):
        store._write(replace(pointer, key=f"{pointer.key}x"), Source(b"other", limit=5))
    assert files(elsewhere) == before


def test_without_openat2_all_is_the_same(store, tmp_path, monkeypatch):
    monkeypatch.setattr(filesystem, "open_without_links", lambda *_: None)
    pointer = store.write(b"payload", destination="orders")
    assert store.read(pointer) == (tmp_path / pointer.key).read_bytes() == b"payload"


def test_a_file_that_grew_after_it_was_opened_is_refused(store, tmp_path, monkeypatch):
    pointer = store.write(b"payload")
    check = FilesystemStore.check_size

    def grow(*args):
        check(*args)
        (tmp_path / pointer.key).write_bytes(b"payload and more")

    monkeypatch.setattr(FilesystemStore, "check_size", grow)
    with pytest.raises(IntegrityError, match="expected 7"):
        store.read(pointer)


@pytest.mark.parametrize("refused", [None, errno.EPERM, errno.EOPNOTSUPP])
def test_a_name_that_is_taken_stays_as_it_is_unless_there_are_no_links(tmp_path, monkeypatch, refused):
    if refused is not None:
        monkeypatch.setattr(os, "link", refusing(refused))
    for name, text in (("partial", b"new"), ("other", b"newer"), ("name", b"old")):
        (tmp_path / name).write_bytes(text)
    link_new(str(tmp_path / "partial"), str(tmp_path / "free"))
    with contextlib.suppress(FileExistsError):
        link_new(str(tmp_path / "other"), str(tmp_path / "name"))
    assert (tmp_path / "free").read_bytes() == b"new"
    assert (tmp_path / "name").read_bytes() == (b"old" if refused is None else b"newer")
    assert not (tmp_path / "partial").exists()


def test_fsync_is_for_the_file_and_then_for_its_name(tmp_path, monkeypatch):
    synced, fsync = [], os.fsync

    def spy(descriptor):
        synced.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")).name)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", spy)
    store = FilesystemStore(path=str(tmp_path), fsync=True)
    pointer = store.write(b"payload")
    assert store.read(pointer) == b"payload"
    date, folder, name = pointer.key.split("/")
    assert synced[0].startswith(f".{name}.")
    assert synced[1:] == [folder, date, tmp_path.name]


# Disks that are full, read-only, gone or worn, and writers that are killed --------------------------------------------


@pytest.fixture
def works_again(store):
    """After the test the store works, and has no more files open than before."""
    before = len(os.listdir("/proc/self/fd"))
    yield
    assert_healthy(store)
    assert len(os.listdir("/proc/self/fd")) <= before


def test_a_full_disk_as_the_kernel_says_it(store, works_again, tmp_path):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (MIB + 5, hard))
    try:
        for payload in (bytes(4 * MIB), TriggerFile(bytes(4 * MIB), lambda: None)):  # of known and of unknown size
            with pytest.raises(StoreError, match="File too large") as caught:
                store.write(payload)
            assert type(caught.value) is StoreError
            assert list(tmp_path.iterdir()) == []
        assert store.write(bytes(MIB)).size == MIB
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_folder_that_is_removed_while_a_payload_is_written(store, works_again, tmp_path):
    with pytest.raises(StoreError):
        store.write(TriggerFile(PAYLOAD, lambda: shutil.rmtree(tmp_path)))
    assert not tmp_path.exists()
    tmp_path.mkdir()
