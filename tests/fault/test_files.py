"""Disks that are full, read-only, gone or worn, and writers that are killed: typed errors, and nothing half done."""

import contextlib
import errno
import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import claimcheck
from claimcheck.errors import IntegrityError, PayloadNotFoundError, PointerRejectedError, StoreError
from claimcheck.stores._files import PARTIAL_SUFFIX
from claimcheck.stores.filesystem import FilesystemStore
from tests.fault.rig import MIB, READINGS, TriggerFile, assert_healthy, assert_unavailable, content

PAYLOAD = content(5 * MIB + 1000)
ALL_READINGS = pytest.mark.parametrize("read", READINGS.values(), ids=READINGS)


@pytest.fixture
def store(tmp_path):
    """After each test it works, and has no more files open than before."""
    store = FilesystemStore(path=str(tmp_path / "claims"))
    (tmp_path / "claims").mkdir()
    before = len(os.listdir("/proc/self/fd"))
    yield store
    assert_healthy(store)
    assert len(os.listdir("/proc/self/fd")) <= before


@pytest.fixture
def folder(store, tmp_path):
    return tmp_path / "claims"


@pytest.fixture
def pointer(store):
    return store.write(PAYLOAD)


def nothing_happens(size):
    """A file of unknown size."""
    return TriggerFile(bytes(size), lambda: None)


class TestFullDisk:
    def assert_refused(self, store, folder, payload, text):
        with pytest.raises(StoreError, match=text) as caught:
            store.write(payload)
        assert type(caught.value) is StoreError
        assert list(folder.iterdir()) == []

    def test_is_said_before_the_first_byte(self, store, folder, monkeypatch):
        def full(*_):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        monkeypatch.setattr(os, "posix_fallocate", full)

        self.assert_refused(store, folder, bytes(MIB), "No space left")
        monkeypatch.undo()

    def test_in_mid_payload_of_unknown_size(self, store, folder, monkeypatch):
        write = os.write

        def full(descriptor, data):
            if os.fstat(descriptor).st_size >= 2 * MIB:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return write(descriptor, data)

        monkeypatch.setattr(os, "write", full)

        self.assert_refused(store, folder, nothing_happens(4 * MIB), "No space left")
        monkeypatch.undo()

    def test_as_the_kernel_says_it(self, store, folder):
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (MIB + 5, hard))
        try:
            self.assert_refused(store, folder, bytes(4 * MIB), "File too large")
            self.assert_refused(store, folder, nothing_happens(4 * MIB), "File too large")
            assert store.write(bytes(MIB)).size == MIB
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    def test_on_a_real_small_disk(self, store, folder):
        with mounted(folder, "size=3m"):
            self.assert_refused(store, folder, bytes(4 * MIB), "No space left")
            self.assert_refused(store, folder, nothing_happens(4 * MIB), "No space left")
            assert_healthy(store)

    def test_leaves_the_first_error_when_tidying_up_fails_too(self, store, monkeypatch):
        def fail(*_, **__):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))

        monkeypatch.setattr(os, "posix_fallocate", fail)
        monkeypatch.setattr(os, "unlink", fail)

        with pytest.raises(StoreError, match="Read-only"):
            store.write(bytes(MIB))
        monkeypatch.undo()


def test_killed_writer_leaves_no_payload_but_a_name_that_tells(tmp_path):
    program = """
import os, sys
from claimcheck._registry import build_store
from claimcheck.config import StoreConfig
class Deadly:
    left = 3
    def read(self, size):
        Deadly.left -= 1
        if not Deadly.left:
            os.kill(os.getpid(), 9)
        return bytes(size)
build_store(StoreConfig("filesystem", {"path": sys.argv[1]}), path="disk").write(Deadly(), destination="orders")
"""
    root = Path(claimcheck.__path__[0]).parent
    environment = {**os.environ, "PYTHONPATH": str(root)}

    done = subprocess.run([sys.executable, "-P", "-c", program, str(tmp_path), str(root)], env=environment, check=False)

    assert done.returncode == -9
    (left,) = (path for path in tmp_path.rglob("*") if path.is_file())
    assert left.name.startswith(".orders-")
    assert left.name.endswith(PARTIAL_SUFFIX)


