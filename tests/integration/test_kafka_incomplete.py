"""Every incomplete payload ends, even on a busy topic, and only its own writer's messages end it; on a real Kafka."""

import asyncio
import time
import uuid

import pytest

from claimcheck._wire.envelope import encode_abort
from claimcheck.errors import IncompletePayloadError
from tests.integration.kafka_aio_rig import consuming, soon
from tests.integration.kafka_rig import (
    LIMIT,
    WITHIN_SECONDS,
    Clock,
    chunks_of,
    content,
    nothing_comes,
    receive,
    rig,
    values,
)

A, B = (content(600, n) for n in range(2))


@pytest.fixture
def lab(kafka_broker, topic):
    with rig(kafka_broker, topic) as lab:
        yield lab


@pytest.fixture
def clock():
    return Clock()


def is_incomplete(message):
    return isinstance(getattr(message, "payload_error", None), IncompletePayloadError)


def redelivering(lab, times):
    return lab.claimcheck("external", chunking={"max_redeliveries": times})


class TestDeadWriter:
    def test_those_that_expired_are_read_again_together(self, lab, clock):
        lab.send_raw(*[chunks_of(content(600, n), 3)[0] for n in range(20)])
        consumer = lab.consumer(cc=redelivering(lab, 1), wrap={"clock": clock})
        assert poll_until(consumer, lambda: consumer.pending_payloads == 20) is None

        clock.ahead += 61
        assert poll_until(consumer, lambda: consumer.pending_payloads == 0) is None
        assert poll_until(consumer, lambda: consumer.pending_payloads == 20) is None
        clock.ahead += 61
        found = receive(consumer, 20)
        consumer.commit(message=found[-1], asynchronous=False)

        assert all(is_incomplete(message) for message in found)
        assert lab.committed().offset == lab.end()

    @pytest.mark.parametrize("how", ["poll", "consume", "look-ahead"])
    def test_it_expires_while_other_messages_come(self, lab, clock, how):
        lab.send_raw(chunks_of(A, 3)[0], *[b"plain"] * 100)
        wrap = {"clock": clock, "prefetch_bytes": 20 if how == "look-ahead" else 0}
        consumer = lab.consumer(cc=redelivering(lab, 0), wrap=wrap)
        found = receive(consumer, 1)
        clock.ahead += 61

        while len(found) < 50:
            found += consumer.consume(10, 5) if how == "consume" else receive(consumer, 1)

        assert [message.offset() for message in found if is_incomplete(message)] == [0]

    @pytest.mark.parametrize("prefetch_bytes", [0, 20])
    def test_it_expires_while_other_messages_come_on_an_event_loop(self, lab, clock, prefetch_bytes):
        lab.send_raw(chunks_of(A, 3)[0], *[b"plain"] * 100)
        wrap = {"clock": clock, "prefetch_bytes": prefetch_bytes}

        async def main():
            async with consuming(lab, cc=redelivering(lab, 0), wrap=wrap) as consumer:
                found = [await soon(consumer.poll())]
                clock.ahead += 61
                found += [await soon(consumer.poll()) for _ in range(49)]
                assert [message.offset() for message in found if is_incomplete(message)] == [0]

        asyncio.run(main())

    def test_once_nothing_is_incomplete_plain_messages_are_cheap_again(self, lab):
        lab.send_raw(*chunks_of(A, 3), b"plain", b"plain")
        consumer = lab.consumer()
        receive(consumer, 3)

        assert not consumer._assignment.busy


def test_headers_and_keys_of_held_chunks_are_not_kept(lab):
    """Only the first chunk's headers are kept: headers can be larger than the pieces."""
    lab.send_raw(*chunks_of(A, 3)[:2], headers={"large": b"x" * LIMIT})
    consumer = lab.consumer()
    assert nothing_comes(consumer)

    held = consumer._assignment.resolver.clear()

    assert [(native.headers(), native.key(), native.value()) for native in held] == [(None, None, None)] * 2


def poll_until(consumer, condition):
    """Poll until a condition is true or a message arrives."""
    end, message = time.monotonic() + WITHIN_SECONDS, None
    while message is None and not condition():
        assert time.monotonic() < end
        message = consumer.poll(0.01)
    return message


def test_an_abort_with_another_key_ends_nothing_while_the_payload_is_to_be_read_again(lab, clock):
    identity = str(uuid.uuid4())
    first, *rest = chunks_of(A, 3, identity)
    lab.send_raw(first, key=b"victim")
    lab.send_raw(encode_abort(identity), key=b"attacker")
    consumer = lab.consumer(wrap={"clock": clock})
    assert nothing_comes(consumer)
    clock.ahead += 61
    assert nothing_comes(consumer, 2.0)  # it goes back, and meets the abort once more
    lab.send_raw(*rest, key=b"victim")

    assert values(receive(consumer, 1)) == [A]
