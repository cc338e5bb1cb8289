"""A pointer may declare any size: what is allocated for it before the bytes are there must not matter."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import claimcheck

PROGRAM = """
import resource, sys
import claimcheck
from dataclasses import replace
from claimcheck.errors import IntegrityError
from claimcheck.stores.memory import MemoryStore
store = MemoryStore()
pointer = replace(store.write(b"ten bytes."), size=5 << 30)
resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
for read in (store.read, lambda pointer: store.open(pointer).read()):
    try:
        read(pointer)
    except IntegrityError as error:
        print(error.expected, error.actual)
"""


def test_a_declared_size_is_no_reason_to_run_out_of_memory():
    root = str(Path(claimcheck.__path__[0]).parent)
    environment = {**os.environ, "PYTHONPATH": root}

    done = subprocess.run(
        [sys.executable, "-P", "-c", PROGRAM, "", root], env=environment, capture_output=True, text=True, check=False
    )

    assert done.stdout.splitlines() == [f"{5 << 30} 10"] * 2, done.stderr


COMPRESSED = """
import io, os, resource, sys, threading
import claimcheck
from dataclasses import replace
from claimcheck.errors import ClaimCheckError
stores = {"s": {"type": "filesystem", "path": sys.argv[1], "create": True}}
cc = claimcheck.from_dict({"strategy": "external", "compression": {"codec": "zstd"}, "stores": stores})
class Pipe(io.BytesIO):
    def seekable(self):
        return False
    def seek(self, *_):
        raise OSError("a pipe")
    tell = seek
store = cc.store("s")
pointer = store.write(Pipe(b"some text " * 600_000))
assert len(store.read(pointer)) == 6_000_000
forged = replace(pointer, size=3 << 30)
resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
for read in (store.read, lambda p: store.read_range(p, 0, 3 << 30), lambda p: cc.resolve(cc.seal(p))):
    try:
        read(forged)
    except ClaimCheckError as error:
        print(type(error).__name__)
"""


def test_nor_is_one_of_compressed_content(tmp_path):
    """Its header has no size if it was written from a pipe, and the store knows only the compressed one."""
    pytest.importorskip("zstandard")
    root = str(Path(claimcheck.__path__[0]).parent)

    done = subprocess.run(
        [sys.executable, "-P", "-c", COMPRESSED, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": root},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.stdout.splitlines() == ["IntegrityError"] * 3, done.stderr
