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
CHANGES = 17_000  # for each attack, signed and not: more than 100,000


@pytest.fixture(autouse=True)
def without_warnings_about_aborts() -> Iterator[None]:
    logging.getLogger("claimcheck").setLevel(logging.ERROR)
    yield
    logging.getLogger("claimcheck").setLevel(logging.NOTSET)


@pytest.fixture(params=[False, True], ids=["unsigned", "signed"])
def signed(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_reader_returns_the_original_bytes_or_an_error(signed: bool, attack: str) -> None:
    with closing(World(1, signed=signed)) as world:
        results = {getattr(world, attack)() > 0 for _ in range(examples(CHANGES).max_examples)}
    assert results == {True, False}  # some changes leave a payload intact; a test that only fails would find nothing


def test_what_nobody_changed_can_be_read(signed: bool) -> None:
    with closing(World(2, signed=signed)) as world:
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


FAULTS: list[tuple[Callable[[pytest.MonkeyPatch], None], str, bool]] = [
    (ignore_tags, "attack_store", False),
    (ignore_the_last_segment, "attack_both", False),
    (ignore_the_order_of_segments, "attack_store", False),
    (ignore_what_the_header_says, "attack_store", True),
    (bind_nothing, "attack_both", False),
    (accept_every_destination, "attack_topic", False),
    (accept_every_destination, "attack_topic", True),
    (accept_what_is_not_encrypted, "attack_topic", False),
    (accept_every_signature, "attack_topic", True),
]


@pytest.mark.parametrize(
    ("plant", "attack", "signs"), FAULTS, ids=[f"{plant.__name__}-{'signed' * signs}" for plant, _, signs in FAULTS]
)
def test_a_planted_fault_is_found(
    plant: Callable[[pytest.MonkeyPatch], None], attack: str, signs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    with closing(World(1, signed=signs)) as world, pytest.raises(NotOriginalError):
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
