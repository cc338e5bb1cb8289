"""The contract of a transport for signed messages: what a writer without the key, or of another topic, cannot do."""

from __future__ import annotations

from typing import Any

import pytest

from claimcheck._wire.envelope import Abort, decode, encode_abort
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
        sent = [content(3 * self.limit_bytes), LITERAL]
        for payload in sent * 2:
            self._replay(harness, payload, "salaries", strategy)
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

    def test_an_abort_envelope_without_a_signature_drops_nothing(self, harness: Harness) -> None:
        """It is refused; the payload whose chunks surround it is delivered."""
        harness.subscribe(signing=SIGNING)
        first, *rest = self._envelopes(harness, content(3 * self.limit_bytes), harness.topic, "chunking")
        part = decode(bytes(first.data))
        assert not isinstance(part, Abort)
        self._append(harness, first)
        harness.append(encode_abort(part.uuid))  # type: ignore[union-attr]
        self._append(harness, *rest)
        refused, whole = harness.take(2)
        assert isinstance(refused, PointerRejectedError)
        assert whole == content(3 * self.limit_bytes)
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

    # Writers without the library's producer ----------------------------------------------------------------------

    def _replay(self, harness: Harness, payload: bytes, topic: str, strategy: str) -> None:
        self._append(harness, *self._envelopes(harness, payload, topic, strategy))

    def _envelopes(self, harness: Harness, payload: bytes, topic: str, strategy: str) -> list[Any]:
        """Return what a writer of this topic sends."""
        limit = WireLimit(self.limit_bytes, lambda key, headers: 2000)
        with harness.configure(strategy, signing=SIGNING).outbound(
            payload, destination=topic, key=b"k", limit=limit
        ) as out:
            return list(out.envelopes)

    def _append(self, harness: Harness, *envelopes: Any) -> None:
        for envelope in envelopes:
            harness.append(bytes(envelope.data), headers=dict(envelope.headers or {}))
