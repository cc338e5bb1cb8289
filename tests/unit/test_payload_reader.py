import array
import contextlib
import io
import tracemalloc
import zlib
from dataclasses import replace

import pytest

import claimcheck
from claimcheck._store.contract import StoreContext
from claimcheck._store.read import PayloadFile
from claimcheck._wire.buffers import PieceReader
from claimcheck._wire.digest import Crc32
from claimcheck._wire.pointer import Pointer
from claimcheck.errors import IntegrityError, StoreError
from claimcheck.stores.memory import MemoryStore
from claimcheck.testing._store_kit import Unseekable

MIB = 1 << 20


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
            lambda: memory.open(stored).read(),
        ):
            with pytest.raises(IntegrityError):
                read()

        assert peak() < 3 * MIB

    def test_nor_does_it_for_compressed_content_without_a_size(self, peak):
        """Its header has none if it was written from a pipe."""
        pytest.importorskip("zstandard")
        stores = {"s": {"type": "memory"}}
        config = {"strategy": "external", "compression": {"codec": "zstd"}, "stores": stores}
        with claimcheck.from_dict(config) as cc:
            store, size = cc.store("s"), 3 << 30
            forged = replace(store.write(Unseekable(io.BytesIO(b"some text " * 100_000))), size=size)
            for read in (
                store.read,
                lambda each: store.read_range(each, 0, size),
                lambda each: cc.resolve(cc.seal(each)),
            ):
                with pytest.raises(IntegrityError):
                    read(forged)

        assert peak() < 64 * MIB


class TestErrors:
    @pytest.mark.parametrize(
        ("error", "raised"),
        [(KeyboardInterrupt, KeyboardInterrupt), (SystemExit, SystemExit), (MemoryError, StoreError)],
    )
    def test_an_interruption_is_no_end(self, error, raised):
        def pieces():
            yield PAYLOAD[:10]
            raise error

        for read in (lambda file: file.read(5), lambda file: file.read()):
            source = reader(pieces())
            assert source.read(10) == PAYLOAD[:10]
            for _ in range(3):
                with pytest.raises(raised):
                    read(source)


class TestClosing:
    @pytest.mark.parametrize("damaged", [PAYLOAD, PAYLOAD[:-1]])
    def test_happens_at_the_end_and_at_an_error(self, damaged):
        """A file that was read to its end holds no connection, even if it is not closed."""
        medium = Medium(damaged)
        source = opened(medium)

        with contextlib.suppress(IntegrityError):
            source.readall()

        assert (len(medium.asked), medium.open) == (1, 0)
        source.close()
        with pytest.raises(ValueError, match="closed"):
            source.read(1)


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
