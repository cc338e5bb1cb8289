import array
import io
import tracemalloc
import zlib

import pytest

from claimcheck.errors import IntegrityError, PayloadTooLargeError
from claimcheck.payload import crc32_of, crc32_text
from claimcheck.pointer import Pointer
from claimcheck.reading import PayloadReader, collect, verified

PAYLOAD = bytes(range(256)) * 40


def pointer(**changes):
    facts = {"key": "k", "store": "s", "size": len(PAYLOAD), "checksum": crc32_text(zlib.crc32(PAYLOAD))}
    return Pointer(**facts | changes)


def cut(data, size=1000):
    return [data[i : i + size] for i in range(0, len(data), size)]


def check(pieces, expected=None, limit=1 << 30):
    return verified(iter(pieces), expected or pointer(), store="s", limit=limit)


class TestVerified:
    def test_passes_what_is_right(self):
        assert b"".join(check(cut(PAYLOAD))) == PAYLOAD

    @pytest.mark.parametrize("pieces", [[], [b""], [b"", b""]])
    def test_passes_nothing(self, pieces):
        assert b"".join(check(pieces, pointer(size=0, checksum="crc32:00000000"))) == b""

    def test_keeps_the_last_piece_back_until_all_is_known_to_be_right(self):
        pieces = check(cut(PAYLOAD[:-1] + b"?"))
        seen = []

        with pytest.raises(IntegrityError, match="checksum"):
            for piece in pieces:
                seen.append(piece)  # noqa: PERF402 - what was seen before the error matters

        assert sum(map(len, seen)) < len(PAYLOAD)

    @pytest.mark.parametrize("data", [b"", PAYLOAD[:-1], PAYLOAD + b"x"])
    def test_refuses_another_size(self, data):
        with pytest.raises(IntegrityError, match="size") as caught:
            list(check(cut(data)))

        assert caught.value.expected == len(PAYLOAD)

    def test_a_pointer_without_checksum_still_has_a_size(self):
        assert b"".join(check([PAYLOAD[::-1]], pointer(checksum=None))) == PAYLOAD[::-1]

    def test_unknown_size_is_bounded_by_the_limit(self):
        unknown = pointer(size=None, checksum=None)
        assert b"".join(check(cut(PAYLOAD), unknown)) == PAYLOAD

        with pytest.raises(PayloadTooLargeError):
            list(check(cut(PAYLOAD), unknown, limit=len(PAYLOAD) - 1))


class TestCollect:
    @pytest.mark.parametrize("size", [len(PAYLOAD), None])
    def test_joins(self, size):
        assert collect(iter(cut(PAYLOAD)), size) == PAYLOAD
        assert type(collect(iter([bytearray(PAYLOAD)]), size)) is bytes

    def test_one_piece_is_not_copied(self):
        assert collect(iter([PAYLOAD]), len(PAYLOAD)) is PAYLOAD

    def test_what_comes_after_one_piece_is_still_looked_at(self):
        with pytest.raises(IntegrityError):
            collect(check([PAYLOAD, b"x"]), len(PAYLOAD))

    @pytest.mark.parametrize("size", [len(PAYLOAD), None])
    def test_pieces_may_share_one_buffer(self, size):
        buffer = bytearray(1000)

        def reused():
            for piece in cut(PAYLOAD):
                buffer[: len(piece)] = piece
                yield memoryview(buffer)[: len(piece)]

        assert collect(reused(), size) == PAYLOAD

    def test_takes_the_memory_of_one_payload(self):
        size, piece = 32 << 20, bytes(1 << 20)
        tracemalloc.start()
        try:
            collect((memoryview(piece) for _ in range(32)), size)
            assert tracemalloc.get_traced_memory()[1] < 1.1 * size
        finally:
            tracemalloc.stop()

    @pytest.mark.parametrize("size", [5 << 30, None])
    def test_memory_grows_with_what_comes_and_not_with_what_was_declared(self, size):
        tracemalloc.start()
        try:
            with pytest.raises(IntegrityError):
                collect(check([b"ten bytes.", b"more"], pointer(size=size or 15)), size)
            assert tracemalloc.get_traced_memory()[1] < 1 << 20
        finally:
            tracemalloc.stop()

    @pytest.mark.parametrize("size", [96 << 20, None])
    def test_a_large_one_takes_the_memory_of_one_payload(self, size):
        piece = bytearray(b"x" * (1 << 20))
        tracemalloc.start()
        try:
            payload = collect((memoryview(piece) for _ in range(96)), size)
            assert tracemalloc.get_traced_memory()[1] < 1.2 * len(payload)  # an eighth may be asked for, never touched
        finally:
            tracemalloc.stop()
        assert payload == piece * 96


