"""Peak extra memory, each figure of a process of its own."""

from __future__ import annotations

from functools import partial

import claimcheck
from tests.benchmarks.children import fresh, peak_extra
from tests.benchmarks.lab import Lab
from tests.benchmarks.redis_rows import stream
from tests.benchmarks.rounds import MIB, payload_of
from tests.benchmarks.rows import Findings, Rows

ROWS = Rows()
NOTE = "VmHWM of a fresh process, after a warm-up with a small payload"


def _measure(lab: Lab, size: int, job: str) -> Findings:
    taken = fresh(_peak, job, lab.redis, size)
    return Findings((taken / (size if job == "read" else MIB),), note=NOTE)


for _job, _what, _unit in (
    ("write", "write of bytes", "MiB"),
    ("read", "read to bytes", "payloads"),
    ("stream", "stream read", "MiB"),
):
    ROWS.findings(f"Redis {_what} {{size}}, peak extra memory", mib=256, unit=_unit)(partial(_measure, job=_job))


def _peak(job: str, url: str, size: int) -> int:
    config = {"strategy": "external", "stores": {"hot": {"type": "redis", "url": url}}}
    with claimcheck.from_dict(config) as cc:
        _once(cc.store("hot"), job, MIB // 16)
        return _once(cc.store("hot"), job, size)


def _once(store: claimcheck.Store, job: str, size: int) -> int:
    payload = payload_of(size)
    if job == "write":
        pointers: list[claimcheck.Pointer] = []
        taken = peak_extra(lambda: pointers.append(store.write(payload)))
        store.rollback(pointers[0])
        return taken
    pointer = store.write(payload)
    if job == "read":
        taken = peak_extra(lambda: store.read(pointer))
    else:
        taken = peak_extra(lambda: stream(store.open(pointer), bytearray(MIB)))
    store.rollback(pointer)
    return taken
