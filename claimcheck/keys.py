"""The names of payloads inside a store: how they are made, and which are refused."""

from __future__ import annotations

import re

from claimcheck.validation import Check

__all__ = ["KEY_PREFIX", "is_key", "is_key_prefix", "slug"]

_MAX_KEY = 1024
_MAX_PREFIX = 900  # bytes; the rest of a key is up to 104, and S3 takes 1024


def slug(destination: str) -> str:
    """Make a destination fit for a key: 1 to 64 of ``A-Z a-z 0-9 . _ -``, never ``.`` or ``..``."""
    return re.sub(r"[^A-Za-z0-9._-]+", "_", destination).strip(".")[:64] or "_"


def is_key_prefix(prefix: str) -> bool:
    """Whether keys that begin so are keys that `Store.check` follows."""
    return is_key(f"{prefix}x") and len(prefix.encode()) <= _MAX_PREFIX


KEY_PREFIX = Check(
    is_key_prefix, f"printable text of up to {_MAX_PREFIX} bytes that begins with no slash and has no '.' or '..' in it"
)
"""For the annotation of an option that keys begin with: ``Annotated[str, KEY_PREFIX]``."""


def is_key(key: str) -> bool:
    """Whether a key can be followed: printable, not too long, and no way out of where a store keeps its payloads."""
    parts = key.replace("\\", "/").split("/")
    return 0 < len(key) <= _MAX_KEY and key.isprintable() and parts[0] != "" and not {"..", "."} & set(parts)
