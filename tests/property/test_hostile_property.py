"""Payloads of several writers in stores and topics, and an attacker who changes everything but the keys.

A reader returns the original bytes or raises an error of claimcheck. Writers differ in destination, store, encryption
key and codec; some payloads have a size that was not known when they were written, and some have several segments. In
one of the worlds nothing is encrypted, so that only signatures protect chunks, escaped payloads and what is stored.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import logging
import random
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

import claimcheck
from claimcheck import ClaimCheck, ClaimCheckError, Resolved
from claimcheck._content import encryption as aead
from claimcheck._content import header as _content_header
from claimcheck._content.header import ContentHeader
from claimcheck._store.store import Store
from claimcheck._wire import pointer as _pointer
from claimcheck._wire.envelope import Envelope, Kind, encode_abort, encode_chunk
from claimcheck._wire.signing import Seal
from claimcheck.config import HEADER
from claimcheck.errors import EnvelopeError
from claimcheck.stores.memory import MemoryStore
from claimcheck.testing._store_kit import Unseekable
from tests.hypothesis_examples import examples

DESTINATIONS = ("orders", "payments")
STORES = ("a", "b")
_KEYS = {name: base64.b64encode(name.encode() * 16).decode() for name in ("k1", "k2")}
_SIGNING = {"keys": {"s1": "signing key " * 4}, "require": True, "require_envelope": True}
_SEGMENT = 1 << 20
_POINTER = HEADER + bytes([Kind.POINTER, 2])


class NotOriginalError(AssertionError):
    """A reader returned bytes that nobody wrote for it, or raised an exception that is not one of claimcheck."""


@dataclass
class Written:
    """One payload, as it was sent."""

    payload: bytes = field(repr=False)
    destination: str
    messages: list[Envelope]
    store: str = ""
    key: str = ""

    @property
    def pointer(self) -> dict[str, Any]:
        """The fields of its pointer; none for a payload in messages."""
        data = self.messages[0].data
        return dict(json.loads(data[len(_POINTER) :])) if data.startswith(_POINTER) else {}


class World:
    """All that was written, and the only reader.

    Args:
        seed: Of everything that the attacker does.
        signed: Whether writers sign, and the reader requires signatures.
        encrypted: Whether writers encrypt, and the reader requires that.
    """

    def __init__(self, seed: int, *, signed: bool, encrypted: bool = True) -> None:
        self.random = random.Random(seed)
        self.signed, self.encrypted = signed, encrypted
        self._stack = ExitStack()
        self._space = uuid.uuid4().hex
        self.reader = self._opened("external", None, None, writes=False)
        self.written = list(self._write_all())
        self._stored_ones = [each for each in self.written if each.store]
        self.objects = {name: _objects(self.reader.store(name)) for name in STORES}
        self._pristine = {name: dict(objects) for name, objects in self.objects.items()}
        self.originals = {name: {w.payload for w in self.written if w.destination == name} for name in DESTINATIONS}

    def close(self) -> None:
        for objects in self.objects.values():
            objects.clear()
        self._stack.close()

    # Writing ---------------------------------------------------------------------------------------------------

    def _opened(self, strategy: str, key_id: str | None, codec: str | None, **options: Any) -> ClaimCheck:
        writes = options.get("writes", True)
        encryption = {"keys": _KEYS, "inline": options.get("inline", False), **({"key_id": key_id} if key_id else {})}
        stores = {name: {"type": "memory", "space": f"{self._space}{name}"} for name in STORES}
        config = {
            "strategy": strategy,
            "store": options.get("store", "a"),
            "stores": stores,
            "threshold_bytes": 1000 if strategy == "external" else 2000,
            **({"encryption": encryption} if self.encrypted else {}),
            **({"compression": {"codec": codec, "min_bytes": 1}} if codec else {}),
            **({"signing": _SIGNING | ({"key_id": "s1"} if writes else {})} if self.signed else {}),
        }
        return self._stack.enter_context(claimcheck.from_dict(config))

    def _write_all(self) -> Iterator[Written]:
        for key_id in _KEYS if self.encrypted else [None]:
            for codec in (None, "zstd"):
                stores = {name: self._opened("external", key_id, codec, store=name) for name in STORES}
                chunks = self._opened("chunking", key_id, codec)
                inline = self._opened("chunking", key_id, codec, inline=True)
                for destination in DESTINATIONS:
                    for name, cc in stores.items():
                        yield self._sent(cc, self._payload(1200), destination, name)
                        yield self._sent(cc, self._payload(1200), destination, name, unknown_size=True)
                    yield self._sent(chunks, self._payload(6000), destination)
                    yield self._sent(inline, self._payload(100), destination)
                if key_id != "k2" and codec is None:
                    for unknown in (False, True):
                        payload = self._payload(3 * _SEGMENT + 99)
                        yield self._sent(stores["a"], payload, "orders", "a", unknown_size=unknown)

    def _payload(self, size: int) -> bytes:
        return self.random.randbytes(size // 2) + bytes(size - size // 2)

    def _sent(
        self, cc: ClaimCheck, payload: bytes, destination: str, store: str = "", *, unknown_size: bool = False
    ) -> Written:
        body = Unseekable(io.BytesIO(payload)) if unknown_size else payload
        with cc.outbound(body, destination=destination, key=b"k", headers={}) as out:
            written = Written(payload, destination, list(out.envelopes), store)
        written.key = written.pointer.get("key", "")
        assert bool(written.key) == bool(store)
        return written

    # Reading ---------------------------------------------------------------------------------------------------

    def check(self, messages: list[Envelope], destination: str, allowed: set[bytes]) -> int:
        """Read messages in one of several ways; returns how many payloads were delivered.

        Raises:
            NotOriginalError: One of them is not allowed, or an exception is not one of claimcheck.
        """
        try:
            if len(messages) != 1 or self.random.random() < 0.3:
                return self._check_fed(messages, destination, allowed)
            return self._check_one(messages[0], destination, allowed)
        except ClaimCheckError:
            return 0
        except Exception as error:
            raise NotOriginalError(f"{type(error).__name__}: {error}") from error

    def _check_fed(self, messages: list[Envelope], destination: str, allowed: set[bytes]) -> int:
        resolver, delivered = self.reader.resolver(), 0
        for position, each in enumerate(messages):
            outcomes = resolver.feed(
                "source", position, each.data, headers=each.headers, key=each.key, destination=destination
            )
            for outcome in outcomes:
                if isinstance(outcome, Resolved):
                    self._check_payload(outcome.payload, outcome.kind, allowed)
                    delivered += 1
                elif type(outcome.error) is ClaimCheckError:
                    raise NotOriginalError(f"a foreign exception: {outcome.error}")
        return delivered

    def _check_one(self, message: Envelope, destination: str, allowed: set[bytes]) -> int:
        data, headers, way = message.data, message.headers, self.random.randrange(4)
        kind = decoded_kind(data)
        if not self.encrypted:  # a range is not verified: the checksum is that of the whole
            way //= 2
        if way == 0 or kind != Kind.POINTER:
            self._check_payload(self.reader.resolve(data, destination=destination, headers=headers), kind, allowed)
        elif way == 1:
            with self.reader.open(data, destination=destination, headers=headers) as file:
                self._check_payload(file.read(), kind, allowed)
        else:
            self._check_range(message, destination, allowed, seeks=way == 2)
        return 1

    def _check_range(self, message: Envelope, destination: str, allowed: set[bytes], *, seeks: bool) -> None:
        pointer = self.reader.pointer(message.data, destination=destination)
        assert pointer is not None
        size = pointer.size or 0
        start, length = self.random.randrange(size + 1), self.random.choice((1, 100, size))
        if seeks:
            with self.reader.open(message.data, destination=destination, headers=message.headers) as file:
                file.seek(start)
                found = file.read(length)
        else:
            found = self.reader.opened.messages.store_of(pointer).read_range(pointer, start, length)
        if not any(found == original[start : start + length] for original in allowed):
            raise NotOriginalError(f"{len(found)} other bytes from {start}")

    def _check_payload(self, payload: Any, kind: Kind | None, allowed: set[bytes]) -> None:
        if kind in (None, Kind.LITERAL) and not self.signed:
            return  # only a signature protects what is not encrypted
        if payload not in allowed:
            raise NotOriginalError(f"{len(payload)} other bytes in a message of type {kind}")

    # Attacks ---------------------------------------------------------------------------------------------------

    def attack_store(self) -> int:
        """Change one object, and read the untouched message that points at it: only its own payload is right."""
        target = self._stored()
        with self._replaced(target, self._changed_object(target)):
            return self.check(target.messages, target.destination, {target.payload})

    @contextmanager
    def _replaced(self, target: Written, body: bytes) -> Iterator[None]:
        self.objects[target.store][target.key] = body
        yield
        self.objects[target.store][target.key] = self._object(target)

    def attack_topic(self) -> int:
        """Change messages, and read them: only payloads that were written for this destination are right."""
        target = self.random.choice(self.written)
        messages = self._changed_messages(target)
        destination = self.random.choice(DESTINATIONS)
        return self.check(messages, destination, self.originals[destination])

    def attack_both(self) -> int:
        """Change an object and make the pointer agree with it, as far as no key is needed for that."""
        target = self._stored()
        body = self._changed_object(target)
        fields = target.pointer | {"stored_bytes": len(body)}
        header, begin = header_of(body)
        if not self.encrypted and "codec" not in fields:
            del fields["stored_bytes"]
            fields |= {"size": len(body), "checksum": f"sha256:{hashlib.sha256(body).hexdigest()}"}
        if header is not None and self.random.random() < 0.7:
            plain = len(body) - begin - 40 - 16 * -(-(len(body) - begin) // _SEGMENT)
            fields |= {"size": max(0, plain if "codec" not in fields else fields["size"])}
            fields |= {"checksum": f"aead:{header.get('id', '')}", "destination": header.get("destination", "")}
        message = replace(target.messages[0], data=_POINTER + _json(fields))
        destination = self.random.choice(DESTINATIONS)
        with self._replaced(target, body):
            return self.check([message], destination, self.originals[destination])

    def _stored(self) -> Written:
        is_large = self.random.random() < 0.03  # they take longer
        return self.random.choice([each for each in self._stored_ones if (len(each.payload) > _SEGMENT) == is_large])

    def _object(self, written: Written) -> bytes:
        return self._pristine[written.store][written.key]

    def _changed_object(self, target: Written) -> bytes:
        body, other = self._object(target), self._object(self._stored())
        change: Callable[[bytes, bytes], bytes] = self.random.choice(
            [self._bytes, self._spliced, self._segments, self._header, self._stripped, lambda body, other: other]
        )
        if len(body) > _SEGMENT and self.random.random() < 0.5:
            change = self._segments
        return change(body, other)

    def _bytes(self, body: bytes, other: bytes) -> bytes:
        pick, at = self.random, self.random.randrange(len(body) or 1)
        if pick.random() < 0.4:
            at = min(at, pick.randrange(1200))
        end = min(len(body), at + pick.choice((1, 1, 1, 2, 16, 100)))
        start, rest, noise = body[:at], body[end:], pick.randbytes(end - at)
        flipped = bytes([(body[at] if body else 0) ^ (1 << pick.randrange(8))])
        changed = (start + flipped + body[at + 1 :], start + noise + rest, start, start + rest)
        return pick.choice((*changed, body + noise, start + noise + body[at:], b""))

    def _spliced(self, body: bytes, other: bytes) -> bytes:
        """Join the headers and bodies, or the salts and segments, of two objects."""
        begin = header_of(body)[1]
        cut = self.random.choice((begin, begin + 40, begin + 33, 8))
        return body[:cut] + other[cut:]

    def _segments(self, body: bytes, other: bytes) -> bytes:
        begin, pick = header_of(body)[1], self.random
        start, parts = body[:begin], [body[at : at + _SEGMENT] for at in range(begin, len(body), _SEGMENT)]
        if len(parts) < 2:
            return body[: -pick.randrange(1, 40)]
        if pick.random() < 0.5:
            return start + b"".join(parts[: pick.randrange(1, len(parts))])  # cut off at the end of a segment
        one, two = pick.sample(range(len(parts)), 2)
        parts[one], parts[two] = parts[two], parts[one]
        return start + b"".join(parts)

    def _header(self, body: bytes, other: bytes) -> bytes:
        fields, begin = header_of(body)
        others, _ = header_of(other)
        if fields is None or others is None:
            return body
        name = self.random.choice([*fields, "codec", "key"])
        value = self.random.choice([others.get(name), None, "", 0, "zstd", "x", fields.get(name)])
        for field_name in (name,) if self.random.random() < 0.8 else ("key", "key_id"):
            fields[field_name] = value if field_name == name else others.get(field_name)
        text = _json(fields)
        size = self.random.choice((begin, begin, begin, begin + 1, 2 * begin, len(text) + 8))
        return b"CCE2" + (size - 8).to_bytes(4, "big") + text.ljust(size - 8) + body[begin:]

    def _stripped(self, body: bytes, other: bytes) -> bytes:
        """Pretend that the ciphertext, or a text, is a payload that is not encrypted."""
        fields, begin = header_of(body)
        if fields is None:
            return body
        bare = {"id": fields["id"], "destination": fields["destination"], "store": fields["store"]}
        header = ContentHeader(**bare, size=None, stored_as=fields["stored_as"]).encode()
        return header + self.random.choice((b"forged", body[begin:], b""))

    def _changed_messages(self, target: Written) -> list[Envelope]:
        pick, other = self.random, self.random.choice(self.written)
        messages = [replace(each, headers=dict(each.headers or {})) for each in target.messages]
        change = pick.randrange(6)
        if change == 0:
            return self._mixed(messages, other.messages)
        at = pick.randrange(len(messages))
        chosen, foreign = messages[at], pick.choice(other.messages)
        if change == 1:
            messages[at] = replace(chosen, data=self._bytes(chosen.data, b""))
        elif change == 2:
            messages[at] = replace(chosen, data=HEADER + bytes([pick.randrange(6)]) + chosen.data[len(HEADER) + 1 :])
        elif change == 3:
            messages[at] = replace(chosen, headers=dict(foreign.headers or {}) if pick.random() < 0.7 else {})
        elif change == 4:
            messages.insert(at, self._forged(chosen))
        elif target.pointer:
            messages[at] = replace(chosen, data=self._edited(target, other))
        else:
            pick.shuffle(messages)
        return messages

    def _mixed(self, messages: list[Envelope], others: list[Envelope]) -> list[Envelope]:
        mixed = [*messages, *others]
        self.random.shuffle(mixed)
        return mixed[: self.random.randrange(1, len(mixed) + 1)]

    def _edited(self, target: Written, other: Written) -> bytes:
        fields, others, pick = dict(target.pointer), other.pointer, self.random
        for name in pick.sample([*fields], pick.choice((1, 1, 2, 4))):
            number = pick.choice((0, 1, -1, 2**40))
            changed = number + fields[name] if type(fields[name]) is int else None
            fields[name] = pick.choice((others.get(name), changed, "", 1, "zstd", pick.choice(DESTINATIONS)))
        return _POINTER + _json(fields)

    def _forged(self, near: Envelope) -> Envelope:
        """Return a message that the attacker made, perhaps with the uuid of a payload in chunks."""
        body = near.data[len(HEADER) + 1 :]
        try:
            name = body[:36].decode() if near.kind == Kind.CHUNK else str(uuid.UUID(int=self.random.getrandbits(128)))
            whole = [encode_chunk(name, 0, 1, piece) for piece in (b"forged", near.data, HEADER + b"\x04" + body)]
            part = encode_chunk(name, self.random.randrange(3), 3, b"forged")
            data = self.random.choice([*whole, part, encode_abort(name), HEADER + b"\x00forged", b"forged"])
        except EnvelopeError:
            data = b"forged"
        headers = dict(near.headers or {}) if self.random.random() < 0.5 else {}
        if self.random.random() < 0.3:
            size, checksum = len(b"forged"), f"sha256:{hashlib.sha256(b'forged').hexdigest()}"
            destination = self.random.choice(DESTINATIONS)
            facts = {"kind": "literal", "size": size, "checksum": checksum, "destination": destination}
            statement = facts | {"created": 1, "key_id": "s1", "mac": "0" * 64}
            data, headers = HEADER + b"\x00forged", {"claimcheck-signature": json.dumps(statement, sort_keys=True)}
        return Envelope(data, headers, near.key)


def _json(fields: dict[str, Any]) -> bytes:
    """Return what a writer would make of these fields; those that are ``None`` are left out."""
    present = {name: value for name, value in fields.items() if value is not None}
    return json.dumps(present, sort_keys=True, separators=(",", ":")).encode()


def _objects(store: Store) -> dict[str, bytes]:
    assert isinstance(store, MemoryStore)
    return store._payloads


def decoded_kind(data: bytes) -> Kind | None:
    """Return the type of an envelope; ``None`` for a plain message."""
    is_envelope = data.startswith(HEADER) and len(data) > len(HEADER) and data[len(HEADER)] <= max(Kind)
    return Kind(data[len(HEADER)]) if is_envelope else None


def header_of(body: bytes) -> tuple[dict[str, Any] | None, int]:
    """Return the fields of an object's header and its size; ``None`` if there is none."""
    size = int.from_bytes(body[4:8], "big")
    try:
        fields = json.loads(body[8 : 8 + size])
        return (fields, 8 + size) if body[:4] == b"CCE2" and isinstance(fields, dict) else (None, 0)
    except ValueError:
        return None, 0


