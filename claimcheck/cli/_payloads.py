"""``get`` and ``inspect``: read the payload of an envelope, and describe it."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterator
from typing import Any

import click

from claimcheck._client import ClaimCheck
from claimcheck._content.header import Damaged, read_header
from claimcheck._texts import duration, printable, size_text, time_text
from claimcheck._wire import pointer as pointers
from claimcheck._wire.buffers import Buffer, PieceReader
from claimcheck._wire.envelope import Abort, Chunk, Encoded, Literal, Plain, PointerData, decode
from claimcheck._wire.pointer import Pointer
from claimcheck.cli._commands import CONFIG, human_bytes, json_option, loaded, with_config
from claimcheck.cli._files import STDIO, check_output, note, output, read_message, show_state
from claimcheck.config import HEADER, MAX_POINTER_BYTES
from claimcheck.errors import ClaimCheckError, ConfigError, EnvelopeError, PointerRejectedError

Facts = dict[str, Any]
"""JSON values by name."""

_PIECE_BYTES = 1 << 20
_FIELDS = ("store", "key", "size", "segments", "segment_bytes", "checksum", "created_ms", "expires_ms", "codec",
           "encryption", "destination")  # fmt: skip
_FILE = click.Path(exists=True, dir_okay=False, allow_dash=True)
_OUTPUT = click.Path(dir_okay=False, allow_dash=True)


@click.command()
@with_config
@click.argument("envelope", type=_FILE)
@click.option("-o", "--output", "target", metavar="FILE", type=_OUTPUT, default="-", help="[default: standard output]")
@click.option(
    "--destination",
    metavar="TOPIC",
    help="Also check that a signed pointer was sent to TOPIC.  [default: accept it whatever its topic and its age]",
)
def get(config: str, envelope: str, target: str, destination: str | None) -> None:
    """Write the payload of ENVELOPE, verified. With -o /dev/null, only verify it.

    "-" is standard input or output. FILE appears when it is complete. Standard output may receive all but the last
    piece of a damaged payload before the error: check the exit code.
    """
    check_output(target)
    message = read_message(envelope)
    with loaded(config) as cc:
        _refuse_plain(message, cc)
        messages = cc.opened.messages
        if destination is None:
            pointer = messages.pointer_from_anywhere(message)
        else:
            pointer = cc.pointer(message, destination=destination)
        reader = messages.open(pointer) if pointer is not None else cc.open(message, destination=destination)
        size, done = len(message) if pointer is None else pointer.size, 0
        try:
            with reader as payload, output(target) as out:
                while piece := payload.read(_PIECE_BYTES):
                    out.write(piece)
                    show_state(f"{size_text(done := done + len(piece))} of {size_text(size or 0)}")
        finally:
            show_state("")
    source = f" from {pointer.store or 'a store'} ({pointer.key})" if pointer else ""
    note(f"Wrote {human_bytes(size or 0)}{source}.")


def _refuse_plain(message: bytes, cc: ClaimCheck) -> None:
    if isinstance(decode(message, header=cc.config.header), Plain):
        raise EnvelopeError(
            f"these {len(message)} bytes are not an envelope, because they do not begin with"
            f" {cc.config.envelope.header!r}: a plain message is its own payload"
        )


@click.command()
@with_config
@click.argument("envelope", type=_FILE)
@json_option
def inspect(config: str, envelope: str, as_json: bool) -> None:
    """Describe ENVELOPE. Uses no store.

    Works without a configuration. With one it also checks the signature. "-" is standard input.
    """
    check_output(STDIO)
    message, now = read_message(envelope), time.time()
    with contextlib.ExitStack() as stack:
        is_there = config != CONFIG or os.path.exists(config)  # named, or the default one
        cc = stack.enter_context(loaded(config)) if is_there else None
        facts, problem = describe(message, cc, now=now)
    click.echo(json.dumps(facts, indent=2) if as_json else "\n".join(lines(facts, now=now)))
    if problem is not None:
        raise problem


def describe(message: bytes, cc: ClaimCheck | None, *, now: float) -> tuple[Facts, ClaimCheckError | None]:
    envelope = decode(message, header=cc.config.header if cc else HEADER)
    facts: Facts = {"kind": type(envelope).__name__.lower(), "message_bytes": len(message)}
    if isinstance(envelope, PointerData):
        limit = cc.config.limits.max_pointer_bytes if cc else MAX_POINTER_BYTES
        pointer = pointers.decode(envelope.data, max_bytes=limit)
        signature, problem = _signature(message, pointer, cc)
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
    facts = {"pointer_version": pointer.version, "store_type": configured.type if configured else None}
    facts |= {name: getattr(pointer, name) for name in _FIELDS}
    facts["expired"] = pointer.expires_ms is not None and pointer.expires_ms <= now * 1000
    return facts | {"extra": dict(pointer.extra) or None}


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


def _signature(message: bytes, pointer: Pointer, cc: ClaimCheck | None) -> tuple[Facts, ClaimCheckError | None]:
    """The state of the signature: ``none``, ``valid``, ``invalid``, ``missing`` where it is required, ``unchecked``."""
    state, problem = "none" if pointer.mac is None else "unchecked", None
    if cc is not None:
        try:
            cc.opened.messages.pointer_from_anywhere(message)
            state = "valid" if pointer.mac is not None and cc.config.signing.keys else state
        except PointerRejectedError as error:
            if not isinstance(error.__cause__, ConfigError):
                state, problem = "missing" if pointer.mac is None else "invalid", error
        except ConfigError:  # a secret that is not set on this machine: the signature cannot be checked
            pass
    return {"signature": state, "key_id": pointer.key_id}, problem


def lines(facts: Facts, *, now: float) -> Iterator[str]:
    """Yield what is known, by the names that it has in JSON; times have their distance from now."""
    for name, value in facts.items():
        if value is None or value is False:
            continue
        text = printable(str(value))
        if name == "size" or name.endswith("_bytes"):
            text = human_bytes(value)
        elif name.endswith("_ms"):
            ahead = value / 1000 - now
            distance = f"in {duration(ahead)}" if ahead > 0 else f"{duration(-ahead)} ago"
            text = f"{time_text(value / 1000)} ({distance})"
        yield f"{name.removesuffix('_ms'):<18} {text}"
