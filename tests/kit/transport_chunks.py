"""The contract of a transport for incomplete payloads: each of them ends."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from claimcheck._wire.envelope import encode_abort
from claimcheck.errors import ChunkConflictError, IncompletePayloadError
from claimcheck.hooks import DropEvent
from tests.kit.transport_harness import Harness, TransportKit, chunks_of, content, requires

EXPIRE_SECONDS = 60
STEP_SECONDS = 25  # what is redelivered has arrived before it expires again
REDELIVERIES = 2


class ChunkConformance(TransportKit):
    """An incomplete payload completes, expires or is reported, whatever else happens in the topic."""

    # Dead writers ----------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("missing", ["first", "last"])
    def test_an_incomplete_payload_is_reported_on_a_busy_topic(self, harness: Harness, missing: str) -> None:
        """It is redelivered a bounded number of times, then delivered once as an error; the group moves past it."""
        harness.subscribe(chunking=_expiring(max_redeliveries=REDELIVERIES))
        chunks = chunks_of(content(600), 3)
        harness.append(*(chunks[1:] if missing == "first" else chunks[:2]))
        (error,) = harness.busy_until(bool, step_seconds=STEP_SECONDS)
        assert isinstance(error, IncompletePayloadError)
        drops = [event for event in harness.events if isinstance(event, DropEvent) and event.action == "redeliver"]
        assert len(drops) <= REDELIVERIES
        assert harness.busy_until(_after(5), step_seconds=STEP_SECONDS) == []
        harness.assert_finished()

    @requires("counted_redeliveries")
    def test_an_incomplete_payload_ends_as_a_dead_letter(self, harness: Harness) -> None:
        harness.subscribe(chunking=_expiring(max_redeliveries=REDELIVERIES), dead_letters=True)
        sent = chunks_of(content(600), 3)[:2]
        harness.append(*sent)
        reported = harness.busy_until(lambda _: len(self.dead_letters(harness.topic)) == 2, step_seconds=STEP_SECONDS)
        assert reported == []
        assert self.dead_letters(harness.topic) == sent
        harness.assert_finished()

    def test_nothing_is_lost_without_a_destination_for_dead_letters(self, harness: Harness) -> None:
        """With ``on_expire: dead_letter`` and no destination, a payload is reported instead of dropped."""
        harness.subscribe(chunking=_expiring(on_expire="dead_letter"))
        sent = chunks_of(content(600), 3)[:1]
        harness.append(*sent)

        def ended(reported: list[Any]) -> bool:
            return bool(reported) or (self.has_counted_redeliveries and self.dead_letters(harness.topic) == sent)

        reported = harness.busy_until(ended, step_seconds=STEP_SECONDS)
        assert {type(error) for error in reported} <= {IncompletePayloadError}
        harness.assert_finished()

    # Aborts ----------------------------------------------------------------------------------------------------

    def test_the_writer_of_chunks_may_abort_them(self, harness: Harness, caplog: pytest.LogCaptureFixture) -> None:
        """The payload is not delivered, late chunks are ignored, and a warning is logged."""
        identity = str(uuid.uuid4())
        chunks = chunks_of(content(600), 3, identity)
        harness.append(chunks[0], encode_abort(identity), chunks[1])
        harness.assert_finished()
        warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
        assert any(identity in text for text in warnings)

    def test_no_other_writer_may_abort_them(self, harness: Harness) -> None:
        identity = str(uuid.uuid4())
        first, last = chunks_of(content(600), 2, identity)
        harness.append(first)
        harness.append(encode_abort(identity), writer="other")
        harness.append(last)
        assert harness.take() == [content(600)]
        harness.assert_finished()

    # Contradictions --------------------------------------------------------------------------------------------

    @pytest.mark.parametrize(("what", "acknowledged"), [("other bytes", False), ("another count", True)])
    def test_a_late_chunk_that_contradicts_a_payload_is_reported(
        self, harness: Harness, what: str, acknowledged: bool
    ) -> None:
        """It is a separate error and is not acknowledged together with the delivered payload."""
        identity = str(uuid.uuid4())
        harness.append(*chunks_of(content(600), 2, identity))
        message = harness.receive()
        assert harness.payload(message) == content(600)
        if acknowledged:
            harness.acknowledge(message)
        late = content(600, 1) if what == "other bytes" else content(600)
        harness.append(chunks_of(late, 2 if what == "other bytes" else 3, identity)[0])
        conflict = harness.receive()
        assert isinstance(harness.payload(conflict), ChunkConflictError)
        if not acknowledged:
            harness.acknowledge(message)
        harness.acknowledge(conflict)
        harness.assert_finished()


def _expiring(**more: Any) -> dict[str, Any]:
    return {"expire_after_seconds": EXPIRE_SECONDS, **more}


def _after(rounds: int) -> Any:
    """Return a condition that becomes true after so many calls."""
    left = iter(range(rounds))
    return lambda _: next(left, None) is None
