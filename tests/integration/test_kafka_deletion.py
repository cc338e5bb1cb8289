"""``delete_after_ack`` on a real Kafka with Redis: a payload goes once the group's offset is beyond its record."""

import asyncio
import uuid

import confluent_kafka as kafka
import pytest

from claimcheck.errors import ConfigError, SeveralGroupsError
from tests import servers
from tests.integration.kafka_aio_rig import consuming, poll
from tests.integration.kafka_rig import LIMIT, chunks_of, content, receive, rig, values
from tests.real.process import wait_until


@pytest.fixture
def lab(kafka_broker, topic, redis_url):
    with rig(kafka_broker, topic) as lab:
        lab.redis = {"type": "redis", "url": redis_url, "key_prefix": f"ack:{topic}:", "ttl_seconds": 600}
        yield lab


@pytest.fixture
def cc(lab):
    return lab.claimcheck("external", stores={"m": lab.redis}, delete_after_ack=True)


@pytest.fixture
def consumer(lab, cc):
    """Create a consumer that deletes."""
    return lambda **more: lab.consumer(cc=cc, wrap={"admin": lab.admin, **more.pop("wrap", {})}, **more)


@pytest.fixture
def left(cc):
    return lambda: sum(1 for _ in cc.store("m").scan())


def send(lab, cc, count=1):
    producer = lab.producer(cc)
    for n in range(count):
        producer.produce(lab.topic, content(2 * LIMIT, n))
    assert producer.flush(30) == 0


def payloads(count):
    return [content(2 * LIMIT, n) for n in range(count)]


class TestCommits:
    @pytest.mark.parametrize("how", ["message", "asynchronous", "stored", "automatic", "transaction"])
    def test_every_way_of_committing_is_confirmed_by_the_broker(self, lab, cc, consumer, left, how):
        send(lab, cc, 3)
        automatic = {"enable.auto.commit": True} if how == "automatic" else {}
        reader = consumer(wrap={"auto_offset_store": how == "automatic"}, **automatic)
        messages = receive(reader, 3)
        assert values(messages) == payloads(3)
        reader._deletion.run()
        assert left() == 3

        if how in ("message", "asynchronous"):
            reader.commit(messages[1], asynchronous=how == "asynchronous")
        elif how == "stored":
            reader.store_offsets(messages[1])
            reader.commit(asynchronous=False)
        elif how == "transaction":
            commit_in_transaction(lab, reader, abort=False)
        reader.close()

        assert left() == (1 if how in ("message", "asynchronous", "stored") else 0)

    def test_an_aborted_transaction_confirms_nothing(self, lab, cc, consumer, left):
        send(lab, cc, 2)
        reader = consumer()
        assert values(receive(reader, 2)) == payloads(2)

        commit_in_transaction(lab, reader, abort=True)
        reader.close()

        assert left() == 2

    def test_a_consumer_that_dies_before_its_commit_leaves_everything_readable(self, lab, cc, consumer, left):
        send(lab, cc, 2)
        dying = consumer()
        messages = receive(dying, 2)
        assert values(messages) == payloads(2)
        dying.store_offsets(messages[1])
        dying._deletion.run()
        dying._native.close()  # without a commit

        again = consumer()
        assert values(receive(again, 2)) == payloads(2)
        dying._deletion.close()
        assert left() == 2

    def test_what_was_committed_before_it_was_read_stays(self, lab, cc, consumer, left):
        """The application reads old records again; the group's offset says nothing about that."""
        send(lab, cc, 2)
        lab.commit(2)
        reader = consumer(subscribe=False)
        reader.assign([kafka.TopicPartition(lab.topic, 0, 0)])
        messages = receive(reader, 2)
        assert values(messages) == payloads(2)

        reader.position([kafka.TopicPartition(lab.topic, 0)])
        reader._deletion.run()
        reader.commit(messages[0], asynchronous=False)
        reader._deletion.run()

        assert left() == 2

    def test_a_seek_back_forgets_what_is_delivered_again(self, lab, cc, consumer, left):
        send(lab, cc, 2)
        reader = consumer()
        first, second = receive(reader, 2)
        assert (first.value(), second.value()) == tuple(payloads(2))
        reader.store_offsets(second)
        reader.seek(kafka.TopicPartition(lab.topic, 0, 1))
        reader.commit(first, asynchronous=False)
        reader._deletion.run()
        assert left() == 1

        assert values(receive(reader, 1)) == payloads(2)[1:]
        reader.close()
        assert left() == 1

    def test_what_is_delivered_beyond_the_committed_offset_stays(self, lab, cc, consumer, left):
        """An incomplete payload holds the offset back; the commit metadata has the rest."""
        stored = cc.store("m").write(b"x" * 50, destination=lab.topic)
        lab.send_raw(chunks_of(content(600), 2)[0], cc.seal(stored))
        reader = consumer()
        (message,) = receive(reader, 1)
        assert message.value() == b"x" * 50
        reader.commit(message, asynchronous=False)
        reader.close()

        assert (left(), lab.committed().offset) == (1, 0)

    def test_a_revoked_partition_is_confirmed_after_the_final_commit(self, lab, cc, consumer, left):
        send(lab, cc, 2)
        reader = consumer(**{"enable.auto.commit": True, "auto.commit.interval.ms": 60_000})
        messages = receive(reader, 2)
        assert values(messages) == payloads(2)
        reader.store_offsets(messages[1])

        reader.unsubscribe()
        receive(reader, 1, within=0.5)  # serves the rebalance
        reader.close()

        assert left() == 0

    def test_the_thread_deletes_without_being_asked(self, lab, cc, consumer, left, monkeypatch):
        monkeypatch.setattr("claimcheck.transports._common.deletion._ASK_SECONDS", 0.05)
        send(lab, cc)
        reader = consumer()
        (message,) = receive(reader, 1)
        message.value()
        reader.commit(message, asynchronous=False)

        servers.wait_until(lambda: left() == 0, "the payload is deleted")

    def test_the_async_consumer(self, lab, cc, left):
        send(lab, cc, 2)
        lab.cc = cc

        async def main():
            async with consuming(lab, wrap={"admin": lab.admin}) as reader:
                first, _ = await poll(reader, 2)
                await reader.commit(first, asynchronous=False)

        asyncio.run(main())
        assert left() == 1


