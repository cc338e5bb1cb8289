import io

import pytest

from claimcheck._content.source import Source, remaining_bytes
from claimcheck._wire.buffers import as_view
from claimcheck._wire.digest import digest_of
from claimcheck.errors import PayloadError, PayloadTooLargeError, PayloadTypeError

LIMIT = 1 << 30


class Pipe(io.RawIOBase):
    """Gives what it has in small parts, and cannot seek."""

    def __init__(self, data, part=3):
        self.inner, self.part = io.BytesIO(data), part

    def readable(self):
        return True

    def read(self, size=-1):
        return self.inner.read(min(size, self.part) if size >= 0 else size)


class OnlyRead:
    """The least that counts as a file."""

    def __init__(self, *parts):
        self.parts = list(parts)

    def read(self, size):
        return self.parts.pop(0) if self.parts else b""


def facts(source):
    return source.size, source.taken, source.checksum, source.taken == source.size


def test_bytes_are_never_copied():
    payload = bytearray(10_000)
    pieces = list(Source(payload, limit=LIMIT).pieces(4000))

    assert [len(piece) for piece in pieces] == [4000, 4000, 2000]
    assert all(piece.obj is payload for piece in pieces)


def test_views_of_any_format_become_flat_bytes():
    assert as_view(memoryview(b"abcdefgh").cast("I")).nbytes == 8
    assert len(as_view(memoryview(b"abcdefgh").cast("I"))) == 8
    assert bytes(as_view(memoryview(b"abcdef")[::2])) == b"ace"
    assert bytes(as_view(memoryview(b"abc")[::-1])) == b"cba"


@pytest.mark.parametrize("data", [b"", b"x", b"payload" * 1000])
def test_a_source_counts_and_checksums_what_passes(data):
    for payload in (data, io.BytesIO(data), Pipe(data)):
        source = Source(payload, limit=LIMIT)
        assert b"".join(source.pieces(100)) == data
        assert facts(source) == (len(data), len(data), digest_of(data), True)


def test_the_checksum_covers_every_piece_that_was_handed_out_so_far():
    """A store that takes only as many pieces as it needs never asks for one behind the last."""
    source = Source(b"abcdef", limit=LIMIT)
    pieces = source.pieces(3)

    next(pieces)
    assert source.checksum == source.checksum == digest_of(b"abc")
    next(pieces)
    assert source.checksum == digest_of(b"abcdef")


@pytest.mark.parametrize("data", [b"", b"payload" * 1000])
def test_take_all_counts_the_same(data):
    for payload in (data, io.BytesIO(data), Pipe(data)):
        source = Source(payload, limit=LIMIT)
        assert bytes(source.take_all()) == data
        assert facts(source) == (len(data), len(data), digest_of(data), True)


def test_take_all_keeps_the_limit_for_a_file_of_unknown_size():
    with pytest.raises(PayloadTooLargeError):
        Source(Pipe(bytes(101)), limit=100).take_all()


def test_pieces_of_a_raw_file_are_full():
    assert [len(piece) for piece in Source(Pipe(bytes(25)), limit=LIMIT).pieces(10)] == [10, 10, 5]


def test_a_file_is_read_from_where_it_stands():
    file = io.BytesIO(b"headpayload")
    file.seek(4)

    assert remaining_bytes(file) == 7
    assert file.tell() == 4
    assert bytes(Source(file, limit=LIMIT).take_all()) == b"payload"


def test_a_file_beyond_its_end_is_empty():
    file = io.BytesIO(b"abc")
    file.seek(10)

    assert remaining_bytes(file) == 0


def test_whatever_has_read_is_a_file():
    source = Source(OnlyRead(b"ab", bytearray(b"cd")), limit=LIMIT)

    assert source.size is None
    assert b"".join(source) == b"abcd"