class TestPayloadReader:
    def reader(self, data=PAYLOAD):
        return PayloadReader(check(cut(data)), size=len(PAYLOAD))

    def test_is_a_file(self):
        file = io.BufferedReader(self.reader())

        assert file.readable()
        assert file.read(10) == PAYLOAD[:10]
        assert file.read() == PAYLOAD[10:]
        assert file.read() == b""

    def test_reads_into_buffers_of_any_size(self):
        reader, buffer, got = self.reader(), bytearray(1700), b""
        while count := reader.readinto(buffer):
            got += buffer[:count]

        assert got == PAYLOAD

    def test_reading_all_takes_the_memory_of_one_payload(self):
        size, piece = 32 << 20, bytes(1 << 20)
        reader = PayloadReader((memoryview(piece) for _ in range(32)), size=size)
        tracemalloc.start()
        try:
            assert len(reader.readall()) == size
            assert tracemalloc.get_traced_memory()[1] < 1.1 * size
        finally:
            tracemalloc.stop()

    @pytest.mark.parametrize("damaged", [PAYLOAD[:-1], PAYLOAD + b"x", PAYLOAD[:-1] + b"?"])
    def test_an_error_stays_an_error(self, damaged):
        """Whoever catches it and reads on must not find a clean end of the file."""
        file = io.BufferedReader(self.reader(damaged))

        for read in (file.read, file.read, lambda: file.read(1), lambda: file.readinto(bytearray(5))):
            with pytest.raises(IntegrityError):
                read()

    @pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, MemoryError])
    def test_an_interruption_is_no_end(self, error):
        def pieces():
            yield PAYLOAD[:10]
            raise error

        for read in (lambda file: file.read(5), lambda file: file.read()):
            reader = PayloadReader(pieces(), size=len(PAYLOAD))
            assert reader.read(10) == PAYLOAD[:10]
            for _ in range(3):
                with pytest.raises(error):
                    read(reader)

    def test_an_interruption_while_pieces_are_joined_leaves_no_hole(self):
        reader = PayloadReader(iter([PAYLOAD[:10], "no bytes", PAYLOAD[10:]]), size=len(PAYLOAD))
        for _ in range(2):
            with pytest.raises(TypeError):
                reader.readall()

    @pytest.mark.parametrize("read", [lambda file: file.read(5), lambda file: file.read()])
    def test_pieces_that_just_end_are_no_payload(self, read):
        """As those of a generator do that was interrupted where nobody could see it."""
        reader = PayloadReader(iter([PAYLOAD[:10]]), size=len(PAYLOAD))
        assert reader.read(10) == PAYLOAD[:10]
        for _ in range(2):
            with pytest.raises(IntegrityError, match=f"after 10 of {len(PAYLOAD)} bytes") as caught:
                read(reader)
        assert (caught.value.expected, caught.value.actual) == (len(PAYLOAD), 10)

    def test_closing_stops_the_source(self):
        closed = []

        def pieces():
            try:
                yield from cut(PAYLOAD)
            finally:
                closed.append(True)

        with PayloadReader(pieces()) as reader:
            reader.read(5)
        reader.close()

        assert closed == [True]
        with pytest.raises(ValueError, match="closed"):
            reader.read(1)


def test_pieces_of_wide_items_are_counted_in_bytes():
    numbers = array.array("I", range(1000))
    wide = pointer(size=4000, checksum=crc32_of(numbers.tobytes()))
    assert collect(check([memoryview(numbers)], wide), 4000) == numbers.tobytes()
