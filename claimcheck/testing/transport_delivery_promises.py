"""The promises of a transport about delivery: what is acknowledged never comes again, and everything else does."""

from __future__ import annotations

import pytest

from claimcheck.errors import StoreUnavailableError
from claimcheck.testing.transport_kit import Harness, TransportKit, chunks_of, content, requires

__all__ = ["DeliveryPromises"]

STRATEGIES = ("external", "chunking")


class DeliveryPromises(TransportKit):
    """Acknowledging, giving back, dead letters, seeking and closing mean a whole payload each."""

    # Acknowledging ---------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("strategy", STRATEGIES)
    def test_an_acknowledged_payload_does_not_come_again(self, harness: Harness, strategy: str) -> None:
        """An acknowledgement covers every message of the payload, and outlives the consumer."""
        sent = [b"first", content(3 * self.limit_bytes), b"last"]
        harness.send(*sent, strategy=strategy)
        assert harness.take(3) == sent
        harness.assert_backlog(lambda count: count == 0)

        harness.restart()

        harness.assert_finished()

    @pytest.mark.parametrize("strategy", STRATEGIES)
    def test_an_unacknowledged_payload_comes_again(self, harness: Harness, strategy: str) -> None:
        """Nothing is acknowledged by being received: after a restart it comes again, whole."""
        sent = [b"acknowledged", content(3 * self.limit_bytes), b"last"]
        harness.send(*sent, strategy=strategy)
        assert harness.take() == sent[:1]
        assert [harness.payload(harness.receive()) for _ in range(2)] == sent[1:]

        harness.restart()

        assert harness.take(2) == sent[1:]
        harness.assert_finished()

    def test_no_acknowledgement_passes_an_incomplete_payload(self, harness: Harness) -> None:
        """What lies around its chunks is acknowledged; its chunks are not, and it completes after a restart."""
        first, last = chunks_of(content(500), 2)
        harness.append(b"before", first, b"behind")
        assert harness.take(2) == [b"before", b"behind"]
        harness.assert_backlog(lambda count: count > 0)

        harness.restart()
        harness.append(last)

        assert harness.take() == [content(500)]
        harness.assert_finished()

    def test_chunks_of_several_payloads_may_interleave(self, harness: Harness) -> None:
        """In any order and with duplicates, each is delivered once, as soon as it is whole."""
        one, two = chunks_of(content(900, 1), 3), chunks_of(content(800, 2), 2)
        harness.append(one[0], two[0], two[0], one[2], two[1], one[0], one[1], one[1], two[1], b"plain")

        assert harness.take(3) == [content(800, 2), content(900, 1), b"plain"]
        harness.assert_finished()

    def test_a_late_duplicate_goes_with_its_payload(self, harness: Harness) -> None:
        """A chunk that comes again is no new payload, before and after the acknowledgement."""
        first, last = chunks_of(content(500), 2)
        harness.append(first, last)
        message = harness.receive()
        harness.append(first)
        harness.acknowledge(message)
        harness.append(last)

        harness.assert_finished()

    # Giving back -----------------------------------------------------------------------------------------------

    @requires("nack")
    @pytest.mark.parametrize("strategy", STRATEGIES)
    def test_what_is_given_back_comes_again_whole(self, harness: Harness, strategy: str) -> None:
        """All messages of a payload come again; the others are not disturbed."""
        sent = [b"first", content(3 * self.limit_bytes)]
        harness.send(*sent, strategy=strategy)
        assert harness.take() == sent[:1]

        for _ in range(2):
            message = harness.receive()
            assert harness.payload(message) == sent[1]
            self.give_back(harness.consumer, message)

        assert harness.take() == sent[1:]
        harness.assert_finished()

    @requires("nack")
    def test_what_could_not_be_read_may_be_given_back(self, harness: Harness) -> None:
        """A payload whose store is down comes again, and is read when the store is back."""
        harness.send(content(2 * self.limit_bytes))
        harness.reader_store.fail("read")
        message = harness.receive()
        assert isinstance(harness.payload(message), StoreUnavailableError)

        self.give_back(harness.consumer, message)
        harness.reader_store.heal()

        assert harness.take() == [content(2 * self.limit_bytes)]
        harness.assert_finished()

    @requires("dead_letters")
    @pytest.mark.parametrize("strategy", STRATEGIES)
    def test_dead_letters_are_the_messages_themselves(self, harness: Harness, strategy: str) -> None:
        """All messages of a payload go there unchanged, so that a reader of the dead letters gets it whole."""
        harness.subscribe(dead_letters=True)
        harness.send(content(3 * self.limit_bytes), strategy=strategy)
        sent = harness.messages()

        self.dead_letter(harness.consumer, harness.receive())

        assert harness.dead_letters() == sent
        harness.assert_finished()

    @requires("dead_letters", "nack")
    def test_what_is_given_back_too_often_is_a_dead_letter(self, harness: Harness) -> None:
        """After two redeliveries, and acknowledged in the topic."""
        harness.subscribe(dead_letters=True)
        harness.append(*chunks_of(content(500), 2))
        sent = harness.messages()

        for _ in range(3):
            message = harness.receive()
            assert harness.payload(message) == content(500)
            self.give_back(harness.consumer, message)

        harness.assert_finished()
        assert harness.dead_letters() == sent

    # Seeking ---------------------------------------------------------------------------------------------------

    @requires("seek")
    @pytest.mark.parametrize("strategy", STRATEGIES)
    def test_seeking_back_delivers_again(self, harness: Harness, strategy: str) -> None:
        """Payloads behind the position come again, acknowledged or not, whole."""
        (start,) = harness.append(b"start")
        sent = [content(3 * self.limit_bytes), b"plain"]
        harness.send(*sent, strategy=strategy)
        assert harness.take(3) == [b"start", *sent]

        harness.seek(start)

        assert harness.take(3) == [b"start", *sent]
        harness.assert_finished()

    @requires("seek")
    def test_chunks_from_before_a_seek_complete_nothing(self, harness: Harness) -> None:
        """A chunk that is held when the consumer seeks is forgotten."""
        first, last = chunks_of(content(500), 2)
        _, behind = harness.append(first, b"behind")
        assert harness.take() == [b"behind"]

        harness.seek(behind)
        harness.append(last, b"last")

        assert harness.take(2) == [b"behind", b"last"]
