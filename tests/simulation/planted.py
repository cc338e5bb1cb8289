"""Defects that the library had, and classic mistakes, put back one at a time: the simulation has to find each."""

from __future__ import annotations

import contextlib
import sys
import types
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from claimcheck._receive import assembler as _assembler
from claimcheck._receive import resolver as _resolver
from claimcheck._send import classification as _classification
from claimcheck._send import outbound as _sending
from claimcheck._store import contract as _store_contract
from claimcheck._store import read as _store_read
from claimcheck._threads import in_thread
from claimcheck.transports._common.received import StoredPayload
from claimcheck.transports.kafka import _asyncio, _producer
from claimcheck.transports.kafka._consumer import KafkaConsumer
from claimcheck.transports.kafka._partition import Assignment, Offsets, Partition, ReadyMessage
from claimcheck.transports.kafka._producer import InFlightWindow
from claimcheck.transports.kafka._receiver import Receiver
from claimcheck.transports.pulsar import PulsarConsumer, _receiver
from claimcheck.transports.pulsar import _asyncio as _pulsar_asyncio
from claimcheck.transports.pulsar._message import CumulativeAcks
from tests.simulation.run import Result, Schedule
from tests.simulation.scheduler import Patch, patched


@dataclass(frozen=True)
class Defect:
    """What is replaced, and the model that finds it."""

    name: str
    broker: str
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


# What replaces the library's own functions -------------------------------------------------------------------------


def _result_of_read_ahead(stored: Any) -> Any:
    return None if stored._ahead is None else stored._ahead.result()


def _taken_as_delivered(add: Callable[..., None]) -> Callable[..., None]:
    def take(receiver: Any, ready: Any) -> None:
        add(receiver, ready)
        if ready.partition is not None:
            ready.partition.offsets.delivered(ready.first, ready.last)

    return take


def _looking_ahead_last(hand_out: Callable[..., Any]) -> Callable[..., Any]:
    def call(receiver: Any, count: int, *, look_ahead: bool = False) -> Any:
        messages = hand_out(receiver, count)
        receiver._look_ahead()
        return messages

    return call


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


def _one_too_far(safe: Callable[..., Any]) -> Callable[..., Any]:
    def call(partition: Any, upto: int) -> Any:
        place = safe(partition, upto)
        place.offset += 1
        return place

    return call


def _unpinned(window: Any, envelope: Any) -> None:
    data = bytes(envelope.data or b"")
    window._wait_while(lambda: window._in_flight > 0 and window._bytes + len(data) > window.window_bytes)
    window._produce(envelope, data, len(data))


def _differs(*args: Any) -> None:
    if args[1] != "checksum":
        real_differs(*args)


real_differs = vars(_store_read)["differs"]
unknown_too = property(lambda verdict: verdict.outcome in ("failed", "unknown"))
set_at_once = types.SimpleNamespace(Event=lambda: types.SimpleNamespace(set=lambda: None, is_set=lambda: True))
constant = lambda *args, **kwargs: "claimcheck-same"  # noqa: E731


