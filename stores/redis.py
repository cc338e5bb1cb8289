"""Payloads in Redis, in segments that all expire at the same moment.

Big values are bad for Redis: they block every other client while they are copied, and powers of two waste a quarter of
the memory. So a payload rests in segments of a little under 1 MiB, a few of which are in flight at a time.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import islice
from types import ModuleType
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from claimcheck.envelope import Buffer
from claimcheck.errors import ConfigError, StoreError, StoreUnavailableError
from claimcheck.keys import KEY_PREFIX, slug
from claimcheck.payload import Source
from claimcheck.pointer import Pointer
from claimcheck.registry import import_vendor
from claimcheck.store import Store
from claimcheck.validation import MAX_SECONDS, Check, Range, Timeout, check_arguments

__all__ = ["RedisStore"]

_SEGMENT_BYTES = (1 << 20) - 64  # with Redis' own header just one megabyte for its allocator, not the next size up
_MAX_SEGMENT_BYTES = 512 << 20  # proto-max-bulk-len; one byte more and the server hangs up without a word
_IN_FLIGHT = 4 << 20  # bytes, reading: more would only pile up in the server's memory and ours; writing: the double
_DELETE_KEYS = 16  # UNLINK frees strings at once and blocks the server meanwhile
_V1_PREFIX = "kafka-over-redis-"
_BY_REFERENCE = 6000  # arguments over this size are sent as they are, not copied into a command

# Vendor's error to ours, first match wins; anything else is a StoreError.
_ERRORS: tuple[tuple[str, type[StoreError]], ...] = (
    ("AuthenticationError", StoreError),  # a kind of ConnectionError to redis-py, but trying again does not help
    ("AuthorizationError", StoreError),
    ("ConnectionError", StoreUnavailableError),
    ("TimeoutError", StoreUnavailableError),
    ("ReadOnlyError", StoreUnavailableError),  # a replica, during a failover
    ("ClusterDownError", StoreUnavailableError),
    ("TryAgainError", StoreUnavailableError),
)
_DATABASE = re.compile(r"/?\d*/?")


def _is_url(url: str) -> bool:
    """Whether redis-py reads an address as it was meant; a ``/`` or ``#`` in a password would cut it short."""
    try:
        parts = urlsplit(url)
        parts.port  # noqa: B018 - raises where it is no number
    except ValueError:
        return False
    if not url.startswith(f"{parts.scheme}://"):
        return False
    if parts.scheme == "unix":
        return bool(parts.path) and not parts.fragment
    return parts.scheme in ("redis", "rediss") and not parts.fragment and bool(_DATABASE.fullmatch(parts.path))


_URL = Check(
    _is_url, "redis://[user:password@]host[:port][/database], rediss://... or unix://path, escaped as URLs are"
)


