"""The Redis store: payloads as segments in one Redis, a cluster, or behind sentinels."""

from claimcheck.stores.redis._store import RedisStore

__all__ = ["RedisStore"]
