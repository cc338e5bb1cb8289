"""Keys, the names of payloads inside a store: how they are made, and which are refused."""

from __future__ import annotations

import re

from claimcheck._validation import Check

__all__ = ["KEY_PREFIX", "is_key", "is_key_prefix", "slug"]

_MAX_KEY_BYTES = 1024  # as S3
_MAX_PREFIX_BYTES = 900  # the rest of a key has up to 104


def slug(destination: str) -> str:
    """Turn a destination into a part of a key: 1 to 64 of ``A-Z a-z 0-9 . _ -``, never ``.`` or ``..``."""
    return re.sub(r"[^A-Za-z0-9._-]+", "_", destination).strip(".")[:64] or "_"


def is_key_prefix(prefix: str) -> bool:
    """Whether keys with this prefix pass `is_key`."""
    return is_key(f"{prefix}x") and len(prefix.encode()) <= _MAX_PREFIX_BYTES


KEY_PREFIX = Check(
    is_key_prefix,
    f"printable text of up to {_MAX_PREFIX_BYTES} bytes that begins with no slash and has no '.' or '..' in it",
)
"""For the annotation of an option with a prefix of keys: ``Annotated[str, KEY_PREFIX]``."""


def is_key(key: str) -> bool:
    """Whether a key is printable, has 1 to 1024 bytes of UTF-8, and cannot lead out of the store's folder or bucket."""
    parts = key.replace("\\", "/").split("/")
    safe = parts[0] != "" and not {"..", "."} & set(parts)
    return safe and key.isprintable() and len(key.encode()) <= _MAX_KEY_BYTES
