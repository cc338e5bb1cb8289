"""Shared by the tests of telemetry: providers of OpenTelemetry for this process, which keep everything in memory."""

from __future__ import annotations

from typing import Any

from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

_spans, _metrics = InMemorySpanExporter(), InMemoryMetricReader()
_provider = TracerProvider()
_provider.add_span_processor(SimpleSpanProcessor(_spans))
trace.set_tracer_provider(_provider)
metrics.set_meter_provider(MeterProvider([_metrics]))
tracer = trace.get_tracer("tests")


def finished() -> list[ReadableSpan]:
    """Return the spans that have ended since the last call."""
    spans = list(_spans.get_finished_spans())
    _spans.clear()
    return spans


def measured() -> dict[tuple[str, frozenset[Any]], Any]:
    """Return every point of every metric, by its name and labels: a counter's value, a histogram's count and sum."""
    data: Any = _metrics.get_metrics_data()
    return {
        (metric.name, frozenset(point.attributes.items())): getattr(point, "value", None) or (point.count, point.sum)
        for resource in data.resource_metrics for scope in resource.scope_metrics
        for metric in scope.metrics for point in metric.data.data_points
    }  # fmt: skip
