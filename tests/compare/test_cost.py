"""Costs computed by hand from round prices, and what the errors of price files say."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import pytest
import yaml

from claimcheck.errors import ConfigError
from tests.benchmarks.compare.cost import estimate, load_prices, monthly_cost
from tests.docs_pages import ROOT

MB = 10**6
# 73 days are 2.4 months, and 36.5 days are 1.2.
PRICES = {
    "source": "Example cloud",
    "date": "January 2026",
    "currency": "EUR",
    "workload": {"payload_gb_per_month": 1000, "consumer_groups": 2, "topic_retention_days": 73},
    "object_store": {
        "lifetime_days": 73,
        "put_per_1000_requests": 0.005,
        "get_per_1000_requests": 0.0004,
        "storage_per_gb_month": 0.02,
        "single_put_bytes": 64 * MB,
        "part_bytes": 16 * MB,
    },
    "redis": {"lifetime_days": 36.5, "memory_per_gb_hour": 0.01, "processing_per_gb": 0.01, "copies": 2},
    "broker": {"storage_per_gb_month": 0.1, "replication_factor": 3},
    "cross_zone": {"price_per_gb": 0.02, "produce_share": 0.5, "replication_share": 1, "consume_share": 0.5},
}


@pytest.fixture
def prices(tmp_path):
    return load(tmp_path, PRICES)


def load(folder, raw):
    (folder / "prices.yaml").write_text(raw if isinstance(raw, str) else yaml.safe_dump(raw))
    return load_prices(folder / "prices.yaml")


def parts(cost):
    return (cost.store_requests, cost.store_space, cost.broker_disks, cost.cross_zone)


def test_pointers_and_an_object_store(prices):
    # A million payloads: a million puts and two million gets; 1,000 GB for 2.4 months; half a GB of pointers, of which
    # three replicas are kept for 2.4 months, and which leave their zone 0.5 + 2 + 2 * 0.5 times.
    requests = 1000 * 0.005 + 2 * 1000 * 0.0004
    found = monthly_cost(prices, MB, 500)
    assert parts(found) == pytest.approx((requests, 2400 * 0.02, 0.5 * 2.4 * 3 * 0.1, 0.5 * 3.5 * 0.02))
    assert found.total == pytest.approx(5.8 + 48 + 0.36 + 0.035)


def test_whole_payloads_in_the_broker(prices):
    assert parts(monthly_cost(prices, MB, MB)) == pytest.approx((0, 0, 2400 * 3 * 0.1, 1000 * 3.5 * 0.02))


def test_pointers_and_redis(prices):
    # Written once and read twice; 1,200 GB in two copies for 730 hours; written, copied once, and read twice.
    traffic = 0.5 * 3.5 * 0.02 + 1000 * (0.5 + 1 + 1) * 0.02
    expected = (3000 * 0.01, 2400 * 730 * 0.01, 0.36, traffic)
    assert parts(monthly_cost(prices, MB, 500, redis=True)) == pytest.approx(expected)


def test_large_payloads_are_uploaded_in_parts(prices):
    # 10,000 payloads of 100 MB: seven parts, and one request each to begin and to complete the upload.
    assert monthly_cost(prices, 100 * MB, 500).store_requests == pytest.approx(90 * 0.005 + 20 * 0.0004)
    assert monthly_cost(prices, 64 * MB, 500).store_requests == pytest.approx(15.625 * (0.005 + 2 * 0.0004))


@pytest.mark.parametrize("redis", [False, True])
def test_payloads_that_stay_in_the_broker_cost_nothing_in_the_store(prices, redis):
    assert monthly_cost(prices, MB, MB // 2, redis=redis).store_space == 0
    assert monthly_cost(prices, MB, MB // 2 - 1, redis=redis).store_space > 0


def test_the_experiment_uses_the_measured_bytes_of_each_mode(prices):
    facts = {"bytes_per_payload/external/1000000": 500.0, "bytes_per_payload/chunking/1000000": 1e6, "other": 7.0}
    found = estimate(prices, facts, (MB, 2 * MB))
    assert found.facts == {
        "cost/external/1000000": pytest.approx(54.195),
        "cost/external, Redis/1000000": pytest.approx(17600.395),
        "cost/chunking/1000000": pytest.approx(790),
    }
    assert found.verdict == "measured"
    assert found.measured == {"external": "54.2 EUR at 976.6 KiB", "chunking": "790 EUR at 976.6 KiB"}
    assert [row[1] for row in found.rows] == ["external", "external, Redis", "chunking"]
    for part in ("1,000 GB", "2 consumer groups", "73 days", "36.5 days", "3 replicas", "Example cloud, January 2026"):
        assert part in found.explanation


@pytest.mark.parametrize("facts", [None, {}, {"bytes_per_payload/external/5": 1.0}])
def test_without_measured_bytes_there_is_no_cost(prices, facts):
    found = estimate(prices, facts, (MB,))
    assert found.verdict == "not measured"
    assert not found.series


def leaves(raw, path=()) -> Iterator[tuple[str, ...]]:
    for name, value in raw.items():
        if isinstance(value, dict):
            yield from leaves(value, (*path, name))
        elif isinstance(value, (int, float)):
            yield (*path, name)


SHIPPED = yaml.safe_load((ROOT / "tests/benchmarks/compare/prices.yaml").read_text())


@pytest.mark.parametrize("path", list(leaves(SHIPPED)), ids=".".join)
def test_each_number_of_the_shipped_file_matters(tmp_path, path):
    facts = {f"bytes_per_payload/{mode}/{size}": each for mode, size, each in [
        ("external", MB, 400.0), ("external", 100 * MB, 400.0), ("chunking", MB, 1.001 * MB)]}  # fmt: skip
    changed = copy.deepcopy(SHIPPED)
    section = changed
    for name in path[:-1]:
        section = section[name]
    section[path[-1]] = section[path[-1]] / 2 if path[-1].endswith("_share") else section[path[-1]] * 2
    sizes = (MB, 100 * MB)
    before, after = (estimate(load(tmp_path, raw), facts, sizes).facts for raw in (SHIPPED, changed))
    assert before != after


def test_the_default_is_the_shipped_file():
    assert load_prices().source == SHIPPED["source"]


def without(*path):
    raw = copy.deepcopy(PRICES)
    section = raw
    for name in path[:-1]:
        section = section[name]
    del section[path[-1]]
    return raw


def with_value(value, *path):
    raw = copy.deepcopy(PRICES)
    section = raw
    for name in path[:-1]:
        section = section[name]
    section[path[-1]] = value
    return raw


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (without("broker", "replication_factor"), "broker.replication_factor: found nothing"),
        (without("redis"), "redis: found nothing"),
        (with_value(-1, "broker", "storage_per_gb_month"), "broker.storage_per_gb_month: found -1"),
        (with_value("0,08", "broker", "storage_per_gb_month"), "expected a number"),
        (with_value(0, "broker", "replication_factor"), "broker.replication_factor: found 0"),
        (with_value(1.5, "cross_zone", "consume_share"), "cross_zone.consume_share: found 1.5"),
        (with_value(float("inf"), "workload", "payload_gb_per_month"), "workload.payload_gb_per_month: found inf"),
        (with_value(float("nan"), "workload", "payload_gb_per_month"), "workload.payload_gb_per_month: found nan"),
        (with_value(1, "broker", "storage_per_gb"), "did you mean 'storage_per_gb_month'"),
        ("- 1\n- 2\n", "expected a mapping"),
        ("broker: {\n", "is not YAML"),
    ],
)
def test_a_wrong_file_is_named_with_the_key(tmp_path, raw, expected):
    with pytest.raises(ConfigError, match="prices.yaml") as caught:
        load(tmp_path, raw)
    assert expected in str(caught.value)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ConfigError, match="nowhere.yaml"):
        load_prices(tmp_path / "nowhere.yaml")
