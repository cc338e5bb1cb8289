"""Signs what is written, and decides which received messages are accepted. No I/O.

A pointer is signed in its own field ``mac``, which covers its destination. A message that has no pointer (the chunks of
a payload, an abort envelope, an escaped payload) has a signed statement in the header ``claimcheck-signature``:
canonical JSON with the message's facts, its destination, the time, the id of the key, and an HMAC-SHA256 over all other
fields. For chunks the last one has it, for the whole payload.
"""

from __future__ import annotations

import functools
import hashlib
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any, Literal, NoReturn

from claimcheck._validation import Problems
from claimcheck._wire import envelope as envelopes
from claimcheck._wire import headers as hints
from claimcheck._wire import pointer as pointers
from claimcheck._wire.buffers import Buffer
from claimcheck._wire.digest import CRYPTOGRAPHIC, algorithm_of
from claimcheck._wire.pointer import Pointer, Refuse
from claimcheck.config import Config, canonical, signing_key
from claimcheck.errors import ClaimCheckError, ConfigError, PointerRejectedError, clear_frames

StatementKind = Literal["chunks", "abort", "literal", "encoded"]
"""What a statement is about."""

Facts = Mapping[str, str | int]

_DOMAIN = b"claimcheck-signature\x00"  # no pointer begins with it: a pointer's mac never fits a statement
_PLAIN = "a plain message has no signature, but signing.require_envelope is true"


