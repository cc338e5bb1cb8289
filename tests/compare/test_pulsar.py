"""Pulsar as a broker under test, on a real broker."""

import contextlib
import ssl
import uuid

import pytest

from tests import servers
from tests.benchmarks.compare import partitions, pulsar
from tests.benchmarks.compare.broker import BrokerAddress, TopicSettings
from tests.benchmarks.compare.model import MODES, CompareError, NotMeasuredError
from tests.benchmarks.compare.pulsar_admin import TopicAdmin
from tests.compare import broker_checks as checks
from tests.compare.rig import lab_on

TOPIC = "claimcheck-compare-{}"


@pytest.fixture
def address(pulsar_broker):
    return BrokerAddress("pulsar", pulsar_broker.service_url, pulsar_broker.admin_url)


@pytest.fixture
def lab(address, tmp_path):
    with lab_on(pulsar.connect(address), tmp_path) as lab:
        yield lab


@pytest.fixture
def without_admin(address, tmp_path, pulsar_broker):
    """A lab without the web service; the test's topics are deleted here."""
    broker = pulsar.connect(BrokerAddress("pulsar", address.url))
    with lab_on(broker, tmp_path) as lab:
        yield lab
        names = list(lab.topics)
    for name in names:
        with contextlib.suppress(OSError):
            pulsar_broker.request("DELETE", f"persistent/public/default/{name}?force=true")


@pytest.mark.parametrize("mode", MODES)
def test_delivery_and_commit(lab, mode):
    checks.check_delivery_and_commit(lab, mode)


@pytest.mark.parametrize(("mode", "skips"), [("external", False), ("chunking", True)])
def test_seek(lab, mode, skips):
    checks.check_seek(lab, mode, skips=skips)


def test_seek_with_the_clients_own_chunks(lab):
    sent = checks.large(lab, 0, 1, 2)
    with checks.traffic(lab, "native", len(sent[0])) as lane:
        lane.send(*sent)
        consumer = lane.consumer()
        found = checks.receive(consumer, 3)
        assert len(lab.broker.positions(lane.topic, 0)) > 3
        consumer.seek(0, found[1].position)
        assert checks.payloads_of(checks.receive(consumer, 2)) == sent[1:]


def test_partitions(lab):
    checks.check_partitions(lab)


def test_topics(lab):
    checks.check_topics(lab.broker, TOPIC.format(uuid.uuid4().hex))


def test_bytes_are_those_of_the_statistics(lab):
    assert lab.broker.bytes_source == "the broker's statistics"
    checks.check_bytes(lab)


def test_a_sample_makes_no_subscription(lab, pulsar_broker):
    checks.check_sample(lab)
    with checks.traffic(lab, "native", 1000) as lane:
        lane.send(lab.payload(100, 0))
        assert list(lab.broker.sample_sizes(lane.topic, 1)) == [100]
        assert not pulsar_broker.stats(lane.topic)["subscriptions"]


def test_a_sample_of_a_missing_topic_does_not_create_it(lab):
    name = TOPIC.format(uuid.uuid4().hex)
    with pytest.raises(CompareError, match="there is no topic"):
        lab.broker.sample_sizes(name, 10)
    with pytest.raises(CompareError, match="there is no topic"):
        lab.broker.sample_sizes(name, 10)


def test_expiry_deletes_unread_messages_when_they_are_old_enough(lab):
    with checks.traffic(lab, "chunking", 3 * lab.broker.limit_bytes, retention=2) as lane:
        lane.consumer().close()  # a subscription, which keeps messages until they expire
        lane.send(*checks.large(lab, 0))
        lab.broker.expire(lane.topic)
        assert lab.broker.readable_messages(lane.topic) > 3

        def are_gone():
            lab.broker.expire(lane.topic)
            return not lab.broker.readable_messages(lane.topic)

        servers.wait_until(are_gone, "the messages are deleted")


def test_label_and_limit_are_the_brokers(lab):
    assert "Pulsar 4" in lab.broker.label
    assert lab.broker.limit_bytes == servers.PULSAR_MAX_MESSAGE_BYTES


# Without the web service ---------------------------------------------------------------------------------------


def test_without_the_web_service_the_messages_are_read(without_admin):
    broker = without_admin.broker
    assert not broker.has_retention
    assert "messages" in broker.bytes_source
    topic = without_admin.topic("external", "test")
    with without_admin.claimcheck("external") as cc:
        producer = broker.producer("native", topic, cc)
        for number in range(3):
            producer.send(without_admin.payload(1000, number))
        producer.flush(checks.SECONDS)
        producer.close()
        assert list(broker.topic_bytes(topic)) == [3000]
        assert broker.readable_messages(topic) == len(broker.positions(topic, 0)) == 3
        assert list(broker.sample_sizes(topic, 2)) == [1000, 1000]
        consumer = broker.consumer("native", topic, cc, group="g")
        found = checks.receive(consumer, 3)
        consumer.seek(0, broker.positions(topic, 0)[1])
        assert checks.payloads_of(checks.receive(consumer, 2)) == checks.payloads_of(found)[1:]
        consumer.commit(found[2])
        consumer.close()


