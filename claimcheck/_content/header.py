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
from collections.abc import Mapping
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

PREFIX_BYTES = 8
"""The magic number and the size of the header, which are before it."""

MAX_HEADER_BYTES = 64 << 10
"""A longer header is not read."""

_MAGIC = b"CCE2"
_FIRST_MAGIC = b"CCE1"  # of content that was written before version 0.2
_PREFIX = struct.Struct(">4sI")
_BOUND = ("codec", "destination", "encryption", "id", "size", "store", "stored_as")
_FIELDS: dict[str, type[object]] = {**dict.fromkeys((*_BOUND, "key", "key_id"), str), "size": int}


class Damaged(ValueError):  # noqa: N818 - named after the finding
    """Content that is not what its header or its pointer says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContentHeader:
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
        raise Damaged("it does not begin with the header of encoded content")
    magic, size = _PREFIX.unpack(start)
    if magic == _FIRST_MAGIC:
        raise Damaged("it was compressed or encrypted before claimcheck 0.2, which this version does not read")
    if magic != _MAGIC or not 0 < size <= MAX_HEADER_BYTES:
        raise Damaged("it does not begin with the header of encoded content")
    data = bytearray(size)
    if fill(source, memoryview(data)) < size:
        raise Damaged("it ends within its header")
    return ContentHeader.parse(bytes(data)), _PREFIX.size + size


@dataclass(frozen=True, slots=True)
class Expected:
    """What a pointer, or the chunks, say about content: its size, that of its payload, and fields of its header."""

    bytes: int
    size: int | None
    fields: Mapping[str, str | None]

    @classmethod
    def by(cls, pointer: Pointer, *, stored_as: str) -> Expected:
        """Return what a pointer says; ``stored_as`` is its key, without what a log appended to it."""
        fields = {"codec": pointer.codec, "encryption": pointer.encryption}
        fields |= {"store": pointer.store or "", "stored_as": stored_as}
        if pointer.encryption is not None:
            fields["destination"] = pointer.destination or ""
            if not (pointer.checksum or "").startswith(KEYED):
                fields["id"] = (pointer.checksum or "").removeprefix(AEAD)
        return cls(pointer.stored_bytes or 0, pointer.size, fields)

    def check(self, header: ContentHeader, *, body: int) -> None:
        """Compare them with a header and with the size of the decrypted body; raises ``ValueError``."""
        size = header.size if self.size is None else self.size
        wrong = [name for name, value in self.fields.items() if getattr(header, name) != value]
        if wrong or header.size not in (None, size) or (header.codec is None and size not in (None, body)):
            raise Damaged(f"it was written as the content of another payload: its {[*wrong, 'size'][0]} differs")