class Seal:
    """The signing keys and readable stores of a configuration. Secrets are resolved at first use."""

    def __init__(self, config: Config, *, clock: Callable[[], float] = time.time) -> None:
        self._config = config
        self._clock = clock
        self._readable = config.readable
        self.first_ms: int | None = None

    def check_keys(self, problems: Problems) -> None:
        """Add a problem for each key whose variable is not set or that is too short."""
        for name, text in self._config.signing.keys.items():
            with problems:
                signing_key(text, path=f"signing.keys.{name}")

    # Writing ---------------------------------------------------------------------------------------------------

    @property
    def signs(self) -> bool:
        return self._config.signing.key_id is not None

    def sign(self, pointer: Pointer) -> bytes:
        """Encode a pointer, signed if ``signing.key_id`` is configured and its version can be signed."""
        key_id = self._config.signing.key_id
        if key_id is not None and pointer.version != 1:
            if self.first_ms is not None:
                pointer = replace(pointer, created_ms=self.first_ms)
            return pointers.encode_signed(pointer, key_id=key_id, secret=self._secrets[key_id])
        return pointers.encode(pointer)

    def bound(self, pointer: Pointer, destination: str) -> Pointer:
        name = canonical(destination)
        if pointer.encryption is not None and pointer.destination != name:
            written = f"for {pointer.destination!r}" if pointer.destination else "without a destination"
            text = f"the payload {pointer.key!r} was encrypted {written}, so no reader could decrypt it as one of"
            fix = "write it again, or list the topics in signing.accept_from and seal it without destination"
            raise PointerRejectedError(
                f"{text} {name!r}: {fix}", reason="destination", store=pointer.store, key=pointer.key
            )
        return replace(pointer, destination=name)

    def statement(self, kind: StatementKind, destination: str, **facts: str | int) -> str:
        """Return a signed statement about a message without a pointer; needs ``signing.key_id``."""
        key_id = self._config.signing.key_id or ""
        created = int(self._clock() * 1000) if self.first_ms is None else self.first_ms
        body = {"kind": kind, "destination": canonical(destination), "created": created, "key_id": key_id, **facts}
        mac = pointers.mac_of(body, self._secrets[key_id], domain=_DOMAIN)
        text = pointers.canonical_json(body | {"mac": mac})
        if len(text) > hints.MAX_SIGNATURE_CHARACTERS:
            raise ConfigError("the names of the destination and of the key are too long to be signed", path="signing")
        return text.decode()

    # Reading ---------------------------------------------------------------------------------------------------

    def accept(self, data: bytes, *, destination: str | None = None, anywhere: bool = False) -> Pointer:
        """Decode untrusted pointer bytes, and check their signature and their destination."""
        pointer = pointers.decode(data, max_bytes=self._config.limits.max_pointer_bytes)
        signing = self._config.signing
        refuse = functools.partial(_reject, pointer)
        if pointer.version == 1 and signing.keys:
            refuse("signature", "has version 1, which has no signature, but signing.keys is configured")
        if signing.require or pointer.mac is not None:
            self._verify(pointers.fields(pointer), refuse)
        if signing.require:
            self._check_checksum(pointer)
        if pointer.mac is not None and signing.keys and not anywhere:
            self._check_bound(refuse, pointer.destination, pointer.created_ms, destination)
        elif pointer.encryption is not None and not anywhere:
            self.check_origin(pointer.destination or "", destination, what=f"the pointer to {pointer.key[:200]!r}")
        if destination is not None and pointer.version != 1 and self._config.destinations:
            readable = self._config.readable_from(destination)
            if pointer.store in self._readable and pointer.store not in readable:
                refuse(
                    "store", f"names the store {pointer.store!r}, which is not listed in reads_from of this destination"
                )
        return pointer

    def check_whole(self, envelope: object, headers: object, destination: str | None) -> None:
        """Check that a plain message or an escaped payload is accepted; any other envelope is not checked."""
        if isinstance(envelope, envelopes.Plain) and self._config.signing.require_envelope:
            raise PointerRejectedError(_PLAIN, reason="envelope")
        if not self._config.signing.keys:
            return
        kind: StatementKind = "literal" if isinstance(envelope, envelopes.Literal) else "encoded"
        if isinstance(envelope, envelopes.Literal):
            data, what = envelope.payload, "an escaped payload"
        elif isinstance(envelope, envelopes.Encoded):
            data, what = envelope.content, "an encrypted message"
        else:
            return
        facts: Facts = {"size": len(data), "checksum": sha256_of(data)}
        self._check(kind, hints.signature(headers), what, destination, facts)

    def check_origin(self, bound: str, read_from: str | None, *, what: str = "an encrypted payload") -> None:
        """Check that a payload that was encrypted for one destination is accepted from another; raises as `accept`."""
        if bound and read_from is not None and not self._accepts(bound, canonical(read_from)):
            _refuse(what, "destination", _elsewhere(bound, canonical(read_from)))

    def check_abort(self, signatures: Iterable[str], *, uuid: str, destination: str | None) -> None:
        """Check the signature of an abort envelope; raises as `check_whole`."""
        self._check("abort", signatures, f"the abort envelope of {uuid}", destination, {"uuid": uuid})

    def check_chunks(
        self,
        signatures: Iterable[str],
        *,
        uuid: str,
        count: int,
        pieces: Iterable[Buffer],
        destination: str | None,
    ) -> None:
        """Check the signatures of a complete payload in chunks; raises as `check_whole`."""
        if not self._config.signing.keys:
            return
        size, digest = 0, hashlib.sha256()
        for piece in pieces:
            size += len(piece)
            digest.update(piece)
        facts: Facts = {"uuid": uuid, "chunks": count, "size": size, "checksum": f"sha256:{digest.hexdigest()}"}
        self._check("chunks", signatures, f"the payload {uuid} in chunks", destination, facts)

    def store_name(self, pointer: Pointer) -> str:
        name = self._v1_store(pointer) if pointer.version == 1 else pointer.store
        if name is None or name not in self._config.stores:
            _reject(pointer, "store", f"names the store {name!r}, which is not configured here", name)
        if name not in self._readable:
            _reject(pointer, "store", f"names the store {name!r}, which is not listed in reads_from", name)
        return name

    # Internals -------------------------------------------------------------------------------------------------

    def _check(
        self, kind: StatementKind, texts: Iterable[str], what: str, destination: str | None, facts: Facts
    ) -> None:
        signing, found, refuse = self._config.signing, list(texts), functools.partial(_refuse, what)
        if signing.keys and signing.require and not found:
            refuse("signature", "is not signed, but signing.require is true")
        expected = {"kind": kind, **facts}
        for text in found if signing.keys else ():
            body = {"mac": "", **_parsed(text)}
            self._verify(body, refuse, domain=_DOMAIN)
            if {name: body.get(name) for name in expected} != expected:
                refuse("signature", "differs from what was signed: it was changed, or has another's signature")
            self._check_bound(refuse, body.get("destination"), body.get("created"), destination)

    def _verify(self, signed: Mapping[str, object], refuse: Refuse, *, domain: bytes = b"\x02") -> None:
        try:
            pointers.verify(signed, self._secrets_or(refuse), refuse, domain=domain)
        except ClaimCheckError as error:  # anyone can cause it, and error reports show local variables
            clear_frames(error)
            raise

    def _check_bound(self, refuse: Refuse, bound: object, created_ms: object, read_from: str | None) -> None:
        """Refuse a signed message that must not be accepted where, or when, it was read."""
        signing = self._config.signing
        if signing.bind_destination:
            if not isinstance(bound, str):
                refuse(
                    "destination",
                    "is signed, but its signature names no destination: an earlier release wrote it, or it was sealed "
                    "without one; signing.bind_destination: false accepts it",
                )
            if read_from is None:
                refuse(
                    "destination",
                    f"was sent to {bound!r}, and it is not known where it was read from: pass destination=, or "
                    "set signing.bind_destination: false",
                )
            if not self._accepts(bound, canonical(read_from)):
                refuse("destination", _elsewhere(bound, canonical(read_from)))
        if signing.max_age_seconds is None:
            return
        if type(created_ms) is not int:
            refuse("age", "has no time in its signature, but signing.max_age_seconds is set")
        age = self._clock() - created_ms / 1000
        if age > signing.max_age_seconds:
            refuse("age", f"was signed {age:.0f} s ago, but signing.max_age_seconds is {signing.max_age_seconds:g}")

    def _accepts(self, bound: str, name: str) -> bool:
        """Whether messages that were sent to ``bound`` are accepted from ``name``."""
        return bound == name or any(
            fnmatchcase(bound, canonical(origin))
            for pattern, origins in self._config.signing.accept_from.items()
            if fnmatchcase(name, canonical(pattern))
            for origin in origins
        )

    def _check_checksum(self, pointer: Pointer) -> None:
        """Reject a checksum that other bytes may have, too: the signature would not bind what is in the store."""
        algorithm = algorithm_of(pointer.checksum or "")
        if algorithm in CRYPTOGRAPHIC or algorithm == self._config.checksum or pointer.encryption:
            return
        named = algorithm or "an unknown algorithm"
        why = f"has a checksum by {named}, which does not bind its content: set checksum: {named} to accept it"
        _reject(pointer, "checksum", why)

    def _secrets_or(self, refuse: Refuse) -> dict[str, bytes]:
        try:
            return self._secrets
        except ConfigError as error:
            if self._config.signing.require:
                raise
            # This process reads unsigned messages: a signed one that it cannot verify is an error of that message.
            try:
                refuse("signature", f"has a signature that cannot be checked here: {error}")
            except PointerRejectedError as rejected:
                raise rejected from error

    def _v1_store(self, pointer: Pointer) -> str:
        """Version 1 names no store: use the one with ``v1_pointers: true``, or the only Redis store."""
        stores = self._config.stores
        marked = [name for name, store in stores.items() if store.options.get("v1_pointers")]
        redis = [name for name, store in stores.items() if store.type == "redis"]
        candidates = marked or [name for name in redis if stores[name].options.get("v1_pointers") is not False]
        if len(candidates) != 1:
            why = "has version 1, which names no store: set v1_pointers: true for the Redis store that it belongs to"
            _reject(pointer, "version", why)
        return candidates[0]

    @functools.cached_property
    def _secrets(self) -> dict[str, bytes]:
        keys = self._config.signing.keys
        return {name: signing_key(text, path=f"signing.keys.{name}") for name, text in keys.items()}