def _only_when_idle(tick: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Not for a message that arrives, nor for an acknowledgement."""
    busy = ("feed", "take", "acknowledge", "acknowledge_cumulative")
    return lambda self: [] if sys._getframe(1).f_code.co_name in busy else tick(self)


def _cumulatively_only(up_to: Callable[..., Any]) -> Callable[..., Any]:
    return lambda acks, target, **options: up_to(acks, target, **options)._replace(individually=())


def _acked(chunk: Callable[..., Any]) -> Callable[..., Any]:
    def take(inbox: Any, native: Any, envelope: Any) -> Any:
        arrivals = chunk(inbox, native, envelope)
        native.consumer.acknowledge(native)
        return arrivals

    return take


def _without_since(report: Callable[..., Any]) -> Callable[..., Any]:
    def call(partition: Any, failure: Any) -> Any:
        is_removed = "retention removed" in str(failure.error) and len(failure.slots) == 1
        return report(partition, replace(failure, since=None) if is_removed else failure)

    return call


def _with_waiting(settle: Callable[..., Any]) -> Callable[..., Any]:
    def call(receiver: Any, *arguments: Any) -> Any:
        waiting, receiver._ready = receiver._ready, deque()
        try:
            return settle(receiver, *arguments)
        finally:
            receiver._ready = waiting

    return call


async def _taken_before_it_is_read(receiver: Any) -> Any:
    receiver._calls += 1
    async with receiver._one_at_a_time:
        while (message := receiver._blocking.take_ready()) is None:
            await receiver._step()
    if message.stored is not None:
        await in_thread(message.stored.read)
    return message


def _defect(name: str, *patches: Patch, broker: str = "kafka") -> Defect:
    return Defect(name, broker, patches)


DEFECTS = [
    _defect("seek to removed records", (Assignment, "low", lambda self, source: 0)),
    _defect("an outage is permanent after read-ahead", (StoredPayload, "_prefetched", _result_of_read_ahead)),
    _defect("plain records count as delivered when they arrive", (Receiver, "_take_plain", _all_plain)),
    _defect(
        "all records count as delivered when they arrive",
        (Receiver, "_add", _taken_as_delivered(Receiver._add)),
    ),
    _defect("it looks ahead after it has counted", (Receiver, "hand_out", _looking_ahead_last(Receiver.hand_out))),
    _defect("unsubscribe forgets offsets", (KafkaConsumer, "unsubscribe", _unsubscribed)),
    _defect("every error is definite", (_classification, "classify_error", lambda error: "failed")),
    _defect("the future of a cancelled produce stays open", (_asyncio, "threading", set_at_once)),
    _defect("a failed send reports its envelope", (_producer, "FailedEnvelope", bytes)),
    _defect("rollback although the outcome is unknown", (_sending.Verdict, "rollback", unknown_too)),
    _defect("no rollback", (_sending.Verdict, "rollback", property(lambda verdict: False))),
    _defect("no abort envelope", (_sending.Verdict, "abort", property(lambda verdict: False))),
    _defect("commit one too far", (Partition, "safe", _one_too_far(Partition.safe))),
    _defect("commit past incomplete payloads", (Offsets, "safe", lambda self, upto, unsettled: upto)),
    _defect("seek clears nothing", (KafkaConsumer, "seek", _sought)),
    _defect("messages of revoked partitions stay", (Receiver, "drop", lambda self, partitions: None)),
    _defect("messages of paused partitions are returned", (Receiver, "_is_paused", lambda self, ready: False)),
    _defect("keys are used again", (_store_contract.StoreContract, "_key", constant)),
    _defect("checksums are not compared", (_store_read, "differs", _differs)),
    _defect("chunks go to any partition", (InFlightWindow, "send", _unpinned)),
    _defect("chunks never expire", (_assembler.Assembler, "tick", lambda self: [])),
    _defect("a reported payload is not marked", (Partition, "_mark_reported", lambda self, payload, first: None)),
    _defect("a removed payload settles nothing", (Partition, "_report", _without_since(Partition._report))),
    _defect(
        "receives that are given up put expiry off",
        (_receiver.Receiver, "seconds_to_tick", property(lambda self: 1.0 if self.pending_payloads else None)),
        broker="pulsar",
    ),
    _defect(
        "an acknowledgement covers payloads that wait",
        (_receiver.Receiver, "_settle_up_to", _with_waiting(_receiver.Receiver._settle_up_to)),
        broker="pulsar",
    ),
    _defect(
        "chunks expire only while nothing arrives",
        (_receiver.Receiver, "tick", _only_when_idle(_receiver.Receiver.tick)),
        (_resolver.Resolver, "tick", _only_when_idle(_resolver.Resolver.tick)),
        broker="pulsar",
    ),
    _defect(
        "nothing behind an incomplete payload is acknowledged",
        (CumulativeAcks, "up_to", _cumulatively_only(CumulativeAcks.up_to)),
        broker="pulsar",
    ),
    _defect(
        "a cancelled receive loses its message",
        (_pulsar_asyncio._AsyncReceiver, "_next", _taken_before_it_is_read),
        broker="pulsar",
    ),
    _defect(
        "chunks are acknowledged when they arrive",
        (_receiver.Receiver, "_chunk", _acked(_receiver.Receiver._chunk)),
        broker="pulsar",
    ),
    _defect(
        "rollback although the outcome of a send is unknown",
        (_sending.Verdict, "rollback", unknown_too),
        broker="pulsar",
    ),
    _defect(
        "a negative acknowledgement is forgotten", (PulsarConsumer, "_redeliver", lambda *args: None), broker="pulsar"
    ),
]
