"""What a store gets from the code that opens it."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field

from claimcheck._content import ContentCoder
from claimcheck.hooks import Hooks


@dataclass(frozen=True, slots=True)
class StoreContext:
    """The environment of a store, set by the code that opens it.

    Attributes:
        name: The store's name in the configuration.
        max_payload_bytes: Larger payloads are neither written nor read.
        checksum: The algorithm of the checksums in written pointers: ``crc32``, ``sha256`` or ``xxh3-128``.
        content: Compresses, encrypts and decrypts; holds the keys.
        hooks: Receives an event for each operation.
        clock: Seconds since 1970.
        new_uuid: Returns the uuids that make keys unique.
        binds: Whether pointers name the destination that they were written for, and bind encrypted content, for a
            signature that covers both.
    """

    name: str = "store"
    max_payload_bytes: int = 5 << 30
    checksum: str = "crc32"
    content: ContentCoder = field(default_factory=ContentCoder, repr=False)
    hooks: Hooks = field(default_factory=Hooks)
    clock: Callable[[], float] = time.time
    new_uuid: Callable[[], uuid.UUID] = uuid.uuid4
    binds: bool = False
