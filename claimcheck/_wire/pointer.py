"""Pointers: which store, which key, what size, which checksum. Encodes, decodes, signs and verifies them. No I/O.

Pointer bytes begin with a version byte.

Version 1 is the published Redis form, ``[1:1][segments:int32][key utf-8]``: no size, no checksum, no store name.

Version 2, for every store, is canonical JSON, which an operator can read in a topic: sorted keys, no spaces, UTF-8,
times in integer milliseconds since 1970. Unknown fields are kept (and signed) and otherwise ignored. With a signing key
the field ``mac`` holds an HMAC-SHA256 (RFC 2104) over the version byte and the canonical JSON of all other fields.
"""

from __future__ import annotations

import hmac
import json
import math
import operator
import re
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from json.encoder import encode_basestring
from typing import Any, NoReturn

from claimcheck._texts import MAX_POINTER_BYTES
from claimcheck.errors import EnvelopeError, PointerRejectedError, UnknownVersionError

Refuse = Callable[[str, str], NoReturn]  # with a reason in one word, and why

NEWEST_VERSION = 2

KEYED = "hmac-sha256:"
"""The beginning of the checksum of an encrypted payload in a signed pointer; see `claimcheck._content.coder`."""

_MAX_INT = 2**63 - 1
_MAX_NESTING = 32  # of unknown fields; Python's JSON parser and encoder recurse
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"?', re.DOTALL)  # a string without an end runs to the end: linear time
_SPACES = " \t\n\r"  # as JSON has them
_V1 = struct.Struct(">i")
# The fields of version 2, with the attributes that hold them and their types.
_FIELDS: dict[str, tuple[str, type[Any]]] = {
    "key": ("key", str),
    "store": ("store", str),
    "size": ("size", int),
    "segments": ("segments", int),
    "checksum": ("checksum", str),
    "segment_bytes": ("segment_bytes", int),
    "created": ("created_ms", int),
    "expires": ("expires_ms", int),
    "codec": ("codec", str),
    "encryption": ("encryption", str),
    "stored_bytes": ("stored_bytes", int),
    "destination": ("destination", str),
    "key_id": ("key_id", str),
    "mac": ("mac", str),
}
_REQUIRED = {"key": True, "store": False, "size": False, "segments": True, "checksum": True}  # true: not empty or 0
_NAMES = sorted(_FIELDS)  # as in canonical JSON
_VALUES = operator.attrgetter(*(_FIELDS[name][0] for name in _NAMES))


@dataclass(frozen=True, kw_only=True)  # without slots: `created` sets all attributes at once
class Pointer:
    """A reference to one stored payload.

    Attributes:
        key: The payload's name inside its store.
        store: The store's name in the configuration, never an address; ``None`` in version 1.
        size: Payload bytes; ``None`` in version 1.
        segments: Stored pieces, at least 1.
        segment_bytes: Bytes of each piece but the last, if there are several.
        checksum: ``algorithm:hex`` over the whole payload; ``None`` in version 1. Encrypted payloads have one with
            their data key if the writer signs, and otherwise the id of the write.
        created_ms: When it was written, milliseconds since 1970.
        expires_ms: When the store may delete it; ``None`` for never.
        codec: How the payload was compressed; readers refuse codecs that they do not know.
        encryption: How the payload was encrypted; readers refuse schemes that they do not know.
        stored_bytes: Bytes in the store, if the payload is compressed or encrypted; otherwise ``None``. ``segments``
            and ``segment_bytes`` describe these bytes.
        destination: The topic that the pointer was made for, in the form of `claimcheck.config.canonical`;
            ``None`` if it is not bound to one.
        key_id: The signing key of ``mac``.
        mac: Hexadecimal HMAC-SHA256.
        version: 1 or 2.
        extra: Unknown fields, as a newer version may write them; kept unchanged.
    """

    key: str
    store: str | None = None
    size: int | None = None
    segments: int = 1
    segment_bytes: int | None = None
    checksum: str | None = None
    created_ms: int | None = None
    expires_ms: int | None = None
    codec: str | None = None
    encryption: str | None = None
    stored_bytes: int | None = None
    destination: str | None = None
    key_id: str | None = None
    mac: str | None = field(default=None, repr=False)
    version: int = NEWEST_VERSION
    extra: Mapping[str, object] = field(default_factory=dict, repr=False, hash=False)

    @property
    def size_in_store(self) -> int | None:
        """Bytes in the store: those of the payload, unless it is compressed or encrypted."""
        return self.size if self.stored_bytes is None else self.stored_bytes


