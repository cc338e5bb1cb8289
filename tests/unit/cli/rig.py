"""The command line run in this process or in one of its own, and what it leaves behind."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

import claimcheck
from claimcheck.cli._commands import commands

PAYLOAD = os.urandom(3_000_000)
ROOT = Path(__file__).resolve().parents[3]
CONFIG = """
store: disk
stores:
  disk: {type: filesystem, path: claims, create: true, ttl_seconds: 604800}
"""
SIGNED = CONFIG + "signing: {key_id: k1, keys: {k1: '${TEST_KEY:-a secret of tests}'}, require: true}\n"

CODE = """
import atexit, os, sys
if "SHOW_MEMORY" in os.environ:  # not ru_maxrss, which begins with the memory of whoever started this process
    peak = lambda: next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM"))
    atexit.register(lambda: print(int(peak()) >> 10, file=sys.stderr))
from claimcheck.__main__ import main
main()
"""

# A payload that never ends.
SLOW = f"""
import io, time
import claimcheck
class Slow(io.RawIOBase):
    def read(self, size=-1):
        time.sleep(0.01)
        return b"x"
claimcheck._receive.messages.MessageReader.open = lambda self, pointer: Slow()
{CODE}"""


def run(*arguments: object, stdin: bytes | None = None) -> Result:
    return CliRunner().invoke(commands, [str(argument) for argument in arguments], input=stdin)


def ok(*arguments: object, stdin: bytes | None = None) -> Result:
    result = run(*arguments, stdin=stdin)
    assert result.exit_code == 0, result.output
    return result


def command(*arguments: object, code: str = CODE, **more: str) -> dict:
    """What starts the command line in a process of its own."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path), **more}
    return {"args": [sys.executable, "-c", code, *(str(argument) for argument in arguments)], "env": environment}


def start(*arguments: object, code: str = CODE, environment: dict[str, str] | None = None, **options):
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
    return subprocess.run(**command(*arguments, code=code, **(environment or {})), check=False, **options)


def put(payload: Any = PAYLOAD) -> bytes:
    """Store a payload, whatever its size, and return its envelope."""
    with claimcheck.load("claimcheck.yaml") as cc:
        return cc.seal(cc.store("disk").write(payload, destination="cli"))


def claims(here: Path) -> list[Path]:
    return [path for path in (here / "claims").rglob("*") if path.is_file()]


def visible(here: Path) -> set[str]:
    return {path.name for path in here.iterdir()} - {"claimcheck.yaml", "payload", "claims"}


def is_one_line(result: Result) -> bool:
    return result.stderr.startswith("claimcheck: ") and result.stderr.count("\n") == 1
