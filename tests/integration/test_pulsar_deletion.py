"""``delete_after_ack`` on a real Pulsar with S3: a payload goes once the cursor has passed it for good."""

import asyncio

import pulsar
import pulsar.asyncio
import pytest

from claimcheck.errors import ConfigError, SeveralGroupsError
from claimcheck.transports.pulsar import AsyncPulsarConsumer, PulsarConsumer
from tests.clocks import Clock
from tests.integration.pulsar_rig import KEYED, LIMIT, SHARED, content, receive, rig_on

PAYLOADS = [content(2 * LIMIT, n) for n in range(3)]


@pytest.fixture
def cc(lab, s3_server, s3_bucket):
    store = {"type": "s3", "bucket": s3_bucket, "endpoint_url": s3_server.endpoint_url, "prefix": lab.topic}
    return lab.claimcheck("external", stores={"m": {**store, "ttl_seconds": 600}}, delete_after_ack=True)


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def consumer(lab, cc, clock):
    """Create a consumer that deletes."""

    def consumer(**native):
        wrap = {"admin_url": lab.broker.admin_url, "clock": clock, **native.pop("wrap", {})}
        return lab.consumer(cc=cc, wrap=wrap, **native)

    return consumer


@pytest.fixture
def left(cc):
    return lambda: sum(1 for _ in cc.store("m").scan())


def send(lab, cc, *payloads):
    producer = lab.producer(cc)
    for payload in payloads:
        producer.send(payload)


def confirm(lab, consumer, clock, *, backlog=0):
    """Wait until the broker has the acknowledgements, and then for as long as it takes to have them on disk."""
    lab.settled(backlog=backlog)
    consumer._deletion.run()
    clock.now += 66
    consumer._deletion.run()


@pytest.mark.parametrize("kind", [pulsar.ConsumerType.Exclusive, SHARED, KEYED], ids=str)
@pytest.mark.parametrize("partitions", [0, 2])
def test_a_payload_goes_after_its_acknowledgement_is_on_disk(lab, cc, consumer, left, clock, kind, partitions):
    if partitions:
        lab.broker.create_partitioned(lab.topic, partitions)
    send(lab, cc, *PAYLOADS)
    reader = consumer(consumer_type=kind)
    messages = receive(reader, 3)
    assert sorted(message.data() for message in messages) == sorted(PAYLOADS)
    reader._deletion.run()
    clock.now += 66
    reader._deletion.run()
    assert left() == 3

    for message in messages:
        reader.acknowledge(message)
    lab.settled()
    reader._deletion.run()
    assert left() == 3  # a broker that crashes now may redeliver them
    clock.now += 66
    reader._deletion.run()
    assert left() == 0


@pytest.mark.parametrize("how", ["message", "id", "cumulative"])
def test_only_what_was_acknowledged_goes(lab, cc, consumer, left, clock, how):
    send(lab, cc, *PAYLOADS)
    reader = consumer()
    first, second, _ = receive(reader, 3)
    assert (first.data(), second.data()) == tuple(PAYLOADS[:2])
    if how == "cumulative":
        reader.acknowledge_cumulative(second)
    else:
        for message in (first, second):
            reader.acknowledge(message if how == "message" else message.message_id())

    confirm(lab, reader, clock, backlog=1)

    assert left() == 1


def test_what_was_not_acknowledged_is_readable_after_a_crash(lab, cc, consumer, left, clock):
    send(lab, cc, PAYLOADS[0])
    dying = consumer()
    assert dying.receive(5000).data() == PAYLOADS[0]
    dying._native.close()

    again = consumer()
    message = again.receive(5000)
    assert message.data() == PAYLOADS[0]
    again.acknowledge(message)
    confirm(lab, again, clock)
    assert left() == 0


@pytest.mark.parametrize("how", ["dead_letter", "negative_acknowledge"])
def test_a_dead_letter_keeps_its_payload(lab, cc, consumer, left, clock, how):
    aside = lab.client.create_producer(f"{lab.topic}-dlq")
    send(lab, cc, PAYLOADS[0])
    reader = consumer(wrap={"dead_letter_producer": aside, "max_redeliveries": 0})
    message = reader.receive(5000)
    assert message.data() == PAYLOADS[0]
    getattr(reader, how)(message)

    confirm(lab, reader, clock)

    assert left() == 2, "the dead letter has a copy"
    assert (
        rig_on(lab, f"{lab.topic}-dlq").consumer(cc=cc, wrap={"admin_url": lab.broker.admin_url}).receive(5000).data()
        == (PAYLOADS[0])
    )


def test_a_seek_forgets_what_is_delivered_again(lab, cc, consumer, left, clock):
    send(lab, cc, PAYLOADS[0])
    reader = consumer()
    message = reader.receive(5000)
    assert message.data() == PAYLOADS[0]
    reader.acknowledge(message)
    lab.settled()
    reader.seek(pulsar.MessageId.earliest)

    confirm(lab, reader, clock, backlog=1)

    assert (left(), reader.receive(5000).data()) == (1, PAYLOADS[0])


def test_several_subscriptions_are_refused(lab, cc, consumer):
    lab.subscribe("other")

    with pytest.raises(SeveralGroupsError) as caught:
        consumer()

    assert caught.value.groups == ("other", "s")


def test_a_subscription_that_appears_later_stops_it(lab, cc, consumer, left, clock, caplog):
    send(lab, cc, PAYLOADS[0])
    reader = consumer()
    message = reader.receive(5000)
    assert message.data() == PAYLOADS[0]
    reader.acknowledge(message)
    lab.subscribe("late")

    confirm(lab, reader, clock)

    assert left() == 1
    assert "late, s" in caplog.text


def test_a_consumer_of_several_topics_refuses_each_before_its_first_payload(lab, cc, clock):
    other = rig_on(lab, f"{lab.topic}-b")
    send(lab, cc, PAYLOADS[0])
    other.subscribe("x")
    send(other, cc, PAYLOADS[1])
    earliest = pulsar.InitialPosition.Earliest
    native = lab.client.subscribe([lab.topic, other.topic], "s", initial_position=earliest)
    reader = PulsarConsumer(native, cc, consumer_type=pulsar.ConsumerType.Exclusive, admin_url=lab.broker.admin_url)
    received, refused = [], 0
    while len(received) < 2:
        try:
            received.append(reader.receive(5000).data())
        except SeveralGroupsError:
            refused += 1

    assert (sorted(received), refused) == (sorted(PAYLOADS[:2]), 1)
    reader.close()


def test_the_async_consumer(lab, cc, left, clock):
    send(lab, cc, *PAYLOADS[:2])

    async def main():
        quiet = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
        client = pulsar.asyncio.Client(lab.broker.service_url, logger=quiet)
        native = await client.subscribe(lab.topic, "s", initial_position=pulsar.InitialPosition.Earliest)
        reader = AsyncPulsarConsumer(native, cc, admin_url=lab.broker.admin_url, clock=clock)
        await reader.acknowledge(await reader.receive())
        await reader.receive()
        await asyncio.to_thread(lab.settled, backlog=1)
        await asyncio.to_thread(reader._blocking._deletion.run)
        clock.now += 66
        await reader.close()
        await client.close()

    asyncio.run(main())
    assert left() == 1


def test_without_the_web_service_it_is_refused(lab, cc):
    with pytest.raises(ConfigError, match="admin_url: found nothing"):
        lab.consumer(cc=cc)
