"""Encoded content and its ciphertexts: vectors of Tink, headers, ranges, bounded memory, and what is never believed.

A hostile store that changes ciphertexts, keys and associated data: see `tests/property/test_hostile_property.py`.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import functools
import hashlib
import io
import json
import os
import tracemalloc
import uuid
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import claimcheck
from claimcheck._content.coder import Encoding
from claimcheck._content.data_keys import LocalKeys
from claimcheck._content.encryption import (
    HEADER_BYTES,
    DecryptingReader,
    Forged,
    ciphertext_bytes,
    encrypt,
    plaintext_bytes,
)
from claimcheck._content.header import AEAD, read_header
from claimcheck._content.source import Source
from claimcheck._wire.buffers import PieceReader
from claimcheck._wire.envelope import encode_chunk
from claimcheck._wire.pointer import Pointer
from claimcheck.config import HEADER, CompressionConfig
from claimcheck.errors import (
    ConfigError,
    IntegrityError,
    PayloadTooLargeError,
    PointerRejectedError,
    StoreUnavailableError,
)
from claimcheck.testing._store_kit import Unseekable
from claimcheck.transports._common.dispatch import dispatch
from tests.hypothesis_examples import examples
from tests.vectors import CONTENT as GOLDEN
from tests.vectors import DATA_KEY, KEY, PAYLOAD, TINK, UUID, SameKey, canonical, keyed_checksum, plaintext

AESGCM = pytest.importorskip("cryptography.hazmat.primitives.ciphers.aead").AESGCM
KEYS = {"k1": base64.b64encode(KEY).decode(), "k2": base64.b64encode(b"2" * 32).decode()}
ENCODED = HEADER + b"\x04"


def opened(**options):
    """A configuration with a memory store of its own, and keys."""
    options = {"strategy": "external", "threshold_bytes": 500, **options}
    stores = {"s": {"type": "memory", "space": options.pop("space", uuid.uuid4().hex)}}
    return claimcheck.from_dict({"stores": stores, "encryption": {"key_id": "k1", "keys": KEYS}, **options})


@pytest.fixture
def cc():
    with opened() as cc:
        yield cc


# Golden vectors ----------------------------------------------------------------------------------------------------


def golden_pointer(store, name):
    store._payloads["golden"] = content = GOLDEN[name]
    return Pointer(
        key="golden",
        store="s",
        size=len(PAYLOAD),
        stored_bytes=len(content),
        destination="Straße",
        encryption="AES256_GCM_HKDF_1MB",
        codec="zstd" if "compressed" in name else None,
        checksum=AEAD + uuid.UUID(UUID).hex,
    )


@pytest.mark.parametrize("name", [name for name in GOLDEN if name.startswith("object")])
def test_reads_the_golden_objects(cc, name):
    pytest.importorskip("zstandard")
    store = cc.store("s")
    pointer = golden_pointer(store, name)
    for each in (pointer, replace(pointer, checksum=keyed_checksum(GOLDEN[name]))):
        assert store.read(each) == PAYLOAD
        assert store.read_range(each, 100, 7) == PAYLOAD[100:107]
        with pytest.raises(IntegrityError):
            store.read(replace(each, checksum=(each.checksum or "")[:-1] + "!"))


@pytest.mark.parametrize("name", [name for name in GOLDEN if name.startswith("message")])
def test_reads_the_golden_messages_and_chunks(cc, name):
    if "compressed" in name:
        pytest.importorskip("zstandard")
    message, resolver, outcomes = ENCODED + GOLDEN[name], cc.resolver(), []
    assert cc.resolve(message, destination="Straße") == PAYLOAD
    for position in range(3):
        piece = message[position * 800 : (position + 1) * 800 if position < 2 else None]
        outcomes += resolver.feed("t", position, encode_chunk(UUID, position, 3, piece), destination="Straße")
    assert [outcome.payload for outcome in outcomes] == [PAYLOAD]


@pytest.mark.parametrize("name", ["object", "message", "object_compressed"])
def test_writes_the_golden_bytes(name, monkeypatch):
    content = GOLDEN[name]
    compression = None
    if "compressed" in name:
        pytest.importorskip("zstandard")
        compression = CompressionConfig(codec="zstd")
    header, begin = read_header(PieceReader([content]))
    monkeypatch.setattr("os.urandom", lambda size: content[begin + 1 : begin + 1 + size])
    encoding = Encoding("Straße", compression, SameKey(DATA_KEY, header))
    source = encoding.encode(
        Source(PAYLOAD, limit=10_000), unique=uuid.UUID(UUID), store=header.store, stored_as=header.stored_as
    )
    found = bytes(source.take_all())
    assert found[: begin + 40] == content[: begin + 40]
    assert found == content or compression  # another version of the library compresses to other bytes


def test_what_releases_before_0_2_encrypted_is_refused_with_the_reason(cc):
    """Its data keys are bound to no topic."""
    store = cc.store("s")
    pointer = golden_pointer(store, "written by 0.1")
    for read in (
        lambda: store.read(pointer),
        lambda: cc.resolve(ENCODED + GOLDEN["written by 0.1"], destination="Straße"),
    ):
        with pytest.raises(IntegrityError, match="before claimcheck 0.2, which this version does not read"):
            read()


# What is never believed --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("topic", "target"), [("orders", None), ("tenant/namespace/orders", "orders.dlq")])
def test_copies_are_readable_where_the_payload_was_and_elsewhere_if_that_is_configured(topic, target):
    accepts = {"accept_from": {"orders.dlq": [topic]}}
    with opened(space="copies") as cc, opened(space="copies", signing=accepts) as reader:
        store = cc.store("s")
        pointer = store.write(b"x" * 1000, destination=topic)
        copied = store.copy(pointer, to=store, destination=target)
        assert copied.destination == pointer.destination == topic
        assert cc.resolve(cc.seal(copied), destination=topic) == b"x" * 1000
        with pytest.raises(PointerRejectedError, match="accept_from"):
            cc.resolve(cc.seal(copied), destination="orders.dlq")
        assert reader.resolve(cc.seal(copied), destination="orders.dlq") == b"x" * 1000


def test_a_key_that_was_removed_is_an_integrity_error_that_names_it_and_the_payload():
    only_k2 = {"key_id": "k2", "keys": {"k2": KEYS["k2"]}}
    with opened(space="shredded") as writer, opened(space="shredded", encryption=only_k2) as reader:
        pointer = writer.store("s").write(b"x" * 1000, destination="o")
        with pytest.raises(IntegrityError, match=r"'k1', which is not configured here.*encryption\.keys") as caught:
            reader.store("s").read(pointer)
    assert (caught.value.store, caught.value.key) == ("s", pointer.key)


def test_no_message_is_made_that_no_reader_can_decrypt():
    signing = {"key_id": "s1", "keys": {"s1": "signing key " * 4}}
    with opened(signing=signing) as cc:
        pointer = cc.store("s").write(b"x" * 1000, destination="orders")
        assert cc.resolve(cc.seal(pointer, destination="orders"), destination="orders") == b"x" * 1000
        for written in (pointer, cc.store("s").write(b"x" * 1000)):
            with pytest.raises(PointerRejectedError, match="encrypted"):
                cc.seal(written, destination="copies")
    with opened() as cc, pytest.raises(ConfigError, match="encrypted for it"):
        cc.offload(payload="value")


def test_a_message_is_decrypted_when_its_key_service_is_back(monkeypatch):
    encryption = {"key_id": "k1", "keys": KEYS, "inline": True}
    with opened(threshold_bytes=5000, encryption=encryption) as cc, cc.outbound(b"small", destination="o") as out:
        (envelope,) = out.envelopes
    assert b"small" not in envelope.data
    with opened(encryption=encryption) as reader:
        content = dispatch(reader, envelope.data, dict, destination="o")
        with monkeypatch.context() as patch:
            patch.setattr(LocalKeys, "unwrap", down)
            with pytest.raises(StoreUnavailableError):
                content.get()
        assert content.get() == b"small"


def down(*_, **__):
    raise ConnectionError("down")


def test_a_stored_object_is_as_the_guide_describes(cc):
    payload, store = os.urandom(2_500_000), cc.store("s")
    content = store._payloads[store.write(payload, destination="Straße/orders").key]
    end = 8 + int.from_bytes(content[4:8], "big")
    header = json.loads(content[8:end])
    wrapped, key_id = base64.b64decode(header.pop("key")), header.pop("key_id")
    bound = {"claimcheck": "2", "destination": header["destination"], "store": header["store"]}
    context = canonical({"context": bound, "key_id": key_id})
    data_key = AESGCM(KEY).decrypt(wrapped[:12], wrapped[12:], context)
    assert content[:4] == b"CCE2"
    sealed, bound = content[end:], b"CCE2" + canonical(header)
    assert decrypted(Ciphertext(sealed), len(sealed), key=data_key, associated_data=bound) == payload


# Behind signed pointers: who has only the encryption key cannot replace it -----------------------------------------

SIGNING = {"key_id": "s1", "keys": {"s1": "a secret of the writers"}}
LARGE = (4 << 20) + 1  # of several segments, and hashed in a thread


@pytest.fixture
def signed(tmp_path):
    """A function that opens a configuration with keys of both kinds, on one folder."""
    disk = {"type": "filesystem", "path": str(tmp_path), "ttl_seconds": 1000}

    def opened(**options):
        encryption = {"key_id": "k1", "keys": KEYS, **options.pop("encryption", {})}
        config = {"strategy": "external", "stores": {"s": disk}, "encryption": encryption, "signing": SIGNING}
        return claimcheck.from_dict({name: part for name, part in (config | options).items() if part})

    return opened


def forge(store, pointer, payload, *, with_own_key):
    """Replace what is stored by another payload, encrypted as a writer would do it; returns the header."""
    stored = replace(pointer, size=pointer.stored_bytes, stored_bytes=None, codec=None, encryption=None)
    keys = store.context.content.keys
    found, _ = read_header(store._open(stored, 0, stored.size))
    own = SameKey(keys.open(found.key_id, found.wrapped_key, found.key_context), found)
    forged = Encoding(found.destination, keys=own if with_own_key else keys).encode(
        Source(payload, limit=len(payload)), unique=uuid.UUID(found.id), store=found.store, stored_as=found.stored_as
    )
    store._write(stored, forged)
    return found


def to_the_end(file):
    with file:
        return b"".join(iter(lambda: file.read(100_000), b""))


def after_a_seek(file):
    with file:
        file.seek(-10, io.SEEK_END)
        return file.read()


@pytest.mark.parametrize(("size", "with_own_key"), [(5000, False), (LARGE, True)])
def test_content_of_a_forger_is_refused(signed, size, with_own_key):
    """The forger has the key of the encryption, and may write to the store."""
    cc, forged = signed(), bytes(size)
    store = cc.store("s")
    pointer = store.write(os.urandom(size), destination="orders")
    message = cc.seal(pointer)
    found = forge(signed(signing=None).store("s"), pointer, forged, with_own_key=with_own_key)
    assert store.read(replace(pointer, checksum=f"aead:{found.id}")) == forged  # nothing else refuses it
    for read in (
        lambda: cc.resolve(message, destination="orders"),
        lambda: asyncio.run(cc.aresolve(message, destination="orders")),
        lambda: to_the_end(cc.open(message, destination="orders")),
        lambda: after_a_seek(cc.open(message, destination="orders")),
        lambda: store.read(pointer),
        lambda: store.read_into(pointer, bytearray(size)),
        lambda: asyncio.run(store.aread(pointer)),
        lambda: store.copy(pointer, to=store),
    ):
        with pytest.raises(IntegrityError, match="the checksum of .* differs from its pointer"):
            read()


@pytest.mark.parametrize(("size", "codec"), [(0, None), (1, "zstd"), ((1 << 20) + 1, None), ((1 << 20) + 1, "zstd")])
def test_what_is_signed_and_encrypted_is_read_and_copied(signed, size, codec):
    pytest.importorskip("zstandard")
    cc = signed(**({"compression": {"codec": codec, "min_bytes": 1}} if codec else {}))
    store, payload = cc.store("s"), b"ab" * (size // 2) + b"c" * (size % 2)
    checksums = set()
    for source in (payload, io.BytesIO(payload), Unseekable(io.BytesIO(payload))):
        pointer = store.write(source, destination="orders")
        checksums.add(pointer.checksum)
        for each in (pointer, store.copy(pointer, to=store)):
            assert signed().resolve(cc.seal(each), destination="orders") == payload
            assert store.read_range(each, size // 2, 9) == payload[size // 2 :][:9]
            with store.open(each) as file:
                file.seek(size // 3)
                assert file.read() == payload[size // 3 :]
    assert len(checksums) == 3, "a checksum tells nothing about the payload"
    assert all(each.startswith("hmac-sha256:") for each in checksums)


def test_who_does_not_sign_with_sha256_binds_nothing(signed):
    only_reads = {"keys": SIGNING["keys"], "require": False}
    for options in ({"signing": None}, {"signing": only_reads}, {"checksum": "crc32"}):
        pointer = signed(**options).store("s").write(b"x" * 5000, destination="orders")
        assert str(pointer.checksum).startswith("aead:")
        assert signed().store("s").read(pointer) == b"x" * 5000


def test_a_keyed_checksum_of_what_is_not_encrypted_is_refused(signed):
    store = signed(encryption={"require": False}).store("s")
    pointer = store.write(b"x" * 5000, destination="orders")
    for changed in ({"stored_bytes": None}, {"codec": "zstd"}):
        with pytest.raises(PointerRejectedError) as caught:
            store.read(replace(pointer, encryption=None, **changed))
        assert caught.value.reason == "feature"


# The ciphertexts -----------------------------------------------------------------------------------------------------

SEGMENT = 1 << 20
SEVERAL = 3_500_000


class Ciphertext:
    """A stored ciphertext that knows which ranges were opened, and whether they were closed."""

    def __init__(self, stored: bytes) -> None:
        self.stored = stored
        self.opened: list[tuple[int, int]] = []
        self.files: list[io.BytesIO] = []

    def __call__(self, start: int, stop: int) -> io.BytesIO:
        self.opened.append((start, stop))
        self.files.append(io.BytesIO(self.stored[start:stop]))
        return self.files[-1]


@functools.cache
def sealed(size: int) -> bytes:
    return b"".join(encrypt([plaintext(size)], key=DATA_KEY, associated_data=b""))


def decrypted(source, size, *, buffer_bytes=100_000, key=DATA_KEY, associated_data=b"", **range_) -> bytes:
    reader = DecryptingReader(source, size=size, key=key, associated_data=associated_data, **range_)
    whole, buffer = bytearray(), memoryview(bytearray(buffer_bytes))
    while count := reader.readinto(buffer):
        whole += buffer[:count]
    reader.close()
    return bytes(whole)


@pytest.mark.parametrize("vector", TINK["streams"], ids=lambda vector: str(vector["plaintext_bytes"]))
def test_ciphertexts_are_those_of_tink(vector, monkeypatch):
    plain, associated_data = plaintext(vector["plaintext_bytes"]), vector["associated_data"].encode()
    header = bytes.fromhex(vector["stream_header"])
    monkeypatch.setattr("os.urandom", lambda size: header[1 : 1 + size])
    ciphertext = b"".join(encrypt([plain], key=DATA_KEY, associated_data=associated_data))
    assert hashlib.sha256(ciphertext).hexdigest() == vector["ciphertext_sha256"]
    assert ciphertext_bytes(len(plain)) == vector["ciphertext_bytes"] == len(ciphertext)
    assert decrypted(Ciphertext(ciphertext), len(ciphertext), associated_data=associated_data) == plain


@given(st.integers(0, 1 << 50))
def test_sizes_are_inverse_or_refused(size):
    assert plaintext_bytes(ciphertext_bytes(size)) == size
    with contextlib.suppress(Forged):
        assert ciphertext_bytes(plaintext_bytes(size)) == size
    for none in (0, 40, 55, SEGMENT + 1 + size % 16):
        with pytest.raises(Forged, match=f"{none} bytes"):
            plaintext_bytes(none)


@pytest.mark.parametrize("piece_bytes", [5, 65_536, SEGMENT - 56, 3 * SEGMENT])
def test_pieces_of_any_size_make_whole_segments(piece_bytes):
    plain = plaintext(3000 if piece_bytes < 10 else SEVERAL)
    cut = [plain[i : i + piece_bytes] for i in range(0, len(plain), piece_bytes)]
    segments = list(encrypt([b"", *cut, b""], key=DATA_KEY, associated_data=b""))
    assert {len(segment) for segment in segments[:-1]} <= {SEGMENT}
    assert decrypted(Ciphertext(b"".join(segments)), ciphertext_bytes(len(plain))) == plain


def test_encryption_holds_two_segments_and_starts_before_the_payload_ends():
    taken = []

    def pieces():
        for number in range(32):
            taken.append(number)
            yield bytes(SEGMENT)

    tracemalloc.start()
    try:
        next(stream := encrypt(pieces(), key=DATA_KEY, associated_data=b""))
        assert taken == [0]
        for _ in stream:
            pass
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    copies = 0 if hasattr(AESGCM, "encrypt_into") else 2  # cryptography before 47
    assert peak < (6 + copies) * SEGMENT


def test_two_ciphertexts_of_one_payload_differ():
    one, two = (b"".join(encrypt([b"payload"], key=DATA_KEY, associated_data=b"")) for _ in range(2))
    assert one[:HEADER_BYTES] != two[:HEADER_BYTES]


@st.composite
def ranges(draw):
    """A size, and a range that often ends close to a border: stream header, tags, segments, end."""
    size = draw(st.sampled_from([0, 1, 1000, SEGMENT - 57, SEGMENT - 56, 2 * SEGMENT - 72, 2 * SEGMENT - 71, SEVERAL]))
    borders = [0, 1, 33, 40, *range(SEGMENT - 16, size, SEGMENT), *range(SEGMENT, size, SEGMENT), size - 16, size]
    near = st.builds(lambda border, offset: border + offset, st.sampled_from(borders), st.integers(-2, 2))
    start, stop = sorted(min(max(0, draw(st.one_of(st.integers(0, size), near))), size) for _ in range(2))
    return size, start, stop


@examples(300)
@given(ranges(), st.integers(1, 3_000_000))
def test_a_range_is_the_slice(chosen, buffer_bytes):
    size, start, stop = chosen
    stored = Ciphertext(sealed(size))
    found = decrypted(stored, len(stored.stored), start=start, stop=stop, buffer_bytes=buffer_bytes)
    assert found == plaintext(size)[start:stop]
    assert all(file.closed for file in stored.files)


@pytest.mark.parametrize(
    ("start", "stop", "opened"),
    [
        (0, SEVERAL, [(0, 3_500_104)]),
        (5, 10, [(0, SEGMENT)]),
        (SEGMENT - 57, SEGMENT - 55, [(0, 2 * SEGMENT)]),
        (SEGMENT - 56, SEGMENT - 55, [(0, HEADER_BYTES), (SEGMENT, 2 * SEGMENT)]),
        (SEVERAL - 1, SEVERAL, [(0, HEADER_BYTES), (3 * SEGMENT, 3_500_104)]),
        (7, 7, []),
    ],
)
def test_a_range_opens_only_its_segments(start, stop, opened):
    stored = Ciphertext(sealed(SEVERAL))
    assert decrypted(stored, 3_500_104, start=start, stop=stop) == plaintext(SEVERAL)[start:stop]
    assert stored.opened == opened


@pytest.mark.parametrize("buffer_bytes", [SEGMENT, 10_000])
def test_no_plaintext_of_a_forged_segment_is_in_the_callers_buffer(buffer_bytes):
    ciphertext = bytearray(sealed(100_000))
    ciphertext[-1] ^= 1
    reader = DecryptingReader(Ciphertext(bytes(ciphertext)), size=len(ciphertext), key=DATA_KEY, associated_data=b"")
    buffer = bytearray(buffer_bytes)
    for _ in range(2):  # it fails again
        with pytest.raises(Forged):
            reader.readinto(memoryview(buffer))
        assert not any(buffer)


@pytest.mark.parametrize("size", [0, 10, SEVERAL])
def test_bytes_after_the_end_are_found_where_the_store_does_not_know_sizes(size):
    stored = sealed(size) + b"x"
    with pytest.raises(Forged, match="more than"):
        decrypted(lambda start, _: PieceReader([stored], start=start), len(stored) - 1)


@pytest.mark.parametrize(("payload", "kind"), [(b"x", HEADER + b"\4"), (b"", b"")])
def test_every_payload_but_an_empty_one_is_encrypted(payload, kind):
    encryption = {"key_id": "k1", "keys": KEYS, "inline": True}
    with opened(threshold_bytes=5000, encryption=encryption) as cc, cc.outbound(payload, destination="o") as out:
        (envelope,) = out.envelopes
    assert envelope.data[: len(HEADER) + 1] == kind


def test_a_payload_of_as_many_chunks_as_are_allowed_is_sent():
    def count(**more):
        chunking = {"max_message_bytes": 1000, **more}
        with (
            opened(strategy="chunking", threshold_bytes=100, chunking=chunking) as cc,
            cc.outbound(bytes(5000), destination="o") as out,
        ):
            return len(list(out.envelopes))

    most = count()
    assert count(max_chunks=most) == most
    with pytest.raises(PayloadTooLargeError, match="max_chunks"):
        count(max_chunks=most - 1)