# What has to hold ------------------------------------------------------------------------------------------------

pytest.importorskip("cryptography")
pytest.importorskip("zstandard")

ATTACKS = ("attack_store", "attack_topic", "attack_both")
CHANGES = 12_000  # for each attack in each world: more than 100,000
WORLDS: dict[str, dict[str, bool]] = {
    "unsigned": {"signed": False},
    "signed": {"signed": True},
    "signed-not-encrypted": {"signed": True, "encrypted": False},
}


@pytest.fixture(autouse=True)
def without_warnings_about_aborts() -> Iterator[None]:
    logging.getLogger("claimcheck").setLevel(logging.ERROR)
    yield
    logging.getLogger("claimcheck").setLevel(logging.NOTSET)


@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.parametrize("kind", WORLDS)
def test_a_reader_returns_the_original_bytes_or_an_error(kind: str, attack: str) -> None:
    with closing(World(1, **WORLDS[kind])) as world:
        results = {getattr(world, attack)() > 0 for _ in range(examples(CHANGES).max_examples)}
    assert results == {True, False}  # some changes leave a payload intact; a test that only fails would find nothing


@pytest.mark.parametrize("kind", WORLDS)
def test_what_nobody_changed_can_be_read(kind: str) -> None:
    with closing(World(2, **WORLDS[kind])) as world:
        for written in world.written:
            for _ in range(5):
                assert world.check(written.messages, written.destination, {written.payload}) == 1


