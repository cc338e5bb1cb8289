"""The experiment ``cost``: what each mode costs per month, from measured bytes and a price file."""

from __future__ import annotations

import datetime
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

from claimcheck._config_file import read_yaml
from claimcheck._texts import number_text, size_text
from claimcheck._validation import Count, Range, build
from claimcheck.errors import ConfigError
from tests.benchmarks.compare.model import MODES, Experiment, Point, Series

GB = 10**9
DAYS_PER_MONTH = 365 / 12
HOURS_PER_MONTH = DAYS_PER_MONTH * 24
REDIS_LINE = "external, Redis"

Price = Annotated[float, Range(0, 10**6)]
Share = Annotated[float, Range(0, 1)]
Days = Annotated[float, Range(0, 36_500)]


@dataclass(frozen=True, slots=True)
class Workload:
    """What is sent in a month.

    Attributes:
        payload_gb_per_month: Divided into payloads of each size.
        consumer_groups: How often each payload is read.
        topic_retention_days: How long the broker keeps a message.
    """

    payload_gb_per_month: Annotated[float, Range(0, 10**9)]
    consumer_groups: Annotated[int, Range(0, 10**6)]
    topic_retention_days: Days


@dataclass(frozen=True, slots=True)
class ObjectStorePrices:
    """An object store. Payloads above ``single_put_bytes`` are uploaded in parts of ``part_bytes``."""

    lifetime_days: Days
    put_per_1000_requests: Price
    get_per_1000_requests: Price
    storage_per_gb_month: Price
    single_put_bytes: Count
    part_bytes: Count


@dataclass(frozen=True, slots=True)
class RedisPrices:
    """Redis: memory for all ``copies``, and processing for each GB that is written or read."""

    lifetime_days: Days
    memory_per_gb_hour: Price
    processing_per_gb: Price
    copies: Count


@dataclass(frozen=True, slots=True)
class BrokerPrices:
    """The broker's disks."""

    storage_per_gb_month: Price
    replication_factor: Count


@dataclass(frozen=True, slots=True)
class CrossZonePrices:
    """Traffic between zones. A share is the part of the bytes that leaves its zone."""

    price_per_gb: Price
    produce_share: Share
    replication_share: Share
    consume_share: Share


@dataclass(frozen=True, slots=True)
class Prices:
    """A price file; see ``prices.yaml`` beside this module.

    Attributes:
        source: Where the prices are from.
        date: When they were valid, as a text or as a date of YAML.
        currency: Written behind each amount.
        workload: What is sent in a month.
        object_store: Prices of an object store.
        redis: Prices of Redis in its place.
        broker: Prices of the broker.
        cross_zone: Prices of traffic.
    """

    source: str
    date: str | datetime.date
    currency: str
    workload: Workload
    object_store: ObjectStorePrices
    redis: RedisPrices
    broker: BrokerPrices
    cross_zone: CrossZonePrices


@dataclass(frozen=True, slots=True)
class Cost:
    """The parts of one month's cost, in the currency of the price file."""

    store_requests: float
    store_space: float
    broker_disks: float
    cross_zone: float

    @property
    def total(self) -> float:
        """The sum."""
        return self.store_requests + self.store_space + self.broker_disks + self.cross_zone


def load_prices(path: str | os.PathLike[str] | None = None) -> Prices:
    """Read a price file; by default the example beside this module."""
    path = path or Path(__file__).with_name("prices.yaml")
    try:
        return build(Prices, read_yaml(path), "")
    except ConfigError as error:
        facts = {"path": error.path, "found": error.found, "expected": error.expected}
        problems = tuple(replace(each, message=_with_file(each.message, path)) for each in error.problems)
        raise ConfigError(_with_file(str(error), path), **facts, problems=problems) from error


def _with_file(message: str, path: str | os.PathLike[str]) -> str:
    """Return the text of an error with the name of the price file in front."""
    name = os.fspath(path)
    return message if name in message else f"{name}: {message.removeprefix('configuration: ')}"


def monthly_cost(prices: Prices, size: int, broker_bytes: float, *, redis: bool = False) -> Cost:
    """Return what a month's payloads of one size cost.

    A payload of which the broker holds less than half is in the store.
    """
    payloads = prices.workload.payload_gb_per_month * GB / size
    disks, traffic = _broker(prices, payloads * broker_bytes / GB)
    if broker_bytes >= size / 2:
        return Cost(0.0, 0.0, disks, traffic)
    if redis:
        requests, space, more = _redis(prices)
        return Cost(requests, space, disks, traffic + more)
    return Cost(*_object_store(prices, size, payloads), disks, traffic)


def estimate(prices: Prices, facts: Mapping[str, float] | None, sizes: Sequence[int]) -> Experiment:
    """Return the experiment ``cost``."""
    costs = dict(_lines(prices, facts or {}, sizes))
    title = "Cost per month"
    if not costs:
        why = "The cost needs the bytes in the broker, which the experiment partition measures."
        return Experiment("cost", title, {}, {}, "not measured", why)
    return Experiment(
        "cost",
        title,
        claimed={},
        measured={line: _range_text(found, prices.currency) for line, found in costs.items() if line in MODES},
        verdict="measured",
        explanation=_explanation(prices),
        columns=("payload", "mode", "store requests", "store space", "broker disks", "cross-zone traffic", "total"),
        rows=tuple(_rows(costs)),
        series=(_series(prices, costs),),
        facts={f"cost/{line}/{size}": cost.total for line, found in costs.items() for size, cost in found.items()},
    )


