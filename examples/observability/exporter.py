"""Export the metrics of claimcheck to Prometheus, from a process that sends and reads a payload every second.

    pip install 'claimcheck-messaging[otel]' opentelemetry-exporter-prometheus
    python exporter.py 9464  # http://127.0.0.1:9464/metrics

In prometheus.yml, add 127.0.0.1:9464 to `scrape_configs` and alerts.yaml to `rule_files`. Import dashboard.json into
Grafana. Every second payload meets a failing store, so that all panels show data.
"""

import contextlib
import itertools
import sys
import time
from collections.abc import Callable
from typing import Any

from opentelemetry import metrics
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.sdk.metrics import MeterProvider
from prometheus_client import start_http_server

import claimcheck
from claimcheck import telemetry
from claimcheck.testing import FaultyStore

STORE = {"type": "claimcheck.testing:FaultyStore", "store": {"type": "memory", "ttl_seconds": 1}}
CONFIG = {"strategy": "hybrid", "threshold_bytes": 10_000, "hybrid": {"retry_store_after_seconds": 0.5},
          "chunking": {"expire_after_seconds": 0.5}, "stores": {"memory": STORE}}  # fmt: skip


def send(cc: claimcheck.ClaimCheck, produce: Callable[[claimcheck.Envelope], Any]) -> Any:
    with cc.outbound(bytes(50_000), destination="orders") as out:
        return out.send(produce)


def lose(cc: claimcheck.ClaimCheck, resolver: claimcheck.Resolver, position: int) -> None:
    """The store fails, so hybrid sends chunks. The second one times out, and the first one expires at its reader."""

    def produce(chunk: claimcheck.Envelope) -> None:
        if resolver.pending_payloads:
            raise TimeoutError
        resolver.feed("orders", position, chunk.data or b"")

    store = cc.store("memory")
    assert isinstance(store, FaultyStore)
    store.fail("write", times=1)
    with contextlib.suppress(claimcheck.PartialSendError):
        send(cc, produce)
    time.sleep(1)
    for dropped in resolver.tick():
        resolver.settle(dropped, acked=True)


def main(port: int) -> None:
    metrics.set_meter_provider(MeterProvider([PrometheusMetricReader()]))
    start_http_server(port, addr="127.0.0.1")
    with claimcheck.from_dict(CONFIG, hooks=[telemetry.hook()]) as cc:
        resolver = cc.resolver()
        for position in itertools.count():
            cc.resolve(send(cc, lambda envelope: envelope.data))
            lose(cc, resolver, position)
            cc.sweep("memory", dry_run=False, grace_seconds=0)


if __name__ == "__main__":
    main(int(sys.argv[1]))
