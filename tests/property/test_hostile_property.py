"""A hostile store and a hostile topic: readers return the original bytes or raise an error of claimcheck."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from claimcheck._content import coder as _content
from claimcheck._content import encryption as aead
from claimcheck._content import header as _content_header
from claimcheck._wire import pointer as _pointer
from claimcheck._wire.signing import Seal
from tests.hypothesis_examples import examples
from tests.property.hostile_world import NotOriginalError, World, Written

ciphers = pytest.importorskip("cryptography.hazmat.primitives.ciphers")
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


def ignore_tags(patch: pytest.MonkeyPatch) -> None:
    keys: list[bytes] = []

    def derived(*args: bytes) -> bytes:
        keys.append(derive(*args))
        return keys[-1]

    def decrypt_into(self: aead._Cipher, number: int, is_last: bool, sealed: memoryview, plain: memoryview) -> None:
        mode = ciphers.modes.CTR(self._nonce(number, is_last) + (2).to_bytes(4, "big"))
        decryptor = ciphers.Cipher(ciphers.algorithms.AES(keys[-1]), mode).decryptor()
        plain[:] = decryptor.update(bytes(sealed[:-16]))

    derive = aead._derived_key
    patch.setattr(aead, "_derived_key", derived)
    patch.setattr(aead._Cipher, "decrypt_into", decrypt_into)


def ignore_the_last_segment(patch: pytest.MonkeyPatch) -> None:
    nonce = aead._Cipher._nonce
    patch.setattr(aead._Cipher, "_nonce", lambda self, number, is_last: nonce(self, number, False))


def ignore_the_order_of_segments(patch: pytest.MonkeyPatch) -> None:
    nonce = aead._Cipher._nonce
    patch.setattr(aead._Cipher, "_nonce", lambda self, number, is_last: nonce(self, min(number, 1), is_last))


def ignore_what_the_header_says(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(_content_header.Expected, "check", lambda self, header, body: None)


def bind_nothing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(_content_header.ContentHeader, "associated_data", b"")
    patch.setattr(_content_header.ContentHeader, "key_context", {})


def accept_every_destination(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Seal, "_accepts", lambda self, bound, name: True)


def accept_what_is_not_encrypted(patch: pytest.MonkeyPatch) -> None:
    coder = _content.ContentCoder.__init__

    def init(self: _content.ContentCoder, *args: Any) -> None:
        coder(self, *args)
        self.requires_encryption = False

    patch.setattr(_content.ContentCoder, "__init__", init)


def accept_every_signature(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(_pointer, "same_mac", lambda expected, found: True)


def accept_chunks_without_a_signature(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Seal, "check_chunks", lambda self, statements, **facts: None)


def accept_escaped_payloads_without_a_signature(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Seal, "check_whole", lambda self, envelope, headers, destination: None)


FAULTS: list[tuple[Callable[[pytest.MonkeyPatch], None], str, str]] = [
    (ignore_tags, "attack_store", "unsigned"),
    (ignore_the_last_segment, "attack_both", "unsigned"),
    (ignore_the_order_of_segments, "attack_store", "unsigned"),
    (ignore_what_the_header_says, "attack_store", "signed"),
    (bind_nothing, "attack_both", "unsigned"),
    (accept_every_destination, "attack_topic", "unsigned"),
    (accept_every_destination, "attack_topic", "signed"),
    (accept_every_destination, "attack_topic", "signed-not-encrypted"),
    (accept_what_is_not_encrypted, "attack_topic", "unsigned"),
    (accept_every_signature, "attack_topic", "signed"),
    (accept_every_signature, "attack_both", "signed-not-encrypted"),
    (accept_chunks_without_a_signature, "attack_topic", "signed-not-encrypted"),
    (accept_escaped_payloads_without_a_signature, "attack_topic", "signed-not-encrypted"),
]


@pytest.mark.parametrize(("plant", "attack", "kind"), FAULTS)
def test_a_planted_fault_is_found(
    plant: Callable[[pytest.MonkeyPatch], None], attack: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    with closing(World(1, **WORLDS[kind])) as world, pytest.raises(NotOriginalError):
        for _ in range(CHANGES):
            getattr(world, attack)()


# Several changes, one after the other ----------------------------------------------------------------------------


class HostileLife(RuleBasedStateMachine):
    """The attacker's changes stay until an object is restored."""

    @initialize(seed=st.integers(0, 2**32))
    def begin(self, seed: int) -> None:
        self.world = World(seed, signed=False)
        self.written = [each for each in self.world.written if each.store and len(each.payload) < 10_000]
        self.originals = {(each.store, each.key): self._object(each) for each in self.written}
        self.touched: set[tuple[str, str]] = set()

    def _object(self, written: Written) -> bytes:
        return self.world.objects[written.store][written.key]

    @rule(which=st.integers(0))
    def restore(self, which: int) -> None:
        each = self.written[which % len(self.written)]
        self.world.objects[each.store][each.key] = self.originals[each.store, each.key]
        self.touched.discard((each.store, each.key))

    @rule(which=st.integers(0), other=st.integers(0))
    def replace(self, which: int, other: int) -> None:
        each, source = (self.written[number % len(self.written)] for number in (which, other))
        if each is not source:
            self.world.objects[each.store][each.key] = self._object(source)
            self.touched.add((each.store, each.key))

    @rule(which=st.integers(0))
    def change(self, which: int) -> None:
        each = self.written[which % len(self.written)]
        self.world.objects[each.store][each.key] = self.world._changed_object(each)
        self.touched.add((each.store, each.key))

    @rule(which=st.integers(0))
    def read(self, which: int) -> None:
        each = self.written[which % len(self.written)]
        delivered = self.world.check(each.messages, each.destination, {each.payload})
        assert delivered or (each.store, each.key) in self.touched

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.world.close()


TestHostileLife = HostileLife.TestCase
TestHostileLife.settings = hypothesis.settings(examples(50), stateful_step_count=25)
