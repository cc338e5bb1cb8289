"""Prometheus loads the alerts of examples/observability, and answers every query of its dashboard."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.real.process import Location, accepts_connections, running, wait_until

FOLDER = Path(__file__).resolve().parent.parent / "examples" / "observability"
DASHBOARD = json.loads((FOLDER / "dashboard.json").read_text())
QUERIES = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]
CONFIG = """
global: {{scrape_interval: 1s, evaluation_interval: 1s}}
rule_files: ["{rules}"]
scrape_configs:
  - job_name: claimcheck
    static_configs: [{{targets: ["127.0.0.1:{port}"]}}]
"""


@pytest.fixture(scope="module")
def ask(prometheus_programs, worker_env):
    """Asks the API of a Prometheus, which scrapes exporter.py and loads the alerts."""

    def exporter(location: Location) -> list[str]:
        return [sys.executable, str(FOLDER / "exporter.py"), str(location.port)]

    def prometheus(location: Location) -> list[str]:
        options = {"config.file": "prometheus.yml", "storage.tsdb.path": "data"}
        files = [f"--{name}={location.folder / value}" for name, value in options.items()]
        return ["prometheus", *files, f"--web.listen-address=127.0.0.1:{location.port}"]

    def ask(path: str, **query: str) -> Any:
        url = f"http://127.0.0.1:{server.port}/api/v1/{path}?{urllib.parse.urlencode(query)}"
        with urllib.request.urlopen(url, timeout=30) as response:
            return json.load(response)["data"]

    with running(exporter, accepts_connections, environment=worker_env) as scraped:
        config = CONFIG.format(rules=FOLDER / "alerts.yaml", port=scraped.port)

        def configure(folder: Path) -> None:
            (folder / "prometheus.yml").write_text(config)

        with running(prometheus, accepts_connections, prepare=configure) as server:
            yield ask


@pytest.mark.parametrize("query", QUERIES)
def test_every_query_of_the_dashboard_is_answered(ask, query):
    def has_data() -> bool:
        answer = ask("query", query=query.replace("$__rate_interval", "10s"))
        return any(0 < float(series["value"][1]) < math.inf for series in answer["result"])

    wait_until(has_data, f"{query} has data")


def test_every_alert_is_evaluated(ask):
    def health() -> list[str]:
        return [rule["health"] for group in ask("rules")["groups"] for rule in group["rules"]]

    wait_until(lambda: health() != [] and "unknown" not in health(), "all rules are evaluated")
    assert health() == ["ok"] * (FOLDER / "alerts.yaml").read_text().count("- alert:")


@pytest.mark.parametrize("command", ["check rules alerts.yaml", "test rules alerts_test.yaml"])
def test_alerts_fire_and_stay_silent(prometheus_programs, command):
    done = subprocess.run(["promtool", *command.split()], cwd=FOLDER, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
