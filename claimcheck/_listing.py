"""What a store returns when it lists and deletes what it keeps. No I/O."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from claimcheck._key_lifetime import KeyLifetime
from claimcheck.errors import StoreError


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreEntry:
    """One payload in a store, or what an interrupted write left behind.

    Attributes:
        kind: ``payload``, or ``leftover``: a temporary file, an incomplete multipart upload, an empty folder. No
            pointer names a leftover.
        key: The payload's key; for a leftover its name in the medium.
        size: Stored bytes; ``None`` if the medium does not tell.
        created_ms: When it was written, milliseconds since 1970: the time in the key, to the second, otherwise the time
            at which the medium last stored it. ``None`` if unknown.
        expires_ms: When its lifetime ends, milliseconds since 1970; ``None`` if it has none, or if unknown.
        has_lifetime: Whether the lifetime is known; with ``expires_ms`` ``None`` it is unlimited. False for leftovers
            and for keys of earlier releases.
        is_immutable: Whether the entry cannot change, because no other write uses the same key.
        position: Pass it to `Store.scan` to continue here. ``None`` if the listing can only be started again.
        version: What the medium knows about this version of the entry; compared before it is deleted.
    """

    kind: Literal["payload", "leftover"] = "payload"
    key: str
    size: int | None = None
    created_ms: int | None = None
    expires_ms: int | None = None
    has_lifetime: bool = False
    is_immutable: bool = False
    position: str | None = None
    version: str = field(default="", repr=False)

    @classmethod
    def of(
        cls,
        key: str,
        known: KeyLifetime,
        *,
        size: int | None = None,
        stored_ms: int | None = None,
        position: str | None = None,
        version: str = "",
    ) -> StoreEntry:
        """Return the entry of a payload.

        Args:
            key: Its key.
            known: What the key says.
            size: Stored bytes.
            stored_ms: When the medium last stored it.
            position: Where to continue.
            version: Compared before it is deleted; ``stored_ms`` if empty.
        """
        created = stored_ms if known.created_ms is None else known.created_ms
        expires = None if created is None or known.lifetime_ms is None else created + known.lifetime_ms
        return cls(
            key=key,
            size=size,
            created_ms=created,
            expires_ms=expires,
            has_lifetime=known.is_known and (expires is not None or known.lifetime_ms is None),
            is_immutable=known.created_ms is not None,
            position=position,
            version=version or str(stored_ms),
        )


@dataclass(frozen=True, slots=True)
class Deletion:
    """What became of one entry that `Store.delete` was called with.

    Attributes:
        entry: The entry.
        outcome: ``deleted``; ``gone``: it was no longer there; ``changed``: it was written again since it was listed,
            and stays; ``failed``: it may still be there.
        error: The error, only for ``failed``.
    """

    entry: StoreEntry
    outcome: Literal["deleted", "gone", "changed", "failed"]
    error: Exception | None = None


class IncompleteScanError(StoreError):
    """Parts of a store could not be listed. It is raised at the end, after everything else was listed."""

    errors: tuple[StoreError, ...] = ()
