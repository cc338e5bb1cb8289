"""A hostile store and a hostile topic: readers return the original bytes or raise an error of claimcheck."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from claimcheck._content import encryption as aead
from claimcheck._content import header as _content_header
from claimcheck._wire import pointer as _pointer
from claimcheck._wire.signing import Seal
from tests.hypothesis_examples import examples
from tests.property.hostile_world import NotOriginalError, World

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
