"""Encoded content as Tink makes it, and as the guide to encryption describes it."""

from __future__ import annotations

import hashlib
import hmac
import importlib.util
import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from claimcheck._content.encryption import DataKey
from claimcheck._content.header import ContentHeader
from tests.conftest import IN_CI

FOLDER = Path(__file__).parent / "golden" / "tink"
VECTORS, STREAMS = FOLDER / "content.json", FOLDER / "vectors.json"
KEY = bytes(range(100, 132))
DATA_KEY = bytes(range(32))
SIZES = (0, 1, 1000, 1048519, 1048520, 1048521, 2097080, 2097081, 3_500_000)  # around the borders of segments
UUID = "6ba7b810-9dad-11d1-80b4-00c04fd430c8"
HEADER = b"PRF_wdkafcli_header_"
PAYLOAD = b"The payload of the golden vectors. " * 40

needs_tink = pytest.mark.skipif(not IN_CI and importlib.util.find_spec("tink") is None, reason="tink is not installed")


class SameKey:
    """Data keys of an encoding that all are the one with which something was encrypted before."""

    def __init__(self, key: bytes, header: ContentHeader) -> None:
        self.key_id = header.key_id
        self._key = DataKey(key, header.key_id or "", header.wrapped_key or b"")

    def new(self, context: Mapping[str, str]) -> DataKey:
        return self._key

    def open(self, key_id: str, wrapped: bytes, context: Mapping[str, str]) -> bytes:
        return self._key.key


# Tink --------------------------------------------------------------------------------------------------------------


def plaintext(size: int) -> bytes:
    """Bytes that a test can make again."""
    return hashlib.shake_128(b"claimcheck").digest(size)


def encrypt(plain: bytes, *, key: bytes = DATA_KEY, associated_data: bytes) -> bytes:
    """Encrypt with Tink's streaming AEAD."""
    box = _Kept()
    with _streaming_aead(key).new_encrypting_stream(box, associated_data) as stream:
        stream.write(plain)
    return box.value


def decrypt(ciphertext: bytes, *, key: bytes = DATA_KEY, associated_data: bytes) -> bytes:
    """Decrypt with Tink's streaming AEAD."""
    with _streaming_aead(key).new_decrypting_stream(io.BytesIO(ciphertext), associated_data) as stream:
        whole: bytes = stream.read()
    return whole


def aead(key: bytes) -> Any:
    """Tink's AES-256-GCM without a prefix, the format of a wrapped data key."""
    from tink import aead
    from tink.proto import aes_gcm_pb2

    aead.register()
    return _handle("AesGcmKey", aes_gcm_pb2.AesGcmKey(version=0, key_value=key)).primitive(aead.Aead)


def _streaming_aead(key: bytes) -> Any:
    from tink import streaming_aead
    from tink.proto import aes_gcm_hkdf_streaming_pb2, tink_pb2

    streaming_aead.register()
    template: tink_pb2.KeyTemplate = streaming_aead.streaming_aead_key_templates.AES256_GCM_HKDF_1MB
    form = aes_gcm_hkdf_streaming_pb2.AesGcmHkdfStreamingKeyFormat.FromString(template.value)
    main = aes_gcm_hkdf_streaming_pb2.AesGcmHkdfStreamingKey(version=0, key_value=key, params=form.params)
    return _handle("AesGcmHkdfStreamingKey", main).primitive(streaming_aead.StreamingAead)


def _handle(kind: str, key: Any) -> Any:
    from tink import proto_keyset_format, secret_key_access
    from tink.proto import tink_pb2

    data = tink_pb2.KeyData(
        type_url=f"type.googleapis.com/google.crypto.tink.{kind}",
        value=key.SerializeToString(),
        key_material_type=tink_pb2.KeyData.SYMMETRIC,
    )
    entry = tink_pb2.Keyset.Key(key_data=data, key_id=1, status=tink_pb2.ENABLED, output_prefix_type=tink_pb2.RAW)
    keyset = tink_pb2.Keyset(primary_key_id=1, key=[entry])
    return proto_keyset_format.parse(keyset.SerializeToString(), secret_key_access.TOKEN)


class _Kept(io.BytesIO):
    """Keeps its value when Tink closes it."""

    value = b""

    def close(self) -> None:
        if not self.closed:
            self.value = self.getvalue()
        super().close()


# By hand -----------------------------------------------------------------------------------------------------------


def canonical(fields: dict[str, Any]) -> bytes:
    return json.dumps(fields, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def keyed_checksum(content: bytes) -> str:
    """Return the checksum of a signed pointer to content, as docs/reference/wire-format.md describes it."""
    fields = json.loads(content[8 : 8 + int.from_bytes(content[4:8], "big")])
    bound = {name: value for name, value in fields.items() if name not in ("key", "key_id")}
    derived = hmac.digest(hmac.digest(bytes(32), DATA_KEY, "sha256"), b"claimcheck checksum\x01", "sha256")
    text = b"CCE2" + canonical(bound) + hashlib.sha256(PAYLOAD).digest()
    return f"hmac-sha256:{hmac.digest(derived, text, 'sha256').hex()}"
