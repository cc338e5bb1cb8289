"""The contract of a transport for signed messages: what a writer without the key, or of another topic, cannot do."""

from __future__ import annotations

import pytest

from claimcheck._wire.headers import WireLimit
from claimcheck.config import HEADER
from claimcheck.errors import PointerRejectedError
from tests.kit.transport_harness import Harness, TransportKit, chunks_of, content

SIGNING = {"key_id": "k1", "keys": {"k1": "a secret of ours"}}
LITERAL = HEADER + b" and then some"


class SigningConformance(TransportKit):
    """With signing configured, only what the key's owner wrote for this topic is delivered."""

    @pytest.mark.parametrize("strategy", ["external", "chunking"])
    def test_signed_payloads_arrive_as_they_were_sent(self, harness: Harness, strategy: str) -> None:
        """Pointers, chunks and escaped payloads, with the writer's headers and no others."""
        harness.config = {"signing": SIGNING}
        sent = [content(3 * self.limit_bytes), LITERAL, b"small"]
        harness.send(*sent, strategy=strategy, key="k", headers={"name": "value"})
        for payload in sent:
            message = harness.receive()
            assert harness.payload(message) == payload
            assert list(harness.facts(message).headers) == [("name", b"value")]
            harness.acknowledge(message)
        harness.assert_finished()

    @pytest.mark.parametrize("strategy", ["external", "chunking"])
    def test_messages_of_another_topic_are_refused(self, harness: Harness, strategy: str) -> None:
        """Also byte by byte with their headers, unless the reader accepts the other topic."""
        sent, limit = [content(3 * self.limit_bytes), LITERAL], WireLimit(self.limit_bytes, lambda key, headers: 2000)
        writer = harness.configure(strategy, signing=SIGNING)  # of another topic, without the library's producer
        for payload in sent * 2:
            with writer.outbound(payload, destination="salaries", key=b"k", limit=limit) as out:
                for envelope in out.envelopes:
                    harness.append(bytes(envelope.data), headers=dict(envelope.headers or {}))
        harness.subscribe(signing=SIGNING)
        refused = harness.take(2)
        assert [error.reason for error in refused] == ["destination"] * 2
        harness.subscribe(signing=SIGNING | {"accept_from": {harness.topic: ["salaries"]}})
        assert harness.take(2) == sent

    def test_messages_without_a_signature_are_refused(self, harness: Harness) -> None:
        """A pointer, an escaped payload and chunks; each is one error, and the group moves past it."""
        unsigned = harness.configure()
        pointer = unsigned.seal(unsigned.store("kit").write(content(900), destination=harness.topic))
        harness.subscribe(signing=SIGNING)
        harness.append(pointer, HEADER + b"\x00" + LITERAL, *chunks_of(content(900), 3))
        refused = harness.take(3)
        assert [type(error) for error in refused] == [PointerRejectedError] * 3
        assert [error.reason for error in refused] == ["signature"] * 3
        harness.assert_finished()

    def test_plain_messages_are_refused_where_envelopes_are_required(self, harness: Harness) -> None:
        """A writer with the same configuration sends even small payloads as envelopes."""
        harness.config = {"signing": SIGNING | {"require_envelope": True}}
        sent = [b"small", b"", content(3 * self.limit_bytes), None]
        harness.send(*sent, key="k")
        harness.append(b"forged")
        *received, forged = harness.take(len(sent) + 1)
        assert received == sent
        assert forged.reason == "envelope"
