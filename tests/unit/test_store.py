"""What the base class promises for every store, shown on the smallest one; tests/conformance shows it for each."""

from __future__ import annotations

import array
import contextlib
import io
import itertools
import logging
import tracemalloc
import uuid
import zlib
from dataclasses import replace

import pytest

from claimcheck._store.contract import StoreContext
from claimcheck._store.read import PayloadFile
from claimcheck._store.store import Store
from claimcheck._wire.buffers import PieceReader
from claimcheck._wire.digest import Crc32
from claimcheck._wire.pointer import Pointer
from claimcheck.errors import (
    ConfigError,
    IntegrityError,
    KeyTakenError,
    MissingDependencyError,
    PayloadNotFoundError,
    PayloadTooLargeError,
    PayloadTypeError,
    PointerRejectedError,
    StoreError,
    StoreUnavailableError,
)
from claimcheck.stores.filesystem import FilesystemStore
from claimcheck.stores.memory import MemoryStore
from claimcheck.testing import FaultyStore
from claimcheck.testing._store_kit import MIB, SHAPES, content, forbid_io
from tests.clocks import Clock

UUID = uuid.UUID("6ba7b810-9dad-11d1-80b4-00c04fd430c8")
NOW = 1_700_000_000.5


class DictStore(Store):
    """What an author would write, with hooks to break it."""

    prefix = "p/"

    def __init__(self):
        self.payloads = {}
        self.deleted = []
        self.context = StoreContext(name="mine", clock=lambda: NOW, new_uuid=lambda: UUID)

    def _write(self, pointer, source):
        self.payloads[pointer.key] = b"".join(source)

    def _read(self, pointer):
        yield self.payloads[pointer.key]

    def _delete(self, pointer):
        self.deleted.append(pointer)
        self.payloads.pop(pointer.key, None)

    def _translate(self, error):
        return PayloadNotFoundError if isinstance(error, KeyError) else super()._translate(error)


@pytest.fixture
def store():
    return DictStore()


def failing(error):
    def fail(*_):
        raise error

    return fail


def test_pointer_is_made_by_the_base(store):
    store.ttl_seconds = 60
    assert store.write(b"payload", destination="orders") == Pointer(
        key=f"p/orders-20231114T221320Z-60s.{UUID}",
        store="mine",
        size=7,
        checksum="crc32:422c6a15",
        created_ms=1_700_000_000_500,
        expires_ms=1_700_000_060_500,
    )


def test_segments_are_counted_and_no_more_written_than_a_reader_would_follow(store):
    store.segment_bytes = 10
    written = [store.write(bytes(n)) for n in (0, 10, 11, 20, 21)]
    counted = [(each.segments, each.segment_bytes) for each in written]
    assert counted == [(1, None), (1, None), (2, 10), (2, 10), (3, 10)]
    store.payloads.clear()
    store.segment_bytes = 1
    with pytest.raises(PayloadTooLargeError, match="1000000 segments of 1 bytes"):
        store.write(bytes(1_000_001))
    assert store.payloads == {}


class TestFailedWrite:
    @pytest.mark.parametrize("error", [ConnectionResetError("gone"), KeyboardInterrupt("gone")])
    @pytest.mark.parametrize("taken", [True, False])
    def test_is_undone_with_the_pointer_that_it_would_have_had(self, store, error, taken):
        """Also if nothing was taken: its place may have been opened already."""

        def write(pointer, source):
            store.payloads[pointer.key] = b"".join(source) if taken else b""
            raise error

        store.segment_bytes, store._write = 10, write
        with pytest.raises((StoreUnavailableError, KeyboardInterrupt), match="gone"):
            store.write(bytes(25))
        assert [(p.size, p.segments) for p in store.deleted] == [(25, 3) if taken else (0, 1)]
        assert store.payloads == {}

    @pytest.mark.parametrize(
        ("method", "error", "raised"),
        [
            ("_write", MissingDependencyError, MissingDependencyError),
            ("_write", ConfigError, ConfigError),
            ("_write", KeyTakenError, KeyTakenError),
            ("_reach", ConnectionRefusedError, StoreUnavailableError),
        ],
    )
    def test_is_not_undone_where_nothing_of_it_can_be(self, store, method, error, raised):
        setattr(store, method, failing(error("as the test wants it")))
        with pytest.raises(raised) as caught:
            store.write(b"payload")
        assert store.deleted == getattr(caught.value, "__notes__", []) == []
        if isinstance(caught.value, StoreError):
            assert (caught.value.store, caught.value.key) == ("mine", f"p/_-20231114T221320Z-never.{UUID}")

    def test_keeps_its_error_when_undoing_fails_too(self, store, caplog):
        store._write = failing(OSError(28, "No space left on device"))
        store._delete = failing(RuntimeError("second"))
        with caplog.at_level(logging.WARNING), pytest.raises(StoreError, match="No space left") as caught:
            store.write(b"payload")
        assert type(caught.value) is StoreError
        assert any("RuntimeError" in note for note in caught.value.__notes__)
        assert "could not delete" in caplog.text

    def test_is_an_error_when_the_author_forgot_a_part(self, store):
        store._write = lambda pointer, source: next(iter(source))
        with pytest.raises(StoreError, match="DictStore._write is broken"):
            store.write(bytes(3 << 20))
        assert len(store.deleted) == 1

    @pytest.mark.parametrize(
        ("name", "value", "error"),
        [
            *(("prefix", each, "would reject its own pointer") for each in ("/p/", "../p", "p\t", "x" * 1000)),
            ("pointer_version", 1, "would reject its own pointer"),
            *(("ttl_seconds", each, r"stores\.mine\.ttl_seconds") for each in (float("inf"), float("nan"), -1)),
        ],
    )
    def test_is_one_whose_pointer_no_reader_would_follow(self, store, name, value, error):
        setattr(store, name, value)
        with pytest.raises((StoreError, ConfigError), match=error):
            store.write(b"payload")
        assert store.payloads == {}


