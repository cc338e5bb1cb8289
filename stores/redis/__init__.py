"""The Redis store: payloads as segments in a Redis server or cluster, or behind sentinels."""

from claimcheck.stores.redis._store import RedisStore

__all__ = ["RedisStore"]
