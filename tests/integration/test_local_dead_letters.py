"""Dead letters keep their payloads: `dead_letter_ttl_seconds`, for what the transports share."""

import logging

import pytest

import claimcheck
from claimcheck.errors import StoreUnavailableError
from claimcheck.testing import FaultyStore
from claimcheck.transports.local import LocalBroker, LocalConsumer, LocalProducer
from tests.local_letters import dead_letter
from tests.local_rig import BIG, LIMIT

KEY = {"key_id": "a", "keys": {"a": "0123456789abcdef"}}
HOUR_MS = 3_600_000


@pytest.fixture
def broker(tmp_path):
    with LocalBroker(tmp_path / "broker.db", max_message_bytes=LIMIT) as broker:
        broker.create_topic("orders")
        yield broker


@pytest.fixture
def configure(tmp_path):
    opened = []

    def build(**more):
        store = {"type": "filesystem", "path": str(tmp_path / "store"), "create": True, "ttl_seconds": 60}
        cc = claimcheck.from_dict({"strategy": "external", "stores": {"disk": store}, **more})
        opened.append(cc)
        return cc

    yield build
    for cc in opened:
        cc.close()


def send_and_receive(broker, cc, payload=BIG, **options):
    LocalProducer(broker, cc).send("orders", payload, key="k", headers={"a": "b"})
    consumer = LocalConsumer(broker, cc, topics=["orders"], group="g", redelivery_delay_seconds=0, **options)
    return consumer, consumer.receive(timeout=0)


def letter_of(broker):
    (letter,) = broker.fetch("orders.dead_letter", 0, 0, 9)
    return letter


def test_the_payload_of_a_dead_letter_lives_longer(broker, configure):
    cc = configure(dead_letter_ttl_seconds=3600, signing=KEY)
    consumer, message = send_and_receive(broker, cc)
    before = cc.pointer(broker.fetch("orders", 0, 0, 1)[0].value, destination="orders")

    dead_letter(broker, cc, consumer, message, "no sense in it")

    letter = letter_of(broker)
    pointer = cc.pointer(letter.value, destination="orders")  # which verifies the new signature
    assert pointer.expires_ms >= before.expires_ms + HOUR_MS - 61_000
    cc.store("disk").rollback(before)
    assert cc.resolve(letter.value, destination="orders") == BIG
    assert (letter.key, dict(letter.headers)["a"]) == (b"k", b"b")
    assert dict(letter.headers)["dead-letter-reason"] == b"no sense in it"


def test_without_the_option_the_message_is_unchanged(broker, configure):
    cc = configure()
    consumer, message = send_and_receive(broker, cc)

    dead_letter(broker, cc, consumer, message)

    assert letter_of(broker).value == broker.fetch("orders", 0, 0, 1)[0].value


@pytest.mark.parametrize("loss", ["gone", "damaged"])
def test_a_lost_payload_does_not_keep_the_message(broker, configure, tmp_path, caplog, loss):
    cc = configure(dead_letter_ttl_seconds=3600)
    consumer, message = send_and_receive(broker, cc)
    (path,) = [path for path in (tmp_path / "store").rglob("*") if path.is_file()]
    path.unlink() if loss == "gone" else path.write_bytes(bytes(len(BIG)))

    with caplog.at_level(logging.WARNING):
        dead_letter(broker, cc, consumer, message)

    assert letter_of(broker).value == broker.fetch("orders", 0, 0, 1)[0].value
    assert "orders: the lifetime of a dead letter's payload was not extended" in caplog.text


def test_a_store_that_is_down_delays_the_dead_letter(broker, configure):
    cc = configure(dead_letter_ttl_seconds=3600)
    cc._open.stores["disk"] = store = FaultyStore(store=cc.store("disk"))
    store.context = store.inner.context
    consumer, message = send_and_receive(broker, cc)
    store.fail("write")

    with pytest.raises(StoreUnavailableError):
        dead_letter(broker, cc, consumer, message)
    assert broker.stats("orders.dead_letter").messages == 0
    store.heal()
    dead_letter(broker, cc, consumer, message)

    assert cc.resolve(letter_of(broker).value) == BIG
    assert consumer.receive(timeout=0) is None


def test_a_destination_has_its_own_lifetime(broker, configure):
    cc = configure(dead_letter_ttl_seconds=10, destinations={"orders": {"dead_letter_ttl_seconds": 7200}})
    consumer, message = send_and_receive(broker, cc)

    dead_letter(broker, cc, consumer, message)

    pointer = cc.pointer(letter_of(broker).value)
    assert pointer.expires_ms - pointer.created_ms == 2 * HOUR_MS
    assert "orders.dead_letter" in pointer.key


def test_a_consumer_that_cannot_sign_leaves_the_message_unchanged(broker, configure, caplog, tmp_path):
    consumer, _ = send_and_receive(broker, configure(signing=KEY))
    consumer.close()
    reader = configure(dead_letter_ttl_seconds=3600, signing={"keys": KEY["keys"]})
    consumer = LocalConsumer(broker, reader, topics=["orders"], group="h")

    dead_letter(broker, reader, consumer, consumer.receive(timeout=0))

    assert reader.resolve(letter_of(broker).value, destination="orders") == BIG
    assert "signing.key_id is not set" in caplog.text
    assert len([path for path in (tmp_path / "store").rglob("*") if path.is_file()]) == 1
