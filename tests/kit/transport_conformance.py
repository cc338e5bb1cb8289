"""The contract of a transport, as tests for every transport.

A transport's author writes a fixture that connects to a broker, and about 20 hooks of a few lines each, with the
broker's native client: see `TransportKit`, and tests/conformance/test_transport_local.py for an example. Hooks are
blocking. Those of an asyncio client run a coroutine on an event loop of their own and wait for its result.
"""

from __future__ import annotations

import itertools
import threading
import uuid
from typing import Any

import pytest

import claimcheck.testing._store_kit as payloads
from claimcheck._wire.envelope import encode_abort, encode_pointer
from claimcheck.config import HEADER
from claimcheck.errors import EnvelopeError, PayloadNotFoundError, PointerRejectedError, StoreUnavailableError
from tests.kit.transport_chunks import ChunkConformance
from tests.kit.transport_harness import Harness, chunks_of, content, requires
from tests.kit.transport_sending import STRATEGIES, SendingConformance
from tests.kit.transport_signing import SigningConformance

LOOKALIKES = (HEADER, HEADER + b"\x02{}", HEADER + b"\x01" + bytes(500), HEADER + b"\xff")
DAMAGED = (
    HEADER + b"\x09of an unknown type",
    HEADER + b"\x01" + b"x" * 10,  # a chunk, cut short
    HEADER + b"\x01" + b"x" * 36 + bytes(8),  # a chunk without a uuid
    encode_pointer(b"\x02{not json"),
    encode_pointer(b""),
    encode_abort(str(uuid.uuid4()))[:-1],
)


