"""Defects that the library had, and classic mistakes, put back one at a time: the simulation has to find each."""

from __future__ import annotations

import contextlib
import sys
import types
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from claimcheck._operate import gc, sweep
from claimcheck._receive import assembler, resolver
from claimcheck._send import classification
from claimcheck._send.outbound import Verdict
from claimcheck._store import contract, read
from claimcheck._threads import in_thread
from claimcheck.transports._common.received import StoredPayload
from claimcheck.transports.kafka import KafkaConsumer, _asyncio, _producer
from claimcheck.transports.kafka._partition import Assignment, Offsets, Partition, ReadyMessage
from claimcheck.transports.kafka._receiver import Receiver
from claimcheck.transports.pulsar import PulsarConsumer
from claimcheck.transports.pulsar import _asyncio as _pulsar_asyncio
from claimcheck.transports.pulsar._message import CumulativeAcks
from claimcheck.transports.pulsar._receiver import Receiver as PulsarReceiver
from tests.harness.scheduler import Patch, patched
from tests.simulation.run import Result, Schedule


@dataclass(frozen=True)
class Defect:
    """What is replaced, and the model that finds it."""

    broker: str
    name: str
    patches: tuple[Patch, ...]

    def planted(self) -> contextlib.AbstractContextManager[None]:
        return patched(self.patches)

    def found(self, most: int) -> tuple[int, Result | None]:
        """Run schedules until one fails; returns their number and the failure."""
        with self.planted():
            for seed in range(most):
                result = Schedule(self.broker, seed).run()
                if result.wrong:
                    return seed + 1, result
        return most, None


def _around(owner: Any, name: str, replacement: Callable[..., Any]) -> Patch:
    """Replace a method by a function that gets the method, and then the method's arguments."""
    method = vars(owner)[name]
    return owner, name, lambda *args, **kwargs: replacement(method, *args, **kwargs)


# What replaces the library's own functions -------------------------------------------------------------------------


def _taken_as_delivered(add: Any, receiver: Any, ready: Any) -> None:
    add(receiver, ready)
    if ready.partition is not None:
        ready.partition.offsets.delivered(ready.first, ready.last)


def _looking_ahead_last(hand_out: Any, receiver: Any, count: int, *, look_ahead: bool = False) -> Any:
    messages = hand_out(receiver, count)
    receiver._look_ahead()
    return messages


def _all_plain(receiver: Any, natives: Any) -> None:
    """Let plain records count as delivered although the client is called again."""
    for native in natives:
        offset = native.offset()
        if (offsets := receiver.plain(native)) is not None:
            offsets.delivered_plain(offset)
            receiver._add(ReadyMessage(receiver.assignment.of(native), native, offset, offset))
        else:
            receiver.take(native)


def _unsubscribed(consumer: Any) -> None:
    consumer._native.unsubscribe()
    consumer._receiver.forget()


def _sought(consumer: Any, partition: Any) -> None:
    consumer._native.seek(partition)
    consumer._assignment.find(partition).offsets.read = partition.offset


def _one_too_far(safe: Any, partition: Any, upto: int) -> Any:
    place = safe(partition, upto)
    place.offset += 1
    return place


def _unpinned(window: Any, envelope: Any) -> None:
    data = bytes(envelope.data or b"")
    window._wait_while(lambda: window._in_flight > 0 and window._bytes + len(data) > window.window_bytes)
    window._produce(envelope, data, len(data))


def _only_when_idle(tick: Any, receiver: Any) -> Any:
    """Not for a message that arrives, nor for an acknowledgement."""
    busy = ("feed", "take", "acknowledge", "acknowledge_cumulative")
    return [] if sys._getframe(2).f_code.co_name in busy else tick(receiver)


def _acked(chunk: Any, receiver: Any, native: Any, envelope: Any) -> Any:
    arrivals = chunk(receiver, native, envelope)
    native.consumer.acknowledge(native)
    return arrivals


def _without_since(report: Any, partition: Any, failure: Any) -> Any:
    is_removed = "retention removed" in str(failure.error) and len(failure.slots) == 1
    return report(partition, replace(failure, since=None) if is_removed else failure)


def _without(name: str, empty: Callable[[], Any]) -> Callable[..., Any]:
    """Return what calls a method while an attribute of its object is empty."""

    def call(method: Any, owner: Any, *arguments: Any) -> Any:
        before = getattr(owner, name)
        setattr(owner, name, empty())
        try:
            return method(owner, *arguments)
        finally:
            setattr(owner, name, before)

    return call


