"""The promises of a transport about sends that fail: what is certain is undone, and nothing else is."""

from __future__ import annotations

from typing import Any

import pytest

from claimcheck.envelope import Chunk, decode
from claimcheck.errors import ClaimCheckError, PartialSendError, StoreUnavailableError
from claimcheck.hooks import SendEvent
from claimcheck.testing import payloads
from claimcheck.testing.transport_kit import Harness, TransportKit, content, faulty, requires

__all__ = ["SendPromises"]


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