class RedisStore(Store):
    """Segments under ``{key}-{i}``, all with one absolute deadline and in one cluster slot. Needs Redis 6.2 or newer.

    Set ``maxmemory-policy noeviction`` on the server: every other policy throws away segments of payloads that
    messages still point at, which readers then report as gone.

    Args:
        url: ``redis://``, ``rediss://`` or ``unix://``, as redis-py reads it.
        ttl_seconds: How long payloads live, at least 1; ``None`` for ever.
        segment_bytes: Up to 512 MiB; a power of two wastes a quarter of the server's memory.
        key_prefix: What all keys begin with; pointers to anything else are refused.
        pointer_version: 1 writes the published form, with its key names, for readers that know nothing else.
        v1_pointers: Whether pointers of version 1, which name no store, belong to this one; by default they belong to
            the only Redis store of a configuration.
        timeout_seconds: For one answer of the server.
        connect_timeout_seconds: For a new connection.
    """

    def __init__(
        self,
        *,
        url: Annotated[str, _URL],
        ttl_seconds: Annotated[float, Range(1, MAX_SECONDS)] | None = 604_800,
        segment_bytes: Annotated[int, Range(1, _MAX_SEGMENT_BYTES)] = _SEGMENT_BYTES,
        key_prefix: Annotated[str, KEY_PREFIX] = "claimcheck:",
        pointer_version: Literal[1, 2] = 2,
        v1_pointers: bool | None = None,
        timeout_seconds: Timeout = 30,
        connect_timeout_seconds: Timeout = 5,
    ) -> None:
        check_arguments(RedisStore, url=url, segment_bytes=segment_bytes, key_prefix=key_prefix)
        self._url = url
        self._timeouts = {"socket_timeout": timeout_seconds, "socket_connect_timeout": connect_timeout_seconds}
        self._lock = threading.Lock()
        self._redis: Any = None
        self.ttl_seconds = ttl_seconds
        self.segment_bytes = segment_bytes
        self.prefix = key_prefix
        self.pointer_version = pointer_version
        self.v1_pointers = v1_pointers
        self.reads_v1 = v1_pointers is not False or pointer_version == 1

    def __repr__(self) -> str:
        return f"<RedisStore {self.name!r} at {_location(self._url)}>"

    def close(self) -> None:
        """Close the connections; the next use makes new ones."""
        with self._lock:
            client, self._redis = self._redis, None
        if client is not None:
            client.connection_pool.disconnect()

    def _new_key(self, destination: str) -> str:
        unique = self.context.new_uuid()
        if self.pointer_version == 1:
            return f"{_V1_PREFIX}{slug(destination)}-{unique}"
        return f"{self.prefix}{slug(destination)}-{{{unique}}}"  # braces: only the uuid chooses the cluster slot

    def _scope(self, pointer: Pointer) -> str:
        return _V1_PREFIX if pointer.version == 1 else self.prefix

    def _reach(self) -> None:
        with suppress(
            import_vendor("redis", extra="redis").exceptions.ResponseError
        ):  # an answer, if not to our liking
            self._client().ping()

    def _write(self, pointer: Pointer, source: Source) -> None:
        pieces = source.pieces(self.segment_bytes or _SEGMENT_BYTES)
        window, first = 2 * _window(self.segment_bytes), 0
        while batch := list(islice(pieces, window)):
            self._set(pointer, first, batch)
            first += len(batch)
        if not first:
            self._set(pointer, 0, [memoryview(b"")])

    def _set(self, pointer: Pointer, first: int, segments: list[memoryview]) -> None:
        with self._client().pipeline(transaction=False) as pipeline:
            for i, segment in enumerate(segments, first):
                pipeline.set(_segment(pointer, i), segment, pxat=pointer.expires_ms)
            for _ in self._replies(pipeline):
                pass

    def _read(self, pointer: Pointer) -> Iterable[Buffer]:
        window = _window(pointer.segment_bytes or pointer.size)
        for first in range(0, pointer.segments, window):
            with self._client().pipeline(transaction=False) as pipeline:
                for i in range(first, min(first + window, pointer.segments)):
                    pipeline.get(_segment(pointer, i))
                replies = list(self._replies(pipeline))
            for i, segment in enumerate(replies, first):
                if segment is None:
                    raise self.missing(pointer, f"segment {i} of {pointer.segments}")
                yield segment

    def _delete(self, pointer: Pointer) -> None:
        client = self._client()
        for first in range(0, pointer.segments, _DELETE_KEYS):
            last = min(first + _DELETE_KEYS, pointer.segments)
            client.unlink(*(_segment(pointer, i) for i in range(first, last)))

    def _replies(self, pipeline: Any) -> Iterator[Any]:
        """Raise the first refusal as it came: redis-py's own text would quote the command and so the payload."""
        for reply in pipeline.execute(raise_on_error=False):
            if isinstance(reply, Exception):
                if "syntax error" in str(reply):
                    raise StoreError(
                        f"store {self.name!r}: the server does not know SET with PXAT; Redis 6.2 or newer is needed",
                        store=self.name,
                    ) from reply
                raise reply
            yield reply

    def _translate(self, error: Exception) -> type[StoreError] | None:
        exceptions = import_vendor("redis", extra="redis").exceptions
        for name, ours in _ERRORS:
            if isinstance(error, getattr(exceptions, name, ())):
                return ours
        return super()._translate(error)

    def _client(self) -> Any:
        with self._lock:
            if self._redis is None:
                redis = import_vendor("redis", extra="redis")
                self._redis = redis.Redis(connection_pool=self._pool(redis))
            return self._redis

    def _pool(self, redis: ModuleType) -> Any:
        # One retry is for connections that died in the pool; every command here may safely be sent twice.
        retry = redis.retry.Retry(redis.backoff.NoBackoff(), 1, supported_errors=(redis.exceptions.ConnectionError,))
        with suppress(ValueError, TypeError):  # the vendor's text may quote a part of the password
            return redis.ConnectionPool.from_url(self._url, **self._timeouts, retry=retry, **_packer(redis))
        path = f"stores.{self.name}.url"
        raise ConfigError(f"{path}: redis-py cannot read this address; is its query right?", path=path)


def _packer(redis: ModuleType) -> dict[str, Callable[..., Any]]:
    """Have big values sent from where they lie. With hiredis installed, redis-py would copy each command whole."""
    serializer = getattr(redis.connection, "PythonRespSerializer", None)
    if serializer is None:
        return {}
    return {"command_packer": serializer(_BY_REFERENCE, redis.connection.Encoder("utf-8", "strict", False).encode)}


def _segment(pointer: Pointer, i: int) -> str:
    return f"{pointer.key}-{i}"


def _window(segment_bytes: int | None) -> int:
    """Segments in flight at a time: 4, or fewer large ones; 1 of unknown size."""
    return max(1, min(4, _IN_FLIGHT // (segment_bytes or _IN_FLIGHT)))


def _location(url: str) -> str:
    """Host and database, without the password; nothing where that cannot be told apart."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", f":{parts.port}" if parts.port else ""
    except ValueError:
        return "(unreadable url)"
    if "@" in parts.path + parts.query + parts.fragment or parts.fragment:
        return "(unreadable url)"
    return f"{host}{port}{parts.path}"
