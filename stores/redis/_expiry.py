"""Moves the expiry of a payload in Redis: PEXPIREAT of all its segments, never to an earlier time."""

from __future__ import annotations

from collections.abc import Callable

from claimcheck._pointer import Pointer
from claimcheck._registry import import_vendor
from claimcheck.stores.redis._reader import pipelined
from claimcheck.stores.redis._server import RedisServer

_SEGMENTS_AT_ONCE = 1000
_GONE, _NO_EXPIRY = -2, -1  # replies of PTTL
_NO_CONDITIONS = "wrong number of arguments"  # Redis 6.2, whose PEXPIREAT has no GT


def extend_segments(
    server: RedisServer, pointer: Pointer, expires_ms: int, *, now_ms: int, missing: Callable[[str], Exception]
) -> bool:
    """Let all segments expire at a moment, or at their present one if that is later."""
    all_expire = True
    for first in range(0, pointer.segments, _SEGMENTS_AT_ONCE):
        some = range(first, min(first + _SEGMENTS_AT_ONCE, pointer.segments))
        _extend(server, pointer, list(some), expires_ms, now_ms)
        remaining = pipelined(server, pointer, "PTTL", some)
        for i, milliseconds in zip(some, remaining, strict=True):
            if milliseconds == _GONE:
                raise missing(f"segment {i} of {pointer.segments}")
            all_expire = all_expire and milliseconds != _NO_EXPIRY
    return all_expire


def _extend(server: RedisServer, pointer: Pointer, numbers: list[int], expires_ms: int, now_ms: int) -> None:
    try:
        pipelined(server, pointer, "PEXPIREAT", numbers, expires_ms, "GT")
    except import_vendor("redis.exceptions", extra="redis").ResponseError as error:
        if _NO_CONDITIONS not in str(error):
            raise
        remaining = pipelined(server, pointer, "PTTL", numbers)
        shorter = [i for i, ms in zip(numbers, remaining, strict=True) if 0 <= ms < expires_ms - now_ms]
        pipelined(server, pointer, "PEXPIREAT", shorter, expires_ms)
