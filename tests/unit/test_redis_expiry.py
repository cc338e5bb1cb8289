"""Longer lifetimes in Redis; tests/conformance has the rest."""

from dataclasses import replace

import pytest
import redis

from claimcheck._wire.pointer import Pointer, decode, encode
from claimcheck.errors import PayloadNotFoundError, StoreError
from claimcheck.stores.redis import RedisStore
from tests.unit.scripted_redis import scripted_redis

HOUR_MS = 3_600_000


@pytest.fixture
def server(fake_redis_url):
    with redis.Redis.from_url(fake_redis_url) as client:
        client.flushall()
        yield client


@pytest.fixture
def store(fake_redis_url, server):
    with RedisStore(url=fake_redis_url, segment_bytes=10, ttl_seconds=600) as store:
        yield store


def test_every_segment_expires_at_the_new_moment(store, server):
    pointer = store.write(bytes(35))

    extended = store.extend(pointer, 3600)

    left = [server.pttl(f"{pointer.key}-{i}") for i in range(4)]
    assert all(HOUR_MS - 60_000 < each <= HOUR_MS for each in left)
    assert extended.key == pointer.key


def test_one_missing_segment_is_an_error(store, server):
    pointer = store.write(bytes(35))
    server.delete(f"{pointer.key}-3")

    with pytest.raises(PayloadNotFoundError, match="segment 3 of 4"):
        store.extend(pointer, 3600)


def test_an_extended_pointer_has_no_old_signature(store):
    pointer = store.write(b"payload")
    signed = replace(pointer, key_id="a", mac="00")

    extended = store.extend(signed, 3600)

    assert (extended.key_id, extended.mac) == (None, None)


def test_a_pointer_of_version_1_needs_no_change(fake_redis_url, server):
    with RedisStore(url=fake_redis_url, segment_bytes=10, ttl_seconds=600, pointer_version=1) as store:
        data = encode(store.write(bytes(25), destination="orders"))

        extended = store.extend(decode(data), 3600)

        assert encode(extended) == data
        assert server.pttl(f"{extended.key}-2") > HOUR_MS - 60_000


def test_a_persistent_payload_is_copied_because_its_key_has_a_lifetime(store, server):
    pointer = store.write(bytes(25))
    for i in range(3):
        server.persist(f"{pointer.key}-{i}")

    extended = store.extend(pointer, 3600)

    assert extended.key != pointer.key
    assert store.read(extended) == bytes(25)
    assert server.pttl(f"{pointer.key}-0") == -1, "it is never shortened"


def old_redis(remaining_ms):
    """Return the script of a Redis 6.2, whose PEXPIREAT has no GT."""

    def script(conversation, command):
        if command[0] == b"PTTL":
            return b":%d\r\n" % remaining_ms
        if command[0] == b"PEXPIREAT":
            return b":1\r\n" if len(command) == 3 else b"-ERR wrong number of arguments for 'pexpireat' command\r\n"
        return b"+OK\r\n"

    return script


@pytest.mark.parametrize(("remaining_ms", "expected"), [(5000, 1), (HOUR_MS * 2, 0)])
def test_redis_6_2_never_shortens(remaining_ms, expected):
    pointer = Pointer(key="claimcheck:a", store="store", size=7, checksum="crc32:00000000", expires_ms=1)
    with scripted_redis(old_redis(remaining_ms)) as server, RedisStore(url=server.url) as store:
        store.extend(pointer, 3600)

    assert len([each for each in server.asked if each[0] == b"PEXPIREAT" and len(each) == 3]) == expected


def test_other_errors_of_the_server_are_raised():
    def script(conversation, command):
        return b"-NOPERM no permission\r\n" if command[0] == b"PEXPIREAT" else b"+OK\r\n"

    pointer = Pointer(key="claimcheck:a", store="store", size=7, checksum="crc32:00000000", expires_ms=1)
    with (
        scripted_redis(script) as server,
        RedisStore(url=server.url) as store,
        pytest.raises(StoreError, match="extend of 'claimcheck:a' failed"),
    ):
        store.extend(pointer, 3600)
