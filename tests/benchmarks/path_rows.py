"""The whole path through the decorator: how much it adds to the store, and to messages that need no store."""

from __future__ import annotations

import timeit
from collections.abc import Callable
from functools import partial

from claimcheck import ClaimCheck, Store
from claimcheck._wire.pointer import Pointer
from tests.benchmarks.lab import THRESHOLD, Lab
from tests.benchmarks.rounds import Effort, Variant, compare, payload_of, size_text
from tests.benchmarks.rows import Findings, Step, Target
from tests.benchmarks.series import times_as_fast

_CALLS = 2000
_OFFLOADS = 20  # so few that their payloads stay in the processor's cache, which is not what is compared
_BEST = "between the best rounds of each"


def steps(effort: Effort) -> list[Step]:
    """List the runs."""

    def whole(mib: float, bound: float) -> Step:
        what = f"cc.offload -> Redis -> cc.resolve, {size_text(effort.size(mib))}, of the store's own rate"
        target = Target(f"path-{int(mib * 1024)}k", what, bound)
        return Step((target,), partial(_whole, size=effort.size(mib)))

    size = effort.size(1 / 16)
    what = f"cc.offload -> memory -> cc.resolve, {size_text(size)}, time added to the bare store"
    added = Target("path-added-64k", what, 40, "us", at_most=True)
    small = (
        Target("small-added", "a payload below the threshold through cc.offload, time added", 1, "us", at_most=True),
        Target("small-copies", "a payload below the threshold through cc.offload, copies", 0, "copies", at_most=True),
    )
    return [
        whole(1 / 16, 0.80),
        whole(1, 0.95),
        whole(64, 0.98),
        Step((added,), partial(_added, size=size)),
        Step(small, _small),
    ]


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


def _added(lab: Lab, size: int) -> Findings:
    """Compare many calls per round with a store that does hardly anything: the time of one disappears in the noise."""
    cc, payload = lab.cc(type="memory", space="path-added"), payload_of(size)
    store, publish = cc.store("hot"), cc.offload(payload="value", destination="topic", headers="headers")(_publish_to)

    def through() -> None:
        for _ in range(_OFFLOADS):
            cc.resolve(publish("orders", payload), destination="orders")

    def bare() -> None:
        for _ in range(_OFFLOADS):
            store.read(store.write(payload, destination="orders"))

    def clean(_: object) -> None:
        store.delete(store.scan())

    variants = Variant("store.write, store.read", bare, clean), Variant("cc.offload, cc.resolve", through, clean)
    base, ours = compare(lab.effort, _OFFLOADS, *variants, counts="operations")
    return Findings(((ours.seconds.best - base.seconds.best) / _OFFLOADS * 1e6,), (base, ours), _BEST)


def _publish_to(topic: str, value: bytes, headers: object = None) -> bytes:
    """A produce call that costs nothing, with all that most of them have."""
    return value


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
    added = (decorated.seconds.best - bare.seconds.best) / _CALLS * 1e6
    return Findings((added, float(publish(payload) is not payload)), (bare, decorated), _BEST)


def _calls(function: Callable[[bytes], bytes], payload: bytes) -> float:
    return timeit.timeit(lambda: function(payload), number=_CALLS)
