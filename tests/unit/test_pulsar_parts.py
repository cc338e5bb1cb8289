"""Parts of the Pulsar transport that need no broker: ids, limits, deadlines, the window, and the web service."""

from __future__ import annotations

import contextlib
import http.server
import json
import pickle
import ssl
import threading
from datetime import timedelta
from types import SimpleNamespace

import pulsar
import pytest
from hypothesis import given
from hypothesis import strategies as st

from claimcheck._wire.envelope import Envelope
from claimcheck.errors import ConfigError, TransportError
from claimcheck.stores.pulsar_topic import PulsarTopicStore
from claimcheck.transports.pulsar import _message, ask_limit
from claimcheck.transports.pulsar._consumer import RedeliveryTracker
from claimcheck.transports.pulsar._message import (
    CumulativeAcks,
    WholeMessageId,
    before,
    deserialize,
    natives,
    position_of,
)
from claimcheck.transports.pulsar._producer import checked_options, delay_seconds, metadata_bytes, wire_limit
from claimcheck.transports.pulsar._queries import AdminClient, AdminError
from claimcheck.transports.pulsar._send import BoundedProducer, InFlightWindow, SendDeadlineError, Ticket
from tests import servers

OK = pulsar.Result.Ok
NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=50)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=300)
PLACES = st.tuples(st.integers(-1, 9), st.integers(0, 2**40), st.integers(0, 2**40), st.integers(-1, 100))


def message_id(partition=-1, ledger=1, entry=0, batch_index=-1):
    return pulsar.MessageId(partition, ledger, entry, batch_index)


@given(st.lists(PLACES, min_size=1, max_size=50), NAMES, st.binary(max_size=200))
def test_ids_are_serialized_and_back_and_damaged_ones_are_refused(places, topic, tail):
    whole = WholeMessageId(tuple(message_id(*place) for place in places), topic)
    again = deserialize(whole.serialize())
    assert (again, again.topic) == (whole, topic)
    assert list(map(position_of, again.ids)) == sorted(map(position_of, whole.ids))
    assert pickle.loads(pickle.dumps(whole)) == whole
    cut = tail if len(tail) % 24 else tail + b"x"
    for damaged in (tail, b"\x00claimcheck-id\x01\x00\x01t" + cut):
        with pytest.raises(TransportError):
            WholeMessageId.deserialize(damaged)


def test_a_native_id_stays_one_and_an_entry_comes_behind_each_of_its_messages():
    native = message_id(ledger=7, entry=8)
    assert position_of(deserialize(native.serialize())) == position_of(native)
    assert natives(native) == (native,)
    assert position_of(message_id(batch_index=5)) < position_of(message_id()) < position_of(message_id(entry=1))
    found = before((7, 8, 3), 2, "t-partition-2")
    assert (found.partition(), found.ledger_id(), found.entry_id(), found.batch_index()) == (2, 7, 7, -1)
    assert before((7, 0, 0), -1, "t") is None


@given(TEXTS, st.dictionaries(TEXTS, TEXTS, max_size=8))
def test_metadata_is_counted_to_the_byte_but_for_the_fixed_fields(key, properties):
    def field(payload):
        return bytes([0]) + _varint(len(payload)) + payload

    expected = len(field(key.encode())) if key else 0
    for name, value in properties.items():
        expected += len(field(field(name.encode()) + field(value.encode())))
    assert metadata_bytes(key, properties) - metadata_bytes(None, None) == expected


def test_options_take_room_and_unknown_ones_are_refused():
    bare = wire_limit(1000, producer_name="p", options={})
    rich = wire_limit(1000, producer_name="p", options={"ordering_key": "o" * 10, "event_timestamp": 5})
    assert bare.max_message_bytes - rich.max_message_bytes == 13 + 12
    assert wire_limit(1000, producer_name="p" * 20, options={}).max_message_bytes < bare.max_message_bytes
    options = {"ordering_key": None, "sequence_id": 0, "event_timestamp": 5, "disable_replication": False}
    assert checked_options(options) == {"event_timestamp": 5}
    with pytest.raises(TypeError, match="orderingkey"):
        checked_options({"orderingkey": None})


@pytest.mark.parametrize(
    ("options", "seconds"),
    [
        ({}, 0),
        ({"deliver_after": timedelta(hours=2)}, 7200),
        ({"deliver_at": 1_000_030_500}, 30.5),
        ({"deliver_at": 5}, 0),
        ({"deliver_after": timedelta(seconds=-1)}, 0),
    ],
)
def test_the_delay_is_how_long_the_broker_holds_a_message_back(options, seconds):
    assert delay_seconds(options, clock=lambda: 1_000_000) == seconds


