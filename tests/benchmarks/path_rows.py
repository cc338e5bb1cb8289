"""The whole path through the decorator: how much it adds to the store, and to messages that need no store."""

from __future__ import annotations

import timeit
from collections.abc import Callable
from functools import partial

from claimcheck import ClaimCheck, Store
from claimcheck._pointer import Pointer
from tests.benchmarks.lab import THRESHOLD, Lab
from tests.benchmarks.rounds import Effort, Variant, compare, payload_of, size_text
from tests.benchmarks.rows import Findings, Step, Target
from tests.benchmarks.series import times_as_fast

_CALLS = 2000


def steps(effort: Effort) -> list[Step]:
    """List the runs."""

    def whole(mib: float, bound: float) -> Step:
        what = f"cc.offload -> Redis -> cc.resolve, {size_text(effort.size(mib))}, of the store's own rate"
        target = Target(f"path-{int(mib * 1024)}k", what, bound)
        return Step((target,), partial(_whole, size=effort.size(mib)))

    small = (
        Target("small-added", "a payload below the threshold through cc.offload, time added", 5, "us", at_most=True),
        Target("small-copies", "a payload below the threshold through cc.offload, copies", 0, "copies", at_most=True),
    )
    return [whole(1 / 16, 0.80), whole(1, 0.95), whole(64, 0.98), Step(small, _small)]


def _whole(lab: Lab, size: int) -> Findings:
    cc, payload = lab.cc(type="redis", url=lab.redis), payload_of(size)
    store, publish = cc.store("hot"), cc.offload(payload="value")(_publish)
    sent: list[bytes] = []  # what travels

    def through() -> None:
        sent[:] = [publish(payload)]
        cc.resolve(sent[0])

    base, ours = compare(
        lab.effort,
        size,
        Variant("store.write, store.read", lambda: _bare(store, payload), store.rollback),
        Variant("cc.offload, cc.resolve", through, lambda _: _remove(cc, sent[0])),
    )
    return Findings((times_as_fast(ours, base),), (base, ours))


def _publish(value: bytes) -> bytes:
    """A produce call that costs nothing."""
    return value


def _bare(store: Store, payload: bytes) -> Pointer:
    pointer = store.write(payload)
    store.read(pointer)
    return pointer


def _remove(cc: ClaimCheck, message: bytes) -> None:
    pointer = cc.pointer(message)
    assert pointer is not None
    cc.store("hot").rollback(pointer)


def _small(lab: Lab) -> Findings:
    payload = bytes(THRESHOLD // 2)
    publish = lab.cc(type="memory").offload(payload="value")(_publish)
    bare, decorated = compare(
        lab.effort,
        _CALLS,
        Variant("the bare function", lambda: _calls(_publish, payload)),
        Variant("decorated", lambda: _calls(publish, payload)),
        counts="operations",
    )
    added = (decorated.seconds.median - bare.seconds.median) / _CALLS * 1e6
    return Findings((added, float(publish(payload) is not payload)), (bare, decorated))


def _calls(function: Callable[[bytes], bytes], payload: bytes) -> float:
    return timeit.timeit(lambda: function(payload), number=_CALLS)