class TestOtherDisks:
    def test_read_only(self, store, folder):
        with mounted(folder, "size=20m"):
            pointer = store.write(PAYLOAD)
            subprocess.run(["mount", "-o", "remount,ro", str(folder)], check=True)

            for work in (lambda: store.write(b"payload"), lambda: store.rollback(pointer)):
                with pytest.raises(StoreError, match="Read-only"):
                    work()
            assert all(read(store, pointer) == PAYLOAD for read in READINGS.values())

    def test_not_mounted_is_not_gone(self, store, folder, pointer):
        folder.rename(folder.with_name("elsewhere"))

        for read in READINGS.values():
            assert_unavailable(lambda read=read: read(store, pointer))
        assert_unavailable(lambda: store.write(PAYLOAD))
        assert not folder.exists()

        folder.with_name("elsewhere").rename(folder)
        assert store.read(pointer) == PAYLOAD

    def test_removed_while_a_payload_is_written(self, store, folder):
        with pytest.raises(StoreError):
            store.write(TriggerFile(PAYLOAD, lambda: shutil.rmtree(folder)))

        assert not folder.exists()
        folder.mkdir()

    def test_a_file_where_the_folder_should_be(self, store, folder):
        folder.rmdir()
        folder.write_bytes(b"not a folder")
        with pytest.raises(StoreError):
            store.write(b"payload")
        folder.unlink()
        folder.mkdir()


class TestDamaged:
    @ALL_READINGS
    def test_no_file(self, store, folder, pointer, read):
        (folder / pointer.key).unlink()
        (folder / pointer.key).mkdir()

        with pytest.raises(PointerRejectedError):
            read(store, pointer)

    def test_removed_while_it_is_read_is_still_whole(self, store, pointer):
        with store.open(pointer) as file:
            got = file.read(MIB)
            store.rollback(pointer)
            assert got + file.read() == PAYLOAD

    @pytest.mark.parametrize("size", [0, 3 * MIB, len(PAYLOAD) - 1])
    def test_truncated_while_it_is_read(self, store, folder, pointer, size):
        with store.open(pointer) as file:
            file.read(10)
            os.truncate(folder / pointer.key, size)
            with pytest.raises(IntegrityError):
                file.read()

    def test_changed_while_it_is_read(self, store, folder, pointer):
        with store.open(pointer) as file:
            file.read(10)
            with (folder / pointer.key).open("r+b") as other:
                other.seek(4 * MIB)
                other.write(b"changed")
            with pytest.raises(IntegrityError):
                file.read()

    def test_longer_while_it_is_read(self, store, folder, pointer):
        """What comes behind the payload's end is not the payload, and does not harm it."""
        with store.open(pointer) as file:
            got = file.read(10)
            with (folder / pointer.key).open("ab") as other:
                other.write(b"more")
            with contextlib.suppress(IntegrityError):
                assert got + file.read() == PAYLOAD

    @pytest.mark.parametrize("error", [errno.EIO, errno.ESTALE])
    def test_unreadable(self, store, pointer, monkeypatch, error):
        """A worn disk, or a network file system whose server is away."""

        def fail(*_):
            raise OSError(error, os.strerror(error))

        monkeypatch.setattr(os, "fstat", fail)
        for read in READINGS.values():
            with pytest.raises(StoreError) as caught:
                read(store, pointer)
            assert not isinstance(caught.value, PayloadNotFoundError)
        monkeypatch.undo()


class TestBrokenPayload:
    @pytest.mark.parametrize("at", [0, 10, MIB, 5 * MIB])
    def test_leaves_nothing(self, store, folder, at):
        def fail():
            raise OSError("the other disk is on fire")

        with pytest.raises(Exception, match="on fire"):
            store.write(TriggerFile(PAYLOAD, fail, at=at))

        assert list(folder.iterdir()) == []


@contextlib.contextmanager
def mounted(folder, options):
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)], capture_output=True, check=False
    )
    if done.returncode:
        pytest.skip("only root may mount a small disk")
    try:
        yield
    finally:
        subprocess.run(["umount", str(folder)], check=True)
