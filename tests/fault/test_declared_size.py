"""A pointer may declare any size: what is allocated for it before the bytes are there must not matter."""

import os
import subprocess
import sys
from pathlib import Path

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