def test_what_is_added_to_a_file_meanwhile_is_left_out():
    file = io.BytesIO(b"payload")
    source = Source(file, limit=LIMIT)
    file.seek(0, io.SEEK_END)
    file.write(b"more")
    file.seek(0)

    assert bytes(source.take_all()) == b"payload"


@pytest.mark.parametrize("payload", ["text", None, 5, 1.5, ["a"], {}, object(), (b for b in [b"x"])])
def test_what_is_no_payload_is_a_type_error_of_ours(payload):
    with pytest.raises(PayloadTypeError, match=type(payload).__name__) as caught:
        Source(payload, limit=LIMIT)

    assert isinstance(caught.value, TypeError)


def test_text_gets_a_hint():
    with pytest.raises(PayloadTypeError, match="encode"):
        Source("text", limit=LIMIT)


def test_text_files_are_refused_even_when_they_only_turn_out_to_be_one():
    with pytest.raises(PayloadTypeError, match="'rb'"):
        Source(io.StringIO("text"), limit=LIMIT)
    with pytest.raises(PayloadTypeError, match="'rb'"):
        Source(OnlyRead("text"), limit=LIMIT).take_all()


def test_files_that_cannot_be_read_are_payload_errors(tmp_path):
    closed = io.BytesIO(b"x")
    closed.close()
    with pytest.raises(PayloadError, match="closed"):
        Source(closed, limit=LIMIT)

    path = tmp_path / "out"
    path.write_bytes(b"payload")
    with path.open("ab") as writable:
        writable.seek(0)
        with pytest.raises(PayloadError, match="writing only"):
            Source(writable, limit=LIMIT).take_all()


def test_closed_after_the_start():
    file = io.BytesIO(b"payload")
    source = Source(file, limit=LIMIT)
    file.close()

    with pytest.raises(PayloadError, match="closed"):
        source.take_all()


def test_non_blocking_files_are_refused():
    with pytest.raises(PayloadError, match="non-blocking"):
        Source(OnlyRead(None), limit=LIMIT).take_all()


def test_a_file_that_shrinks_says_how_much_is_missing():
    file = io.BytesIO(b"payload")
    source = Source(file, limit=LIMIT)
    file.truncate(3)

    with pytest.raises(PayloadError, match="4 of 7 bytes"):
        source.take_all()
    assert source.taken != source.size


def test_whatever_a_callers_file_raises_is_a_payload_error():
    class Odd(OnlyRead):
        def read(self, size):
            raise KeyError("odd")

    with pytest.raises(PayloadError, match="KeyError") as caught:
        Source(Odd(), limit=LIMIT).take_all()
    assert isinstance(caught.value.__cause__, KeyError)


def test_limit_is_named_and_checked_before_anything_is_read():
    file = io.BytesIO(bytes(101))

    with pytest.raises(PayloadTooLargeError, match="chunking.max") as caught:
        Source(file, limit=100, limit_name="chunking.max_payload_bytes")

    assert (caught.value.size, caught.value.limit, file.tell()) == (101, 100, 0)
    Source(io.BytesIO(bytes(100)), limit=100).take_all()


def test_a_file_that_is_open_for_writing_is_no_empty_payload(tmp_path):
    with open(tmp_path / "out", "wb") as file:
        file.write(b"hello")
        with pytest.raises(PayloadTypeError, match="'rb'"):
            Source(file, limit=LIMIT)


def test_a_file_that_cannot_seek_to_its_end_is_of_unknown_length():
    with open("/proc/self/status", "rb") as file:
        assert remaining_bytes(file) is None
        assert b"Name:" in bytes(Source(file, limit=LIMIT).take_all())


def test_a_file_that_gives_more_than_it_is_asked_for():
    with pytest.raises(PayloadError, match="for a read of 10"):
        list(Source(OnlyRead(b"x" * 11), limit=LIMIT).pieces(10))


def test_objects_are_not_their_addresses():
    array = pytest.importorskip("numpy").array(["a", None], dtype=object)
    with pytest.raises(PayloadTypeError, match="references"):
        as_view(array)