@pytest.mark.parametrize(("shortest", "lifetime"), [(None, 60), (30, 60), (90, 90), (-1, None), (float("nan"), None)])
def test_a_payload_may_live_longer_than_others(store, shortest, lifetime):
    store.ttl_seconds = 60
    if lifetime is None:
        with pytest.raises(ConfigError, match="ttl_seconds"):
            store.write(b"payload", min_ttl_seconds=shortest)
        return
    pointer = store.write(b"payload", min_ttl_seconds=shortest)
    assert pointer.expires_ms - pointer.created_ms == lifetime * 1000
    assert f"-{lifetime}s." in pointer.key


@pytest.mark.parametrize(("size", "limit", "lowest"), [(6, 5, 5), (11, 20, 10), (11, None, 10)])
@pytest.mark.parametrize("shape", ["bytes", "file at an offset", "unseekable file"])
def test_a_limit_may_be_lower_for_one_write_and_never_above_what_the_store_reads(store, size, limit, lowest, shape):
    store.context = replace(store.context, max_payload_bytes=10)
    with pytest.raises(PayloadTooLargeError) as caught:
        store.write(SHAPES[shape](bytes(size)), limit=limit)
    assert (caught.value.size, caught.value.limit) == (size, lowest)
    assert store.payloads == {}
    assert store.write(SHAPES[shape](bytes(lowest)), limit=limit).size == lowest


class TestErrors:
    @pytest.mark.parametrize(
        ("raised", "expected"),
        [
            (ConnectionError("x"), StoreUnavailableError),
            (TimeoutError("x"), StoreUnavailableError),
            (FileNotFoundError("x"), PayloadNotFoundError),
            (KeyError("x"), PayloadNotFoundError),
            (OSError("x"), StoreError),
            (RuntimeError("cannot reach http://me:hunter2@host/ today"), StoreError),
        ],
    )
    def test_vendors_errors_are_mapped_and_chained_without_passwords(self, store, raised, expected):
        pointer = store.write(b"payload")
        store._read = failing(raised)
        with pytest.raises(StoreError) as caught:
            store.read(pointer)
        assert type(caught.value) is expected
        assert caught.value.__cause__ is raised
        assert (caught.value.store, caught.value.key) == ("mine", pointer.key)
        assert "hunter2" not in str(caught.value)
        store._write = failing(raised)
        with pytest.raises(StoreError) as written:
            store.write(b"payload")
        assert type(written.value) is (StoreError if isinstance(raised, FileNotFoundError | KeyError) else expected)

    @pytest.mark.parametrize(
        ("after", "expires_ms", "text"),
        [
            (900, 1_600_000, "(written 1970-01-01T00:16:40+00:00): it expired 5 minutes ago, at 1970-01-01T00:26:40"),
            (300, 1_600_000, "should be readable until 1970-01-01T00:26:40+00:00: it was evicted, rolled back or"),
            (300, None, ": it expired, was evicted, was rolled back or was deleted"),
            (1, 10**18, "deleted"),
            (1, -(10**18), "ago, at -1"),
        ],
    )
    def test_a_payload_that_is_gone_says_what_the_pointer_and_the_clock_tell(self, after, expires_ms, text):
        clock, store = Clock(), MemoryStore(space=str(uuid.uuid4()), ttl_seconds=600)
        store.context = StoreContext(clock=clock)
        pointer = store.write(b"payload", destination="orders")
        store.rollback(pointer)
        clock.sleep(after)
        with pytest.raises(PayloadNotFoundError) as caught:
            store.read(replace(pointer, expires_ms=expires_ms))
        assert text in str(caught.value)
        assert (caught.value.created_ms, caught.value.expires_ms) == (1_000_000, expires_ms)


