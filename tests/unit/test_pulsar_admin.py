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
from claimcheck.transports.pulsar._queries import AdminClient, AdminError
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


@pytest.mark.parametrize("way", ["another host", "another port", "back again"])
def test_a_token_follows_no_redirect(serve, way):
    last = serve("127.0.0.2" if way == "another host" else "127.0.0.1")
    there = serve("127.0.0.2", redirect_to=last.url) if way == "back again" else last
    first = serve(redirect_to=there.url)

    assert ask_limit(first.url, "t", headers=TOKEN) == 4000

    assert {token for _, token in first.requests} == {TOKEN["Authorization"]}
    assert {token for _, token in last.requests} == {None}


def test_a_host_that_wants_it_gets_its_own_token_or_is_named_in_an_error_without_it(serve):
    other = serve("127.0.0.2")
    other.required = True
    assert ask_limit(other.url, "t", headers=TOKEN) == 4000
    with pytest.raises(AdminError, match=r"\(401\).*redirected to 127.0.0.2") as caught:
        AdminClient(serve(redirect_to=other.url).url, headers=TOKEN).get("x")
    assert caught.value.status == 401
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("elsewhere", ["http://127.0.0.1:1", "file:///etc"])
def test_no_redirect_leads_out_of_tls(serve, certificate, elsewhere):
    service = serve(certificate=certificate, redirect_to=elsewhere)
    with pytest.raises(TransportError, match="307"):
        ask_limit(service.url, "t", headers=TOKEN, ca_file=str(certificate / "ca.crt"))


def test_only_a_named_authority_and_the_host_of_the_certificate_are_trusted(serve, certificate, tmp_path):
    authority = str(certificate / "ca.crt")
    service, other = serve(certificate=certificate), serve("127.0.0.2", certificate=certificate)
    assert ask_limit(service.url, "t", ca_file=authority) == 4000
    with pytest.raises(TransportError) as unknown:
        ask_limit(service.url, "t")
    assert isinstance(unknown.value.__cause__.reason, ssl.SSLCertVerificationError)
    with pytest.raises(TransportError) as wrong_host:
        ask_limit(other.url, "t", ca_file=authority)
    assert "127.0.0.2" in str(wrong_host.value.__cause__.reason)
    for path in (tmp_path / "missing", tmp_path):
        with pytest.raises(ConfigError, match="ca_file: found a file without readable certificates"):
            ask_limit("https://127.0.0.1:1", "t", ca_file=str(path))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        *(({"admin_url": url}, "admin_url") for url in ("file:///etc", "localhost:8080", "ftp://host")),
        ({"tls_ca_file": "ca.crt"}, "tls_ca_file"),
        ({"url": "pulsar://u:hunter2@host:6650"}, "without credentials"),
        ({"url": "pulsar+ssl://host:6651/?x=u:hunter2@host"}, "without credentials"),
        ({"admin_url": "http://u:hunter2@host"}, "without credentials"),
    ],
)
def test_addresses_of_a_store_that_are_refused_and_not_quoted(options, text):
    with pytest.raises(ConfigError, match=text) as caught:
        PulsarTopicStore(topic="payloads", **{"url": "pulsar://host", **options})
    assert "hunter2" not in str(caught.value)


def test_an_address_that_the_client_or_the_web_service_rejects_is_not_quoted():
    store = PulsarTopicStore(url="pulsar://u:hunter2", topic="payloads")
    with pytest.raises(ConfigError, match="stores.store.url: found an address that the client cannot read") as caught:
        store.write(b"payload")
    error = caught.value
    assert "hunter2" not in f"{error} {error.__cause__} {error.__context__}"
    with pytest.raises(AdminError, match="must have no credentials") as refused:
        AdminClient("http://u:hunter2@host")
    assert "hunter2" not in str(refused.value)