class TestPointers:
    def test_a_key_of_several_attempts_and_a_forged_pointer_delete_nothing(self, lab, cc, consumer, left):
        store = cc.store("m")
        shared = cc.seal(store.write(b"x" * 50, destination=lab.topic, identity=uuid.uuid4()))
        other = cc.seal(store.write(b"y" * 50, destination="other-topic"))
        forged = cc.seal(store.write(b"z" * 50, destination=lab.topic)).replace(b'"size":50', b'"size":51')
        lab.send_raw(shared, other, forged)
        reader = consumer()

        messages = receive(reader, 3)
        assert [message.payload_error is None for message in messages] == [True, True, False]
        reader.commit(messages[2], asynchronous=False)
        reader.close()

        assert left() == 3

    def test_what_was_never_read_stays(self, lab, cc, consumer, left):
        send(lab, cc)
        reader = consumer()
        (message,) = receive(reader, 1)
        reader.commit(message, asynchronous=False)
        reader.close()

        assert left() == 1


class TestGroups:
    def test_a_group_that_has_committed_is_seen(self, lab, cc, consumer, left):
        send(lab, cc)
        other = lab.native_consumer("other-" + lab.group)
        other.commit(offsets=[kafka.TopicPartition(lab.topic, 0, 0)], asynchronous=False)
        other.close()
        reader = consumer()

        with pytest.raises(SeveralGroupsError) as caught:
            receive(reader, 1)
        assert caught.value.groups == tuple(sorted([lab.group, "other-" + lab.group]))

        (message,) = receive(reader, 1)  # goes on, and deletes nothing
        message.value()
        reader.commit(message, asynchronous=False)
        reader.close()
        assert left() == 1

    def test_a_group_with_members_that_have_not_committed_is_seen(self, lab, cc, consumer, left):
        send(lab, cc)
        other = lab.consumer(group="other-" + lab.group)
        assert len(receive(other, 1)) == 1

        with pytest.raises(SeveralGroupsError):
            receive(consumer(), 1)
        assert left() == 1

    def test_without_an_admin_client_it_is_refused(self, lab, cc):
        with pytest.raises(ConfigError, match="admin: found nothing, expected a confluent_kafka.admin.AdminClient"):
            lab.consumer(cc=cc)


def commit_in_transaction(lab, reader, *, abort):
    producer = lab.producer(transactional_id=f"tx-{lab.topic}")
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(lab.topic, b"result")
    positions = reader.position(reader.assignment())
    producer.send_offsets_to_transaction(positions, reader.consumer_group_metadata(), 30)
    if abort:
        producer.abort_transaction(30)
    else:
        producer.commit_transaction(30)
        # The coordinator of the group learns of it a little later.
        wait_until(lambda: reader.committed(positions, 10)[0].offset == positions[0].offset, "the commit is visible")