class TestCheck:
    @pytest.mark.parametrize(
        ("reason", "changes"),
        [
            ("version", [{"version": 1}]),
            ("store", [{"store": "other"}]),
            ("scope", [{"key": "q/x"}, {"key": "p/../x"}]),
            ("size", [{"size": 2**62}, {"segments": 2}, {"segments": 1 << 20, "segment_bytes": 1, "size": 1 << 20}]),
            ("feature", [{"codec": "zstd"}, {"encryption": "aes"}, {"checksum": "md5:00"}]),
        ],
    )
    def test_reason_is_one_word_whatever_is_done(self, store, monkeypatch, reason, changes):
        forbid_io(store, monkeypatch)
        uses = (store.check, lambda p: store.read_range(p, 0, 1), lambda p: store.read_into(p, bytearray(9)))
        for change, use in itertools.product(changes, uses):
            with pytest.raises(PointerRejectedError) as caught:
                use(Pointer(**{"key": "p/x", "store": "mine", "size": 7} | change))
            assert caught.value.reason == reason
        store.reads_v1 = True
        store.check(Pointer(key="p/x", version=1))

    @pytest.mark.parametrize("wrong", [None, "key", b"an envelope"])
    def test_what_is_no_pointer_is_refused_with_the_way_out(self, store, wrong):
        for use in (store.read, store.open, store.rollback):
            with pytest.raises(PointerRejectedError, match="resolve") as caught:
                use(wrong)
            assert caught.value.reason == "type"


@pytest.mark.parametrize("wrap", [lambda store: store, lambda store: FaultyStore(store=store)], ids=["", "in sequence"])
def test_too_small_a_buffer_or_none_or_a_range_that_is_none(wrap):
    """A payload is never truncated; the error has its size."""
    store = wrap(MemoryStore())
    pointer, buffer = store.write(b"payload"), bytearray(6)
    with pytest.raises(PayloadTooLargeError) as caught:
        store.read_into(pointer, buffer)
    assert (caught.value.limit, caught.value.size, buffer) == (6, 7, bytes(6))
    for wrong in (bytes(7), memoryview(bytes(7)), "payload", None, io.BytesIO()):
        with pytest.raises(PayloadTypeError):
            store.read_into(pointer, wrong)
    for start, length in ((-1, 1), (0, -1)):
        with pytest.raises(ValueError, match="cannot read"):
            store.read_range(pointer, start, length)


@pytest.mark.parametrize("size", [1000, 9 * MIB])
def test_of_a_damaged_payload_there_is_no_copy_and_errors_of_either_store_are_its_own(tmp_path, size):
    archive = FilesystemStore(path=tmp_path / "archive", create=True)
    memory = MemoryStore(space=f"copied-{uuid.uuid4()}")
    source, target = FaultyStore(store=memory), FaultyStore(store=archive)
    pointer = source.write(content(size))
    for store, operation in ((source, "read"), (target, "write")):
        store.fail(operation)
        with pytest.raises(StoreUnavailableError):
            source.copy(pointer, to=target)
        store.heal()
    memory._payloads[pointer.key] = bytes(size)
    with pytest.raises(IntegrityError):
        source.copy(pointer, to=target)
    assert [path for path in (tmp_path / "archive").rglob("*") if path.is_file()] == []


# Files --------------------------------------------------------------------------------------------------------------

PAYLOAD = bytes(range(256)) * 40


def pointer(**changes):
    facts = {"key": "k", "store": "s", "size": len(PAYLOAD), "checksum": Crc32(zlib.crc32(PAYLOAD)).text()}
    return Pointer(**facts | changes)


def cut(data, size=1000):
    return [data[i : i + size] for i in range(0, len(data), size)]


def opened(open_part, expected=None, *, limit=1 << 30):
    """A file whose store reads with a function of start and stop."""
    store = MemoryStore()
    store.context = StoreContext(name="s", max_payload_bytes=limit)
    store._open = lambda _, start, stop: open_part(start, stop)
    return PayloadFile(store, expected or pointer())


def reader(pieces, expected=None, **options):
    file = opened(lambda start, stop: PieceReader(pieces, start=start), expected, **options)
    file._store.is_seekable = file._can_seek = False
    return file


def unknown():
    return pointer(size=None, checksum=None)


