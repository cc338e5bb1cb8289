"""What a payload may be, how its pieces are handed out, and digests: verified by readers, bound by signatures."""

from __future__ import annotations

import hashlib
import importlib
import io
import os
import sys
import threading
import zlib
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import claimcheck
from claimcheck import MissingDependencyError
from claimcheck._content.source import Source, remaining_bytes
from claimcheck._store.contract import StoreContext
from claimcheck._wire import checksum
from claimcheck._wire import digest as digests
from claimcheck._wire.buffers import as_view
from claimcheck._wire.digest import ALGORITHMS, digest_of
from claimcheck.errors import IntegrityError, PayloadError, PayloadTooLargeError, PayloadTypeError, PointerRejectedError
from claimcheck.stores.memory import MemoryStore
from tests.fault.rig import READINGS

LIMIT = 1 << 30


class Pipe(io.RawIOBase):
    """Returns what it has in small parts, and cannot seek."""

    def __init__(self, data, part=3):
        self.inner, self.part = io.BytesIO(data), part

    def readable(self):
        return True

    def read(self, size=-1):
        return self.inner.read(min(size, self.part) if size >= 0 else size)


class OnlyRead:
    """The least that counts as a file; raises the errors among its parts."""

    def __init__(self, *parts):
        self.parts = list(parts)

    def read(self, size):
        part = self.parts.pop(0) if self.parts else b""
        if isinstance(part, Exception):
            raise part
        return part


def file_at(position, data):
    file = io.BytesIO(data)
    file.seek(position)
    return file


def closed(file):
    file.close()
    return file


@pytest.mark.parametrize(
    ("make", "data", "size"),
    [
        *((lambda data=data: data, data, len(data)) for data in (b"", b"x", b"payload" * 1000)),
        *((lambda data=data: io.BytesIO(data), data, len(data)) for data in (b"", b"payload" * 1000)),
        *((lambda data=data: Pipe(data), data, None) for data in (b"", b"payload" * 1000)),
        (lambda: file_at(4, b"headpayload"), b"payload", 7),
        (lambda: file_at(10, b"abc"), b"", 0),  # beyond its end
        (lambda: OnlyRead(b"ab", bytearray(b"cd")), b"abcd", None),
    ],
)
@pytest.mark.parametrize("take", [lambda source: source.take_all(), lambda source: b"".join(source.pieces(100))])
def test_a_source_counts_and_checksums_what_it_hands_out(make, data, size, take):
    source = Source(make(), limit=LIMIT)
    assert source.size == size
    assert bytes(take(source)) == data
    assert (source.size, source.taken, source.checksum) == (len(data), len(data), digest_of(data))


def test_bytes_are_never_copied_and_pieces_of_a_raw_file_are_full():
    payload = bytearray(10_000)
    pieces = list(Source(payload, limit=LIMIT).pieces(4000))
    assert [len(piece) for piece in pieces] == [4000, 4000, 2000]
    assert all(piece.obj is payload for piece in pieces)
    assert [len(piece) for piece in Source(Pipe(bytes(25)), limit=LIMIT).pieces(10)] == [10, 10, 5]


def test_a_file_that_cannot_seek_to_its_end_is_of_unknown_length():
    with open("/proc/self/status", "rb") as file:
        assert remaining_bytes(file) is None
        assert b"Name:" in bytes(Source(file, limit=LIMIT).take_all())


NO_PAYLOADS: list[object] = [None, 5, 1.5, ["a"], {}]


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        *((lambda each=each: each, PayloadTypeError, type(each).__name__) for each in NO_PAYLOADS),
        (lambda: (b for b in [b"x"]), PayloadTypeError, "generator"),
        (lambda: "text", PayloadTypeError, "encode"),
        (lambda: io.StringIO("text"), PayloadTypeError, "'rb'"),
        (lambda: OnlyRead("text"), PayloadTypeError, "'rb'"),
        (lambda: closed(io.BytesIO(b"x")), PayloadError, "closed"),
        (lambda: OnlyRead(None), PayloadError, "non-blocking"),
        (lambda: OnlyRead(KeyError("odd")), PayloadError, "KeyError"),
        (lambda: OnlyRead(b"x" * (20 << 20)), PayloadError, "for a read of"),
    ],
)
def test_what_is_no_payload_is_refused_with_a_reason(make, error, text):
    with pytest.raises(error, match=text) as caught:
        list(Source(make(), limit=LIMIT).pieces(10))
    assert isinstance(caught.value, TypeError) == (error is PayloadTypeError)
    assert isinstance(caught.value.__cause__, KeyError) == (text == "KeyError")


