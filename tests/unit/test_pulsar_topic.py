"""Parts of the store that need no broker: where a token is sent."""

import pytest

from claimcheck.errors import ConfigError
from claimcheck.stores.pulsar_topic import PulsarTopicStore
from claimcheck.transports.pulsar._queries import AdminClient, AdminError


@pytest.mark.parametrize("url", ["file:///etc", "localhost:8080", "ftp://host"])
def test_a_web_service_is_http(url):
    with pytest.raises(ConfigError, match="admin_url"):
        PulsarTopicStore(url="pulsar://host", topic="orders", admin_url=url)


def test_a_file_for_addresses_without_tls_is_refused():
    with pytest.raises(ConfigError, match="tls_ca_file"):
        PulsarTopicStore(url="pulsar://host", topic="orders", tls_ca_file="ca.crt")


@pytest.mark.parametrize(
    "addresses",
    [
        {"url": "pulsar://u:hunter2@host:6650"},
        {"url": "pulsar+ssl://host:6651/?x=u:hunter2@host"},
        {"url": "pulsar://host", "admin_url": "http://u:hunter2@host"},
    ],
)
def test_credentials_in_an_address_are_rejected_and_not_quoted(addresses):
    with pytest.raises(ConfigError, match="without credentials") as caught:
        PulsarTopicStore(topic="payloads", **addresses)
    assert "hunter2" not in str(caught.value)


def test_an_address_that_the_client_rejects_is_not_quoted():
    pytest.importorskip("pulsar")
    store = PulsarTopicStore(url="pulsar://u:hunter2", topic="payloads")
    with pytest.raises(ConfigError, match="stores.store.url: found an address that the client cannot read") as caught:
        store.write(b"payload")
    error = caught.value
    assert "hunter2" not in f"{error} {error.__cause__} {error.__context__}"


def test_the_web_service_takes_no_credentials_from_its_address():
    with pytest.raises(AdminError, match="must have no credentials") as caught:
        AdminClient("http://u:hunter2@host")
    assert "hunter2" not in str(caught.value)