class Medium:
    """Bytes that can be read from anywhere; remembers what was asked for."""

    def __init__(self, data):
        self.data, self.asked, self.open = data, [], 0

    def __call__(self, start, stop):
        self.asked.append((start, stop))
        self.open += 1
        medium, file = self, io.BytesIO(self.data)
        file.seek(start)

        class Part:
            def readinto(self, buffer):
                return file.readinto(buffer)

            def close(self):
                medium.open -= 1

        return Part()


class TestPayloadReader:
    def test_one_piece_is_verified_and_not_copied(self):
        assert reader([PAYLOAD]).readall() is PAYLOAD
        for pieces in ([PAYLOAD + b"x"], [PAYLOAD[:-1]], [PAYLOAD[:-1] + b"?"], [PAYLOAD, b"x"]):
            with pytest.raises(IntegrityError):
                reader(pieces).readall()

    def test_unknown_size_is_bounded_by_the_limit(self):
        assert reader(cut(PAYLOAD), unknown(), limit=len(PAYLOAD)).readall() == PAYLOAD
        with pytest.raises(PayloadTooLargeError):
            reader(cut(PAYLOAD), unknown(), limit=len(PAYLOAD) - 1).readall()

    def test_pieces_may_share_one_buffer_and_have_wide_items(self):
        buffer = array.array("I", bytes(1000))

        def reused():
            for piece in cut(PAYLOAD):
                memoryview(buffer).cast("B")[: len(piece)] = piece
                yield memoryview(buffer)[: len(piece) // 4]

        assert reader(reused()).readall() == PAYLOAD


class TestMemory:
    """One payload, however it comes; nothing that was only declared."""

    @pytest.fixture
    def peak(self):
        tracemalloc.start()
        yield lambda: tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()

    @pytest.mark.parametrize(("mib", "known", "most"), [(32, True, 1.1), (96, True, 1.2), (96, False, 1.2)])
    def test_of_one_payload(self, peak, mib, known, most):
        piece = bytearray(b"x" * MIB)
        expected = pointer(size=mib * MIB if known else None, checksum=None)
        payload = reader((memoryview(piece) for _ in range(mib)), expected).readall()
        assert peak() < most * len(payload)  # of a large one an eighth more may be asked for, and is never touched
        assert len(payload) == mib * MIB

    @pytest.mark.parametrize("size", [5 << 30, 15])
    def test_grows_with_what_comes_and_not_with_what_was_declared(self, peak, size):
        memory = MemoryStore()
        stored = replace(memory.write(b"ten bytes."), size=size)
        for read in (
            reader([b"ten bytes.", b"more"], pointer(size=size)).readall,
            lambda: memory.read(stored),
            lambda: memory.read_range(stored, 0, size),
            lambda: memory.open(stored).read(),
        ):
            with pytest.raises(IntegrityError):
                read()
        assert peak() < 3 * MIB


@pytest.mark.parametrize(("error", "raised"), [(KeyboardInterrupt, KeyboardInterrupt), (MemoryError, StoreError)])
def test_an_interruption_is_no_end(error, raised):
    def pieces():
        yield PAYLOAD[:10]
        raise error

    for size in (5, -1):
        source = reader(pieces())
        assert source.read(10) == PAYLOAD[:10]
        for _ in range(3):
            with pytest.raises(raised):
                source.read(size)


@pytest.mark.parametrize("damaged", [PAYLOAD, PAYLOAD[:-1]])
def test_a_file_that_was_read_to_its_end_or_an_error_holds_no_connection(damaged):
    source = opened(medium := Medium(damaged))
    with contextlib.suppress(IntegrityError):
        source.readall()
    assert (len(medium.asked), medium.open) == (1, 0)


class TestSeekableReader:
    @pytest.fixture
    def medium(self):
        return Medium(PAYLOAD)

    @pytest.fixture
    def source(self, medium):
        return opened(medium)

    def test_reads_once_what_is_read_in_order(self, source, medium):
        assert source.read(4000) + source.read(1) == PAYLOAD[:4001]
        source.seek(5000)
        source.seek(4001)
        for offset, whence in ((-1, io.SEEK_SET), (-4002, io.SEEK_CUR), (0, 7)):
            with pytest.raises(ValueError, match="seek"):
                source.seek(offset, whence)
        assert source.readall() == PAYLOAD[4001:]
        assert medium.asked == [(0, len(PAYLOAD))]

    def test_elsewhere_verifies_the_rest_once(self, source, medium):
        source.read(10)
        source.seek(5000)
        assert source.read(7) == PAYLOAD[5000:5007]
        source.seek(2)
        assert source.read(7) == PAYLOAD[2:9]
        assert medium.asked == [(0, len(PAYLOAD)), (5000, 5007), (2, 9)]
        assert medium.open == 0