def created(**attributes: Any) -> Pointer:
    """Same as ``Pointer(...)`` in a fifth of the time, for every write and read. The names are not checked."""
    pointer = object.__new__(Pointer)
    vars(pointer).update(attributes)
    if "extra" not in attributes:
        vars(pointer)["extra"] = {}
    return pointer


def changed(pointer: Pointer, **changes: Any) -> Pointer:
    """Same as `dataclasses.replace` in a fifth of the time. The names are not checked."""
    return created(**(vars(pointer) | changes))


_MAX_KEY_BYTES = 1024  # as in S3
MAX_PREFIX_BYTES = 900  # the rest of a key has up to 104


PINNED = "\0"
"""Before the destination of a payload that belongs to no topic, because its copy is pinned."""

_NOT_IN_SLUG = re.compile(r"[^A-Za-z0-9._-]+")


def slug(destination: str) -> str:
    """Turn a destination into a part of a key: 1 to 64 of ``A-Z a-z 0-9 . _ -``, never ``.`` or ``..``."""
    if destination.startswith(PINNED):
        return "~" + slug(destination.lstrip(PINNED + "~"))
    return _NOT_IN_SLUG.sub("_", destination).strip(".")[:64] or "_"


def is_key_prefix(prefix: str) -> bool:
    return is_key(f"{prefix}x") and len(prefix.encode()) <= MAX_PREFIX_BYTES


def is_key(key: str) -> bool:
    """Whether a key is printable, has 1 to 1024 bytes of UTF-8, and stays inside the store's folder or bucket."""
    if "/" in key or "\\" in key or key in ("", ".", ".."):
        path = f"/{key}/".replace("\\", "/")
        if path.startswith("//") or "/./" in path or "/../" in path:
            return False
    return key.isprintable() and len(key.encode()) <= _MAX_KEY_BYTES


def encode(pointer: Pointer) -> bytes:
    if pointer.version == 1:
        return b"\x01" + _V1.pack(pointer.segments) + pointer.key.encode()
    if pointer.extra:
        return b"\x02" + canonical_json(fields(pointer))
    members = [  # the same as canonical JSON, in half the time
        f'"{name}":{encode_basestring(value) if type(value) is str else value}'
        for name, value in zip(_NAMES, _VALUES(pointer), strict=True)
        if value is not None
    ]
    return f"\x02{{{','.join(members)}}}".encode()


def encode_signed(pointer: Pointer, *, key_id: str, secret: bytes) -> bytes:
    """Encode a pointer of version 2 with ``key_id`` and a new ``mac``."""
    body = fields(pointer) | {"key_id": key_id}
    body["mac"] = mac_of(body, secret)
    return b"\x02" + canonical_json(body)


def decode(data: bytes, *, max_bytes: int = MAX_POINTER_BYTES) -> Pointer:
    if len(data) > max_bytes:
        text = f"pointer of {len(data)} bytes, but limits.max_pointer_bytes is {max_bytes}"
        raise PointerRejectedError(text, reason="size")
    if not data:
        _damaged("it is empty")
    if data[0] == 1:
        return _decode_v1(data)
    if data[0] == 2:
        return _decode_v2(data)
    text = f"pointer of version {data[0]}, this claimcheck reads up to {NEWEST_VERSION}: upgrade the reader"
    raise UnknownVersionError(text, kind=2, version=data[0], supported=NEWEST_VERSION)


def verify(
    signed: Mapping[str, object], secrets: Mapping[str, bytes], refuse: Refuse, *, domain: bytes = b"\x02"
) -> None:
    """Refuse fields that none of the keys has signed; with no keys, only unsigned ones."""
    key_id, mac = signed.get("key_id"), signed.get("mac")
    if mac is None:
        refuse("signature", "is not signed, but signing.require is true")
    if not secrets:
        return
    if not isinstance(key_id, str) or not isinstance(mac, str):
        refuse("signature", "has a damaged signature")
    if key_id not in secrets:
        refuse("signature", f"was signed with the key {key_id[:200]!r}, which is not in signing.keys")
    if not same_mac(mac_of(signed, secrets[key_id], domain=domain), mac):
        refuse("signature", "does not match its signature: it was changed, or signed with another secret")


