"""A pointer may declare any size: what is allocated for it before the bytes are there must not matter."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import claimcheck

ROOT = str(Path(claimcheck.__path__[0]).parent)
HEAD = """
import io, resource, sys
import claimcheck
from dataclasses import replace
from claimcheck.errors import ClaimCheckError

def print_errors(pointer, *reads):
    resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
    for read in reads:
        try:
            read(pointer)
        except ClaimCheckError as error:
            print(type(error).__name__)
"""
STORED = """
from claimcheck.stores.memory import MemoryStore
store = MemoryStore()
pointer = replace(store.write(b"ten bytes."), size=5 << 30)
print_errors(pointer, store.read, lambda pointer: store.open(pointer).read())
"""
COMPRESSED = """
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
print_errors(forged, store.read, lambda p: store.read_range(p, 0, 3 << 30), lambda p: cc.resolve(cc.seal(p)))
"""


@pytest.mark.parametrize(("program", "errors"), [(STORED, 2), (COMPRESSED, 3)], ids=["stored", "compressed"])
def test_a_declared_size_is_no_reason_to_run_out_of_memory(tmp_path, program, errors):
    """The header of compressed content has no size if it was written from a pipe."""
    pytest.importorskip("zstandard")
    command = [sys.executable, "-P", "-c", HEAD + program, str(tmp_path)]

    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": ROOT}, capture_output=True, text=True, check=False)

    assert done.stdout.splitlines() == ["IntegrityError"] * errors, done.stderr