@pytest.mark.parametrize("settings", [TopicSettings(partitions=2), TopicSettings(retention_seconds=5)])
def test_without_the_web_service_errors_name_it(without_admin, settings):
    with pytest.raises(NotMeasuredError, match="pass --admin-url"):
        without_admin.broker.create_topic(TOPIC.format(uuid.uuid4().hex), settings)


def test_without_the_web_service_a_lower_limit_is_explained(without_admin):
    broker = without_admin.broker
    assert broker.limit_bytes > servers.PULSAR_MAX_MESSAGE_BYTES
    topic = without_admin.topic("chunking", "test")
    with without_admin.claimcheck("chunking") as cc:
        producer = broker.producer("chunking", topic, cc)
        producer.send(without_admin.payload(2 * servers.PULSAR_MAX_MESSAGE_BYTES, 0))
        with pytest.raises(CompareError, match="limit is lower than expected; pass --admin-url"):
            producer.flush(checks.SECONDS)
        producer.close()


def test_without_the_web_service_partitions_are_not_measured(without_admin):
    found = partitions.run(without_admin)
    assert found.verdict == "not measured"
    assert "pass --admin-url" in found.explanation


# Errors --------------------------------------------------------------------------------------------------------


def test_no_broker(monkeypatch):
    monkeypatch.setattr(pulsar, "_SECONDS", 1.0)
    address = BrokerAddress("pulsar", "pulsar://127.0.0.1:1", options=(("token", "hunter2"),))
    with pytest.raises(CompareError, match="no Pulsar broker answered") as caught:
        pulsar.connect(address)
    assert "hunter2" not in f"{caught.value} {address!r}"


@pytest.mark.parametrize(
    ("url", "admin", "text"),
    [
        ("pulsar://127.0.0.1:1", "ftp://h", "admin_url must begin with"),
        ("kafka://127.0.0.1:1", None, "use pulsar://HOST:PORT"),
    ],
)
def test_addresses_that_cannot_be_used(url, admin, text):
    with pytest.raises(CompareError, match=text):
        pulsar.connect(BrokerAddress("pulsar", url, admin))


@pytest.mark.parametrize(
    ("admin", "namespace", "text"),
    [("http://127.0.0.1:1", "public/default", "check --admin-url"), (None, "public/none", "no namespace public/none")],
)
def test_the_web_service_is_asked_at_once(address, admin, namespace, text):
    options = (("namespace", namespace),)
    with pytest.raises(CompareError, match=text):
        pulsar.connect(BrokerAddress("pulsar", address.url, admin or address.admin_url, options))


def test_a_role_without_permission_cannot_create_topics(pulsar_jars):
    with servers.secure_pulsar() as doors:
        owner = (("token", doors.token("operator")),)
        stranger = (("token", doors.token("nobody")),)
        with contextlib.closing(pulsar.connect(_secure(doors, owner))) as broker:
            broker.create_topic("t", TopicSettings())
            broker.delete_topic("t")
        with pytest.raises(CompareError, match="check --admin-url and the token's permissions") as caught:
            pulsar.connect(_secure(doors, stranger))
        assert stranger[0][1] not in str(caught.value)
        trust = ssl.create_default_context(cafile=doors.authority)
        with pytest.raises(CompareError, match=r"not permitted to create topic t \(40[13]\)"):
            TopicAdmin(doors.tls_admin_url, token=stranger[0][1], trust=trust).create("t", 1)


def _secure(doors, options):
    options += (("tls_trust_certs_file_path", str(doors.authority)),)
    return BrokerAddress("pulsar", doors.tls_url, doors.tls_admin_url, options)


# Statistics ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mark", "ranges", "entry", "acknowledged"),
    [
        ("7:3", "[]", (7, 3), True),
        ("7:3", "[]", (7, 4), False),
        ("8:-1", "[]", (7, 9), True),
        ("7:0", "[(7:1..7:3],(7:5..7:6]]", (7, 3), True),
        ("7:0", "[(7:1..7:3],(7:5..7:6]]", (7, 1), False),
        ("7:0", "[(7:1..7:3],(7:5..7:6]]", (7, 6), True),
        ("7:0", "[(7:1..7:3],(7:5..7:6]]", (7, 4), False),
    ],
)
def test_acknowledged_entries(mark, ranges, entry, acknowledged):
    cursor = {"markDeletePosition": mark, "individuallyDeletedMessages": ranges}
    assert pulsar.is_acknowledged(cursor, [entry]) == acknowledged
    assert not pulsar.is_acknowledged({}, [entry])


def test_ledgers_with_the_open_one():
    stats = {"ledgers": [{"ledgerId": 3, "entries": 5}, {"ledgerId": 4, "entries": 0}], "currentLedgerEntries": 2}
    assert pulsar.ledgers_of(stats) == [(3, 5), (4, 2)]
    assert pulsar.ledgers_of({}) == []
    start = [pulsar.start_of("t", [(3, 5), (4, 2)], last) for last in (2, 3, 7)]
    assert [(each.ledger_id(), each.entry_id()) for each in start] == [(4, 0), (3, 4), (3, 0)]
    assert pulsar.start_of("t", [(3, 5), (4, 2)], 8) is None