def mac_of(body: Mapping[str, object], secret: bytes, *, domain: bytes = b"\x02") -> str:
    """Return the hexadecimal HMAC-SHA256 over the canonical JSON of all fields but ``mac``."""
    signed = dict(body)
    signed.pop("mac", None)
    return hmac.digest(secret, domain + canonical_json(signed), "sha256").hex()


def same_mac(expected: str, found: str) -> bool:
    return hmac.compare_digest(expected.encode(), found.encode())


def fields(pointer: Pointer) -> dict[str, object]:
    """Return the fields of version 2."""
    values = zip(_NAMES, _VALUES(pointer), strict=True)
    return dict(pointer.extra) | {name: value for name, value in values if value is not None}


def canonical_json(body: Mapping[str, object]) -> bytes:
    """Return the one form of a mapping that is signed: sorted keys, no spaces, UTF-8."""
    return _ENCODER.encode(body).encode()


def _decode_v1(data: bytes) -> Pointer:
    if len(data) <= 1 + _V1.size:
        _damaged(f"version 1 with {len(data)} bytes has no key")
    (segments,) = _V1.unpack_from(data, 1)
    if segments < 1:
        _damaged(f"version 1 with {segments} segments")
    try:
        key = data[1 + _V1.size :].decode()
    except UnicodeDecodeError as exc:
        raise EnvelopeError("damaged pointer: the key is not UTF-8", kind=2) from exc
    return Pointer(key=key, segments=segments, version=1)


def _decode_v2(data: bytes) -> Pointer:
    body = parse_json(data[1:])
    known: dict[str, Any] = {}
    extra: dict[str, object] = {}
    for name, value in body.items():
        member = _FIELDS.get(name)
        if member is None:
            extra[name] = value
            continue
        attribute, kind = member
        if type(value) is not kind:
            _damaged(f"the field {name!r} is {type(value).__name__}, not {kind.__name__}")
        if kind is int and not 0 <= value <= _MAX_INT:
            _damaged(f"the field {name!r} is out of range")
        known[attribute] = value
    for name, filled in _REQUIRED.items():
        if name not in known:
            _damaged(f"the field {name!r} is missing")
        if filled and not known[name]:
            _damaged(f"the field {name!r} is empty")
    return created(**known, extra=extra)


def parse_json(data: bytes) -> dict[str, Any]:
    """Return the fields of untrusted JSON; raises `EnvelopeError` for anything but one object of limited depth."""
    try:
        text = data.decode().strip(_SPACES)
        _check_nesting(text)
        body, end = _DECODER.raw_decode(text)
        if end < len(text):
            _damaged("there is more after its JSON")
        if "\\u" in text:
            canonical_json(body)  # a lone surrogate has no UTF-8 form and would fail later, in a store
    except ValueError as exc:
        raise EnvelopeError("damaged pointer: not valid JSON", kind=2) from exc
    if not isinstance(body, dict):
        _damaged("not a JSON object")
    return body


def _check_nesting(text: str) -> None:
    if text.count("[") + text.count("{") <= _MAX_NESTING:
        return
    depth = 0
    for char in _STRING.sub("", text):
        depth += (char in "[{") - (char in "]}")
        if depth > _MAX_NESTING:
            _damaged(f"more than {_MAX_NESTING} levels of nesting")


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    body = dict(pairs)
    if len(body) != len(pairs):
        _damaged("duplicate field")
    return body


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        _damaged("a number is out of range")
    return number


def _not_a_number(text: str) -> NoReturn:
    _damaged(f"{text} is not a JSON number")


def _damaged(why: str) -> NoReturn:
    raise EnvelopeError(f"damaged pointer: {why}", kind=2)


# Created once: json.dumps and json.loads create new ones for each call with options.
_ENCODER = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
_DECODER = json.JSONDecoder(object_pairs_hook=_unique, parse_float=_finite, parse_constant=_not_a_number)
