"""What can go wrong with a Redis that stores payloads: eviction, memory, restarts, failovers and its clock."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from claimcheck._check import Finding
from claimcheck._doctor._clock import skew
from claimcheck._doctor._findings import examined, finding
from claimcheck._texts import duration, size_text
from claimcheck.stores.redis import RedisStore

_OLDEST_VERSION = (6, 2)
_FULL = 0.8
_SAMPLE_KEYS = 1000
_SCANS = 50
_SEGMENT = re.compile(r"-\d+$")
_LEAST_SHARE = 0.05  # of a lifetime: less does not predict the memory of a whole one


def examine_redis(store: RedisStore, path: str, clock: Callable[[], float]) -> Iterator[Finding]:
    """Yield the findings about a server, a sentinel's master, or each master of a cluster."""
    server = store._server
    nodes = [(path, server.client)]
    if server.is_cluster:
        masters = server.client.get_primaries()
        nodes = [(f"{path} ({node.name})", server.client.get_redis_connection(node)) for node in masters]
    for place, client in nodes:
        yield from examined("redis", place, "the clock", partial(_clock, place, client, clock))
        yield from examined("redis", place, "INFO", partial(_server, store, place, client, clock))


def _clock(path: str, client: Any, clock: Callable[[], float]) -> Iterator[Finding]:
    begin = clock()
    seconds, microseconds = client.time()
    yield from skew(path, "the server's", seconds + microseconds / 1e6, begin, clock())


def _server(store: RedisStore, path: str, client: Any, clock: Callable[[], float]) -> Iterator[Finding]:
    info = client.info()
    yield from _version(path, str(info.get("redis_version", "")))
    yield from _eviction(path, info)
    yield from _replication(path, info)
    memory = partial(_memory, store, path, client, info, clock)
    yield from examined("redis", path, "the memory that payloads need", memory)
    yield from examined("redis", path, "the setting save", partial(_persistence, path, client, info))


def _version(path: str, version: str) -> Iterator[Finding]:
    numbers = tuple(int(number) for number in re.findall(r"\d+", version)[:2])
    if numbers and numbers < _OLDEST_VERSION:
        yield finding("error", "redis-version", path, f"the server is Redis {version}", "Install Redis 6.2 or newer.")


def _eviction(path: str, info: dict[str, Any]) -> Iterator[Finding]:
    policy = info.get("maxmemory_policy", "noeviction")
    if info.get("maxmemory") and policy != "noeviction":
        fix = "Set maxmemory-policy to noeviction, also in the server's configuration file."
        yield finding("warning", "redis-eviction", path, f"maxmemory-policy is {policy}", fix)


def _replication(path: str, info: dict[str, Any]) -> Iterator[Finding]:
    replicas = info.get("connected_slaves", 0)
    if info.get("role") == "master" and replicas and "min_slaves_good_slaves" not in info:
        message = (
            f"there {'is 1 replica' if replicas == 1 else f'are {replicas} replicas'}, and min-replicas-to-write is 0"
        )
        fix = "Set min-replicas-to-write to at least 1, and min-replicas-max-lag to 10: this limits the loss."
        yield finding("warning", "redis-replication-unsafe", path, message, fix)


def _persistence(path: str, client: Any, info: dict[str, Any]) -> Iterator[Finding]:
    if not info.get("aof_enabled") and client.config_get("save").get("save") == "":
        fix = "Set appendonly to yes; appendfsync everysec is a good compromise."
        message = "the server writes no append-only file and no snapshots"
        yield finding("warning", "redis-no-persistence", path, message, fix)


def _memory(
    store: RedisStore, path: str, client: Any, info: dict[str, Any], clock: Callable[[], float]
) -> Iterator[Finding]:
    used, most = info.get("used_memory", 0), info.get("maxmemory", 0)
    if not most:
        fix = "Set maxmemory to what the machine can spare, and maxmemory-policy to noeviction."
        yield finding("warning", "redis-memory-unlimited", path, "maxmemory is not set", fix)
        most = info.get("total_system_memory", 0)
    fix = "Increase maxmemory, reduce ttl_seconds, or use a store on disk."
    if most and used >= _FULL * most:
        message = f"{used / most:.0%} of the memory is used ({size_text(used)} of {size_text(most)})"
        yield finding("warning", "redis-memory-low", path, message, fix)
    elif most and (age := _time_of_use(store, client, clock())):
        base = info.get("used_memory_startup", 0)
        needed = base + (used - base) * (store.ttl_seconds or 0) / age
        if needed >= _FULL * most:
            message = (
                f"payloads of the last {duration(age)} use {size_text(used)}; at this rate, those of a whole lifetime "
            )
            message += f"({duration(store.ttl_seconds or 0)}) need {size_text(needed)} of {size_text(most)}"
            yield finding("warning", "redis-memory-low", path, message, fix)


def _time_of_use(store: RedisStore, client: Any, now: float) -> float | None:
    """Return the age of the oldest payload in a sample; ``None`` if it predicts nothing."""
    names = (_SEGMENT.sub("", _text(name)) for name in _sample(client, store.prefix))
    known = [each for name in names if (each := store._lifetime_of(name)) is not None]
    created = [each.created_ms / 1000 for each in known if each.created_ms is not None]
    age, lifetime = now - min(created, default=now), store.ttl_seconds
    return age if lifetime is not None and _LEAST_SHARE * lifetime <= age < 0.9 * lifetime else None


def _text(name: bytes | str) -> str:
    return name.decode("utf-8", "replace") if isinstance(name, bytes) else name


def _sample(client: Any, prefix: str) -> list[bytes | str]:
    """Return some keys of a node; a node with many keys of others is not searched completely."""
    pattern = re.sub(r"([*?\[\]\\^-])", r"\\\1", prefix) + "*"
    keys: list[bytes | str] = []
    cursor = 0
    for _ in range(_SCANS):
        cursor, found = client.scan(cursor, match=pattern, count=1000)
        keys += found
        if not cursor or len(keys) >= _SAMPLE_KEYS:
            break
    return keys
