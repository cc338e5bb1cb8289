"""What a payload may be, how its pieces are handed out, and which objects are refused with a reason."""

import io

import pytest

from claimcheck._content.source import Source, remaining_bytes
from claimcheck._wire.buffers import as_view
from claimcheck._wire.digest import digest_of
from claimcheck.errors import PayloadError, PayloadTooLargeError, PayloadTypeError

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
