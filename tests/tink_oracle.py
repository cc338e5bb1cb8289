"""Tink as the oracle of our ciphertexts. Run as a program, it writes the vectors in tests/golden/tink.

    python -m tests.tink_oracle

Encryption is random, so another run writes other vectors; those in the repository must stay readable for ever.
"""

from __future__ import annotations

import hashlib
import io
import json
from pathlib import Path
from typing import Any

VECTORS = Path(__file__).parent / "golden" / "tink" / "vectors.json"
KEY = bytes(range(32))
SIZES = (0, 1, 1000, 1048519, 1048520, 1048521, 2097080, 2097081, 3_500_000)  # around the borders of segments


def plaintext(size: int) -> bytes:
    """Bytes that a test can make again."""
    return hashlib.shake_128(b"claimcheck").digest(size)


def encrypt(plain: bytes, *, key: bytes = KEY, associated_data: bytes) -> bytes:
    """Encrypt with Tink's streaming AEAD."""
    box = _Kept()
    with _streaming_aead(key).new_encrypting_stream(box, associated_data) as stream:
        stream.write(plain)
    return box.value


def decrypt(ciphertext: bytes, *, key: bytes = KEY, associated_data: bytes) -> bytes:
    """Decrypt with Tink's streaming AEAD."""
    with _streaming_aead(key).new_decrypting_stream(io.BytesIO(ciphertext), associated_data) as stream:
        whole: bytes = stream.read()
    return whole


def aead(key: bytes = KEY) -> Any:
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


def _vector(size: int) -> dict[str, Any]:
    associated_data = b"claimcheck %d" % size
    ciphertext = encrypt(plaintext(size), associated_data=associated_data)
    return {
        "plaintext_bytes": size,
        "associated_data": associated_data.decode(),
        "stream_header": ciphertext[:40].hex(),
        "ciphertext_bytes": len(ciphertext),
        "ciphertext_sha256": hashlib.sha256(ciphertext).hexdigest(),
    }


def _wrapped() -> dict[str, str]:
    associated_data = '{"context":{"claimcheck":"1"},"key_id":"k1"}'
    data_key = KEY[::-1]
    wrapped = aead().encrypt(data_key, associated_data.encode())
    return {"associated_data": associated_data, "data_key": data_key.hex(), "wrapped": wrapped.hex()}


if __name__ == "__main__":
    vectors = {"key": KEY.hex(), "streams": [_vector(size) for size in SIZES], "data_key": _wrapped()}
    VECTORS.write_text(json.dumps(vectors, indent=2) + "\n")