async def _taken_before_it_is_read(receiver: Any) -> Any:
    receiver._calls += 1
    async with receiver._one_at_a_time:
        while (message := receiver._blocking.take_ready()) is None:
            await receiver._step()
    if message.stored is not None:
        await in_thread(message.stored.read)
    return message


_unknown_too = property(lambda verdict: verdict.outcome in ("failed", "unknown"))
_never = property(lambda verdict: False)
_set_at_once = types.SimpleNamespace(Event=lambda: types.SimpleNamespace(set=lambda: None, is_set=lambda: True))

KAFKA: dict[str, Patch] = {
    "seek to removed records": (Assignment, "low", lambda *args: 0),
    "an outage is permanent after read-ahead": (
        StoredPayload, "_prefetched", lambda stored: None if stored._ahead is None else stored._ahead.result(),
    ),
    "plain records count as delivered when they arrive": (Receiver, "_take_plain", _all_plain),
    "all records count as delivered when they arrive": _around(Receiver, "_add", _taken_as_delivered),
    "it looks ahead after it has counted": _around(Receiver, "hand_out", _looking_ahead_last),
    "unsubscribe forgets offsets": (KafkaConsumer, "unsubscribe", _unsubscribed),
    "every error is definite": (classification, "classify_error", lambda error: "failed"),
    "the future of a cancelled produce stays open": (_asyncio, "threading", _set_at_once),
    "a failed send reports its envelope": (_producer, "FailedEnvelope", bytes),
    "rollback although the outcome is unknown": (Verdict, "rollback", _unknown_too),
    "no rollback": (Verdict, "rollback", _never),
    "no abort envelope": (Verdict, "abort", _never),
    "commit one too far": _around(Partition, "safe", _one_too_far),
    "commit past incomplete payloads": (Offsets, "safe", lambda offsets, upto, unsettled: upto),
    "looking back forgets rereads": _around(Partition, "safe", _without("rereads", dict)),
    "seek clears nothing": (KafkaConsumer, "seek", _sought),
    "messages of revoked partitions stay": (Receiver, "drop", lambda *args: None),
    "messages of paused partitions are returned": (Receiver, "_is_paused", lambda *args: False),
    "keys are used again": (contract.StoreContract, "_key", lambda *args, **kwargs: "claimcheck-same"),
    "checksums are not compared": _around(
        read, "differs", lambda differs, *args: None if args[1] == "checksum" else differs(*args)
    ),
    "a collection has no grace period": _around(
        gc.Collection, "__init__", lambda init, *args, **options: init(*args, **options | {"grace_seconds": 0})
    ),
    "a collection reads nothing": (gc.Run, "_read", lambda run: iter(())),
    "a collection trusts its own clock": (sweep, "check_clock", lambda *args: None),
    "another cluster's claim is not checked": (gc.Run, "_check_claims", lambda run, **options: None),
    "chunks go to any partition": (_producer.InFlightWindow, "send", _unpinned),
    "chunks never expire": (assembler.Assembler, "tick", lambda assembler: []),
    "a reported payload is not marked": (Partition, "_mark_reported", lambda *args: None),
    "a removed payload settles nothing": _around(Partition, "_report", _without_since),
}  # fmt: skip
PULSAR: dict[str, Patch] = {
    "receives that are given up put expiry off": (
        PulsarReceiver, "seconds_to_tick", property(lambda receiver: 1.0 if receiver.pending_payloads else None),
    ),
    "an acknowledgement covers payloads that wait": _around(PulsarReceiver, "_settle_up_to", _without("_ready", deque)),
    "nothing behind an incomplete payload is acknowledged": _around(
        CumulativeAcks, "up_to", lambda up_to, *args, **options: up_to(*args, **options)._replace(individually=())
    ),
    "a cancelled receive loses its message": (_pulsar_asyncio._AsyncReceiver, "_next", _taken_before_it_is_read),
    "chunks are acknowledged when they arrive": _around(PulsarReceiver, "_chunk", _acked),
    "rollback although the outcome of a send is unknown": (Verdict, "rollback", _unknown_too),
    "chunks do not expire while batches are empty": _around(
        PulsarReceiver, "take", lambda take, receiver, *natives: natives and take(receiver, *natives)
    ),
    "a negative acknowledgement is forgotten": (PulsarConsumer, "_redeliver", lambda *args: None),
}  # fmt: skip
_IDLE = tuple(_around(owner, "tick", _only_when_idle) for owner in (PulsarReceiver, resolver.Resolver))
DEFECTS = [
    *(Defect("kafka", name, (patch,)) for name, patch in KAFKA.items()),
    *(Defect("pulsar", name, (patch,)) for name, patch in PULSAR.items()),
    Defect("pulsar", "chunks expire only while nothing arrives", _IDLE),
]