# Planted faults ----------------------------------------------------------------------------------------------------


def nothing(*args: Any, **options: Any) -> None:
    """Checks nothing."""


NONCE = aead._Cipher._nonce
FAULTS: list[tuple[Any, str, Any, str, str]] = [
    (aead._Cipher, "_nonce", lambda cipher, number, _: NONCE(cipher, number, False), "attack_both", "unsigned"),
    (aead._Cipher, "_nonce", lambda cipher, _, is_last: NONCE(cipher, 1, is_last), "attack_store", "unsigned"),
    (_content_header.Expected, "check", nothing, "attack_store", "signed"),
    (_content_header.ContentHeader, "associated_data", b"", "attack_both", "unsigned"),
    *((Seal, "_accepts", lambda self, bound, name: True, "attack_topic", kind) for kind in WORLDS),
    (_pointer, "same_mac", lambda expected, found: True, "attack_topic", "signed"),
    (_pointer, "same_mac", lambda expected, found: True, "attack_both", "signed-not-encrypted"),
    (Seal, "check_chunks", nothing, "attack_topic", "signed-not-encrypted"),
    (Seal, "check_whole", nothing, "attack_topic", "signed-not-encrypted"),
]


@pytest.mark.parametrize(("owner", "name", "value", "attack", "kind"), FAULTS)
def test_a_reader_that_ignores_something_is_found_out(
    owner: Any, name: str, value: Any, attack: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner, name, value)
    if name == "associated_data":
        monkeypatch.setattr(owner, "key_context", {})
    with closing(World(1, **WORLDS[kind])) as world, pytest.raises(NotOriginalError):
        for _ in range(CHANGES):
            getattr(world, attack)()
