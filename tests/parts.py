"""Object stores with parts of another size or number than they choose themselves, for small payloads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from claimcheck.stores._parts import Slots, TransferPolicy

T = TypeVar("T")


def divided(make: Callable[..., T], **options: Any) -> T:
    """Make a store of type ``s3`` or ``obstore``, with the options of `divide`, too."""
    known = {name: options.pop(name, None) for name in ("part", "single", "gets", "puts")}
    store = make(**options)
    divide(store._transfers, **known)  # type: ignore[attr-defined]
    return store


def divide(
    policy: TransferPolicy,
    *,
    part: int | None = None,
    single: int | None = None,
    gets: int | None = None,
    puts: int | None = None,
) -> None:
    """Set what a store divides payloads into.

    Args:
        policy: Of the store.
        part: The size of each part.
        single: The largest payload that is sent in one request.
        gets: Parts fetched concurrently.
        puts: Parts sent concurrently.
    """
    policy._part, policy._single = part, single
    if gets is not None:
        policy.gets = Slots(policy.gets.memory, connections=gets)
        policy.gets.is_fast = False
    if puts is not None:
        policy.puts = Slots(policy.puts.memory, connections=puts)
