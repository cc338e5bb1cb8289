import pytest

from claimcheck.stores.redis._server import Address


def test_single_server_stays_what_it_was():
    text = "redis://me:se%2Fcret@host:6380/3?socket_keepalive=yes"
    assert Address.parse(text) == Address("single", text, (), "", "host:6380/3")


def test_unix_socket():
    assert Address.parse("unix:///run/redis.sock?db=1").location == "/run/redis.sock"


@pytest.mark.parametrize("scheme", ["redis", "rediss"])
def test_cluster(scheme):
    address = Address.parse(f"{scheme}+cluster://me:pass@one:7000,two,[::1]:7002/?protocol=3")

    assert address.kind == "cluster"
    assert address.hosts == (("one", 7000), ("two", 6379), ("::1", 7002))
    assert address.url == f"{scheme}://me:pass@one:7000/?protocol=3"
    assert address.location == "one:7000,two,[::1]:7002/"
    assert address.tls is (scheme == "rediss")


def test_sentinel():
    address = Address.parse("redis+sentinel://me:pass@one,two:26380/my%20master/3?socket_keepalive=yes")

    assert address.kind == "sentinel"
    assert address.hosts == (("one", 26379), ("two", 26380))
    assert address.service == "my master"
    assert address.url == "redis://me:pass@one:26379/3?socket_keepalive=yes"


@pytest.mark.parametrize(
    "text",
    [
        "", "redis:host", "redis://h/x", "redis://h/0#f", "http://h", "redis+cluster://", "redis+cluster://h,", "redis+sentinel://h",
        "redis+sentinel://h/", "redis+sentinel://h/a/b/c", "redis+sentinel://h:0x1/a", "redis://h:70000", "unix://", "redis+x://h",
    ],
)  # fmt: skip
def test_anything_else_is_refused_without_being_quoted(text):
    with pytest.raises(ValueError, match=r".") as caught:
        Address.parse(text)
    assert not text or text not in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "redis://me:hunter2@host:1/0", "redis://:hunter2@host", "redis://host?password=hunter2", "rediss://me:hunter2@host",
        "unix://me:hunter2@/run/redis.sock", "unix:///run/redis.sock?password=hunter2", "redis+cluster://me:hunter2@a,b",
        "redis+sentinel://me:hunter2@a,b/name",
    ],
)  # fmt: skip
def test_no_credentials_in_its_repr(text):
    address = Address.parse(text)
    assert "hunter2" in address.url
    assert "hunter2" not in f"{address!r} {address} {address.location}"
