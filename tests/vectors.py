"""Reads the golden vectors, and makes encoded content again as docs/reference/wire-format.md describes it."""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from claimcheck._content.encryption import DataKey
from claimcheck._content.header import ContentHeader

FOLDER = Path(__file__).parent / "golden"
CONTENT = {name: bytes.fromhex(text) for name, text in json.loads((FOLDER / "tink/content.json").read_text()).items()}
TINK: dict[str, Any] = json.loads((FOLDER / "tink/vectors.json").read_text())  # what Tink made
UUID = "6ba7b810-9dad-11d1-80b4-00c04fd430c8"
KEY = bytes(range(100, 132))
DATA_KEY = bytes(range(32))
PAYLOAD = b"The payload of the golden vectors. " * 40


def golden(name: str) -> bytes:
    """The bytes of one vector (see tests/golden/README.md)."""
    parts = []
    for line in (FOLDER / f"{name}.golden").read_text().splitlines():
        if line.startswith('"'):
            parts.append(line[1 : line.index('"', 1)].encode())
        else:
            parts.append(bytes.fromhex(line.partition("#")[0]))
    return b"".join(parts)


def names() -> list[str]:
    """All vectors."""
    return sorted(path.stem for path in FOLDER.glob("*.golden"))


# Encoded content -------------------------------------------------------------------------------------------------


class SameKey:
    """Data keys of an encoding that all are the one with which something was encrypted before."""

    def __init__(self, key: bytes, header: ContentHeader) -> None:
        self.key_id = header.key_id
        self._key = DataKey(key, header.key_id or "", header.wrapped_key or b"")

    def new(self, context: Mapping[str, str]) -> DataKey:
        return self._key

    def open(self, key_id: str, wrapped: bytes, context: Mapping[str, str]) -> bytes:
        return self._key.key


def plaintext(size: int) -> bytes:
    """Bytes that a test can make again."""
    return hashlib.shake_128(b"claimcheck").digest(size)


def canonical(fields: dict[str, Any]) -> bytes:
    return json.dumps(fields, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def keyed_checksum(content: bytes) -> str:
    """Return the checksum of a signed pointer to content."""
    fields = json.loads(content[8 : 8 + int.from_bytes(content[4:8], "big")])
    bound = {name: value for name, value in fields.items() if name not in ("key", "key_id")}
    derived = hmac.digest(hmac.digest(bytes(32), DATA_KEY, "sha256"), b"claimcheck checksum\x01", "sha256")
    text = b"CCE2" + canonical(bound) + hashlib.sha256(PAYLOAD).digest()
    return f"hmac-sha256:{hmac.digest(derived, text, 'sha256').hex()}"
