"""The experiment ``cost``: what each mode costs per month, from measured bytes and a price file."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from claimcheck._config_file import read_yaml
from claimcheck._texts import size_text
from claimcheck.errors import ConfigError
from tests.benchmarks.compare.model import MODES, Experiment, Point, Row, Series, Tally
from tests.benchmarks.picture import number_text

GB = 10**9
DAYS_PER_MONTH = 365 / 12
HOURS_PER_MONTH = DAYS_PER_MONTH * 24
REDIS_LINE = "external, Redis"
_MOST = 10**15
EXAMPLE = Path(__file__).with_name("prices.yaml")

Prices = Mapping[str, Any]
"""A price file: source, date and currency as texts, and numbers by section; see ``prices.yaml`` beside this module."""


def load_prices(path: str | os.PathLike[str] | None = None) -> Prices:
    """Read a price file, by default the example; it must have the example's keys. Raises `ConfigError`."""
    prices: Prices = read_yaml(path or EXAMPLE)
    _check(prices, read_yaml(EXAMPLE), os.fspath(path or EXAMPLE))
    return prices


def _check(found: Any, example: Any, where: str) -> None:
    if isinstance(example, Mapping):
        if not isinstance(found, Mapping) or found.keys() != example.keys():
            raise ConfigError(f"{where}: expected the keys {', '.join(example)}", path=where)
        for key, value in example.items():
            _check(found[key], value, f"{where}: {key}")
    elif isinstance(example, int | float) and not (type(found) in (int, float) and 0 <= found <= _MOST):
        raise ConfigError(f"{where}: expected a number of at least 0, found {found!r}", path=where)


def monthly_cost(prices: Prices, size: int, broker_bytes: float, *, redis: bool = False) -> Row:
    """Return the parts of what a month's payloads of one size cost.

    A payload of which the broker holds less than half is in the store.
    """
    payloads = prices["workload"]["payload_gb_per_month"] * GB / size
    disks, traffic = _broker(prices, payloads * broker_bytes / GB)
    requests = space = 0.0
    if broker_bytes < size / 2 and redis:
        requests, space, more = _redis(prices)
        traffic += more
    elif broker_bytes < size / 2:
        requests, space = _object_store(prices, size, payloads)
    parts = {"store requests": requests, "store space": space, "broker disks": disks, "cross-zone traffic": traffic}
    return {**parts, "total": sum(parts.values())}


def estimate(prices: Prices, facts: Mapping[str, float] | None, sizes: Sequence[int]) -> Experiment:
    """Return the experiment ``cost``."""
    costs = dict(_lines(prices, facts or {}, sizes))
    if not costs:
        why = "The cost needs the bytes in the broker, which the experiment partition measures."
        return Tally([]).experiment("cost", "", "not measured", why)
    rows = [
        {"mode": line, "payload": size_text(size), **{name: round(part, 2) for name, part in found[size].items()}}
        for size in sorted({size for found in costs.values() for size in found})
        for line, found in costs.items()
        if size in found
    ]
    points = {
        line: tuple(Point(size, each["total"], each["total"], each["total"]) for size, each in sorted(found.items()))
        for line, found in costs.items()
    }
    title = f"Cost of {number_text(prices['workload']['payload_gb_per_month'])} GB of payloads per month"
    return Tally(rows).experiment(
        "cost",
        {mode: _range_text(found, prices["currency"]) for mode, found in costs.items()},
        "measured",
        _explanation(prices),
        series=(Series("cost", title, "payload size (bytes)", prices["currency"], points),),
    )


# Parts of a cost -----------------------------------------------------------------------------------------------


