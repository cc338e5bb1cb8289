"""A side topic on a broker with tokens and TLS: certificates and host names are verified."""

import pytest

from claimcheck.errors import ConfigError, StoreError, StoreUnavailableError
from claimcheck.stores.pulsar_topic import PulsarTopicStore

OTHER_NAME = "127.1"  # the same machine, under a name that its certificate does not have


@pytest.fixture
def open_store(secure_pulsar, topic):
    opened = []

    def build(host="127.0.0.1", **options):
        given = {
            "url": secure_pulsar.tls_url.replace("127.0.0.1", host),
            "topic": topic,
            "token": secure_pulsar.token("operator"),
            "tls_ca_file": str(secure_pulsar.authority),
            "timeout_seconds": 30,
        }
        opened.append(PulsarTopicStore(**{**given, **options}))
        return opened[-1]

    yield build
    for store in opened:
        store.close()


def test_the_right_host_of_a_known_authority(open_store):
    store = open_store()

    assert store.read(store.write(b"payload")) == b"payload"


def test_a_certificate_for_another_host_is_refused(open_store):
    with pytest.raises(StoreUnavailableError):
        open_store(OTHER_NAME, timeout_seconds=2).write(b"payload")


def test_an_unknown_authority_is_refused(open_store):
    with pytest.raises(StoreUnavailableError):
        open_store(tls_ca_file=None, timeout_seconds=2).write(b"payload")


def test_a_file_that_does_not_exist_is_named(open_store):
    with pytest.raises(ConfigError, match="/nowhere/ca.crt"):
        open_store(tls_ca_file="/nowhere/ca.crt").write(b"payload")


def test_the_web_service_is_verified_in_the_same_way(secure_pulsar, open_store):
    with pytest.raises(ConfigError, match="retention"):  # it was asked, and there is none
        open_store(admin_url=secure_pulsar.tls_admin_url).write(b"payload")
    with pytest.raises(StoreError, match="certificate"):
        open_store(admin_url=secure_pulsar.tls_admin_url.replace("127.0.0.1", OTHER_NAME)).write(b"payload")
