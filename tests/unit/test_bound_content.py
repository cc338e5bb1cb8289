"""Encrypted content behind signed pointers: who has only the encryption key cannot replace it."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import io
import os
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

import pytest

import claimcheck
from claimcheck import ClaimCheck, Pointer
from claimcheck._content.coder import Encoding
from claimcheck._content.header import ContentHeader, read_header
from claimcheck._content.source import Source
from claimcheck._store.store import Store
from claimcheck.errors import IntegrityError, PointerRejectedError
from tests.content_oracle import SameKey

pytest.importorskip("cryptography")

KEYS = {name: base64.b64encode(name.encode() * 16).decode() for name in ("k1", "k2")}
SIGNING = {"key_id": "s1", "keys": {"s1": "a secret of the writers"}}
LARGE = (4 << 20) + 1  # of several segments, and hashed in a thread

Opened = Callable[..., ClaimCheck]


@pytest.fixture(params=["filesystem", "redis"])
def medium(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, Any]:
    if request.param == "filesystem":
        return {"type": "filesystem", "path": str(tmp_path), "ttl_seconds": 1000}
    url, prefix = request.getfixturevalue("fake_redis_url"), f"{uuid.uuid4().hex}:"
    return {"type": "redis", "url": url, "key_prefix": prefix, "segment_bytes": 1 << 20, "ttl_seconds": 1000}


@pytest.fixture
def opened(medium: dict[str, Any]) -> Iterator[Opened]:
    every: list[ClaimCheck] = []

    def open_(key_id: str = "k1", **options: Any) -> ClaimCheck:
        encryption = {"key_id": key_id, "keys": KEYS, **options.pop("encryption", {})}
        config = {"strategy": "external", "stores": {"s": medium}, "encryption": encryption, "signing": SIGNING}
        every.append(claimcheck.from_dict({name: part for name, part in (config | options).items() if part}))
        return every[-1]

    yield open_
    for cc in every:
        cc.close()


def forge(store: Store, pointer: Pointer, payload: bytes, *, with_own_key: bool) -> ContentHeader:
    """Replace what is stored by another payload, encrypted as a writer would do it; returns the header."""
    stored = replace(pointer, size=pointer.stored_bytes, stored_bytes=None, codec=None, encryption=None)
    keys = store.context.content.keys
    found, _ = read_header(store._open(stored, 0, stored.size))
    assert keys is not None
    own = SameKey(keys.open(found.key_id or "", found.wrapped_key or b"", found.key_context), found)
    forged = Encoding(found.destination, keys=own if with_own_key else keys).encode(
        Source(payload, limit=len(payload)),
        unique=uuid.UUID(found.id),
        store=found.store,
        stored_as=found.stored_as,
    )
    store._write(stored, forged)
    return found


def to_the_end(file: BinaryIO) -> bytes:
    with file:
        return b"".join(iter(lambda: file.read(100_000), b""))


def after_a_seek(file: BinaryIO) -> bytes:
    with file:
        file.seek(-10, io.SEEK_END)
        return file.read()


@pytest.mark.parametrize(("size", "with_own_key"), [(5000, False), (LARGE, True)])
def test_content_of_a_forger_is_refused(opened: Opened, size: int, with_own_key: bool) -> None:
    """The forger has the key of the encryption, and may write to the store."""
    writer, reader, forger = opened(), opened(), opened(signing=None)
    store, payload, forged = reader.store("s"), os.urandom(size), bytes(size)
    pointer = writer.store("s").write(payload, destination="orders")
    message = writer.seal(pointer)
    assert reader.resolve(message, destination="orders") == payload
    found = forge(forger.store("s"), pointer, forged, with_own_key=with_own_key)

    assert store.read(replace(pointer, checksum=f"aead:{found.id}")) == forged  # nothing else refuses it
    reads: list[Callable[[], object]] = [
        lambda: reader.resolve(message, destination="orders"),
        lambda: asyncio.run(reader.aresolve(message, destination="orders")),
        lambda: to_the_end(reader.open(message, destination="orders")),
        lambda: after_a_seek(reader.open(message, destination="orders")),
        lambda: store.read(pointer),
        lambda: store.read_into(pointer, bytearray(size)),
        lambda: asyncio.run(store.aread(pointer)),
        lambda: store.copy(pointer, to=store),
    ]
    for read in reads:
        with pytest.raises(IntegrityError, match="the checksum of .* differs from its pointer"):
            read()


@pytest.mark.parametrize(("size", "codec"), [(0, None), (1, "zstd"), ((1 << 20) + 1, None), ((1 << 20) + 1, "zstd")])
def test_what_is_written_and_copied_can_be_read(opened: Opened, size: int, codec: str | None) -> None:
    if codec:
        pytest.importorskip("zstandard")
    cc = opened(**({"compression": {"codec": codec, "min_bytes": 1}} if codec else {}))
    store, payload = cc.store("s"), b"ab" * (size // 2) + b"c" * (size % 2)
    unknown_size = io.BytesIO(payload)
    unknown_size.seekable = lambda: False  # type: ignore[method-assign]
    for source in (payload, bytearray(payload), io.BytesIO(payload), unknown_size):
        pointer = store.write(source, destination="orders")
        assert str(pointer.checksum).startswith("hmac-sha256:")
        for each in (pointer, store.copy(pointer, to=store)):
            assert opened().resolve(cc.seal(each), destination="orders") == payload
            assert store.read_range(each, size // 2, 9) == payload[size // 2 :][:9]
            with store.open(each) as file:
                file.seek(size // 3)
                assert file.read() == payload[size // 3 :]


def test_a_checksum_tells_nothing_about_the_payload(opened: Opened) -> None:
    store = opened().store("s")
    pointers = [store.write(b"yes", destination="orders") for _ in range(2)]
    assert pointers[0].checksum != pointers[1].checksum
    assert not [each for each in pointers if hashlib.sha256(b"yes").hexdigest() in str(each.checksum)]


def test_who_does_not_sign_with_sha256_binds_nothing(opened: Opened) -> None:
    only_reads = {"keys": SIGNING["keys"], "require": False}
    for writer in (opened(signing=None), opened(signing=only_reads), opened(checksum="crc32")):
        pointer = writer.store("s").write(b"x" * 5000, destination="orders")
        assert str(pointer.checksum).startswith("aead:")
        assert opened().store("s").read(pointer) == b"x" * 5000


def test_a_keyed_checksum_of_what_is_not_encrypted_is_refused(opened: Opened) -> None:
    store = opened(encryption={"require": False}).store("s")
    pointer = store.write(b"x" * 5000, destination="orders")
    for changed in (
        replace(pointer, encryption=None, stored_bytes=None),
        replace(pointer, encryption=None, codec="zstd"),
    ):
        with pytest.raises(PointerRejectedError) as caught:
            store.read(changed)
        assert caught.value.reason == "feature"
