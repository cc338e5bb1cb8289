"""The embedded broker: failed sends, stale acknowledgements, interruptions. Time is injected."""

from __future__ import annotations

import pytest

from claimcheck.errors import ConfigError
from claimcheck.transports.local import (
    BrokerBusyError,
    BrokerStorageError,
    LocalBroker,
    LocalConsumer,
    LocalProducer,
    MessageTooLargeError,
)
from tests.local_rig import BIG, append_chunks, drain, rest_of, stored


@pytest.mark.parametrize("error", [BrokerBusyError("locked"), BrokerStorageError("full"), MessageTooLargeError("big")])
def test_every_other_error_of_the_broker_is_definite(broker, configure, tmp_path, monkeypatch, error):
    def append(*args: object, **kwargs: object) -> None:
        raise error

    monkeypatch.setattr(broker, "append", append)
    with pytest.raises(type(error)) as caught:
        LocalProducer(broker, configure()).send("orders", BIG)
    assert caught.value is error
    assert stored(tmp_path) == []


@pytest.mark.parametrize(
    "wrong", [{"topic": "no such\nname"}, {"key": 7}, {"headers": {"a": 1}}], ids=["name", "key", "header value"]
)
def test_arguments_are_refused_before_anything_is_stored(broker, configure, tmp_path, wrong):
    arguments = {"topic": "orders", **wrong}
    with pytest.raises(ConfigError):
        LocalProducer(broker, configure()).send(arguments.pop("topic"), BIG, **arguments)
    assert not (tmp_path / "store").exists()


def test_waiting_ends_when_the_clock_stands_still(tmp_path, configure):
    with LocalBroker(tmp_path / "b", clock=lambda: 1.0, sleep=lambda seconds: None) as broker:
        broker.create_topic("orders")
        with LocalConsumer(broker, configure(), topics=["orders"], group="g") as consumer:
            assert consumer.receive(timeout=5) is None


def test_a_message_whose_resolving_was_interrupted_comes_again(broker, configure, consume, monkeypatch):
    for value in (b"first", b"second"):
        LocalProducer(broker, configure()).send("orders", value)
    consumer = consume()

    def feed(*args: object, **more: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(consumer._resolver, "feed", feed, raising=True)
        with pytest.raises(KeyboardInterrupt):
            consumer.receive(timeout=0)
    assert sorted(m.value for m in drain(consumer, timeout=2)) == [b"first", b"second"]


def test_chunks_whose_redelivery_was_interrupted_come_again(broker, configure, consume, monkeypatch):
    cc = configure("chunking", chunking={"expire_after_seconds": 10})
    total = append_chunks(broker, cc, BIG, slice(2))
    consumer = consume(cc=cc)
    assert consumer.receive(timeout=11) is None

    def locked(*args: object) -> None:
        raise BrokerBusyError("locked by somebody else")

    with monkeypatch.context() as patch:
        patch.setattr(broker, "fetch", locked)
        with pytest.raises(BrokerBusyError):
            consumer.receive(timeout=5)
    for envelope in rest_of(broker, total):
        broker.append("orders", envelope.data, key=envelope.key, headers=envelope.headers)
    assert [m.value for m in drain(consumer, timeout=30)] == [BIG]
