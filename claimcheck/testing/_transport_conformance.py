"""The promises of a transport, as tests that any transport can run.

A transport's author writes a fixture that connects to a broker, and about 20 hooks of a few lines each, with the
broker's native client. `TransportKit` documents them. Those of the embedded broker take about 100 lines::

    class TestRabbit(TransportConformance):
        limit_bytes = 100_000
        has_seek = False                                   # what the broker cannot do; its tests are skipped

        @pytest.fixture
        def broker(self, clock):
            with connect("amqp://localhost") as self.native:
                yield

        def create_topic(self, topic, partitions): ...     # with the native client
        def append(self, topic, data, *, key, headers, writer): ...
        def messages(self, topic): ...
        def backlog(self, topic): ...

        def open_producer(self, cc, topic): ...            # the transport under test
        def send(self, producer, topic, payload, *, key, headers): ...
        def open_consumer(self, cc, topic, *, clock, look_ahead, dead_letters): ...
        def receive(self, consumer, seconds): ...
        def payload_of(self, message): ...
        def facts_of(self, topic, message): ...
        def acknowledge(self, consumer, message): ...

        def give_back(self, consumer, message): ...        # for has_nack
        def dead_letter(self, consumer, message): ...      # for has_dead_letters
        def dead_letters(self, topic): ...
        def send_refused(self, cc, topic, payload): ...    # for has_refusals
        def send_unknown(self, cc, topic, payload): ...    # for has_unknown_outcomes

Hooks are blocking. Those of an asyncio client run a coroutine on an event loop of their own and wait for its result.
"""

from __future__ import annotations

from claimcheck.testing._transport_chunks import ChunkPromises
from claimcheck.testing._transport_delivery import DeliveryPromises, SendPromises
from claimcheck.testing._transport_payloads import PayloadPromises

__all__ = ["TransportConformance"]


class TransportConformance(PayloadPromises, DeliveryPromises, ChunkPromises, SendPromises):
    """Subclass it under a name that begins with ``Test`` and override the hooks of `TransportKit`.

    Capabilities are declared as class attributes (``has_nack``, ``has_seek`` ...). Any other test that a transport
    cannot pass is declared, with its reason, in ``skip``. Both show in the report as skipped.
    """
