"""Parts that come side by side; tests/unit/test_s3_reading.py has them over a line."""

import threading
import time

import pytest

from claimcheck._payload_reader import fill
from claimcheck.stores._common import ParallelReader, folder, in_parts, part_size

PAYLOAD = bytes(range(256)) * 100


class Part:
    """A reader of a part of the payload, which gives a little at a time."""

    def __init__(self, start, stop):
        self.data = memoryview(PAYLOAD[start:stop])
        self.closed = False

    def readinto(self, buffer):
        count = min(len(buffer), len(self.data), 700)
        buffer[:count] = self.data[:count]
        self.data = self.data[count:]
        return count

    def close(self):
        self.closed = True


@pytest.fixture
def opened():
    return []


@pytest.fixture
def open_part(opened):
    def build(start, stop):
        part = Part(start, stop)
        opened.append((start, stop, part))
        return part

    return build


@pytest.mark.parametrize("parallel", [1, 2, 3, 50])
@pytest.mark.parametrize(("start", "stop"), [(0, len(PAYLOAD)), (1, 2), (999, 10_001), (0, 1000)])
def test_parts_make_the_whole_in_order(open_part, opened, start, stop, parallel):
    reader = ParallelReader(open_part, start, stop, part_bytes=1000, parallel=parallel)
    room = memoryview(bytearray(stop - start + 10))

    assert fill(reader, room) == stop - start
    reader.close()

    assert room[: stop - start] == PAYLOAD[start:stop]
    assert min(begin for begin, _, _ in opened) == start
    assert all(part.closed for _, _, part in opened)


def test_no_more_parts_than_asked_for_are_in_memory(open_part, opened):
    reader = ParallelReader(open_part, 0, len(PAYLOAD), part_bytes=1000, parallel=3)
    deadline = time.monotonic() + 10
    while len(opened) < 3 and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.05)

    assert len(opened) == 3
    for done in range(1, 5):
        room = memoryview(bytearray(1000))
        while len(room):
            room = room[reader.readinto(room) :]
        assert len(opened) <= 3 + done
    reader.close()


def test_a_short_part_is_the_end(opened):
    reader = ParallelReader(lambda start, stop: Part(start, stop - 5), 0, 3000, part_bytes=1000, parallel=2)

    assert reader.readinto(memoryview(bytearray(1000))) == 995
    reader.close()


def test_an_error_comes_where_it_belongs():
    def build(start, stop):
        if start == 1000:
            raise ConnectionError("the second part")
        return Part(start, stop)

    reader = ParallelReader(build, 0, 3000, part_bytes=1000, parallel=3)
    room = memoryview(bytearray(1000))
    while len(room):
        room = room[reader.readinto(room) :]

    with pytest.raises(ConnectionError, match="second"):
        reader.readinto(memoryview(bytearray(10)))
    reader.close()
    reader.close()


def test_closing_stops_what_is_under_way():
    release, seen = threading.Event(), []

    class Slow(Part):
        def readinto(self, buffer):
            seen.append(len(buffer))
            release.wait(10)
            buffer[0] = 1
            return 1

    reader = ParallelReader(lambda start, stop: Slow(start, stop), 0, 9000, part_bytes=1000, parallel=2)
    while len(seen) < 2:
        time.sleep(0.01)
    threading.Timer(0.05, release.set).start()
    reader.close()

    assert len(seen) <= 4, "not to the end of the parts"


@pytest.mark.parametrize(("stop", "parallel", "ranges"), [(5000, 3, 5), (1000, 3, 1), (5000, 1, 1), (None, 3, 1)])
def test_parts_only_where_there_are_several(open_part, opened, stop, parallel, ranges):
    reader = in_parts(
        lambda start, end: open_part(start, end or len(PAYLOAD)), 0, stop, part_bytes=1000, parallel=parallel
    )
    fill(reader, memoryview(bytearray(6000)))
    reader.close()

    assert len(opened) == ranges


@pytest.mark.parametrize(
    ("size", "single", "expected"),
    [
        (0, 100, 1),
        (100, 100, 100),
        (101, 100, 16),
        (None, 100, 16),
        (160_000, 100, 16),
        (160_001, 100, 17),
    ],
)
def test_parts_grow_where_ten_thousand_are_not_enough(size, single, expected):
    class Sized:
        pass

    source = Sized()
    source.size = size

    assert part_size(source, 1000, single=single, part=16) == expected


@pytest.mark.parametrize(("limit", "expected"), [(160_000, 16), (1_000_000, 100)])
def test_parts_of_unknown_payloads_are_enough_for_the_largest(limit, expected):
    class Unsized:
        size = None

    assert part_size(Unsized(), limit, single=100, part=16) == expected


@pytest.mark.parametrize(("given", "prefix"), [("", ""), ("/", ""), ("a", "a/"), ("a/", "a/"), ("/a/b/", "a/b/")])
def test_prefixes_are_folders(given, prefix):
    assert folder(given) == prefix