class TransportConformance(SendingConformance, ChunkConformance, SigningConformance):
    """Subclass it under a name that begins with ``Test`` and override the hooks of `TransportKit`.

    Declare capabilities as class attributes (``has_nack``, ``has_seek`` ...), and any other test that the transport
    cannot pass in ``skip``, with a reason. The report shows both as skipped.
    """

    def _need(self, *, look_ahead: bool | None) -> None:
        if look_ahead is not False and not self.has_look_ahead:
            pytest.skip("has_look_ahead is False")

    # Round trips -----------------------------------------------------------------------------------------------

    def test_a_topic_mixes_all_strategies_and_sizes(self, harness: Harness) -> None:
        """A reader understands every envelope, whatever its own configuration says about writing.

        Payloads are empty, small, at the limit, above it and in many chunks, and arrive in the order of sending.
        """
        sizes = [0, 1, self.limit_bytes // 2, self.limit_bytes, self.limit_bytes + 1, 5 * self.limit_bytes]
        sent = []
        for seed, strategy in enumerate([*STRATEGIES, "hybrid"] * 2):
            mine = [content(size, seed) for size in sizes]
            harness.send(*mine, strategy=strategy, key=[None, "k"][seed % 2])
            sent += mine
        harness.send(b"inline", HEADER + b"inline", strategy="inline")
        harness.append(*chunks_of(content(900, 9), 3))
        assert harness.take(len(sent) + 3) == [*sent, b"inline", HEADER + b"inline", content(900, 9)]
        harness.assert_finished()

    @pytest.mark.parametrize("strategy", STRATEGIES)
    def test_the_limit_counts_the_whole_message(self, harness: Harness, strategy: str) -> None:
        headers = {"name": "v" * 300, "ünïcode": "ü" * 50}
        sent = [content(self.limit_bytes + over) for over in range(-1000, 150, 41)]
        harness.send(*sent, strategy=strategy, key="k" * 100, headers=headers)
        assert harness.take(len(sent)) == sent

    @pytest.mark.parametrize("strategy", STRATEGIES)
    def test_every_shape_comes_back(self, harness: Harness, strategy: str) -> None:
        expected = [content(size) for size in (100, 3 * self.limit_bytes) for _ in payloads.SHAPES]
        shapes = [*payloads.SHAPES.values()] * 2
        harness.send(*(shape(data) for shape, data in zip(shapes, expected, strict=True)), strategy=strategy)
        assert harness.take(len(expected)) == expected

    @pytest.mark.parametrize("strategy", [*STRATEGIES, "inline"])
    def test_tombstones_and_payloads_that_look_like_envelopes_come_back(self, harness: Harness, strategy: str) -> None:
        large = [] if strategy == "inline" else [HEADER + b"\x01" + content(3 * self.limit_bytes)]
        sent = [None, b"", *LOOKALIKES, *large]
        harness.send(*sent, strategy=strategy, key="k", headers={"name": "value"})
        assert harness.take(len(sent)) == sent

    def test_inline_sends_nothing_that_does_not_fit(self, harness: Harness) -> None:
        with pytest.raises(self.refusal):
            harness.send(content(2 * self.limit_bytes), strategy="inline")
        assert self.messages(harness.topic) == []

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
        places: dict[bytes | None, set[int]] = {}
        received = []
        for _ in range(12):
            message = harness.receive()
            facts = harness.facts(message)
            places.setdefault(facts.key, set()).add(facts.partition)
            received.append(harness.payload(message))
        del places[None]
        assert {key: len(partitions) for key, partitions in places.items()} == dict.fromkeys(
            (b"a", b"b", b"c", b"d"), 1
        )
        assert sorted(received) == sorted([b"small", large[0]] * 4 + large)

    # Reading ahead ---------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("look_ahead", [False, True, None])
    def test_a_stored_payload_is_read_once(self, harness: Harness, look_ahead: bool | None) -> None:
        """And the order stays, whether payloads are read when they are requested, in advance, or as by default."""
        self._need(look_ahead=look_ahead)
        sizes = [2 * self.limit_bytes, 10, 4 * self.limit_bytes]
        sent = [content(size, seed) for seed, size in enumerate(sizes * 5)]
        for payload, strategy in zip(sent, itertools.cycle(STRATEGIES), strict=False):
            harness.send(payload, strategy=strategy)
        harness.subscribe(look_ahead=look_ahead)
        assert harness.take(len(sent)) == sent
        stored = len([payload for payload in sent[::2] if len(payload) > self.limit_bytes])
        assert harness.reader_store.calls["read"] == stored

    @requires("look_ahead")
    def test_the_next_payloads_are_read_while_one_is_processed(self, harness: Harness) -> None:
        harness.send(*[content(2 * self.limit_bytes, seed) for seed in range(6)])
        harness.subscribe(look_ahead=True)
        store, ahead = harness.reader_store, threading.Event()
        read = store.read

        def note(pointer: Any) -> Any:
            if store.calls["read"] >= 2:
                ahead.set()
            return read(pointer)

        store.read = note  # type: ignore[method-assign]
        assert harness.take() == [content(2 * self.limit_bytes)]
        message = harness.receive()
        assert ahead.wait(self.patience_seconds)
        assert harness.payload(message) == content(2 * self.limit_bytes, 1)

    @requires("look_ahead", "lazy_payloads")
    def test_by_default_what_the_application_does_not_read_is_not_read_ahead(self, harness: Harness) -> None:
        harness.send(*[content(2 * self.limit_bytes, seed) for seed in range(12)])
        harness.subscribe(look_ahead=None)
        for _ in range(12):
            harness.acknowledge(harness.receive())
        assert harness.reader_store.calls["read"] == 0

    # Bad messages ----------------------------------------------------------------------------------------------

    def test_a_bad_message_is_an_error_of_its_own(self, harness: Harness) -> None:
        """It is delivered, its payload raises at every call, it can be acknowledged, and others are not affected."""
        kinds = dict.fromkeys(DAMAGED, EnvelopeError) | {
            harness.gone_pointer(store="elsewhere"): PointerRejectedError,
            harness.gone_pointer(): PayloadNotFoundError,
        }
        for bad, kind in kinds.items():
            harness.append(bad, b"good")
            message = harness.receive()
            for _ in range(2):
                assert type(error := harness.payload(message)) is kind
                assert not error.retryable
            harness.acknowledge(message)
            assert harness.take() == [b"good"]
        harness.assert_finished()

    @pytest.mark.parametrize("look_ahead", [False, True])
    def test_a_retryable_error_is_retryable(self, harness: Harness, look_ahead: bool) -> None:
        self._need(look_ahead=look_ahead)
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
        """Messages that need no store are delivered; the unacknowledged one that needs it is redelivered."""
        harness.send(content(2 * self.limit_bytes), b"plain")
        harness.reader_store.fail("read")
        unavailable, plain = harness.receive(), harness.receive()
        assert isinstance(harness.payload(unavailable), StoreUnavailableError)
        assert harness.payload(plain) == b"plain"
        harness.reader_store.heal()
        harness.restart()
        assert harness.take(2) == [content(2 * self.limit_bytes), b"plain"]
        harness.assert_finished()

    # Acknowledging ---------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("strategy", STRATEGIES)
    def test_only_what_is_acknowledged_does_not_come_again(self, harness: Harness, strategy: str) -> None:
        """An acknowledgment covers every message of the payload, and receiving does not acknowledge."""
        sent = [content(4 * self.limit_bytes), content(3 * self.limit_bytes), b"last"]
        harness.send(*sent, strategy=strategy)
        assert harness.take() == sent[:1]
        assert [harness.payload(harness.receive()) for _ in range(2)] == sent[1:]
        harness.restart()
        assert harness.take(2) == sent[1:]
        harness.assert_backlog(lambda count: count == 0)
        harness.restart()
        harness.assert_finished()

    def test_no_acknowledgement_passes_an_incomplete_payload(self, harness: Harness) -> None:
        """Messages around its chunks are acknowledged, its chunks are not, and it completes after a restart."""
        first, last = chunks_of(content(500), 2)
        harness.append(b"before", first, b"behind")
        assert harness.take(2) == [b"before", b"behind"]
        harness.assert_backlog(lambda count: count > 0)
        harness.restart()
        harness.append(last)
        assert harness.take() == [content(500)]
        harness.assert_finished()

    def test_a_late_duplicate_goes_with_its_payload(self, harness: Harness) -> None:
        first, last = chunks_of(content(500), 2)
        harness.append(first, last)
        message = harness.receive()
        harness.append(first)
        harness.acknowledge(message)
        harness.append(last)
        harness.assert_finished()

    # Negative acknowledgments ----------------------------------------------------------------------------------

    @requires("nack")
    @pytest.mark.parametrize("strategy", STRATEGIES)
    def test_what_is_given_back_comes_again_whole(self, harness: Harness, strategy: str) -> None:
        """All messages of the payload are redelivered, also if it could not be read; others are not affected."""
        sent = [b"first", content(3 * self.limit_bytes)]
        harness.send(*sent, strategy=strategy)
        assert harness.take() == sent[:1]
        harness.reader_store.fail("read")
        message = harness.receive()
        assert strategy == "chunking" or isinstance(harness.payload(message), StoreUnavailableError)
        self.give_back(harness.consumer, message)
        harness.reader_store.heal()
        message = harness.receive()
        assert harness.payload(message) == sent[1]
        self.give_back(harness.consumer, message)
        assert harness.take() == sent[1:]
        harness.assert_finished()

    @requires("dead_letters")
    @pytest.mark.parametrize("strategy", STRATEGIES)
    def test_dead_letters_are_the_messages_themselves(self, harness: Harness, strategy: str) -> None:
        """All messages of a payload are sent there unchanged, so its readers receive the whole payload."""
        harness.subscribe(dead_letters=True)
        harness.send(content(3 * self.limit_bytes), strategy=strategy)
        sent = self.messages(harness.topic)
        self.dead_letter(harness.consumer, harness.receive())
        assert self.dead_letters(harness.topic) == sent
        harness.assert_finished()

    @requires("counted_redeliveries", "nack")
    def test_what_is_given_back_too_often_is_a_dead_letter(self, harness: Harness) -> None:
        harness.subscribe(dead_letters=True)
        harness.append(*chunks_of(content(500), 2))
        sent = self.messages(harness.topic)
        for _ in range(3):
            message = harness.receive()
            assert harness.payload(message) == content(500)
            self.give_back(harness.consumer, message)
        harness.assert_finished()
        assert self.dead_letters(harness.topic) == sent

    # Seeking ---------------------------------------------------------------------------------------------------

    @requires("seek")
    @pytest.mark.parametrize(("strategy", "look_ahead"), [("external", True), ("external", False), ("chunking", False)])
    def test_seeking_back_delivers_again(self, harness: Harness, strategy: str, look_ahead: bool) -> None:
        """Payloads from the position on are delivered again as a whole, once, whether they were acknowledged or not."""
        self._need(look_ahead=look_ahead)
        harness.subscribe(look_ahead=look_ahead)
        (start,) = harness.append(b"start")
        sent = [content(3 * self.limit_bytes, seed) for seed in range(3)]
        harness.send(*sent, strategy=strategy)
        assert [harness.payload(harness.receive()) for _ in range(2)] == [b"start", sent[0]]
        for _ in range(2):
            harness.seek(start)
            assert harness.take(4) == [b"start", *sent]
            harness.assert_backlog(lambda count: count == 0)
        harness.assert_finished()

    @requires("seek")
    def test_chunks_from_before_a_seek_complete_nothing(self, harness: Harness) -> None:
        first, last = chunks_of(content(500), 2)
        _, behind = harness.append(first, b"behind")
        assert harness.take() == [b"behind"]
        harness.seek(behind)
        harness.append(last, b"last")
        assert harness.take(2) == [b"behind", b"last"]


def _pairs(shape: str | None) -> list[tuple[str, bytes]]:
    if shape is None:
        return []
    return [("name", b"value"), ("other", "ü".encode()), *([("name", b"again")] if shape == "pairs" else [])]


def _headers(shape: str | None) -> Any:
    """The headers of `_pairs` in the shape of the argument."""
    pairs = [(name, value.decode()) for name, value in _pairs(shape)]
    return {None: None, "mapping": dict(pairs), "pairs": pairs}[shape]
