"""OpenTelemetry: spans of store operations, and metrics, from one hook. Requires the extra ``otel``."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager
from typing import Any

import claimcheck.hooks as hooks
from claimcheck.errors import import_vendor

__all__ = ["hook", "processing"]

_SECONDS, _BYTES = [n / 1000 for n in (1, 2, 5, 10, 20, 50, 100, 500, 1000, 5000, 30_000)], [4**n for n in range(5, 16)]
_TOPIC, _STORE = "messaging.destination.name", "claimcheck.store"
_COUNTERS: dict[type[hooks.Event], tuple[str, str | None, dict[str, str]]] = {
    hooks.SendEvent: ("sends", None, {_TOPIC: "destination", "claimcheck.outcome": "outcome"}),
    hooks.FallbackEvent: ("fallbacks", None, {_TOPIC: "destination", _STORE: "store"}),
    hooks.DropEvent: ("drops", "messages", {"claimcheck.reason": "reason", "claimcheck.action": "action"}),
    hooks.BreakerEvent: ("breaker.changes", None, {_STORE: "store", "claimcheck.state": "state"}),
    hooks.SweepEvent: ("deletions", "deleted", {_STORE: "store", "claimcheck.kind": "kind"}),
}


def hook() -> hooks.Hook:
    """Return a hook that reports to the tracer and meter providers of this process.

    Each write, read and rollback of a store is a client span below the caller's, and recorded in the histograms
    ``claimcheck.store.duration`` (s) and ``claimcheck.store.size`` (By). Counters: ``claimcheck.sends``,
    ``claimcheck.fallbacks``, ``claimcheck.drops``, ``claimcheck.breaker.changes`` and ``claimcheck.deletions``.

    Raises:
        MissingDependencyError: OpenTelemetry's API is not installed.
    """
    trace, meter = _api("trace"), _api("metrics").get_meter("claimcheck")
    tracer = trace.get_tracer("claimcheck")
    durations = meter.create_histogram("claimcheck.store.duration", "s", explicit_bucket_boundaries_advisory=_SECONDS)
    sizes = meter.create_histogram("claimcheck.store.size", "By", explicit_bucket_boundaries_advisory=_BYTES)
    counters = {kind: meter.create_counter(f"claimcheck.{name}") for kind, (name, *_) in _COUNTERS.items()}

    def operated(event: hooks.OperationEvent) -> None:
        labels = {_STORE: event.store, "claimcheck.operation": event.operation}
        labels |= {} if event.error is None else {"error.type": type(event.error).__name__}
        durations.record(event.duration_seconds, labels)
        if event.size is not None:
            sizes.record(event.size, labels)
        begin = time.time_ns() - round(event.duration_seconds * 1e9)
        name, facts = f"{event.operation} {event.store}", {**labels, "claimcheck.key": event.key}
        span = tracer.start_span(name, None, trace.SpanKind.CLIENT, facts, start_time=begin)
        if event.error is not None:
            span.set_status(trace.StatusCode.ERROR, str(event.error))
        span.end()

    def listen(event: hooks.Event) -> None:
        if isinstance(event, hooks.OperationEvent) and event.phase != "started":
            operated(event)
        elif type(event) in _COUNTERS:
            _, amount, labels = _COUNTERS[type(event)]
            facts = {label: getattr(event, name) for label, name in labels.items()}
            counters[type(event)].add(getattr(event, amount) if amount else 1, facts)

    return listen


def processing(message: Any) -> AbstractContextManager[Any]:
    """Return a context manager: a span for processing a message, below its sender's, even if it was read ahead."""
    is_pulsar = hasattr(message, "properties")
    pairs = message.properties().items() if is_pulsar else message.headers() or ()
    carrier = {name: value.decode() if isinstance(value, bytes) else value for name, value in pairs}
    topic, trace = message.topic_name() if is_pulsar else message.topic(), _api("trace")
    context, tracer = _api("propagate").extract(carrier), trace.get_tracer("claimcheck")
    span: AbstractContextManager[Any] = tracer.start_as_current_span(
        f"process {topic}", context, trace.SpanKind.CONSUMER, {_TOPIC: topic}
    )
    return span


def _api(name: str) -> Any:
    return import_vendor(f"opentelemetry.{name}", extra="otel")
