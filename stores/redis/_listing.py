"""Lists the payloads in a Redis server or cluster: SCAN, with sizes and remaining lifetimes in one round trip."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from claimcheck.stores.redis._server import RedisServer

_SCAN_KEYS = 1000
_WINDOW = 100
_SPECIAL = "\\*?[]"


class FirstSegment(NamedTuple):
    """The first segment of a payload."""

    key: str
    size: int
    ttl_ms: int | None
    position: str


class Keyspace:
    """The keys below a prefix."""

    def __init__(self, server: RedisServer, prefix: str) -> None:
        self._server = server
        self._pattern = "".join(f"\\{each}" if each in _SPECIAL else each for each in prefix) + "*-0"

    def first_segments(self, after: str | None) -> Iterator[FirstSegment]:
        """Yield the first segment of each payload, some perhaps twice, as SCAN does."""
        start, _, cursor = (after or "").rpartition(" ")
        for name, client in self._server.nodes():
            if name >= start:
                yield from self._scan_node(name, client, int(cursor or 0) if name == start else 0)

    def _scan_node(self, name: str, client: Any, cursor: int) -> Iterator[FirstSegment]:
        while True:
            following, names = client.scan(cursor, match=self._pattern, count=_SCAN_KEYS)
            yield from self._described(client, list(names), f"{name} {cursor}")
            cursor = int(following)
            if not cursor:
                return

    def _described(self, client: Any, names: list[bytes], position: str) -> Iterator[FirstSegment]:
        pipeline = client.pipeline(transaction=False)
        for name in names:
            pipeline.strlen(name)
            pipeline.pttl(name)
        replies = iter(pipeline.execute(raise_on_error=False) if names else ())
        for name, size, ttl in zip(names, replies, replies, strict=False):
            if isinstance(size, int) and isinstance(ttl, int) and ttl != -2:  # -2: it is gone; errors: no segment
                key = _text(name).removesuffix("-0")
                yield FirstSegment(key, size, None if ttl < 0 else ttl, position)

    def first_segment(self, key: str) -> FirstSegment | None:
        """Return the first segment of one payload; ``None`` if it is gone."""
        return next(self._described(self._server.client, [f"{key}-0".encode()], ""), None)

    def unlink_first_segments(self, keys: Sequence[str]) -> list[object]:
        """Delete the first segment of each payload; return the number of deleted entries, or an error, for each."""
        pipeline = self._server.client.pipeline(transaction=False)
        for key in keys:
            pipeline.unlink(f"{key}-0")
        return list(pipeline.execute(raise_on_error=False))

    def segments(self, keys: Sequence[str]) -> list[int]:
        """Return the number of segments of each payload: that of the last one that exists, plus one."""
        return [self._count(key) for key in keys]

    def _count(self, key: str) -> int:
        count = first = 0
        while True:
            pipeline = self._server.client.pipeline(transaction=False)
            for i in range(first, first + _WINDOW):
                pipeline.exists(f"{key}-{i}")
            found = pipeline.execute()
            if not any(found):
                return count
            count = first + _WINDOW - found[::-1].index(1)
            first += _WINDOW


def _text(name: bytes | str) -> str:
    return name.decode("utf-8", "replace") if isinstance(name, bytes) else name
