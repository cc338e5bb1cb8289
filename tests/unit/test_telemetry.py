"""OpenTelemetry's API sees what the hook is told of: spans below the caller's, histograms and counters."""

import asyncio
import uuid
from typing import Any

import pytest

import claimcheck
from claimcheck import hooks, telemetry
from claimcheck.errors import PayloadNotFoundError
from tests.telemetry_rig import finished, measured, tracer

PAYLOAD = bytes(2000)
TOPIC = "messaging.destination.name"


def test_a_store_operation_is_a_client_span_below_the_callers_and_is_measured():
    name = f"store-{uuid.uuid4().hex}"
    config = {"strategy": "external", "threshold_bytes": 1000, "stores": {name: {"type": "memory"}}}
    finished()
    with claimcheck.from_dict(config, hooks=[telemetry.hook()]) as cc, tracer.start_as_current_span("caller") as caller:
        with cc.outbound(PAYLOAD, destination=name) as out:
            message = out.send(lambda envelope: envelope.data)
        assert asyncio.run(cc.aresolve(message)) == PAYLOAD
        pointer = cc.pointer(message)
        cc.store(name).rollback(pointer)
        with pytest.raises(PayloadNotFoundError):
            cc.resolve(message)
    spans = [span for span in finished() if span.name != "caller"]
    assert [span.name for span in spans] == [f"{each} {name}" for each in ("write", "read", "rollback", "read")]
    assert all(span.parent.span_id == caller.get_span_context().span_id for span in spans)
    assert {span.kind.name for span in spans} == {"CLIENT"}
    assert all(span.attributes["claimcheck.key"] == pointer.key for span in spans)
    assert [span.status.status_code.name for span in spans] == ["UNSET", "UNSET", "UNSET", "ERROR"]
    assert all(0 <= span.end_time - span.start_time < 60e9 for span in spans)
    labels = {"claimcheck.store": name, "claimcheck.operation": "read"}
    for more in ({}, {"error.type": "PayloadNotFoundError"}):
        key = frozenset((labels | more).items())
        assert measured()["claimcheck.store.size", key] == (1, len(PAYLOAD))
        assert measured()["claimcheck.store.duration", key][0] == 1
    assert measured()["claimcheck.sends", frozenset({TOPIC: name, "claimcheck.outcome": "sent"}.items())] == 1


SWEPT: Any = dict.fromkeys(("scanned", "expired", "expired_bytes", "leftovers", "failed"), 0)


@pytest.mark.parametrize(
    ("event", "name", "labels", "count"),
    [
        (hooks.SendEvent(destination="t", outcome="partial", messages=7), "sends",
         {TOPIC: "t", "claimcheck.outcome": "partial"}, 1),
        (hooks.FallbackEvent(destination="t", size=5, error=None, store="s"), "fallbacks",
         {TOPIC: "t", "claimcheck.store": "s"}, 1),
        (hooks.DropEvent(source="t", uuid="u", reason="expired", action="ack", messages=3), "drops",
         {"claimcheck.reason": "expired", "claimcheck.action": "ack"}, 3),
        (hooks.BreakerEvent(store="s", state="open"), "breaker.changes",
         {"claimcheck.store": "s", "claimcheck.state": "open"}, 1),
        (hooks.SweepEvent(store="s", dry_run=False, deleted=4, duration_seconds=1, **SWEPT), "deletions",
         {"claimcheck.store": "s", "claimcheck.kind": "sweep"}, 4),
        (hooks.AssembledEvent(source="t", uuid="u", messages=3, size=9), "none", {}, 0),
    ],
)  # fmt: skip
def test_events_are_counted(event, name, labels, count):
    key = f"claimcheck.{name}", frozenset(labels.items())
    before = measured().get(key, 0)
    telemetry.hook()(event)
    assert measured().get(key, 0) - before == count