def _object_store(prices: Prices, size: int, payloads: float) -> tuple[float, float]:
    """Requests and space. Traffic between an object store and clients in its region is free."""
    store, groups = prices["object_store"], prices["workload"]["consumer_groups"]
    parts = math.ceil(size / max(store["part_bytes"], 1)) + 2  # one starts and one completes it
    puts = 1 if size <= store["single_put_bytes"] else parts
    requests = payloads * (puts * store["put_per_1000_requests"] + groups * store["get_per_1000_requests"]) / 1000
    return requests, _kept_gb(prices, store["lifetime_days"]) * store["storage_per_gb_month"]


def _redis(prices: Prices) -> tuple[float, float, float]:
    """Processing, memory and cross-zone traffic."""
    load, redis = prices["workload"], prices["redis"]
    processing = load["payload_gb_per_month"] * (1 + load["consumer_groups"]) * redis["processing_per_gb"]
    memory_gb = _kept_gb(prices, redis["lifetime_days"]) * redis["copies"]
    traffic = load["payload_gb_per_month"] * prices["cross_zone"]["price_per_gb"] * _crossings(prices, redis["copies"])
    return processing, memory_gb * redis["memory_per_gb_hour"] * HOURS_PER_MONTH, traffic


def _kept_gb(prices: Prices, days: float) -> float:
    """The payloads that a store holds at any time."""
    kept: float = prices["workload"]["payload_gb_per_month"] * days / DAYS_PER_MONTH
    return kept


def _broker(prices: Prices, gb: float) -> tuple[float, float]:
    """Disks and cross-zone traffic of the bytes that a month's messages take up in one replica."""
    replicas, days = prices["broker"]["replication_factor"], prices["workload"]["topic_retention_days"]
    traffic = gb * prices["cross_zone"]["price_per_gb"] * _crossings(prices, replicas)
    return gb * days / DAYS_PER_MONTH * replicas * prices["broker"]["storage_per_gb_month"], traffic


def _crossings(prices: Prices, copies: int) -> float:
    """How often a byte leaves its zone on average: written, copied and read."""
    zones = prices["cross_zone"]
    read: float = prices["workload"]["consumer_groups"] * zones["consume_share"]
    return float(zones["produce_share"] + (copies - 1) * zones["replication_share"] + read)


# The experiment ------------------------------------------------------------------------------------------------


def _lines(prices: Prices, facts: Mapping[str, float], sizes: Sequence[int]) -> Iterator[tuple[str, dict[int, Row]]]:
    """The costs by size of each mode that was measured, and those of Redis."""
    for mode in MODES:
        measured = {size: facts.get(f"bytes_per_payload/{mode}/{size}") for size in sizes}
        found = {size: each for size, each in measured.items() if each is not None}
        if found:
            yield mode, {size: monthly_cost(prices, size, each) for size, each in found.items()}
        if found and mode == "external":
            yield REDIS_LINE, {size: monthly_cost(prices, size, each, redis=True) for size, each in found.items()}


def _range_text(found: Mapping[int, Row], currency: str) -> str:
    texts = {size: f"{number_text(cost['total'])} {currency}" for size, cost in found.items()}
    smallest, largest = min(texts), max(texts)
    if len(texts) > 1 and len(set(texts.values())) == 1:
        return f"{texts[smallest]} at every size"
    return ", ".join(f"{texts[size]} at {size_text(size)}" for size in sorted({smallest, largest}))


def _explanation(prices: Prices) -> str:
    load, groups = prices["workload"], prices["workload"]["consumer_groups"]
    return (
        f"{number_text(load['payload_gb_per_month'])} GB of payloads per month, read by {groups} consumer"
        f" group{'' if groups == 1 else 's'}. Payloads are kept for {_days(prices['object_store']['lifetime_days'])} in"
        f" an object store and for {_days(prices['redis']['lifetime_days'])} in Redis; the broker keeps"
        f" {prices['broker']['replication_factor']} replicas for {_days(load['topic_retention_days'])}. The machines"
        f" of the brokers are not included. Prices: {prices['source']}, {prices['date']}."
    )


def _days(count: float) -> str:
    return f"{number_text(count)} day{'' if count == 1 else 's'}"