def test_a_file_that_changes_before_it_is_read_or_is_open_for_writing_is_refused(tmp_path):
    file = io.BytesIO(b"payload")
    source = Source(file, limit=LIMIT)
    file.truncate(3)
    with pytest.raises(PayloadError, match="4 of 7 bytes|3 of 7 bytes"):
        source.take_all()
    (tmp_path / "out").write_bytes(b"payload")
    with (tmp_path / "out").open("ab") as writable:
        writable.seek(0)
        with pytest.raises(PayloadError, match="writing only"):
            Source(writable, limit=LIMIT).take_all()
        writable.seek(7)
        with pytest.raises(PayloadTypeError, match="'rb'"):
            Source(writable, limit=LIMIT)


def test_the_limit_is_named_and_checked_before_anything_is_read():
    file = io.BytesIO(bytes(101))
    with pytest.raises(PayloadTooLargeError, match="chunking.max") as caught:
        Source(file, limit=100, limit_name="chunking.max_payload_bytes")
    assert (caught.value.size, caught.value.limit, file.tell()) == (101, 100, 0)
    Source(io.BytesIO(bytes(100)), limit=100).take_all()
    with pytest.raises(PayloadTooLargeError):
        Source(Pipe(bytes(101)), limit=100).take_all()


def test_objects_are_not_their_addresses():
    array = pytest.importorskip("numpy").array(["a", None], dtype=object)
    with pytest.raises(PayloadTypeError, match="references"):
        as_view(array)


# Digests -----------------------------------------------------------------------------------------------------------


xxhash = pytest.importorskip("xxhash")
MIB = 1 << 20
LARGE = bytes(range(251)) * (5 * MIB // 251)  # hashed in a thread
SIGNING = {"signing": {"key_id": "k1", "keys": {"k1": "0123456789abcdef"}, "bind_destination": False}}
REFERENCE = {
    "crc32": lambda data: f"{zlib.crc32(data):08x}",
    "sha256": lambda data: hashlib.sha256(data).hexdigest(),
    "xxh3-128": lambda data: xxhash.xxh3_128(data).hexdigest(),
}


every_algorithm = pytest.mark.parametrize("algorithm", ALGORITHMS)


def expected(algorithm, data):
    return f"{algorithm}:{REFERENCE[algorithm](data)}"


def digest_threads():
    return [thread for thread in threading.enumerate() if thread.name.startswith("claimcheck-digest")]


def lasting_threads():
    """Threads that do not end by themselves."""
    threads = digest_threads()
    for thread in threads:
        thread.join(10)
    return [thread for thread in threads if thread.is_alive()]


# Computing -----------------------------------------------------------------------------------------------------


@given(
    pieces=st.lists(st.tuples(st.integers(0, 700_000), st.booleans()), max_size=12),
    algorithm=st.sampled_from(ALGORITHMS),
    size=st.sampled_from([None, 0, 1 << 30]),
)
def test_no_cut_and_no_thread_changes_a_digest(pieces, algorithm, size):
    digest, passed, position = digests.begin(algorithm, size=size), bytearray(), 0
    for count, stable in pieces:
        piece = bytearray(LARGE[position % 251 : position % 251 + count])
        passed += piece
        position += count
        digest.update(memoryview(piece), stable=stable)
        if not stable:
            piece[:] = bytes(count)  # as a reader does that uses its buffer again
    assert digest.text() == expected(algorithm, passed)
    digest.update(b"more")
    assert digest.text() == expected(algorithm, passed + b"more")
    digest.close()


def test_a_digest_in_a_thread_keeps_no_memory_and_no_thread():
    for end in (lambda digest: digest.text(), lambda digest: digest.close()):
        buffer, digest = bytearray(LARGE), digests.begin("sha256", size=None)
        for _ in range(3):
            digest.update(memoryview(buffer))
        (thread,) = digest_threads()
        end(digest)
        buffer.append(1)  # raises a BufferError while it is in use
        thread.join(10)
        assert not lasting_threads()


def test_an_error_in_the_thread_is_raised_and_waits_for_nothing():
    piece, digest = memoryview(LARGE), digests.begin("sha256", size=None)
    piece.release()
    digest._batch = [piece]
    digest._hand_over()
    for _ in range(3):
        digest.update(LARGE)
    with pytest.raises(ValueError, match="released"):
        digest.text()
    digest.close()


@pytest.mark.parametrize("kind", [bytes, io.BytesIO])
@every_algorithm
def test_a_source_takes_checksums_from_whoever_sends_its_pieces_if_they_make_its_own(algorithm, kind):
    """A store that computes the CRC-32 of each part leaves other digests to the source."""
    source = Source(kind(LARGE), limit=1 << 30, checksum=algorithm)
    source.leave_checksum()
    pieces = list(source.pieces(MIB))
    assert source.taken == len(LARGE) == source.size
    assert (source.checksum == "crc32:00000000") == (algorithm == "crc32")
    for piece in pieces:
        source.add_checksum(zlib.crc32(piece), len(piece))
    assert source.checksum == expected(algorithm, LARGE)


# Configuration -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("section", "algorithm"),
    [
        ({}, "crc32"),
        (SIGNING, "sha256"),
        (SIGNING | {"checksum": "crc32"}, "crc32"),
        ({"checksum": "sha256"}, "sha256"),
        ({"checksum": "xxh3-128"}, "xxh3-128"),
    ],
)
def test_writers_use_the_configured_algorithm_and_sha256_with_keys(section, algorithm):
    cc = claimcheck.from_dict({"strategy": "external", "stores": {"m": {"type": "memory"}}} | section)
    pointer = cc.store("m").write(b"123456789")
    assert pointer.checksum == expected(algorithm, b"123456789")
    assert cc.resolve(cc.seal(pointer)) == b"123456789"


