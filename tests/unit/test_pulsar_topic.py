"""Parts of the store that need no broker: where a token is sent."""

import http.server
import threading
from contextlib import contextmanager

import pytest

from claimcheck.errors import ConfigError
from claimcheck.stores.pulsar_topic import PulsarTopicStore
from claimcheck.transports.pulsar._queries import AdminClient, AdminError, policy


@contextmanager
def web(redirect=None):
    """A web service with unlimited retention, or with a redirect; records the tokens that it received."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.server.tokens.append(self.headers.get("Authorization"))
            if redirect is not None and not self.path.endswith("?again"):
                self.send_response(307)
                self.send_header("Location", f"{redirect}{self.path}?again")
                self.end_headers()
                return
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b'{"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}')

        def log_message(self, *arguments):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.tokens, server.url = [], f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def retention(url):
    admin = AdminClient(url, headers={"Authorization": "Bearer a-secret"}, timeout_seconds=5)
    assert "a-secret" not in repr(admin)
    return policy(admin, "orders", "retention")


def test_a_token_does_not_follow_a_redirect_to_another_host():
    with web() as other, web(redirect=other.url) as first:
        assert retention(first.url)["retentionTimeInMinutes"] == -1
        assert first.tokens == ["Bearer a-secret"]
        assert other.tokens == [None]


def test_a_token_follows_a_redirect_within_the_host():
    with web(redirect="") as first:
        assert retention(first.url)["retentionTimeInMinutes"] == -1
        assert set(first.tokens) == {"Bearer a-secret"}


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
