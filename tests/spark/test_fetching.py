"""Fetching without Spark: lazy, in order, bounded in bytes, canceled by closing; values without copies."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from claimcheck.errors import PayloadNotFoundError
from claimcheck.spark._columns import binary_array
from claimcheck.spark._reading import outcome_of, views
from claimcheck.spark._worker import AdaptiveConcurrency, Job, OrderedExecutor, same


class Getter:
    """Messages are sizes as text, with the prefix ``p`` for stored payloads; counts the bytes held."""

    def __init__(self, *, seconds: float = 0.0, declared: bool = True) -> None:
        self.seconds, self.declared = seconds, declared
        self.lock = threading.Lock()
        self.held = self.peak = self.running = self.most_running = 0
        self.fetched: list[bytes] = []
        self.gate = threading.Event()
        self.gate.set()

    def job(self, message: bytes | None) -> Job[None, Any]:
        if message is None or not message.startswith(b"p"):
            return Job(None, partial(same, message), len(message or b""))
        read = partial(outcome_of, partial(self.read, message))
        return Job(None, read, int(message[1:]) if self.declared else None, waits=True)

    def read(self, message: bytes) -> bytes:
        size = int(message[1:])
        with self.lock:
            self.running += 1
            self.most_running = max(self.most_running, self.running)
            self.held += size
            self.peak = max(self.peak, self.held)
            self.fetched.append(message)
        self.gate.wait(10)
        time.sleep(self.seconds * (size % 3))
        with self.lock:
            self.running -= 1
        if size % 10 == 7:
            raise PayloadNotFoundError("gone")
        return bytes(size)


def outcomes(messages, getter: Any, concurrency: Any = 8, max_inflight_bytes: int = 64 << 20) -> Iterator[Any]:
    """Yield only the outcomes."""
    executor: OrderedExecutor[Any, Any] = OrderedExecutor(AdaptiveConcurrency(concurrency), max_inflight_bytes)
    with closing(executor.run(map(getter.job, messages))) as results:
        for _, outcome in results:
            yield outcome
            del outcome


def counted(messages, taken: list[bytes]) -> Iterator[bytes]:
    for message in messages:
        taken.append(message)
        yield message


MESSAGES = st.lists(
    st.none() | st.integers(0, 200).map(lambda n: b"p%d" % n) | st.integers(0, 200).map(lambda n: b"x" * n), max_size=40
)


@given(MESSAGES, st.sampled_from([1, 2, 8, "auto"]), st.sampled_from([50, 100, 250, 1000]))
def test_outcomes_come_in_order_and_within_the_bound_whatever_each_takes(messages, concurrency, limit):
    """An error is the outcome of its own message only; a payload over the bound goes alone."""
    getter, found = Getter(seconds=0.0003), []
    for outcome in outcomes(messages, getter, concurrency, limit):
        found.append(outcome)
        if (message := messages[len(found) - 1]) is not None and message.startswith(b"p"):
            with getter.lock:
                getter.held -= int(message[1:])

    assert len(found) == len(messages)
    for message, outcome in zip(messages, found, strict=True):
        if message is None or not message.startswith(b"p"):
            assert outcome is message
        elif int(message[1:]) % 10 == 7:
            assert isinstance(outcome, PayloadNotFoundError)
        else:
            assert outcome == bytes(int(message[1:]))
    assert getter.peak <= max([limit, *(int(each[1:]) for each in getter.fetched)])


@pytest.mark.parametrize(
    ("message", "concurrency", "limit", "most"),
    [(b"p1", 1, 64 << 20, 1), (b"p1", "auto", 64 << 20, 1), (b"p1", 4, 64 << 20, 4 * 4 + 1), (b"x" * 60, 4, 200, 4)],
    ids=["one at a time", "auto", "by number", "by bytes"],
)
def test_messages_are_read_ahead_within_bounds(message, concurrency, limit, most):
    """By number where payloads are tiny; and plain messages count, too."""
    taken = []
    results = outcomes(counted([message] * 10_000, taken), Getter(), concurrency, limit)
    assert taken == []
    next(results)

    assert len(taken) <= most
    results.close()


def test_pointers_without_a_size_are_learnt_from():
    """The first is fetched alone; after that each counts as the largest seen."""
    getter = Getter(declared=False, seconds=0.001)

    for _ in outcomes([b"p100"] * 30, getter, concurrency=8, max_inflight_bytes=350):
        with getter.lock:
            getter.held -= 100

    assert 2 <= getter.most_running <= 3
    assert getter.peak <= 350


@pytest.mark.parametrize("concurrency", [1, 8])
def test_an_error_that_is_not_ours_ends_everything(concurrency):
    class Broken(Getter):
        def read(self, message):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        list(outcomes([b"p1"] * 10, Broken(), concurrency=concurrency))


def test_closing_cancels_what_has_not_begun_and_waits_for_what_has():
    getter = Getter()
    getter.gate.clear()
    results = outcomes([b"p1", *[b"p2"] * 100], getter, concurrency=2)
    threading.Timer(0.1, getter.gate.set).start()
    next(results)
    getter.gate.clear()
    begun = len(getter.fetched)

    threading.Timer(0.1, getter.gate.set).start()
    results.close()

    assert getter.running == 0
    assert len(getter.fetched) <= begun + 2 < 20
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("claimcheck-store")]


# Adaptive concurrency -------------------------------------------------------------------------------------------


class Time:
    """A clock that the test advances: elapsed time and CPU time."""

    def __init__(self) -> None:
        self.wall = self.cpu = 0.0
        self.pace = AdaptiveConcurrency("auto", wall=lambda: self.wall, cpu=lambda: self.cpu)

    def fetch(self, wall: float, cpu: float) -> None:
        def act() -> bytes:
            self.wall += wall
            self.cpu += cpu
            return b""

        self.pace.measure(act)


@pytest.mark.parametrize(
    ("first", "wall", "cpu", "threads"),
    [
        (60.0, 0.0005, 0.0005, 1),  # a local store; the first fetch, which connects, does not count
        (0.5, 0.0024, 0.0005, 1),  # short waits: threads would cost more
        (0.5, 0.0030, 0.0009, 4),
        (0.5, 0.0200, 0.0010, 16),  # a network: mostly waiting
        (0.5, 0.0500, 0.0000, 16),
        (0.5, 0.0500, 0.0400, 2),
    ],
)
def test_auto_takes_threads_where_fetching_is_waiting_and_looks_again_after_a_minute(first, wall, cpu, threads):
    clock = Time()
    clock.fetch(first, 0.001)
    for _ in range(4):
        assert clock.pace.threads == 1
        clock.fetch(wall, cpu)
    assert clock.pace.threads == threads
    clock.wall += 61.0
    assert clock.pace.threads == 1


# Values of columns -------------------------------------------------------------------------------------------------


KINDS = st.sampled_from([pa.binary(), pa.large_binary()])


@given(st.lists(st.none() | st.binary(max_size=20)), KINDS, st.integers(0, 5))
def test_values_are_those_of_the_column_wherever_it_begins(values, kind, start):
    column = pa.array(values, kind)[start:]

    assert [None if view is None else bytes(view) for view in views(column)] == values[start:]


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary()])
def test_values_are_not_copied_and_outlive_their_batch(kind):
    column = pa.array([b"a" * 1000, None, b"b" * 1000], kind)
    first, _, last = views(column)
    assert pa.py_buffer(first).address == column.buffers()[2].address
    assert pa.py_buffer(last).address == column.buffers()[2].address + 1000
    del column
    assert (first.format, bytes(last)) == ("B", b"b" * 1000)


@given(st.lists(st.none() | st.lists(st.binary(max_size=9), max_size=3)), KINDS)
def test_a_column_is_built_as_arrow_builds_it(values, kind):
    column = binary_array(list(values), kind)
    column.validate(full=True)
    assert column.equals(pa.array([None if each is None else b"".join(each) for each in values], type=kind))
