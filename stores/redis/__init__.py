"""The Redis store: payloads in segments that all expire at the same moment, in a server, a cluster or behind sentinels.

Large values are bad for Redis: they block all other clients while they are copied, and powers of two waste a quarter of
the memory. A payload is therefore stored in segments of a little under 1 MiB. Two are written at a time, three read.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import compress
from typing import Annotated, Any, Literal

from claimcheck._content.source import Source
from claimcheck._store.listing import KEY_PREFIX, Deletion, StoreEntry
from claimcheck._store.store import Store
from claimcheck._validation import MAX_SECONDS, Check, Function, Range, Timeout, check_arguments, fail
from claimcheck._wire.buffers import PieceReader, Reader
from claimcheck._wire.pointer import Pointer, slug
from claimcheck.errors import IntegrityError, ScanNotSupportedError, StoreError, StoreUnavailableError, import_vendor
from claimcheck.stores._common import CaFile
from claimcheck.stores.redis._segments import (
    SegmentReader,
    SegmentWriter,
    set_command,
    small_command,
    unsized_segments,
)
from claimcheck.stores.redis._server import (
    NOT_REACHED,
    SMALL_BYTES,
    Address,
    Borrowed,
    RedisServer,
    SmallCommands,
    packed,
    segment_key,
    tls_options,
)

__all__ = ["RedisStore"]

_SEGMENT_BYTES = (1 << 20) - 64  # with Redis' header just one megabyte for its allocator, not the next size up
_MAX_SEGMENT_BYTES = 512 << 20  # proto-max-bulk-len; beyond it the server closes the connection without an error
_ROUND_TRIP = 100  # commands
_DELETE_KEYS = 16  # UNLINK frees strings at once, which blocks the server
_MAX_V1_SEGMENTS = 100_000  # a pointer of version 1 is never signed, and does not declare its size
_CONNECT_SECONDS = 5
_V1_PREFIX = "kafka-over-redis-"
_GONE = -2  # a reply of PTTL
_SCAN_KEYS = 1000
_SPECIAL = "\\*?[]"  # in a pattern

# Error classes by redis-py's, first match wins; any other error is a StoreError.
_ERRORS: tuple[tuple[str, type[StoreError]], ...] = (
    ("AuthenticationError", StoreError),  # a subclass of redis-py's ConnectionError, but not retryable
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
    "redis+sentinel://host:port[,...]/service[/database], percent-encoded",
)


class _Sent(threading.local):
    """What this thread has sent together."""

    commands: SmallCommands | None = None
    pointers: Sequence[Pointer] = ()


class RedisStore(Store):
    """Stores segments as ``{key}-{i}``, with one expiry time and in one cluster slot. Requires Redis 6.2 or newer.

    Set ``maxmemory-policy noeviction`` on the server: all other policies evict segments of payloads that messages still
    point at, and readers report those payloads as gone.

    Args:
        url: ``redis://``, ``rediss://`` or ``unix://``, as in redis-py; ``redis+cluster://host:port,host:port``;
            ``redis+sentinel://host:port,host:port/service/database``, with the login of Redis itself.
        ttl_seconds: The lifetime of payloads, at least 1; ``None`` for no limit.
        segment_bytes: Up to 512 MiB; a power of two wastes a quarter of the server's memory.
        key_prefix: The beginning of all keys; pointers to other keys are rejected.
        pointer_version: 1 writes the published form, with its key names, for readers that support nothing else.
        v1_pointers: Whether pointers of version 1, which name no store, belong to this store. By default they belong to
            the only Redis store of a configuration. Those with more than 100,000 segments are rejected.
        tls_ca_file: Certificates of authorities in PEM format, in place of the system's, for ``rediss://``.
            It must name the host in ``url``, unless the query of ``url`` has redis-py's ``ssl_check_hostname=false``.
        client: ``module:function``, which returns the client of redis-py, or a dict of arguments for it.
        timeout_seconds: Timeout for one reply of the server.
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
        client: Function | None = None,
        timeout_seconds: Timeout = 30,
    ) -> None:
        check_arguments(RedisStore, url=url, segment_bytes=segment_bytes, key_prefix=key_prefix)
        options = {"socket_timeout": timeout_seconds, "socket_connect_timeout": min(timeout_seconds, _CONNECT_SECONDS)}
        self._address = Address.parse(url)
        if self._address.tls:
            options |= tls_options(self._address, ca_file=tls_ca_file)
        elif tls_ca_file:
            fail("tls_ca_file", found="an address without TLS", expected="one that begins with rediss")
        self._server = RedisServer(self._address, options, make=client, name=lambda: self.name)
        self.pipelined_bytes = 0 if self._server.is_cluster else min(SMALL_BYTES, segment_bytes)
        self._sent = _Sent()
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
        return f"{self.prefix}{slug(destination)}-{{{unique}}}"  # braces: only the uuid determines the cluster slot

    def _max_segments(self, version: int) -> int:
        return _MAX_V1_SEGMENTS if version == 1 else super()._max_segments(version)

    def _scope(self, pointer: Pointer) -> str:
        return _V1_PREFIX if pointer.version == 1 else self.prefix

    def _reach(self) -> None:
        if self._server.is_cluster:  # elsewhere the connection that is borrowed to write shows it
            self._server.borrow("").give_back()

    def _wrote_nothing(self, error: BaseException) -> bool:
        return super()._wrote_nothing(error) or getattr(error.__cause__, NOT_REACHED, False)

    def _write(self, pointer: Pointer, source: Source) -> None:
        segment_bytes, create = self.segment_bytes or _SEGMENT_BYTES, self._is_exclusive(pointer)
        if create or self._server.is_cluster:
            self._store_segments(pointer, source.pieces(segment_bytes), None, create=create)
        elif source.size is not None and source.size <= self.pipelined_bytes:
            segment = source.take_all() if source.view is None else source.view
            if self._reply(pointer, segment) is None:
                self._store_segments(pointer, [segment], None)
            if not source.taken:
                source.take_all()
        else:
            try:
                borrowed = self._server.borrow("")
            except Exception as error:
                setattr(error, NOT_REACHED, True)
                raise
            self._store_segments(pointer, source.pieces(segment_bytes), borrowed)

    def _store_segments(
        self, pointer: Pointer, segments: Iterable[memoryview], borrowed: Borrowed | None, *, create: bool = False
    ) -> None:
        writer = SegmentWriter(self._server, pointer, borrowed)
        try:
            for i, segment in enumerate(segments):
                writer.put(i, segment, create=create and not i)
            if not writer.count:
                writer.put(0, memoryview(b""))
            writer.finish()
        finally:
            writer.abandon()

    def _open(self, pointer: Pointer, start: int, stop: int | None) -> Reader:
        size = pointer.size
        if not size:
            return PieceReader(unsized_segments(self._server, self, pointer), start=start)
        if not start and stop == size <= self.pipelined_bytes and pointer.segments == 1:
            value = self._reply(pointer, None)
            if value:
                return PieceReader((value,))
            if value is not None:
                raise self.missing(pointer, "segment 0 of 1")
        return SegmentReader(self._server, self, pointer, start, size if stop is None else stop)

    # Small payloads -------------------------------------------------------------------------------------------------

    @contextmanager
    def _pipelined(self, requests: Sequence[tuple[Pointer, memoryview | None]]) -> Iterator[None]:
        commands = self._small(requests)
        self._sent.commands, self._sent.pointers = commands, [pointer for pointer, _ in requests]
        try:
            yield
        finally:
            self._sent.commands = None
            commands.close()

    def _reply(self, pointer: Pointer, segment: memoryview | None) -> bytes | None:
        """Read or write the only segment, alone or together with others; ``None`` if that did not work."""
        if (commands := self._sent.commands) is not None:
            for number in range(commands.answered, len(self._sent.pointers)):
                if self._sent.pointers[number] is pointer and (reply := commands.receive(number)) is not None:
                    return reply
        return self._small([(pointer, segment)]).receive(0)

    def _small(self, requests: Sequence[tuple[Pointer, memoryview | None]]) -> SmallCommands:
        commands = [packed(small_command(key) if view is None else set_command(key, 0, view)) for key, view in requests]
        sizes = [pointer.size or 0 for pointer, _ in requests]  # there is none yet while a payload is written
        return SmallCommands(self._server, commands, sizes)

    def _delete(self, pointer: Pointer) -> None:
        for first in range(0, pointer.segments, _DELETE_KEYS):
            last = min(first + _DELETE_KEYS, pointer.segments)
            self._unlink([segment_key(pointer, i) for i in range(first, last)])

    def _unlink(self, keys: list[str]) -> None:
        exceptions = import_vendor("redis.exceptions", extra="redis")
        try:
            self._server.client.unlink(*keys)
        except (exceptions.ClusterError, exceptions.TryAgainError):  # their slot is moving between two nodes
            for key in keys:
                self._server.client.unlink(key)

    def _scan(self) -> Iterator[StoreEntry]:
        """List payloads by their first segments, without counting the others: their size is known only if it is one."""
        if self.pointer_version == 1:
            text = f"store {self.name!r}: keys of pointers of version 1 are shared with other programs, and not listed"
            raise ScanNotSupportedError(text, store=self.name)
        pattern = "".join(f"\\{each}" if each in _SPECIAL else each for each in self.prefix) + "*-0"
        for _, client in self._server.nodes():
            cursor: int | None = None
            while cursor != 0:
                cursor, names = client.scan(cursor or 0, match=pattern, count=_SCAN_KEYS)
                yield from self._entries(client, [_text(each) for each in names])

    def _entries(self, client: Any, names: Sequence[str]) -> Iterator[StoreEntry]:
        """Yield the payloads with these first segments, as far as they are there."""
        pipeline = client.pipeline(transaction=False)
        for name in names:
            pipeline.strlen(name)
            pipeline.pttl(name)
        replies = iter(pipeline.execute(raise_on_error=False) if names else ())
        for name, size, ttl in zip(names, replies, replies, strict=False):
            if type(error := size if isinstance(size, Exception) else ttl).__name__ == "NoPermissionError":
                raise error
            known = self._lifetime_of(key := name.removesuffix("-0"))
            if known is None or not isinstance(size, int) or not isinstance(ttl, int) or ttl == _GONE:
                continue  # errors: no segment
            whole = size if size < (self.segment_bytes or _SEGMENT_BYTES) else None
            entry = StoreEntry.of(key, known, size=whole)
            expires = max(int(self.context.clock() * 1000) + ttl, entry.expires_ms or 0)
            yield entry if ttl < 0 else replace(entry, expires_ms=expires, has_lifetime=True)

    def _server_time(self) -> float:
        seconds, microseconds = self._server.nodes()[0][1].time()
        return float(seconds + microseconds / 1e6)

    def _discard(self, entries: Sequence[StoreEntry]) -> Iterator[Deletion]:
        for first in range(0, len(entries), _ROUND_TRIP):
            some = entries[first : first + _ROUND_TRIP]  # with a size: one segment, unless `segment_bytes` has grown
            found = self._replies("exists", (f"{entry.key}-1" for entry in some), strict=False)
            is_single = [entry.size is not None and more == 0 for entry, more in zip(some, found, strict=True)]
            names = (f"{entry.key}-0" for entry in compress(some, is_single))
            replies = iter(self._replies("unlink", names, strict=False))
            for entry, single in zip(some, is_single, strict=True):
                try:
                    if not single:
                        self._unlink_segments(entry.key, count := self._segments(entry.key))
                    yield self._unlinked(entry, next(replies) if single else count)
                except Exception as error:
                    yield self._failed(entry, error)

    def _replies(self, command: str, keys: Iterable[str], *, strict: bool = True) -> list[Any]:
        pipeline = self._server.client.pipeline(transaction=False)
        for key in keys:
            getattr(pipeline, command)(key)
        return list(pipeline.execute(raise_on_error=strict))

    def _unlinked(self, entry: StoreEntry, reply: object) -> Deletion:
        if isinstance(reply, Exception):
            return self._failed(entry, reply)
        return Deletion(entry, "deleted" if reply else "gone")

    def _segments(self, key: str) -> int:
        """Return the number of segments of a payload: that of the last one that exists, plus one."""
        count = first = 0
        while True:
            found = self._replies("exists", (f"{key}-{i}" for i in range(first, first + _ROUND_TRIP)))
            if not any(found):
                return count
            count = first + _ROUND_TRIP - found[::-1].index(1)
            first += _ROUND_TRIP

    def _unlink_segments(self, key: str, count: int) -> None:
        """Delete segments, the first one last: until then a listing finds what an interrupted deletion left."""
        names = [f"{key}-{i}" for i in reversed(range(count))]
        for first in range(0, count, _DELETE_KEYS):
            self._unlink(names[first : first + _DELETE_KEYS])

    def _translate(self, error: Exception) -> type[StoreError] | None:
        exceptions = import_vendor("redis.exceptions", extra="redis")
        if "syntax error" in str(error):
            error.args = ("the server does not support SET with PXAT; Redis 6.2 or newer is required",)
        if str(error).startswith("WRONGTYPE"):  # a list, for example, which is not a segment
            return IntegrityError
        for name, ours in _ERRORS:
            if isinstance(error, getattr(exceptions, name, ())):
                return ours
        if isinstance(error, OSError):  # of a socket that is used directly, such as an ssl.SSLEOFError
            return StoreUnavailableError
        return super()._translate(error)


def _text(name: bytes | str) -> str:
    return name.decode("utf-8", "replace") if isinstance(name, bytes) else name