def _varint(number):
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])


class Client:
    """Accepts messages, and acknowledges each when `answer` is called."""

    def __init__(self, room=1000):
        self.in_flight, self.room, self.taken = [], room, []

    def topic(self):
        return "t"

    def send_async(self, data, callback, properties, partition_key):
        if len(self.in_flight) >= self.room:
            callback(pulsar.Result.ProducerQueueIsFull, None)
            return
        self.taken.append(data)
        self.in_flight.append(callback)

    def answer(self, result=OK):
        self.in_flight.pop(0)(result, len(self.taken) - len(self.in_flight))


def window(client, window_bytes=30, deadline_seconds=5.0):
    producer = BoundedProducer(client, deadline_seconds)
    producer.window_bytes = window_bytes
    return InFlightWindow(producer)


class TestInFlightWindow:
    @pytest.mark.parametrize("room", [1, 1000])
    def test_bytes_on_their_way_are_bounded_and_a_full_queue_is_tried_again(self, room):
        client, seen = Client(room=room), []
        one = window(client)

        def answer():
            while len(client.taken) < 50 or client.in_flight:
                if client.in_flight:
                    client.answer()

        threading.Thread(target=answer, daemon=True).start()
        for i in range(50):
            one.launch(Envelope(b"%10d" % i))
            seen.append(sum(one._in_flight.values()))
        assert (len(one.wait()), len(client.taken), max(seen) <= 30) == (50, 50, True)

    def test_a_queue_that_is_full_of_others_is_a_refusal(self):
        client = Client(room=0)
        one = window(client)
        one.launch(Envelope(b"x"))
        with pytest.raises(pulsar.exceptions.ProducerQueueIsFull):
            one.wait()

    def test_no_answer(self):
        one = window(Client(), deadline_seconds=0.05)
        one.launch(Envelope(b"x" * 30))
        with pytest.raises(SendDeadlineError, match=r"t: no answer in 0\.05 s; .* set max_message_bytes"):
            one.launch(Envelope(b"x"))
        one.settle()  # does not wait for what is overdue


class TestDeadlines:
    def test_a_ticket_is_called_once_and_what_it_raises_is_logged(self, caplog):
        heard = []
        ticket = Ticket(lambda *what: heard.append(what) or 1 / 0)
        ticket(OK, 2)
        ticket(3, 4)
        assert (heard, ticket.open) == ([(OK, 2)], False)
        assert "ZeroDivisionError" in caplog.text

    def test_a_callback_without_an_answer_is_called_after_the_deadline(self):
        called = threading.Event()
        silent = SimpleNamespace(topic=lambda: "t", flush=lambda: None, close=lambda: None)
        producer, results = BoundedProducer(silent, 0.01), []
        producer.watch(Ticket(lambda result, message_id: (results.append(result), called.set())))
        assert called.wait(10)
        with pytest.raises(SendDeadlineError):
            producer.flush()
        producer.close()
        assert results == [pulsar.Result.Timeout]


class TestRedeliveryTracker:
    def test_those_that_were_given_back_last_are_kept(self):
        counts = RedeliveryTracker(1)
        for entry in [0, *range(10_000), 0, 10_000]:
            counts.add(("t", (1, entry, 0)))
        assert len(counts) == 10_000
        assert counts.too_many(("t", (1, 0, 0)), 0) == 3
        assert counts.too_many(("t", (1, 1, 0)), 0) is None

    def test_what_is_acknowledged_is_forgotten(self):
        counts = RedeliveryTracker(1)
        for place in (("t", (1, 5, 0)), ("t", (1, 7, 0)), ("u", (1, 5, 0)), ("t", (1, 9, 0))):
            counts.add(place)
        for entry in (5, 7, 9):
            counts.forget(("t", (1, entry, 0)))
        assert list(counts) == [("u", (1, 5, 0))]


class TestCumulativeAcks:
    def test_the_oldest_are_forgotten_when_there_are_too_many(self, monkeypatch):
        monkeypatch.setattr(_message, "_MOST_HANDLES", 3)
        acks = CumulativeAcks()
        for i in (5, 6, 9, 7, 8):
            acks.received(i, i)
        assert acks.up_to(99, hole=1).individually == (7, 8, 9)


# The broker's web service ----------------------------------------------------------------------------------------

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