# Parts of a cost -----------------------------------------------------------------------------------------------


def _object_store(prices: Prices, size: int, payloads: float) -> tuple[float, float]:
    """Requests and space. Traffic between an object store and clients in its region is free."""
    store, groups = prices.object_store, prices.workload.consumer_groups
    puts = 1 if size <= store.single_put_bytes else math.ceil(size / store.part_bytes) + 2  # starts and completes it
    requests = payloads * (puts * store.put_per_1000_requests + groups * store.get_per_1000_requests) / 1000
    return requests, _kept_gb(prices, store.lifetime_days) * store.storage_per_gb_month


def _redis(prices: Prices) -> tuple[float, float, float]:
    """Processing, memory and cross-zone traffic."""
    load, redis = prices.workload, prices.redis
    processing = load.payload_gb_per_month * (1 + load.consumer_groups) * redis.processing_per_gb
    memory_gb = _kept_gb(prices, redis.lifetime_days) * redis.copies
    traffic = load.payload_gb_per_month * prices.cross_zone.price_per_gb * _crossings(prices, redis.copies)
    return processing, memory_gb * redis.memory_per_gb_hour * HOURS_PER_MONTH, traffic


def _kept_gb(prices: Prices, days: float) -> float:
    """The payloads that a store holds at any time."""
    return prices.workload.payload_gb_per_month * days / DAYS_PER_MONTH


def _broker(prices: Prices, gb: float) -> tuple[float, float]:
    """Disks and cross-zone traffic of the bytes that a month's messages take up in one replica."""
    broker = prices.broker
    kept_gb = gb * prices.workload.topic_retention_days / DAYS_PER_MONTH * broker.replication_factor
    traffic = gb * prices.cross_zone.price_per_gb * _crossings(prices, broker.replication_factor)
    return kept_gb * broker.storage_per_gb_month, traffic


def _crossings(prices: Prices, copies: int) -> float:
    """How often a byte leaves its zone on average: written, copied and read."""
    zones = prices.cross_zone
    read = prices.workload.consumer_groups * zones.consume_share
    return zones.produce_share + (copies - 1) * zones.replication_share + read


# The experiment ------------------------------------------------------------------------------------------------


def _lines(prices: Prices, facts: Mapping[str, float], sizes: Sequence[int]) -> Iterator[tuple[str, dict[int, Cost]]]:
    """The costs by size of each mode that was measured, and those of Redis."""
    for mode in MODES:
        measured = {size: facts.get(f"bytes_per_payload/{mode}/{size}") for size in sizes}
        found = {size: each for size, each in measured.items() if each is not None}
        if found:
            yield mode, {size: monthly_cost(prices, size, each) for size, each in found.items()}
        if found and mode == "external":
            yield REDIS_LINE, {size: monthly_cost(prices, size, each, redis=True) for size, each in found.items()}


def _rows(costs: Mapping[str, Mapping[int, Cost]]) -> Iterator[tuple[str | float, ...]]:
    sizes = sorted({size for found in costs.values() for size in found})
    for size in sizes:
        for line, found in costs.items():
            if size in found:
                cost = found[size]
                parts = (cost.store_requests, cost.store_space, cost.broker_disks, cost.cross_zone, cost.total)
                yield size_text(size), line, *(round(part, 2) for part in parts)


def _series(prices: Prices, costs: Mapping[str, Mapping[int, Cost]]) -> Series:
    return Series(
        "cost",
        f"Cost of {number_text(prices.workload.payload_gb_per_month)} GB of payloads per month",
        "payload size (bytes)",
        prices.currency,
        {
            line: tuple(Point(size, each.total, each.total, each.total) for size, each in sorted(found.items()))
            for line, found in costs.items()
        },
    )


def _range_text(found: Mapping[int, Cost], currency: str) -> str:
    texts = {size: f"{number_text(cost.total)} {currency}" for size, cost in found.items()}
    smallest, largest = min(texts), max(texts)
    if len(texts) > 1 and len(set(texts.values())) == 1:
        return f"{texts[smallest]} at every size"
    return ", ".join(f"{texts[size]} at {size_text(size)}" for size in sorted({smallest, largest}))


def _explanation(prices: Prices) -> str:
    groups = prices.workload.consumer_groups
    return (
        f"{number_text(prices.workload.payload_gb_per_month)} GB of payloads per month, read by {groups} consumer"
        f" group{'' if groups == 1 else 's'}. Payloads are kept for {_days(prices.object_store.lifetime_days)} in an"
        f" object store and for {_days(prices.redis.lifetime_days)} in Redis; the broker keeps"
        f" {prices.broker.replication_factor} replicas for {_days(prices.workload.topic_retention_days)}. The machines"
        f" of the brokers are not included. Prices: {prices.source}, {prices.date}."
    )


def _days(count: float) -> str:
    return f"{number_text(count)} day{'' if count == 1 else 's'}"
