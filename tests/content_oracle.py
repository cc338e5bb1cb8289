"""Encoded content made by Tink and by hand, as the guide to encryption describes it. As a program, it writes vectors.

    python -m tests.content_oracle

Encryption is random, so another run writes other vectors; those in the repository must stay readable for ever.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from claimcheck._content.encryption import DataKey
from claimcheck._content.header import ContentHeader
from tests import tink_oracle

VECTORS = Path(__file__).parent / "golden" / "tink" / "content.json"
KEY = bytes(range(100, 132))
DATA_KEY = bytes(range(32))
UUID = "6ba7b810-9dad-11d1-80b4-00c04fd430c8"
HEADER = b"PRF_wdkafcli_header_"
PAYLOAD = b"The payload of the golden vectors. " * 40


class SameKey:
    """Data keys of an encoding that all are the one with which something was encrypted before."""

    def __init__(self, key: bytes, header: ContentHeader) -> None:
        self.key_id = header.key_id
        self._key = DataKey(key, header.key_id or "", header.wrapped_key or b"")

    def new(self, context: Mapping[str, str]) -> DataKey:
        return self._key

    def open(self, key_id: str, wrapped: bytes, context: Mapping[str, str]) -> bytes:
        return self._key.key


def canonical(fields: dict[str, Any]) -> bytes:
    return json.dumps(fields, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def content(plain: bytes, **fields: Any) -> bytes:
    """Return encoded content: header and ciphertext."""
    bound = {"encryption": "AES256_GCM_HKDF_1MB", "id": UUID.replace("-", ""), **fields}
    context = {"claimcheck": "2", "destination": bound["destination"]}
    if bound["store"]:
        context["store"] = bound["store"]
    identity = canonical({"context": context, "key_id": "k1"})
    wrapped = base64.b64encode(tink_oracle.aead(KEY).encrypt(DATA_KEY, identity)).decode()
    text = canonical(bound | {"key": wrapped, "key_id": "k1"})
    header = b"CCE2" + len(text).to_bytes(4, "big") + text
    return header + tink_oracle.encrypt(plain, key=DATA_KEY, associated_data=b"CCE2" + canonical(bound))


def keyed_checksum(content: bytes) -> str:
    """Return the checksum of a signed pointer to content, as docs/reference/wire-format.md describes it."""
    fields = json.loads(content[8 : 8 + int.from_bytes(content[4:8], "big")])
    bound = {name: value for name, value in fields.items() if name not in ("key", "key_id")}
    derived = hmac.digest(hmac.digest(bytes(32), DATA_KEY, "sha256"), b"claimcheck checksum\x01", "sha256")
    text = b"CCE2" + canonical(bound) + hashlib.sha256(PAYLOAD).digest()
    return f"hmac-sha256:{hmac.digest(derived, text, 'sha256').hex()}"


def main() -> None:
    import zstandard

    frame = zstandard.ZstdCompressor(level=1, write_checksum=False).compress(PAYLOAD)
    stored = {"size": len(PAYLOAD), "destination": "Straße", "store": "s", "stored_as": "golden"}
    sent = {"size": len(PAYLOAD), "destination": "Straße", "store": "", "stored_as": ""}
    vectors = {
        "object": content(PAYLOAD, **stored),
        "object_without_size": content(PAYLOAD, **{name: value for name, value in stored.items() if name != "size"}),
        "object_compressed": content(frame, **stored, codec="zstd"),
        "message": content(PAYLOAD, **sent),
        "message_compressed": content(frame, **sent, codec="zstd"),
    }
    vectors |= {name: bytes.fromhex(text) for name, text in json.loads(VECTORS.read_text()).items() if "0.1" in name}
    VECTORS.write_text(json.dumps({name: value.hex() for name, value in vectors.items()}, indent=1) + "\n")


if __name__ == "__main__":
    main()
