"""Segments that are gone, cut, longer, changed or not even text: an error that says so, and never short data."""

import pytest

from claimcheck.errors import IntegrityError, PayloadNotFoundError
from tests.fault.redis_rig import PAYLOAD, SEGMENT, RedisLine, keys
from tests.fault.rig import READINGS, content

ALL_READINGS = pytest.mark.parametrize("read", READINGS.values(), ids=READINGS)
ALL_SEGMENTS = pytest.mark.parametrize("segment", [0, 2, 5], ids=["first", "middle", "last"])

CHANGES = {
    "shorter by one": lambda data: data[:-1],
    "shorter by half": lambda data: data[: len(data) // 2],
    "longer by one": lambda data: data + b"x",
    "twice as long": lambda data: data + data,
    "nothing": lambda data: b"",
}


class TestGone(RedisLine):
    @ALL_READINGS
    @ALL_SEGMENTS
    def test_one_segment_is_named(self, store, server, pointer, read, segment):
        server.delete(f"{pointer.key}-{segment}")

        with pytest.raises(PayloadNotFoundError, match=f"segment {segment} of 6"):
            read(store, pointer)

    @ALL_READINGS
    def test_all_of_them(self, store, server, pointer, read):
        server.delete(*keys(server, store))

        with pytest.raises(PayloadNotFoundError):
            read(store, pointer)

    @pytest.mark.parametrize("segment", [3, 4, 5])
    def test_while_the_payload_is_being_read(self, store, server, pointer, segment):
        with store.open(pointer) as file:
            got = file.read(10)
            server.delete(f"{pointer.key}-{segment}")
            with pytest.raises(PayloadNotFoundError, match=f"segment {segment} of 6"):
                while piece := file.read(100_000):
                    got += piece

        assert got == PAYLOAD[: len(got)]
        assert len(got) <= segment * SEGMENT

    @ALL_SEGMENTS
    def test_what_is_left_can_still_be_removed(self, store, server, pointer, segment):
        server.delete(f"{pointer.key}-{segment}")

        store.rollback(pointer)

        assert keys(server, store) == []

    @ALL_SEGMENTS
    def test_a_range_needs_its_own_segments_only(self, store, server, pointer, segment):
        server.delete(f"{pointer.key}-{segment}")

        for i in (0, 2, 5):
            if i == segment:
                with pytest.raises(PayloadNotFoundError):
                    store.read_range(pointer, i * SEGMENT + 5, 1000)
            else:
                assert store.read_range(pointer, i * SEGMENT + 5, 1000) == PAYLOAD[i * SEGMENT + 5 :][:1000]


class TestChanged(RedisLine):
    @ALL_READINGS
    @ALL_SEGMENTS
    def test_one_byte(self, store, server, pointer, read, segment):
        place = segment * SEGMENT + 1000
        server.setrange(f"{pointer.key}-{segment}", 1000, bytes([PAYLOAD[place] ^ 1]))

        with pytest.raises(IntegrityError, match="checksum"):
            read(store, pointer)

    @ALL_READINGS
    @ALL_SEGMENTS
    @pytest.mark.parametrize("change", CHANGES)
    def test_length(self, store, server, pointer, read, segment, change):
        name = f"{pointer.key}-{segment}"
        server.set(name, CHANGES[change](server.get(name)), px=60_000)

        with pytest.raises(IntegrityError):
            read(store, pointer)

    @ALL_READINGS
    def test_order(self, store, server, pointer, read):
        first, second = f"{pointer.key}-1", f"{pointer.key}-2"
        one, two = server.mget(first, second)
        server.mset({first: two, second: one})

        with pytest.raises(IntegrityError, match="checksum"):
            read(store, pointer)

    @ALL_READINGS
    @ALL_SEGMENTS
    def test_kind(self, store, server, pointer, read, segment):
        """No number of retries turns a list into a payload."""
        name = f"{pointer.key}-{segment}"
        server.delete(name)
        server.rpush(name, "a", "b")

        with pytest.raises(IntegrityError):
            read(store, pointer)

    def test_another_payload_of_the_same_size(self, store, server):
        """Of one segment, so that nothing but the checksum tells."""
        pointer = store.write(content(5000))
        server.set(f"{pointer.key}-0", content(5000)[::-1], px=60_000)

        with pytest.raises(IntegrityError, match="checksum"):
            store.read(pointer)
