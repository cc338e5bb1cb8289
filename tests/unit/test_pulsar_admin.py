"""The client for a broker's web service verifies hosts, and sends a token only to the host that it is for."""

import contextlib
import http.server
import json
import ssl
import threading

import pytest

from claimcheck.errors import ConfigError, TransportError
from claimcheck.stores.pulsar_topic import PulsarTopicStore
from claimcheck.transports.pulsar import ask_limit
from claimcheck.transports.pulsar._queries import AdminClient, AdminError, full_name, policy
from tests import servers

TOKEN = {"Authorization": "Bearer a-secret-token"}


LIMITS = {
    "/admin/v2/brokers/configuration/runtime": {"maxMessageSize": "5000"},
    "/admin/v2/persistent/public/default/t/maxMessageSize": 4000,
}


class Service:
    """A web service that answers, refuses or redirects."""

    def __init__(self, host, *, redirect_to=None, certificate=None):
        self.requests, self.redirect_to, service = [], redirect_to, self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                service.requests.append((self.path, self.headers.get("Authorization")))
                self.send_response(*service.status(self.path))
                if service.redirect_to:
                    self.send_header("Location", f"{service.redirect_to}{self.path}")
                self.end_headers()
                self.wfile.write(json.dumps(LIMITS.get(self.path)).encode())

            def log_message(self, *args):
                """Log nothing."""

        self.server = http.server.ThreadingHTTPServer((host, 0), Handler)
        self.required = False
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate / "server.crt", certificate / "server.key")
            self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
        scheme = "http" if certificate is None else "https"
        self.url = f"{scheme}://{host}:{self.server.server_port}"

    def status(self, path):
        if self.redirect_to:
            return (307,)
        if self.required and self.requests[-1][1] is None:
            return (401,)
        return (200,) if path in LIMITS else (404,)


@pytest.fixture
def serve():
    with contextlib.ExitStack() as stack:

        def start(host="127.0.0.1", **options):
            service = Service(host, **options)
            thread = threading.Thread(target=service.server.serve_forever, args=(0.01,))
            thread.start()
            stack.callback(thread.join)
            stack.callback(service.server.server_close)
            stack.callback(service.server.shutdown)
            return service

        yield start


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    folder = tmp_path_factory.mktemp("certificate")
    servers.make_certificate(folder)
    return folder


class TestRedirects:
    def test_a_token_does_not_follow_to_another_host(self, serve):
        other = serve("127.0.0.2")
        first = serve(redirect_to=other.url)

        assert ask_limit(first.url, "t", headers=TOKEN) == 4000

        assert {token for _, token in first.requests} == {TOKEN["Authorization"]}
        assert {token for _, token in other.requests} == {None}

    def test_nor_to_another_port(self, serve):
        other = serve()
        AdminClient(serve(redirect_to=other.url).url, headers=TOKEN).get("x")
        assert other.requests == [("/admin/v2/x", None)]

    def test_nor_back_again(self, serve):
        last = serve()
        first = serve(redirect_to=serve("127.0.0.2", redirect_to=last.url).url)
        AdminClient(first.url, headers=TOKEN).get("x")
        assert last.requests == [("/admin/v2/x", None)]

    def test_a_host_that_wants_it_is_named_in_the_error_and_no_secret_is(self, serve):
        other = serve("127.0.0.2")
        other.required = True
        with pytest.raises(AdminError, match=r"\(401\).*redirected to 127.0.0.2") as caught:
            AdminClient(serve(redirect_to=other.url).url, headers=TOKEN).get("x")
        assert caught.value.status == 401
        assert "secret" not in str(caught.value)

    def test_it_stays_with_its_own_host(self, serve):
        service = serve()
        service.required = True
        assert ask_limit(service.url, "t", headers=TOKEN) == 4000

    @pytest.mark.parametrize("elsewhere", ["http://127.0.0.1:1", "ftp://127.0.0.1:1", "file:///etc"])
    def test_none_leads_out_of_tls(self, serve, certificate, elsewhere):
        service = serve(certificate=certificate, redirect_to=elsewhere)
        with pytest.raises(TransportError, match="307"):
            ask_limit(service.url, "t", headers=TOKEN, ca_file=str(certificate / "ca.crt"))


class TestTls:
    def test_an_authority_that_is_named(self, serve, certificate):
        service = serve(certificate=certificate)
        assert ask_limit(service.url, "t", ca_file=str(certificate / "ca.crt")) == 4000

    def test_one_that_is_not(self, serve, certificate):
        with pytest.raises(TransportError) as caught:
            ask_limit(serve(certificate=certificate).url, "t")
        assert isinstance(caught.value.__cause__.reason, ssl.SSLCertVerificationError)

    def test_a_host_that_the_certificate_does_not_name(self, serve, certificate):
        service = serve("127.0.0.2", certificate=certificate)
        with pytest.raises(TransportError) as caught:
            ask_limit(service.url, "t", ca_file=str(certificate / "ca.crt"))
        assert "127.0.0.2" in str(caught.value.__cause__.reason)

    def test_a_file_without_certificates(self, tmp_path):
        for path in (tmp_path / "missing", tmp_path):
            with pytest.raises(ConfigError, match="ca_file: found a file without readable certificates"):
                ask_limit("https://127.0.0.1:1", "t", ca_file=str(path))


def test_what_is_not_there_is_none(serve):
    admin = AdminClient(serve().url, headers=TOKEN)
    assert policy(admin, "t", "retention") is None
    assert "secret" not in repr(admin)


@pytest.mark.parametrize(
    ("topic", "full"),
    [
        ("t", "persistent://public/default/t"),
        ("a/b/t", "persistent://a/b/t"),
        ("non-persistent://a/b/t", "non-persistent://a/b/t"),
    ],
)
def test_full_names(topic, full):
    assert full_name(topic) == full


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
