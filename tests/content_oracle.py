"""Encoded content made by Tink and by hand, as the guide to encryption describes it. As a program, it writes vectors.

    python -m tests.content_oracle

Encryption is random, so another run writes other vectors; those in the repository must stay readable for ever.
"""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

from tests import tink_oracle

VECTORS = Path(__file__).parent / "golden" / "tink" / "content.json"
KEY = bytes(range(100, 132))
DATA_KEY = bytes(range(32))
UUID = "6ba7b810-9dad-11d1-80b4-00c04fd430c8"
HEADER = b"PRF_wdkafcli_header_"
PAYLOAD = b"The payload of the golden vectors. " * 40


def canonical(fields: dict[str, Any]) -> bytes:
    return json.dumps(fields, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def content(plain: bytes, **fields: Any) -> bytes:
    """Return encoded content: header and ciphertext."""
    bound = {"encryption": "AES256_GCM_HKDF_1MB", "id": UUID.replace("-", ""), **fields}
    context = canonical({"context": {"claimcheck": "1"}, "key_id": "k1"})
    wrapped = base64.b64encode(tink_oracle.aead(KEY).encrypt(DATA_KEY, context)).decode()
    text = canonical(bound | {"key": wrapped, "key_id": "k1"})
    if bound["store"]:
        text = text.ljust(1016)
    header = b"CCE1" + len(text).to_bytes(4, "big") + text
    return header + tink_oracle.encrypt(plain, key=DATA_KEY, associated_data=b"CCE1" + canonical(bound))


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
    VECTORS.write_text(json.dumps({name: value.hex() for name, value in vectors.items()}, indent=1) + "\n")


if __name__ == "__main__":
    main()
