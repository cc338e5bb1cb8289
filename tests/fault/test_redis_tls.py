"""A server with TLS whose certificate is for another host, or of an authority that nobody knows."""

import inspect
from urllib.parse import urlsplit

import pytest
from redis.connection import SSLConnection

from claimcheck.errors import ConfigError, StoreUnavailableError
from claimcheck.stores.redis import RedisStore

OTHER_NAME = "127.1"  # the same machine, under a name that its certificate does not have


@pytest.fixture(params=["this version", "a version that does not check by itself"])
def driver(request, monkeypatch):
    """redis-py before version 6 did not compare host names unless told to."""
    if request.param != "this version":
        constructor = SSLConnection.__init__
        named = [p for p in inspect.signature(constructor).parameters.values() if p.default is not p.empty]
        older = tuple(False if p.name == "ssl_check_hostname" else p.default for p in named)
        monkeypatch.setattr(constructor, "__defaults__", older)


@pytest.fixture
def open_store(redis_tls_url, driver):
    """A store, by the name that the certificate has or by another; certificates of authorities come in an option."""
    opened = []
    parts = urlsplit(redis_tls_url)
    authority = parts.query.partition("=")[2]

    def build(host="127.0.0.1", query="", **options):
        url = parts._replace(netloc=parts.netloc.replace("127.0.0.1", host), query=query).geturl()
        store = RedisStore(url=url, **{"tls_ca_file": authority, **options})
        opened.append(store)
        return store

    yield build
    for store in opened:
        store.close()


def test_the_right_host_of_a_known_authority(open_store):
    store = open_store()

    assert store.read(store.write(b"payload")) == b"payload"


def test_a_certificate_for_another_host_is_refused(open_store):
    with pytest.raises(StoreUnavailableError, match="certificate"):
        open_store(OTHER_NAME).write(b"payload")


def test_a_certificate_for_another_host_is_taken_where_that_is_said(open_store):
    store = open_store(OTHER_NAME, query="ssl_check_hostname=false")

    assert store.read(store.write(b"payload")) == b"payload"


def test_nothing_is_verified_where_that_is_said(open_store):
    store = open_store(OTHER_NAME, query="ssl_cert_reqs=none", tls_ca_file=None)

    assert store.read(store.write(b"payload")) == b"payload"


def test_an_unknown_authority_is_refused(open_store):
    with pytest.raises(StoreUnavailableError, match="certificate"):
        open_store(tls_ca_file=None).write(b"payload")


def test_a_file_that_does_not_exist_is_named(open_store):
    store = open_store(tls_ca_file="/nowhere/ca.crt")

    with pytest.raises(ConfigError, match="/nowhere/ca.crt") as caught:
        store.write(b"payload")
    assert caught.value.path == "stores.store.tls_ca_file"


def test_a_file_for_an_address_without_tls_is_refused():
    with pytest.raises(ConfigError, match="tls_ca_file"):
        RedisStore(url="redis://localhost", tls_ca_file="ca.crt")
