"""``delete_after_ack`` on the embedded broker: a payload goes after its acknowledgement, and only then."""

from __future__ import annotations

import pytest

from claimcheck.errors import PayloadNotFoundError, SeveralGroupsError, TransportError
from claimcheck.stores.filesystem import FilesystemStore
from claimcheck.transports.local import LocalConsumer, LocalProducer
from tests.local_rig import BIG, drain, stored


@pytest.fixture
def cc(configure):
    return configure(delete_after_ack=True)


@pytest.fixture
def send(broker, cc):
    producer = LocalProducer(broker, cc)
    return lambda *payloads: [producer.send("orders", payload) for payload in payloads]


@pytest.fixture
def left(tmp_path):
    """The number of payloads that are stored."""
    return lambda: len(stored(tmp_path))


def test_a_payload_goes_after_its_acknowledgement_and_not_before(cc, send, consume, left):
    send(BIG, b"small", BIG)
    consumer = consume(cc=cc)
    first = consumer.receive(timeout=0)
    consumer._deletion.run()
    assert (first.value, left()) == (BIG, 2)

    consumer.ack(first)
    consumer._deletion.run()
    assert left() == 1

    drain(consumer)
    consumer.close()
    assert left() == 0


def test_a_payload_waits_for_the_ones_before_it(cc, send, consume, left):
    send(BIG, BIG)
    consumer = consume(cc=cc)
    first, second = consumer.receive(timeout=0), consumer.receive(timeout=0)
    consumer.ack(second)
    consumer._deletion.run()
    assert left() == 2

    consumer.ack(first)
    consumer._deletion.run()
    assert left() == 0


def test_what_was_not_acknowledged_is_readable_for_the_next_consumer(cc, send, consume, left):
    send(BIG)
    consumer = consume(cc=cc)
    assert consumer.receive(timeout=0).value == BIG
    consumer.close()
    assert left() == 1

    assert [message.value for message in drain(consume(cc=cc))] == [BIG]


@pytest.mark.parametrize("how", ["dead_letter", "nack"])
def test_a_dead_letter_keeps_its_payload(broker, cc, send, consume, left, how):
    send(BIG)
    consumer = consume(cc=cc, max_redeliveries=0)
    message = consumer.receive(timeout=0)
    getattr(consumer, how)(message)
    consumer.close()
    assert left() == 2, "the original may still be delivered again, and the dead letter has a copy"

    aside = consume("orders.dead_letter", cc=cc)
    assert [letter.value for letter in drain(aside)] == [BIG]
    aside.close()
    assert left() == 1


def test_a_payload_that_is_redelivered_stays(cc, send, consume, left, clock):
    send(BIG)
    consumer = consume(cc=cc)
    consumer.nack(consumer.receive(timeout=0))
    consumer._deletion.run()
    clock.now += 5
    assert consumer.receive(timeout=0).value == BIG


def test_after_a_seek_nothing_is_confirmed(cc, send, consume, left):
    send(BIG, BIG)
    consumer = consume(cc=cc)
    drain(consumer)
    consumer.seek("orders", 0, 0)

    consumer._deletion.run()

    assert left() == 2
    assert consumer.receive(timeout=0).value == BIG


def test_a_second_group_is_refused_and_does_not_join(broker, cc, send, consume, left):
    send(BIG)
    consumer = consume(cc=cc)

    with pytest.raises(SeveralGroupsError) as caught:
        LocalConsumer(broker, cc, topics=["orders"], group="other")
    assert caught.value.groups == ("g", "other")

    drain(consumer)
    consumer.close()
    assert left() == 0


def test_nothing_is_deleted_while_another_group_reads(cc, configure, send, consume, left):
    send(BIG)
    consume(cc=configure(), group="other").close()

    with pytest.raises(SeveralGroupsError) as caught:
        consume(cc=cc)
    assert left() == 1
    assert "LocalBroker.delete_group" in caught.value.__notes__[0]


def test_a_deleted_group_does_not_keep_payloads(broker, cc, configure, send, consume, left):
    send(BIG)
    other = consume(cc=configure(), group="other")
    drain(other)
    with pytest.raises(TransportError, match="group other has 1 members"):
        broker.delete_group("other")
    other.close()

    broker.delete_group("other")

    consumer = consume(cc=cc)
    drain(consumer)
    consumer.close()
    assert left() == 0
    assert len(drain(consume(cc=configure(), group="other"))) == 1, "it begins at offset 0"


def test_a_forged_pointer_deletes_nothing(broker, cc, send, consume, left):
    """It names the payload of another message, with another size."""
    send(BIG)
    original = broker.fetch("orders", 0, 0, 1)[0].value
    broker.append("orders", original.replace(b'"size":10000', b'"size":10001'))
    consumer = consume(cc=cc)
    first, forged = consumer.receive(timeout=0), consumer.receive(timeout=0)
    assert forged.error is not None
    consumer.ack(forged)
    consumer._deletion.run()
    assert left() == 1

    consumer._deletion.keep(first.outcome.source, first.offset)
    consumer.ack(first)
    consumer.close()
    assert left() == 1


def test_a_payload_that_could_be_read_only_later_stays(cc, send, consume, left, monkeypatch):
    """Its first read failed, and the application acknowledged it without reading it again."""
    send(BIG)
    with monkeypatch.context() as patch:
        patch.setattr(FilesystemStore, "_open", _unreachable)
        consumer = consume(cc=cc)
        message = consumer.receive(timeout=0)
    assert message.error.retryable
    consumer.ack(message)
    consumer.close()

    assert left() == 1


def test_a_payload_that_is_gone_and_chunks_are_no_problem(broker, cc, configure, send, consume, left, tmp_path, caplog):
    send(BIG)
    (tmp_path / "store" / stored(tmp_path)[0]).unlink()
    LocalProducer(broker, configure("chunking")).send("orders", BIG)
    consumer = consume(cc=cc)

    missing, chunked = drain(consumer)
    consumer.close()

    assert (type(missing.error), chunked.value, caplog.records) == (PayloadNotFoundError, BIG, [])


def _unreachable(self, pointer, start, stop):
    raise ConnectionError("unreachable")