def signed_ms(message: Buffer | None, headers: object, *, header: bytes) -> int | None:
    """Return when a message that was accepted was signed, in milliseconds since 1970; ``None`` if it was not."""
    envelope = None if message is None else envelopes.decode(message, header=header)
    if isinstance(envelope, envelopes.PointerData):
        pointer = pointers.decode(envelope.data, max_bytes=len(envelope.data))
        return None if pointer.mac is None else pointer.created_ms or 0
    if envelope is None or isinstance(envelope, envelopes.Plain):
        return None
    created = [_parsed(text).get("created", 0) for text in hints.signature(headers)]
    return min(created, default=None)


def sha256_of(data: Buffer) -> str:
    """Return the checksum of a payload as statements have it."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def _elsewhere(bound: str, name: str) -> str:
    return (
        f"was sent to {bound!r}, but read from {name!r}, which accepts no messages of that destination "
        "(signing.accept_from)"
    )


def _parsed(text: str) -> dict[str, Any]:
    """Return the fields of a statement; none for anything else."""
    data = text.encode(errors="replace")
    try:
        return pointers.parse_json(data) if len(data) <= hints.MAX_SIGNATURE_CHARACTERS else {}
    except ClaimCheckError:
        return {}


def _refuse(what: str, reason: str, why: str) -> NoReturn:
    raise PointerRejectedError(f"{what} {why}", reason=reason)


def _reject(pointer: Pointer, reason: str, why: str, store: str | None = None) -> NoReturn:
    raise PointerRejectedError(
        f"the pointer to {pointer.key[:200]!r} {why}", reason=reason, store=store or pointer.store, key=pointer.key
    )
