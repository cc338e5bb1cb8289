"""The promises of a transport about delivery: what is acknowledged never comes again, and everything else does."""

from __future__ import annotations

from typing import Any

import pytest

from claimcheck._envelope import Chunk, decode
from claimcheck.errors import ClaimCheckError, PartialSendError, StoreUnavailableError
from claimcheck.hooks import SendEvent
from claimcheck.testing import _payloads as payloads
from claimcheck.testing._transport_hooks import Harness, TransportKit, chunks_of, content, faulty, requires

__all__ = [
    "DeliveryPromises",
    "SendPromises",
]

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


class SendPromises(TransportKit):
    """The outcome of a send decides about what was stored for it."""

    def test_a_store_that_is_down_is_an_error_and_nothing_is_sent(self, harness: Harness) -> None:
        """The strategy ``external`` has no other way, and goes on when the store is back."""
        store = faulty(harness.writer("external"))
        store.fail("write")

        with pytest.raises(StoreUnavailableError) as raised:
            harness.send(content(2 * self.limit_bytes))

        assert raised.value.retryable
        assert (harness.messages(), harness.stored) == ([], 0)
        store.heal()
        harness.send(b"small", content(2 * self.limit_bytes))
        assert harness.take(2) == [b"small", content(2 * self.limit_bytes)]

    def test_hybrid_sends_chunks_while_the_store_is_down(self, harness: Harness) -> None:
        """The payload is cut in place of an error."""
        faulty(harness.writer("hybrid")).fail("write")

        harness.send(content(3 * self.limit_bytes), strategy="hybrid")

        assert {type(decode(message or b"")) for message in harness.messages()} == {Chunk}
        assert harness.take() == [content(3 * self.limit_bytes)]
        assert harness.stored == 0

    def test_a_stored_payload_stays_after_a_successful_send(self, harness: Harness) -> None:
        """Neither the send nor the acknowledgement deletes it: other groups still read it."""
        harness.send(content(2 * self.limit_bytes))
        harness.take()

        assert harness.stored == 1
        assert _outcomes(harness) == ["sent"]

    @requires("refusals")
    def test_a_refused_message_leaves_nothing_in_the_store(self, harness: Harness) -> None:
        """The stored payload is deleted, and the original error is raised."""
        cc = harness.configure("external")

        with pytest.raises(self.refusal):
            self.send_refused(cc, harness.topic, content(3 * self.limit_bytes))

        assert (faulty(cc).calls["write"], harness.stored, harness.messages()) == (1, 0, [])
        assert _outcomes(harness) == ["failed"]

    @requires("refusals")
    def test_a_failed_deletion_never_replaces_the_error(self, harness: Harness) -> None:
        """The error of the send is raised, whatever becomes of the stored payload."""
        cc = harness.configure("external")
        faulty(cc).fail("rollback")

        with pytest.raises(self.refusal) as raised:
            self.send_refused(cc, harness.topic, content(3 * self.limit_bytes))

        assert not isinstance(raised.value, StoreUnavailableError)
        assert harness.stored == 1

    @requires("refusals")
    def test_a_refused_first_chunk_is_a_plain_refusal(self, harness: Harness) -> None:
        """Nothing is in the topic: the original error is raised, not one about a partial send."""
        with pytest.raises(self.refusal) as raised:
            self.send_refused(harness.configure("chunking"), harness.topic, content(3 * self.limit_bytes))

        assert not isinstance(raised.value, PartialSendError)
        assert harness.messages() == []
        assert _outcomes(harness) == ["failed"]

    @requires("unknown_outcomes")
    def test_an_unknown_outcome_deletes_nothing(self, harness: Harness) -> None:
        """A message that may have arrived stays readable."""
        cc = harness.configure("external")

        with pytest.raises(self.unknown):
            self.send_unknown(cc, harness.topic, content(3 * self.limit_bytes))

        assert (faulty(cc).calls["rollback"], harness.stored) == (0, 1)
        assert _outcomes(harness) == ["unknown"]
        arrived = len(harness.messages())
        assert harness.take(arrived) == [content(3 * self.limit_bytes)] * arrived

    @requires("unknown_outcomes")
    def test_an_unknown_outcome_of_chunks_is_counted(self, harness: Harness) -> None:
        """An error about a partial send tells acknowledged, unknown and unsent chunks apart."""
        with pytest.raises((PartialSendError, *_as_tuple(self.unknown))) as raised:
            self.send_unknown(harness.configure("chunking"), harness.topic, content(3 * self.limit_bytes))

        if isinstance(error := raised.value, PartialSendError):
            acknowledged, unknown, unsent = (count or 0 for count in (error.acknowledged, error.unknown, error.unsent))
            assert acknowledged + unknown + unsent == error.total
            assert acknowledged <= len(harness.messages()) <= acknowledged + unknown + 1  # and an abort envelope
        assert _outcomes(harness) in (["partial"], ["unknown"])

    @pytest.mark.parametrize("strategy", ["external", "chunking"])
    def test_a_payload_that_cannot_be_read_is_not_delivered(self, harness: Harness, strategy: str) -> None:
        """A file that fails in the middle is an error; nothing of it is stored or delivered, and others go on."""
        with pytest.raises(ClaimCheckError):
            harness.send(payloads.Breaking(6 * self.limit_bytes, OSError("the disk is on fire")), strategy=strategy)

        assert harness.stored == 0
        harness.send(content(3 * self.limit_bytes), strategy=strategy)
        assert harness.take() == [content(3 * self.limit_bytes)]
        harness.assert_finished()


def _as_tuple(errors: Any) -> tuple[type[BaseException], ...]:
    return errors if isinstance(errors, tuple) else (errors,)


def _outcomes(harness: Harness) -> list[str]:
    return [event.outcome for event in harness.events if isinstance(event, SendEvent)]
