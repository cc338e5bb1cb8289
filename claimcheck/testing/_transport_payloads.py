"""The promises of a transport about payloads: each arrives whole, with the metadata of its message, or as an error."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from claimcheck._envelope import HEADER, encode_abort, encode_pointer
from claimcheck.errors import (
    ClaimCheckError,
    EnvelopeError,
    IntegrityError,
    PayloadNotFoundError,
    PointerRejectedError,
    StoreUnavailableError,
)
from claimcheck.testing import _payloads as payloads
from claimcheck.testing._transport_hooks import Harness, TransportKit, chunks_of, content, requires

__all__ = ["PayloadPromises"]

STRATEGIES = ("external", "chunking")
LOOKALIKES = (HEADER, HEADER + b"\x02{}", HEADER + b"\x01" + bytes(500), HEADER + b"\xff")
DAMAGED = {
    "unknown type": HEADER + b"\x09payload",
    "chunk cut short": HEADER + b"\x01" + b"x" * 10,
    "chunk without a uuid": HEADER + b"\x01" + b"x" * 36 + bytes(8),
    "pointer of garbage": encode_pointer(b"\x02{not json"),
    "empty pointer": encode_pointer(b""),
    "abort cut short": encode_abort(str(uuid.uuid4()))[:-1],
}


class PayloadPromises(TransportKit):
    """Payloads of every size and shape pass through; a message that is no payload is an error of its own."""

    # Round trips -----------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("strategy", [*STRATEGIES, "hybrid"])
    def test_every_size_comes_back(self, harness: Harness, strategy: str) -> None:
        """Empty, small, at the limit, above it and in many chunks, in the order of sending."""
        sizes = [0, 1, self.limit_bytes // 2, self.limit_bytes, self.limit_bytes + 1, 5 * self.limit_bytes]
        sent = [content(size) for size in sizes]

        harness.send(*sent, strategy=strategy)

        assert harness.take(len(sent)) == sent
        harness.assert_finished()

    @pytest.mark.parametrize("strategy", STRATEGIES)
    def test_the_limit_counts_the_whole_message(self, harness: Harness, strategy: str) -> None:
        """Key and headers count: no size around the limit is refused by the broker."""
        headers = {"name": "v" * 300, "ünïcode": "ü" * 50}
        sent = [content(self.limit_bytes + over) for over in range(-1000, 150, 41)]

        harness.send(*sent, strategy=strategy, key="k" * 100, headers=headers)

        assert harness.take(len(sent)) == sent

    @pytest.mark.parametrize("strategy", STRATEGIES)
    def test_every_shape_comes_back(self, harness: Harness, strategy: str) -> None:
        """Buffers and files, small and large."""
        expected = [content(size) for size in (100, 3 * self.limit_bytes) for _ in payloads.SHAPES]
        shapes = [*payloads.SHAPES.values()] * 2

        harness.send(*(shape(data) for shape, data in zip(shapes, expected, strict=True)), strategy=strategy)

        assert harness.take(len(expected)) == expected

    @requires("tombstones")
    @pytest.mark.parametrize("strategy", [*STRATEGIES, "inline"])
    def test_a_tombstone_stays_one(self, harness: Harness, strategy: str) -> None:
        """``None`` arrives as ``None``, and an empty payload as an empty one."""
        harness.send(None, b"", strategy=strategy, key="k")

        assert harness.take(2) == [None, b""]

    @pytest.mark.parametrize("strategy", [*STRATEGIES, "inline"])
    def test_a_payload_that_looks_like_an_envelope_comes_back(self, harness: Harness, strategy: str) -> None:
        """A payload that begins with the header is never taken for an envelope."""
        large = [] if strategy == "inline" else [HEADER + b"\x01" + content(3 * self.limit_bytes)]
        sent = [*LOOKALIKES, *large]

        harness.send(*sent, strategy=strategy, headers={"name": "value"})

        assert harness.take(len(sent)) == sent

    def test_a_topic_mixes_all_strategies(self, harness: Harness) -> None:
        """A reader understands every envelope, whatever its own configuration says about writing."""
        sent = []
        for seed, strategy in enumerate([*STRATEGIES, "hybrid"] * 2):
            for size in (10, 2 * self.limit_bytes, 4 * self.limit_bytes):
                sent.append(content(size, seed))
                harness.send(sent[-1], strategy=strategy, key="k")
        harness.send(b"inline", HEADER + b"inline", strategy="inline")
        harness.append(*chunks_of(content(900, 9), 3))

        assert harness.take(len(sent) + 3) == [*sent, b"inline", HEADER + b"inline", content(900, 9)]
        harness.assert_finished()

    @requires("refusals")
    def test_inline_sends_nothing_that_does_not_fit(self, harness: Harness) -> None:
        """The strategy that neither stores nor cuts leaves the decision to the broker, whose error is raised."""
        with pytest.raises(self.refusal):
            harness.send(content(2 * self.limit_bytes), strategy="inline")

        assert harness.messages() == []

    # Metadata --------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("strategy", STRATEGIES)
    def test_keys_and_headers_come_back(self, harness: Harness, strategy: str) -> None:
        """Keys and headers of each type arrive unchanged, and the caller's own objects are not modified."""
        keys = [None, *(b"key" if kind is bytes else "kéy" for kind in self.key_types)]
        cases = [(key, shape) for key in keys for shape in (None, *self.header_shapes)]
        for key, shape in cases:
            for payload in (b"small", content(3 * self.limit_bytes)):
                headers = _headers(shape)
                harness.send(payload, strategy=strategy, key=key, headers=headers)
                assert headers == _headers(shape)

        for key, shape in cases:
            for payload in (b"small", content(3 * self.limit_bytes)):
                message = harness.receive()
                facts = harness.facts(message)
                assert harness.payload(message) == payload
                assert facts.key == (key.encode() if isinstance(key, str) else key)
                assert sorted(facts.headers) == sorted(_pairs(shape))
                harness.acknowledge(message)

    def test_metadata_is_that_of_the_message(self, harness: Harness) -> None:
        """Topic, partition and position; of a chunked payload those of its first message."""
        one, two = chunks_of(content(500), 2)
        positions = harness.append(b"plain", one, b"between", two, headers={"name": "value"})

        received = [harness.facts(harness.receive()) for _ in range(3)]

        assert [facts.position for facts in received] == [positions[0], positions[2], positions[1]]
        for facts in received:
            assert (facts.topic, facts.partition, facts.key) == (harness.topic, 0, b"one")
            assert list(facts.headers) == [("name", b"value")]

    @pytest.mark.parametrize("strategy", STRATEGIES)
    def test_a_key_leads_to_one_partition(self, harness: Harness, strategy: str) -> None:
        """Large and small payloads of one key share a partition, and the chunks of a payload without a key do, too."""
        harness.topic += "-wide"
        self.create_topic(harness.topic, 3)
        large = [content(3 * self.limit_bytes, seed) for seed in range(4)]
        for key in ("a", "b", "c", "d"):
            harness.send(b"small", large[0], strategy=strategy, key=key)
        harness.send(*large, strategy=strategy)

        found: dict[Any, set[int]] = {}
        received = []
        for _ in range(12):
            message = harness.receive()
            facts = harness.facts(message)
            found.setdefault(facts.key, set()).add(facts.partition)
            received.append(harness.payload(message))

        del found[None]
        assert {key: len(partitions) for key, partitions in found.items()} == dict.fromkeys((b"a", b"b", b"c", b"d"), 1)
        assert sorted(received) == sorted([b"small", large[0]] * 4 + large)

    # Bad messages ----------------------------------------------------------------------------------------------

    def test_a_bad_message_is_an_error_of_its_own(self, harness: Harness) -> None:
        """It is handed out, its payload raises, it can be acknowledged, and the others go on."""
        bad = [*DAMAGED.values(), harness.gone_pointer(store="elsewhere"), harness.gone_pointer()]
        for message in bad:
            harness.append(message, b"good")

        found = harness.take(2 * len(bad))

        assert found[1::2] == [b"good"] * len(bad)
        kinds = [EnvelopeError] * len(DAMAGED) + [PointerRejectedError, PayloadNotFoundError]
        assert [type(error) for error in found[::2]] == kinds
        harness.assert_finished()

    def test_a_payload_that_is_not_what_was_declared_is_an_error(self, harness: Harness) -> None:
        """A checksum in the headers is checked: wrong bytes are never delivered."""
        hints = {"claimcheck-type": "chunk", "claimcheck-checksum": "crc32:00000000"}
        harness.append(*chunks_of(content(500), 2), headers=hints)

        (error,) = harness.take()

        assert isinstance(error, IntegrityError)
        harness.assert_finished()

    @pytest.mark.parametrize("look_ahead", [False, True])
    def test_a_retryable_error_is_retryable(self, harness: Harness, look_ahead: bool) -> None:
        """The same call on the same message succeeds when the store is back."""
        if look_ahead and not self.has_look_ahead:
            pytest.skip("has_look_ahead is False")
        harness.subscribe(look_ahead=look_ahead)
        harness.reader_store.fail("read")
        harness.send(content(2 * self.limit_bytes))
        message = harness.receive()

        for _ in range(2):
            with pytest.raises(StoreUnavailableError) as raised:
                self.payload_of(message)
            assert raised.value.retryable
        harness.reader_store.heal()

        assert self.payload_of(message) == content(2 * self.limit_bytes)
        harness.acknowledge(message)
        harness.assert_finished()

    def test_a_store_that_is_down_stops_no_other_message(self, harness: Harness) -> None:
        """Messages that need no store are delivered, and the one that does comes again when it was not acknowledged."""
        harness.send(content(2 * self.limit_bytes), b"plain")
        harness.reader_store.fail("read")
        unavailable, plain = harness.receive(), harness.receive()
        assert isinstance(harness.payload(unavailable), StoreUnavailableError)
        assert harness.payload(plain) == b"plain"

        harness.reader_store.heal()
        harness.restart()

        assert harness.take(2) == [content(2 * self.limit_bytes), b"plain"]
        harness.assert_finished()

    def test_a_permanent_error_stays(self, harness: Harness) -> None:
        """A payload that is gone raises the same type of error at every call."""
        harness.append(harness.gone_pointer())
        message = harness.receive()

        for _ in range(2):
            with pytest.raises(ClaimCheckError) as raised:
                self.payload_of(message)
            assert type(raised.value) is PayloadNotFoundError
            assert not raised.value.retryable


def _pairs(shape: str | None) -> list[tuple[str, bytes]]:
    if shape is None:
        return []
    return [("name", b"value"), ("other", "ü".encode()), *([("name", b"again")] if shape == "pairs" else [])]


def _headers(shape: str | None) -> Any:
    """What `_pairs` says, in the shape in which a caller gives it."""
    pairs = [(name, value.decode()) for name, value in _pairs(shape)]
    return {None: None, "mapping": dict(pairs), "pairs": pairs}[shape]
