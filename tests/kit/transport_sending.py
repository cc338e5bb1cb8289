"""The contract of a transport for sending: order, what stays in the store, and what the sender is told."""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest

import claimcheck.testing._store_kit as payloads
from claimcheck.errors import ClaimCheckError, ConfigError, PartialSendError, StoreUnavailableError
from claimcheck.hooks import SendEvent
from tests.kit.transport_harness import Harness, TransportKit, content, faulty, requires

STRATEGIES = ("external", "chunking")
SECRET = b"eagle-7301-untold"


class SendingConformance(TransportKit):
    """A payload is in the topic, or the sender is told; and nothing stays in the store that no message points at."""

    # Several at once -------------------------------------------------------------------------------------------

    @requires("open_producers")
    @pytest.mark.parametrize("end", ["flush", "close"])
    @pytest.mark.parametrize("strategy", STRATEGIES)
    def test_sends_that_overlap_keep_the_order_of_the_calls(self, harness: Harness, strategy: str, end: str) -> None:
        """Even if small payloads follow large ones, and the store needs longest for the first; both ends send all."""
        producer = harness.producer(strategy)
        sizes = [3 * self.limit_bytes, 10, 2 * self.limit_bytes, self.limit_bytes, 0]
        sent = [content(size, seed) for seed, size in enumerate(sizes * 4)]
        with _slow_at_first(faulty(harness.writer(strategy))):
            for payload in sent:
                self.begin(producer, harness.topic, payload)
            getattr(self, end)(producer)
        assert harness.take(len(sent)) == sent

    @pytest.mark.parametrize("strategy", STRATEGIES)
    def test_several_senders_share_a_producer(self, harness: Harness, strategy: str) -> None:
        """Threads or tasks; no payload is lost, mixed with another one or sent twice."""
        harness.send(b"opens the producer", strategy=strategy)
        sent = [content([20, 3 * self.limit_bytes][seed % 2], seed) for seed in range(24)]
        with ThreadPoolExecutor(4) as senders:
            list(senders.map(lambda payload: harness.send(payload, strategy=strategy), sent))
        assert sorted(harness.take(len(sent) + 1)) == sorted([b"opens the producer", *sent])
        harness.assert_finished()

    # The end of a producer -------------------------------------------------------------------------------------

    @requires("open_producers")
    @pytest.mark.parametrize(("strategy", "large"), [("external", True), ("chunking", True), ("external", False)])
    def test_a_closed_producer_sends_and_stores_nothing(self, harness: Harness, strategy: str, large: bool) -> None:
        self.close(harness.producer(strategy))
        with pytest.raises(self.closed):
            harness.send(content(3 * self.limit_bytes if large else 10), strategy=strategy)
        assert (self.messages(harness.topic), harness.stored) == ([], 0)

    def test_wrappers_refuse_what_is_no_configuration(self, harness: Harness) -> None:
        """When they are made, not with the first message."""
        wrong: Any = "claimcheck.yaml"
        with pytest.raises(ConfigError, match="cc: found an object of type"):
            self.open_producer(wrong, harness.topic)
        with pytest.raises(ConfigError, match="cc: found an object of type"):
            self.open_consumer(wrong, harness.topic, clock=harness.clock, look_ahead=False, dead_letters=False)

    # What the sender is told -----------------------------------------------------------------------------------

    def test_each_payload_that_does_not_go_unchanged_has_one_event(self, harness: Harness) -> None:
        """With its outcome, its messages and, for chunks, its uuid. An acknowledgment deletes no stored payload."""
        for strategy in STRATEGIES:
            harness.send(b"plain", content(3 * self.limit_bytes), strategy=strategy)
        stored, chunked = (event for event in harness.events if isinstance(event, SendEvent))
        assert (stored.outcome, stored.messages, stored.uuid, chunked.outcome) == ("sent", 1, None, "sent")
        assert all(event.destination.endswith(harness.topic) for event in (stored, chunked))
        assert (chunked.messages, chunked.uuid is None) == (len(self.messages(harness.topic)) - 3, False)
        harness.take(4)
        assert harness.stored == 1

    # Failures --------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("broken", [False, True])
    def test_a_refused_message_leaves_nothing_in_the_store(self, harness: Harness, broken: bool) -> None:
        """The stored payload is deleted; the original error is raised, also if that fails."""
        cc = harness.configure("external")
        if broken:
            faulty(cc).fail("rollback")
        with pytest.raises(self.refusal) as raised:
            self.send_refused(cc, harness.topic, content(3 * self.limit_bytes))
        assert not isinstance(raised.value, StoreUnavailableError)
        assert (faulty(cc).calls["write"], harness.stored, self.messages(harness.topic)) == (1, int(broken), [])
        assert _outcomes(harness) == ["failed"]

    def test_a_refused_first_chunk_is_a_plain_refusal(self, harness: Harness) -> None:
        with pytest.raises(self.refusal) as raised:
            self.send_refused(harness.configure("chunking"), harness.topic, content(3 * self.limit_bytes))
        assert not isinstance(raised.value, PartialSendError)
        assert self.messages(harness.topic) == []
        assert _outcomes(harness) == ["failed"]

    def test_an_unknown_outcome_deletes_nothing(self, harness: Harness, caplog: pytest.LogCaptureFixture) -> None:
        """A message that may be in the topic stays readable; no error and no log has bytes of the payload."""
        caplog.set_level(logging.DEBUG)
        cc, payload = harness.configure("external"), SECRET * self.limit_bytes
        with pytest.raises(self.unknown) as raised:
            self.send_unknown(cc, harness.topic, payload)
        assert (faulty(cc).calls["rollback"], harness.stored) == (0, 1)
        assert _outcomes(harness) == ["unknown"]
        arrived = len(self.messages(harness.topic))
        assert harness.take(arrived) == [payload] * arrived
        assert SECRET.decode() not in caplog.text + str(raised.value) + repr(raised.value)

    def test_an_unknown_outcome_of_chunks_is_counted(self, harness: Harness, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.DEBUG)
        with pytest.raises((PartialSendError, self.unknown)) as raised:
            self.send_unknown(harness.configure("chunking"), harness.topic, SECRET * self.limit_bytes)
        if isinstance(error := raised.value, PartialSendError):
            acknowledged, unknown, unsent = (count or 0 for count in (error.acknowledged, error.unknown, error.unsent))
            assert acknowledged + unknown + unsent == error.total
            assert (
                acknowledged <= len(self.messages(harness.topic)) <= acknowledged + unknown + 1
            )  # and an abort envelope
        assert _outcomes(harness) in (["partial"], ["unknown"])
        assert SECRET.decode() not in caplog.text + str(raised.value) + repr(raised.value)

    @pytest.mark.parametrize("strategy", ["external", "chunking"])
    def test_a_payload_that_cannot_be_read_is_not_delivered(self, harness: Harness, strategy: str) -> None:
        """A file that fails halfway is an error; nothing of it is stored or delivered, and others are not affected."""
        with pytest.raises(ClaimCheckError):
            harness.send(payloads.Breaking(6 * self.limit_bytes, OSError("the disk is on fire")), strategy=strategy)
        assert harness.stored == 0
        harness.send(content(3 * self.limit_bytes), strategy=strategy)
        assert harness.take() == [content(3 * self.limit_bytes)]
        harness.assert_finished()


@contextmanager
def _slow_at_first(store: Any) -> Iterator[None]:
    """Let the first payloads take longest to store."""
    write, pauses, lock = store.write, itertools.chain([0.3, 0.2, 0.1], itertools.repeat(0.0)), threading.Lock()

    def slow(*args: Any, **options: Any) -> Any:
        with lock:
            pause = next(pauses)
        time.sleep(pause)
        return write(*args, **options)

    store.write = slow
    try:
        yield
    finally:
        store.write = write


def _outcomes(harness: Harness) -> list[str]:
    return [event.outcome for event in harness.events if isinstance(event, SendEvent)]
