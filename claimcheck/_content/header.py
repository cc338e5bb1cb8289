"""The header of encoded content, and what has to agree with it. No I/O.

Encoded content is what is stored, or split into chunks, in place of a payload that is compressed, encrypted, or both.
It describes itself. All integers are big-endian::

    content   [b"CCE2"][size of the header:uint32][header][body]

The header is canonical JSON. Its fields, all but the wrapped key and that key's id, are the associated data of the
encryption: content that was moved to another key, store, destination or payload cannot be decrypted. The destination
and the store are also in the context of the wrapped key, which therefore encrypts for no other topic. The body is the
payload, compressed with ``codec`` and then encrypted as `claimcheck._content.encryption` describes.
"""

from __future__ import annotations

import base64
import binascii
import struct
from dataclasses import dataclass, field

from claimcheck._wire import pointer as pointers
from claimcheck._wire.buffers import Reader, fill
from claimcheck._wire.pointer import KEYED, Pointer
from claimcheck.errors import EnvelopeError

ALGORITHM = "AES256_GCM_HKDF_1MB"
"""The value of `Pointer.encryption`: the name of Tink's key template for this format."""

AEAD = "aead:"
"""The checksum of an encrypted payload: this and the id in its header. The encryption itself verifies the bytes.

Writers that sign add a `claimcheck._wire.digest.keyed` one instead.
"""

MAX_HEADER_BYTES = 64 << 10
"""A longer header is not read."""

_MAGIC = b"CCE2"
_FIRST_MAGIC = b"CCE1"  # of content that was written before version 0.2
_PREFIX = struct.Struct(">4sI")
_BOUND = ("codec", "destination", "encryption", "id", "size", "store", "stored_as")
_FIELDS: dict[str, type[object]] = {**dict.fromkeys((*_BOUND, "key", "key_id"), str), "size": int}


class Damaged(ValueError):  # noqa: N818 - named after the finding
    """Content that is not what its header or its pointer says."""


class NotContent(Damaged):
    """Bytes without the header of encoded content."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContentHeader:
    """The header of encoded content."""

    id: str
    size: int | None
    destination: str = ""
    store: str = ""
    stored_as: str = ""
    codec: str | None = None
    encryption: str | None = None
    key_id: str | None = None
    wrapped_key: bytes | None = field(default=None, repr=False)

    @property
    def associated_data(self) -> bytes:
        """What the encryption authenticates besides the payload."""
        return _MAGIC + pointers.canonical_json(self._bound())

    @property
    def key_context(self) -> dict[str, str]:
        """What the wrapped data key is bound to."""
        fields = {"claimcheck": "2", "destination": self.destination, "store": self.store}
        return {name: value for name, value in fields.items() if value}

    def encode(self) -> bytes:
        """Return the bytes in front of the body."""
        fields = self._bound()
        if self.wrapped_key is not None:
            fields |= {"key": base64.b64encode(self.wrapped_key).decode(), "key_id": self.key_id}
        text = pointers.canonical_json(fields)
        return _PREFIX.pack(_MAGIC, len(text)) + text

    @classmethod
    def parse(cls, data: bytes) -> ContentHeader:
        """Parse the untrusted JSON of a header; raises ``ValueError``."""
        try:
            fields = pointers.parse_json(data)
        except EnvelopeError:
            raise Damaged("its header is not valid JSON") from None
        for name, value in fields.items():
            if name in _FIELDS and type(value) is not _FIELDS[name]:
                raise Damaged(f"the field {name!r} of its header is {type(value).__name__}")
        known = {name: value for name, value in fields.items() if name in _FIELDS and name != "key"}
        if "id" not in known or fields.keys() - _FIELDS.keys():
            raise Damaged("its header has no id, or fields that this claimcheck does not know")
        try:
            key = base64.b64decode(fields["key"], validate=True) if "key" in fields else None
        except (binascii.Error, ValueError):
            raise Damaged("the data key in its header is not base64") from None
        return cls(**{"size": None, **known}, wrapped_key=key)

    def _bound(self) -> dict[str, object]:
        return {name: value for name in _BOUND if (value := getattr(self, name)) is not None}


def read_header(source: Reader) -> tuple[ContentHeader, int]:
    """Read a header from the beginning of content; returns it with its size in bytes."""
    start = bytearray(_PREFIX.size)
    if fill(source, memoryview(start)) < len(start):
        raise NotContent("it does not begin with the header of encoded content")
    magic, size = _PREFIX.unpack(start)
    if magic == _FIRST_MAGIC:
        raise NotContent("it was compressed or encrypted before claimcheck 0.2, which this version does not read")
    if magic != _MAGIC or not 0 < size <= MAX_HEADER_BYTES:
        raise NotContent("it does not begin with the header of encoded content")
    data = bytearray(size)
    if fill(source, memoryview(data)) < size:
        raise Damaged("it ends within its header")
    return ContentHeader.parse(bytes(data)), _PREFIX.size + size


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """What a pointer, or the chunks, say about content; its header must agree."""

    bytes: int
    size: int | None = None
    id: str | None = None
    destination: str | None = None
    codec: str | None = ""
    encryption: str | None = ""
    store: str = ""
    stored_as: str = ""

    @classmethod
    def by(cls, pointer: Pointer, *, stored_as: str) -> Expected:
        """Return what a pointer says; ``stored_as`` is its key, without what a log appended to it."""
        encrypted, declared = pointer.encryption is not None, pointer.checksum or ""
        return cls(
            bytes=pointer.stored_bytes or 0,
            size=pointer.size,
            id=declared.removeprefix(AEAD) if encrypted and not declared.startswith(KEYED) else None,
            destination=(pointer.destination or "") if encrypted else None,
            codec=pointer.codec,
            encryption=pointer.encryption,
            store=pointer.store or "",
            stored_as=stored_as,
        )

    def check(self, header: ContentHeader, *, body: int) -> None:
        """Compare them with a header and with the size of the decrypted body; raises ``ValueError``."""
        size = self.size if header.size is None else header.size
        agrees = {
            "id": self.id in (None, header.id),
            "size": header.size in (None, self.size) or self.size is None,
            "stored size": header.codec is not None or size in (None, body),
            "destination": self.destination in (None, header.destination),
            "codec": self.codec in ("", header.codec),
            "encryption": self.encryption in ("", header.encryption),
            "store": self.store == header.store,
            "key": self.stored_as == header.stored_as,
        }
        wrong = [name for name, same in agrees.items() if not same]
        if wrong:
            raise Damaged(f"it was written as the content of another payload: its {wrong[0]} differs")
