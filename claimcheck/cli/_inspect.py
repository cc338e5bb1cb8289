"""Describes envelopes, as facts for programs and as lines for people. Uses no store."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from claimcheck import _pointer as pointers
from claimcheck._client import ClaimCheck
from claimcheck._content_header import Damaged, read_header
from claimcheck._envelope import HEADER, Abort, Buffer, Chunk, Encoded, Literal, PointerData, decode
from claimcheck._pointer import Pointer
from claimcheck._reader import PieceReader
from claimcheck._texts import size_text
from claimcheck.errors import ClaimCheckError, ConfigError, EnvelopeError, PointerRejectedError

Facts = dict[str, Any]
"""JSON values by name."""

_UNITS = (("day", 86_400), ("hour", 3600), ("minute", 60), ("second", 1))
_RARE = {"codec": "codec", "encryption": "encryption", "extra": "unknown"}


def describe(
    message: bytes, cc: ClaimCheck | None, *, now: float, destination: str | None = None
) -> tuple[Facts, ClaimCheckError | None]:
    """Describe a message."""
    envelope = decode(message, header=cc.config.header if cc else HEADER)
    facts: Facts = {"kind": type(envelope).__name__.lower(), "message_bytes": len(message)}
    if isinstance(envelope, PointerData):
        limit = cc.config.limits.max_pointer_bytes if cc else pointers.MAX_POINTER_BYTES
        pointer = pointers.decode(envelope.data, max_bytes=limit)
        signature, problem = _signature(message, pointer, cc, destination)
        return facts | {"kind": "pointer"} | pointer_facts(pointer, cc, now) | signature, problem
    if isinstance(envelope, Chunk):
        position = {"uuid": envelope.uuid, "position": envelope.position, "count": envelope.count}
        return facts | position | {"piece_bytes": len(envelope.piece)}, None
    if isinstance(envelope, Abort):
        return facts | {"uuid": envelope.uuid}, None
    if isinstance(envelope, Encoded):
        return facts | _content_facts(envelope.content), None
    size = len(envelope.payload) if isinstance(envelope, Literal) else len(message)
    return facts | {"payload_bytes": size}, None


def pointer_facts(pointer: Pointer, cc: ClaimCheck | None, now: float) -> Facts:
    """Return the fields of a pointer as JSON values."""
    configured = cc.config.stores.get(pointer.store or "") if cc else None
    return {
        "pointer_version": pointer.version,
        "store": pointer.store,
        "store_type": configured.type if configured else None,
        "key": pointer.key,
        "size": pointer.size,
        "segments": pointer.segments,
        "segment_bytes": pointer.segment_bytes,
        "checksum": pointer.checksum,
        "created_ms": pointer.created_ms,
        "created": _iso(pointer.created_ms),
        "expires_ms": pointer.expires_ms,
        "expires": _iso(pointer.expires_ms),
        "expired": pointer.expires_ms is not None and pointer.expires_ms <= now * 1000,
        "codec": pointer.codec,
        "encryption": pointer.encryption,
        "destination": pointer.destination,
        "extra": dict(pointer.extra) or None,
    }


def _content_facts(content: Buffer) -> Facts:
    """Return what the header of encoded content declares; nothing of it is verified."""
    try:
        header, _ = read_header(PieceReader([content]))
    except Damaged as error:
        raise EnvelopeError(f"damaged content: {error}", kind=4) from error
    return {
        "declared_bytes": header.size,
        "codec": header.codec,
        "encryption": header.encryption,
        "encryption_key_id": header.key_id,
        "destination": header.destination,
    }


def accepted(message: bytes, cc: ClaimCheck, destination: str | None) -> Pointer | None:
    """Return the pointer of a message, if it is one and readers accept it: from a topic, or from any without one."""
    return (
        cc._messages.pointer_from_anywhere(message)
        if destination is None
        else cc.pointer(message, destination=destination)
    )


def _signature(
    message: bytes, pointer: Pointer, cc: ClaimCheck | None, destination: str | None
) -> tuple[Facts, ClaimCheckError | None]:
    """The state of the signature: ``none``, ``valid``, ``invalid``, ``missing`` where it is required, ``unchecked``."""
    state, problem = "none" if pointer.mac is None else "unchecked", None
    if cc is not None:
        try:
            accepted(message, cc, destination)
            state = "valid" if pointer.mac is not None and cc.config.signing.keys else state
        except PointerRejectedError as error:
            if not isinstance(error.__cause__, ConfigError):
                state, problem = "missing" if pointer.mac is None else "invalid", error
        except ConfigError:  # a secret that is not set on this machine: the signature cannot be checked
            pass
    return {"signature": state, "key_id": pointer.key_id}, problem


# For people ----------------------------------------------------------------------------------------------------


def lines(facts: Facts, *, now: float) -> Iterator[tuple[str, str, str]]:
    """Return each known fact as label, text and style."""
    yield "envelope", f"{_kind(facts)}, {human_bytes(facts['message_bytes'])}", "bold"
    if facts["kind"] == "pointer":
        yield from _pointer_lines(facts, now)
    if facts["kind"] == "encoded":
        yield from _content_lines(facts)
    if "uuid" in facts:
        yield "uuid", facts["uuid"], ""
    if "piece_bytes" in facts:
        yield "chunk", f"number {facts['position'] + 1:,} of {facts['count']:,}", ""
        yield "piece", human_bytes(facts["piece_bytes"]), ""
    if "payload" in facts or "payload_bytes" in facts:
        yield "payload", *_payload_line(facts)


def _kind(facts: Facts) -> str:
    return {
        "plain": "none: a plain message is its own payload",
        "literal": "literal: an escaped payload that begins like an envelope",
        "chunk": "chunk: one piece of a payload",
        "pointer": f"pointer of version {facts.get('pointer_version')}",
        "encoded": "encoded: a payload that is compressed or encrypted",
        "abort": "abort: the chunks of this payload will not be completed",
    }[facts["kind"]]


def _pointer_lines(facts: Facts, now: float) -> Iterator[tuple[str, str, str]]:
    yield "store", _store(facts), ""
    yield "key", printable(facts["key"]), ""
    yield "size", "unknown" if facts["size"] is None else human_bytes(facts["size"]), ""
    if facts["segments"] > 1:
        piece = f" of {human_bytes(facts['segment_bytes'])}" if facts["segment_bytes"] else ""
        yield "segments", f"{facts['segments']:,}{piece}", ""
    yield "checksum", printable(facts["checksum"] or "none"), ""
    yield "written", _moment(facts["created_ms"], now, otherwise="unknown"), ""
    otherwise = "unknown" if facts["pointer_version"] == 1 else "never"
    expired = "expired" if facts["expired"] else ""
    yield "expired" if expired else "expires", _moment(facts["expires_ms"], now, otherwise=otherwise), expired and "red"
    if facts["destination"] is not None:
        yield "sent to", printable(facts["destination"]), ""
    for name, label in _RARE.items():
        if facts[name]:
            yield label, printable(str(facts[name])), ""
    yield "signature", *_signature_line(facts)


def _content_lines(facts: Facts) -> Iterator[tuple[str, str, str]]:
    yield "size", "unknown" if facts["declared_bytes"] is None else human_bytes(facts["declared_bytes"]), ""
    for name, label in {
        "destination": "sent to",
        "codec": "codec",
        "encryption": "encryption",
        "encryption_key_id": "key",
    }.items():
        if facts[name]:
            yield label, printable(facts[name]), ""


def _payload_line(facts: Facts) -> tuple[str, str]:
    size = human_bytes(facts["payload_bytes"]) if "payload_bytes" in facts else ""
    states = {
        "verified": (f"read and verified, {size}", "green"),
        "complete": (f"read, {size}; it has no checksum", "yellow"),
        "not readable": ("NOT READABLE", "red"),
    }
    return states.get(facts.get("payload", ""), (size, ""))


def _store(facts: Facts) -> str:
    if facts["store"] is None:
        return "not part of this version"
    known = facts["store_type"] or "not in the configuration"
    return f"{printable(facts['store'])} ({known})"


def _signature_line(facts: Facts) -> tuple[str, str]:
    by = f", key {printable(facts['key_id'])}" if facts["key_id"] else ""
    texts = {
        "none": ("none", ""),
        "valid": (f"valid{by}", "green"),
        "invalid": (f"WRONG{by}: readers reject this pointer", "red"),
        "missing": ("MISSING, but required by this configuration: readers reject this pointer", "red"),
        "unchecked": (f"not checked{by}: this configuration has no secret for it", "yellow"),
    }
    return texts[facts["signature"]]


def human_bytes(count: int) -> str:
    """Return a number of bytes in a readable unit, with the exact number."""
    exact = f"{count:,} byte{'' if count == 1 else 's'}"
    return exact if count < 1024 else f"{size_text(count, digits=2)} ({exact})"


def printable(text: str) -> str:
    """Escape every character of an envelope's text that could control a terminal."""
    return "".join(ch if ch.isprintable() else ascii(ch)[1:-1] for ch in text)


def _moment(ms: int | None, now: float, *, otherwise: str) -> str:
    if ms is None:
        return otherwise
    return f"{_iso(ms) or f'{ms} ms after 1970'} ({_distance(ms / 1000 - now)})"


def _distance(seconds: float) -> str:
    size = abs(seconds)
    if size < 1:
        return "just now"
    name, unit = next((name, unit) for name, unit in _UNITS if size >= unit)
    count = round(size / unit)
    text = f"{count:,} {name}{'' if count == 1 else 's'}"
    return f"in {text}" if seconds > 0 else f"{text} ago"


def _iso(ms: int | None) -> str | None:
    if ms is None:
        return None
    try:
        return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (ValueError, OverflowError, OSError):  # a pointer may claim any year
        return None
