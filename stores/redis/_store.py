"""Payloads in Redis, in segments that all expire at the same moment.

Big values are bad for Redis: they block every other client while they are copied, and powers of two waste a quarter of
the memory. So a payload rests in segments of a little under 1 MiB, a few of which are in flight at a time.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator
from contextlib import suppress
from typing import Annotated, Literal

from claimcheck._payload import Source
from claimcheck._payload_reader import PieceReader, Reader
from claimcheck._pointer import KEY_PREFIX, Pointer, slug
from claimcheck._registry import import_vendor
from claimcheck._store import Store
from claimcheck._validation import MAX_SECONDS, Check, Range, Timeout, check_arguments, fail
from claimcheck.errors import IntegrityError, PayloadTooLargeError, StoreError, StoreUnavailableError
from claimcheck.stores._tls import CaFile
from claimcheck.stores.redis._address import Address
from claimcheck.stores.redis._reader import SegmentReader, unsized_segments
from claimcheck.stores.redis._server import RedisServer, segment_key, tls_options
from claimcheck.stores.redis._writer import SegmentWriter

__all__ = ["RedisStore"]

_log = logging.getLogger(__name__)

_SEGMENT_BYTES = (1 << 20) - 64  # with Redis' own header just one megabyte for its allocator, not the next size up
_MAX_SEGMENT_BYTES = 512 << 20  # proto-max-bulk-len; one byte more and the server hangs up without a word
_DELETE_KEYS = 16  # UNLINK frees strings at once and blocks the server meanwhile
_MAX_V1_SEGMENTS = 100_000  # a pointer of version 1 is never signed, and does not declare its size
_V1_PREFIX = "kafka-over-redis-"

# Vendor's error to ours, first match wins; anything else is a StoreError.
_ERRORS: tuple[tuple[str, type[StoreError]], ...] = (
    ("AuthenticationError", StoreError),  # a kind of ConnectionError to redis-py, but trying again does not help
    ("AuthorizationError", StoreError),
    ("ConnectionError", StoreUnavailableError),
    ("TimeoutError", StoreUnavailableError),
    ("ReadOnlyError", StoreUnavailableError),  # a replica, during a failover
    ("ClusterDownError", StoreUnavailableError),
    ("TryAgainError", StoreUnavailableError),
    ("RedisClusterException", StoreUnavailableError),  # no node of a cluster answers
)


def _is_url(url: str) -> bool:
    try:
        Address.parse(url)
    except ValueError:
        return False
    return True


_URL = Check(
    _is_url,
    "redis://[user:password@]host[:port][/database], rediss://..., unix://path, redis+cluster://host:port[,...] or "
    "redis+sentinel://host:port[,...]/service[/database], escaped as URLs are",
)


class RedisStore(Store):
    """Segments under ``{key}-{i}``, all with one absolute deadline and in one cluster slot. Needs Redis 6.2 or newer.

    Set ``maxmemory-policy noeviction`` on the server: every other policy throws away segments of payloads that
    messages still point at, which readers then report as gone.

    Args:
        url: ``redis://``, ``rediss://`` or ``unix://``, as redis-py reads it; ``redis+cluster://host:port,host:port``;
            ``redis+sentinel://host:port,host:port/service/database``, with the login of Redis itself.
        ttl_seconds: How long payloads live, at least 1; ``None`` for ever.
        segment_bytes: Up to 512 MiB; a power of two wastes a quarter of the server's memory.
        key_prefix: What all keys begin with; pointers to anything else are refused.
        pointer_version: 1 writes the published form, with its key names, for readers that know nothing else.
        v1_pointers: Whether pointers of version 1, which name no store, belong to this one; by default they belong to
            the only Redis store of a configuration. Those of more than 100,000 segments are refused.
        tls_ca_file: Certificates of authorities in PEM format, in place of the system's, for ``rediss://``.
        tls_validate_hostname: Whether a server's certificate has to be for the host in ``url``. Options of redis-py in
            the query of ``url`` (``ssl_check_hostname``, ``ssl_cert_reqs``) take precedence.
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
        tls_ca_file: CaFile | None = None,
        tls_validate_hostname: bool = True,
        timeout_seconds: Timeout = 30,
        connect_timeout_seconds: Timeout = 5,
    ) -> None:
        check_arguments(RedisStore, url=url, segment_bytes=segment_bytes, key_prefix=key_prefix)
        options = {"socket_timeout": timeout_seconds, "socket_connect_timeout": connect_timeout_seconds}
        self._address = Address.parse(url)
        if self._address.tls:
            options |= tls_options(self._address, ca_file=tls_ca_file, validate_hostname=tls_validate_hostname)
        elif tls_ca_file:
            fail("tls_ca_file", found="an address without TLS", expected="one that begins with rediss")
        self._server = RedisServer(self._address, options, name=lambda: self.name)
        self._policy_known = False
        self.ttl_seconds = ttl_seconds
        self.segment_bytes = segment_bytes
        self.prefix = key_prefix
        self.pointer_version = pointer_version
        self.v1_pointers = v1_pointers
        self.reads_v1 = v1_pointers is not False or pointer_version == 1

    def __repr__(self) -> str:
        return f"<RedisStore {self.name!r} at {self._address.location}>"

    def close(self) -> None:
        """Close the connections; the next use makes new ones."""
        self._server.close()

    def _new_key(self, destination: str, unique: uuid.UUID) -> str:
        if self.pointer_version == 1:
            return f"{_V1_PREFIX}{slug(destination)}-{unique}"
        return f"{self.prefix}{slug(destination)}-{{{unique}}}"  # braces: only the uuid chooses the cluster slot

    def _max_segments(self, version: int) -> int:
        return _MAX_V1_SEGMENTS if version == 1 else super()._max_segments(version)

    def _scope(self, pointer: Pointer) -> str:
        return _V1_PREFIX if pointer.version == 1 else self.prefix

    def _reach(self) -> None:
        self._server.borrow("").give_back()
        if not self._policy_known:
            self._policy_known = True
            self._warn_of_eviction()

    def _write(self, pointer: Pointer, source: Source) -> None:
        writer = SegmentWriter(self._server, pointer)
        try:
            for i, segment in enumerate(source.pieces(self.segment_bytes or _SEGMENT_BYTES)):
                writer.put(i, segment)
            if not source.taken:
                writer.put(0, memoryview(b""))
            writer.finish()
        finally:
            writer.abandon()

    def _open(self, pointer: Pointer, start: int, stop: int | None) -> Reader:
        if pointer.size is None or not pointer.size:
            return PieceReader(self._segments(pointer), start=start)
        reader = SegmentReader(
            self._server,
            pointer,
            start,
            pointer.size if stop is None else stop,
            missing=lambda what: self.missing(pointer, what),
            wrong=lambda expected, actual: self._wrong(pointer, expected, actual),
        )
        reader.begin()
        return reader

    def _segments(self, pointer: Pointer) -> Iterator[bytes]:
        return unsized_segments(
            self._server,
            pointer,
            limit=self.context.max_payload_bytes if pointer.size is None else pointer.size,
            missing=lambda what: self.missing(pointer, what),
            empty=lambda: self._wrong(pointer, "at least 1", 0),
            too_large=lambda size: self._over(pointer, size),
        )

    def _over(self, pointer: Pointer, size: int) -> StoreError:
        if pointer.size is not None:
            return self._wrong(pointer, pointer.size, size)
        limit = self.context.max_payload_bytes
        text = f"store {self.name!r}: {pointer.key!r} is longer than limits.max_payload_bytes ({limit})"
        return PayloadTooLargeError(text, store=self.name, key=pointer.key, size=size, limit=limit)

    def _delete(self, pointer: Pointer) -> None:
        for first in range(0, pointer.segments, _DELETE_KEYS):
            last = min(first + _DELETE_KEYS, pointer.segments)
            self._unlink([segment_key(pointer, i) for i in range(first, last)])

    def _unlink(self, keys: list[str]) -> None:
        exceptions = import_vendor("redis.exceptions", extra="redis")
        try:
            self._server.client.unlink(*keys)
        except (exceptions.ClusterError, exceptions.TryAgainError):  # their slot is moving: some are here, some there
            for key in keys:
                self._server.client.unlink(key)

    def _warn_of_eviction(self) -> None:
        with suppress(Exception):  # not everybody may ask, or knows how to answer
            memory = self._server.client.info("memory")
            policy = memory.get("maxmemory_policy", "noeviction")
            if memory.get("maxmemory") and policy != "noeviction":
                _log.warning(
                    "store %r: the server's maxmemory-policy is %s: when its memory is full it throws away payloads "
                    "that messages still point at; set noeviction",
                    self.name,
                    policy,
                )

    def _wrong(self, pointer: Pointer, expected: int | str, actual: int) -> IntegrityError:
        return IntegrityError(
            f"store {self.name!r}: a segment of {pointer.key!r} has {actual} bytes, not {expected}",
            store=self.name,
            key=pointer.key,
            expected=expected,
            actual=actual,
        )

    def _translate(self, error: Exception) -> type[StoreError] | None:
        exceptions = import_vendor("redis.exceptions", extra="redis")
        if "syntax error" in str(error):
            error.args = ("the server does not know SET with PXAT; Redis 6.2 or newer is needed",)
        if str(error).startswith("WRONGTYPE"):  # a list, for example, which is no segment
            return IntegrityError
        for name, ours in _ERRORS:
            if isinstance(error, getattr(exceptions, name, ())):
                return ours
        return super()._translate(error)
