"""Payloads in stores: read when they are asked for or ahead of that, and again after an outage."""

import asyncio
from concurrent.futures import Executor, Future
from unittest.mock import Mock

import pytest

import claimcheck
from claimcheck.errors import IntegrityError, StoreUnavailableError
from claimcheck.transports._common.dispatch import dispatch
from claimcheck.transports._common.received import Prefetch, StoredPayload


def reading(error=None):
    return Mock(return_value=b"payload", side_effect=error)


def outage():
    return StoreUnavailableError("down", store="s")


class Idle(Executor):
    """Starts nothing until `run`."""

    def __init__(self):
        self.work = []

    def submit(self, function, /, *args, **kwargs):
        self.work.append((future := Future(), function))
        return future

    def run(self):
        for future, function in self.work:
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(function())
                except Exception as error:
                    future.set_exception(error)


class TestRetryableErrors:
    @pytest.mark.parametrize(("error", "reads"), [(outage(), 2), (IntegrityError("damaged"), 1)])
    def test_of_what_look_ahead_met_only_an_outage_may_be_over(self, error, reads):
        """One that is over: see tests/simulation."""
        payload = StoredPayload(source := reading(error))
        payload.prefetch(pool := Idle())
        pool.run()
        with pytest.raises(type(error)):
            payload.get()
        assert source.call_count == reads

    def test_look_ahead_that_never_began_is_no_loss(self):
        payload = StoredPayload(source := reading())
        payload.prefetch(pool := Idle())
        assert payload.get() == b"payload"
        pool.run()
        assert source.call_count == 1

    def test_what_was_read_for_an_event_loop_is_raised_there_and_read_again_in_a_thread(self):
        payload = StoredPayload(source := reading(outage()))

        async def main():
            await asyncio.to_thread(payload.read)
            assert payload.is_read
            for _ in range(2):
                with pytest.raises(StoreUnavailableError):
                    payload.get()
            assert source.call_count == 1
            source.side_effect = None
            assert await asyncio.to_thread(payload.get) == payload.get() == b"payload"
            blocking = StoredPayload(again := reading(outage()))  # as in a notebook, which runs everything on a loop
            with pytest.raises(StoreUnavailableError):
                blocking.get()
            again.side_effect = None
            assert blocking.get() == b"payload"

        asyncio.run(main())


def test_a_request_is_reported_once_whether_it_fails_or_not():
    """Whether the application requests payloads decides whether the next ones are read ahead."""
    payload, requests = StoredPayload(source := reading(outage())), []
    payload.watch(lambda: requests.append(True))
    assert requests == []
    with pytest.raises(StoreUnavailableError):
        payload.get()
    source.side_effect = None
    payload.get(), payload.get()
    assert (requests, "payload" in repr(payload)) == ([True], False)


def test_reading_ahead_of_a_pointer_to_an_unknown_store_is_the_error_of_that_message_alone():
    with claimcheck.from_dict({"strategy": "external", "stores": {"cold": {"type": "memory"}}}) as cc:
        pointer = claimcheck.Pointer(key="orders-1", store="hot", size=3, checksum="crc32:352441c2")
        payload = dispatch(cc, cc.seal(pointer), list, destination="orders")
        payload.prefetch(pool := Idle())
        pool.run()
        with pytest.raises(claimcheck.PointerRejectedError, match="names the store 'hot'"):
            payload.get()


# Reading ahead -------------------------------------------------------------------------------------------------------


class Message:
    """A message with a stored payload, which the application may request; it is its own payload."""

    def __init__(self, size=10):
        self.held_bytes = self.size = size
        self.stored, self.started = self, False
        self.watch(lambda: None)

    def prefetch(self, threads):
        self.started = True

    def watch(self, on_get):
        self.on_get = on_get


class Plain:
    held_bytes, stored = 0, None


class Consumer:
    """Receives like the transports: one message, and then as many ahead as there is room for."""

    def __init__(self):
        self.prefetch, self.waiting = Prefetch(None, threads=1), []

    def receive(self, make=Message):
        self.prefetch.begin_receive()
        if not self.waiting:
            self._take(make())
        message = self.waiting.pop(0)
        self.prefetch.deliver(message)
        while self.prefetch.room:
            self._take(make())
        return message

    def _take(self, message):
        self.waiting.append(message)
        self.prefetch.add(message)

    def ahead_after(self, count, *, requests=True, make=Message):
        """Receive so many, with or without a request for each payload; return how many were ahead each time."""
        ahead = []
        for _ in range(count):
            message = self.receive(make)
            ahead.append(len(self.waiting))
            if requests:
                message.on_get()
        return ahead


class TestPrefetchByDefault:
    @pytest.fixture
    def consumer(self):
        return Consumer()

    def test_it_begins_with_the_first_payload_that_is_requested_and_stops_while_none_is(self, consumer):
        assert consumer.ahead_after(4) == [0, 64, 64, 64]
        assert all(message.started for message in consumer.waiting)
        consumer.ahead_after(100, requests=False)
        assert consumer.waiting == []
        assert consumer.ahead_after(3) == [0, 64, 64]

    def test_it_is_bounded_in_bytes(self, monkeypatch):
        monkeypatch.setattr("claimcheck.transports._common.received.DEFAULT_BYTES", 100)
        consumer = Consumer()
        consumer.ahead_after(20, make=lambda: Message(30))
        consumer.receive(lambda: Message(30))
        assert [each.started for each in consumer.waiting] == [True, True, True, False]
        consumer.prefetch.forget()
        assert consumer.prefetch._held == 0

    def test_after_a_plain_message_nothing_is_received_ahead(self, consumer):
        """Otherwise a topic that had a pointer once would take the slow path for ever."""
        consumer.ahead_after(3)
        consumer.waiting.clear()
        consumer.prefetch.forget()
        consumer.ahead_after(3, requests=False, make=Plain)
        assert consumer.waiting == []