# Stores --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("payload", [b"123456789", LARGE])
@every_algorithm
def test_every_way_to_read_verifies_the_digest(algorithm, payload):
    store = MemoryStore(space="digest")
    store.context = StoreContext(checksum=algorithm)
    pointer = store.write(payload)
    other = digest_of(b"another payload", algorithm=algorithm)
    for way in (*READINGS.values(), read_a_part_and_all_of_it):
        assert way(store, pointer) == payload
        with pytest.raises(IntegrityError) as caught:
            way(store, replace(pointer, checksum=other))
        assert (caught.value.expected, caught.value.actual) == (other, expected(algorithm, payload))
    assert not lasting_threads()


def read_a_part_and_all_of_it(store, pointer):
    with store.open(pointer) as file:
        file.seek(pointer.size // 2)
        second = file.read()
        file.seek(0)
        return file.read(pointer.size // 2) + second


# Signatures ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", ["crc32", "xxh3-128"])
def test_a_signed_pointer_that_binds_no_content_is_refused_unless_configured(algorithm):
    """Other bytes with the same CRC-32 can be made; those of SHA-256: see `tests/property/test_hostile_property.py`."""
    options = {"strategy": "external", "stores": {"m": {"type": "memory", "space": "digest"}}} | SIGNING
    writer = claimcheck.from_dict(options | {"checksum": algorithm})
    message = writer.seal(writer.store("m").write(b"payload"))
    assert writer.resolve(message) == b"payload", "as with signed pointers of earlier releases"
    for more in ({}, {"checksum": "sha256"}):
        reader = claimcheck.from_dict(options | more)
        assert writer.resolve(reader.seal(reader.store("m").write(b"payload"))) == b"payload"
        with pytest.raises(PointerRejectedError, match=f"set checksum: {algorithm}") as caught:
            reader.resolve(message)
        assert caught.value.reason == "checksum"


# Chunks --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("claim", "error"),
    [
        *((digest_of(b"another payload", algorithm=algorithm), IntegrityError) for algorithm in ALGORITHMS),
        ("xxh3-128:00", MissingDependencyError),
    ],
)
def test_a_digest_in_the_headers_that_is_wrong_or_cannot_be_computed_is_an_error(monkeypatch, claim, error):
    if error is MissingDependencyError:
        monkeypatch.setitem(sys.modules, "xxhash", None)
    cc = claimcheck.from_dict({"strategy": "chunking", "threshold_bytes": 3000})
    resolver, outcomes = cc.resolver(), []
    with cc.outbound(LARGE[:10_000], destination="orders", key=b"k") as out:
        for position, envelope in enumerate(out.envelopes):
            out.sent(position)
            last = {"claimcheck-checksum": claim} if "claimcheck-checksum" in envelope.headers else {}
            headers = envelope.headers | last
            outcomes += resolver.feed("orders-0", position, envelope.data, headers=headers, key=b"k")
    assert headers["claimcheck-checksum"] == claim
    assert [type(outcome.error) for outcome in outcomes] == [error]


@pytest.fixture(params=["isal", "zlib"])
def engine(request, monkeypatch):
    """The module as it is, and as it would be where nothing but Python is installed."""
    if request.param == "zlib":
        monkeypatch.setitem(sys.modules, "isal", None)
        monkeypatch.setitem(sys.modules, "isal.isal_zlib", None)
    yield importlib.reload(checksum)
    monkeypatch.undo()
    importlib.reload(checksum)


@pytest.mark.parametrize("sizes", [(0, 0), (1, 0), (0, 1), (1000, 5 << 20), (70_000, 65_536)])
def test_checksums_of_parts_make_that_of_the_whole(engine, sizes):
    first, second = map(os.urandom, sizes)
    combined = engine.crc32_combine(engine.crc32(first), engine.crc32(second), len(second))
    assert combined == zlib.crc32(first + second) == engine.crc32(memoryview(second), engine.crc32(first))
