"""Files, and the whole path through the decorator: how much it adds to the store, and to what needs no store."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from claimcheck import Pointer
from tests.benchmarks.lab import THRESHOLD, Lab
from tests.benchmarks.rounds import Variant, compare, payload_of, writing
from tests.benchmarks.rows import BEST, Findings, Rows

FILE, ROWS = Rows(), Rows()
_CALLS = 2000
_BARE, _OURS = "store.write, store.read", "cc.offload, cc.resolve"


@FILE.ratio("file write {size} without fsync, against open().write", 64)
def _file_write(lab: Lab, size: int) -> Sequence[Variant]:
    path, payload = lab.folder / "plain", payload_of(size)
    plain = Variant("open().write", lambda: path.write_bytes(payload), lambda _: path.unlink())
    return plain, writing(lab.store(type="filesystem", path=str(lab.folder / "claims"), create=True), payload)


@ROWS.ratio("cc.offload -> Redis -> cc.resolve, {size}, of the store's own rate", 1 / 16, 1, 64)
def _whole(lab: Lab, size: int) -> Sequence[Variant]:
    cc, payload = lab.cc(type="redis", url=lab.redis), payload_of(size)
    store, publish = cc.store("hot"), cc.offload(payload="value")(_publish)

    def bare() -> Pointer:
        pointer = store.write(payload)
        store.read(pointer)
        return pointer

    def through() -> bytes:
        message = publish(payload)
        cc.resolve(message)
        return message

    def remove(message: bytes) -> None:
        if pointer := cc.pointer(message):
            store.rollback(pointer)

    return Variant(_BARE, bare, store.rollback), Variant(_OURS, through, remove)


def _publish(value: bytes) -> bytes:
    """A produce call that costs nothing."""
    return value


@ROWS.findings("a payload below the threshold through cc.offload, without a copy, time added", unit="us")
def _small(lab: Lab, size: int) -> Findings:
    payload = bytes(THRESHOLD // 2)
    publish = lab.cc(type="memory").offload(payload="value")(_publish)
    assert publish(payload) is payload, "a payload below the threshold was copied"

    def calls(function: Callable[[bytes], bytes]) -> None:
        for _ in range(_CALLS):
            function(payload)

    bare, decorated = compare(
        lab.effort,
        _CALLS,
        Variant("the bare function", lambda: calls(_publish)),
        Variant("claimcheck, decorated", lambda: calls(publish)),
        counts="operations",
    )
    added = (decorated.seconds.best - bare.seconds.best) / _CALLS * 1e6
    return Findings((added,), (bare, decorated), BEST)
