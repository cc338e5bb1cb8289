"""Peak extra memory, each figure of a process of its own; memory_child.py is that process."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import ExitStack
from functools import partial
from typing import Any

from tests.benchmarks.lab import HERE, Lab, stored
from tests.benchmarks.rounds import MIB, Effort, payload_of, size_text
from tests.benchmarks.rows import Findings, Step, Target
from tests.benchmarks.s3_rows import patterned

_S3_LIMIT = 64 + 16 + 8  # parts in flight, and those being filled
_WARM_UP = MIB // 16
_NAMES = {"redis": "Redis", "file": "file", "s3": "S3"}


def steps(effort: Effort) -> list[Step]:
    """List the children."""
    size = effort.size(256)

    def step(job: str, store: str, what: str, most: float, unit: str = "MiB") -> Step:
        target = Target(
            f"memory-{job}-{store}", f"{what} {size_text(size)}, peak extra memory", most, unit, at_most=True
        )
        return Step((target,), partial(_measure, job=job, kind=store, size=size, unit=size if unit != "MiB" else MIB))

    return [
        *(step("write", store, f"{name} write of bytes", 2) for store, name in _NAMES.items()),
        *(step("read", store, f"{name} read to bytes", 1.02, "payloads") for store, name in _NAMES.items()),
        step("stream", "redis", "Redis stream read", 4),
        step("file", "redis", "Redis write from a file", 4),
        step("unknown", "s3", "S3 write of unknown length", _S3_LIMIT),
    ]


def _measure(lab: Lab, job: str, kind: str, size: int, unit: int) -> Findings:
    what = {"job": job, "store": _options(lab, kind), "sizes": [_WARM_UP, size], "path": str(lab.folder / "payload")}
    with ExitStack() as stack:
        if job in ("read", "stream"):
            what["messages"] = [_message(lab, kind, stack, some) for some in (_WARM_UP, size)]
        return Findings((_child(what) / unit,), note="VmHWM of a fresh process, after a warm-up with 64 KiB")


def _options(lab: Lab, kind: str) -> dict[str, Any]:
    if kind == "redis":
        return {"type": "redis", "url": lab.redis}
    if kind == "file":
        return {"type": "filesystem", "path": str(lab.folder / "claims"), "create": True}
    return lab.s3_options()


def _message(lab: Lab, kind: str, stack: ExitStack, size: int) -> str:
    """Store a payload until the stack is left, and give what would travel."""
    cc = lab.cc(**_options(lab, kind))
    store = cc.store("hot")
    there = patterned(lab, store, size) if kind == "s3" else stored(store, payload_of(size))
    return cc.seal(stack.enter_context(there)).hex()


def _child(what: dict[str, Any]) -> float:
    """Give the bytes that it took."""
    command = [sys.executable, str(HERE / "memory_child.py"), json.dumps(what)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr.strip().splitlines()[-1])
    return float(done.stdout)
