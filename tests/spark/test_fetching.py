"""Fetching without Spark: lazy, in order, bounded in bytes, canceled by closing; and values without copies."""

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

from claimcheck._config_file import from_dict
from claimcheck.errors import ConfigError, PayloadNotFoundError
from claimcheck.spark._columns import binary_array
from claimcheck.spark._reading import Reading, outcome_of, views
from claimcheck.spark._worker import AdaptiveConcurrency, Job, OrderedExecutor, same


class Getter:
    """Messages are sizes as text, with the prefix ``p`` for stored payloads; counts the bytes held."""

    def __init__(self, *, seconds: float = 0.0, declared: bool = True, bad: frozenset[bytes] = frozenset()) -> None:
        self.seconds, self.declared, self.bad = seconds, declared, bad
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
        with self.lock:
            self.running += 1
            self.most_running = max(self.most_running, self.running)
            self.held += int(message[1:])
            self.peak = max(self.peak, self.held)
            self.fetched.append(message)
        self.gate.wait(10)
        time.sleep(self.seconds)
        with self.lock:
            self.running -= 1
        if message in self.bad:
            raise PayloadNotFoundError("gone")
        return bytes(int(message[1:]))

    def release(self, payload: object) -> None:
        assert isinstance(payload, bytes)
        with self.lock:
            self.held -= len(payload)


def outcomes(messages, getter: Any, concurrency: Any = 8, max_inflight_bytes: int = 64 << 20) -> Iterator[Any]:
    """Yield only the outcomes."""
    executor: OrderedExecutor[Any, Any] = OrderedExecutor(AdaptiveConcurrency(concurrency), max_inflight_bytes)
    with closing(executor.run(map(getter.job, messages))) as results:
        for _, outcome in results:
            yield outcome
            del outcome


def ordered(getter: Getter, messages, **options) -> list[object]:
    return list(outcomes(messages, getter, **options))


@pytest.mark.parametrize("concurrency", [1, 2, 8])
def test_payloads_come_in_order_whatever_each_takes(concurrency):
    class Uneven(Getter):
        def read(self, message):
            time.sleep(0.002 * (int(message[1:]) % 5))
            return super().read(message)

    sizes = [7, 3, 9, 1, 4, 2, 8, 6, 5, 0] * 5

    got = ordered(Uneven(), [b"p%d" % n for n in sizes], concurrency=concurrency)

    assert [len(payload) for payload in got] == sizes


def test_plain_messages_and_nulls_keep_their_places_among_pointers():
    got = ordered(Getter(), [b"a", b"p3", None, b"", b"p1", b"b"])

    assert got == [b"a", bytes(3), None, b"", bytes(1), b"b"]


def test_nothing_at_all():
    assert ordered(Getter(), []) == []


def test_nothing_happens_before_the_first_is_asked_for():
    def explode() -> Iterator[bytes]:
        raise AssertionError("read too early")
        yield b""

    outcomes(explode(), Getter(), concurrency=8)


@pytest.mark.parametrize("concurrency", [1, "auto"])
def test_one_at_a_time_reads_not_one_message_ahead(concurrency):
    taken = []

    def source() -> Iterator[bytes]:
        for n in range(100):
            taken.append(b"p%d" % n)
            yield taken[-1]

    getter = Getter()
    results = outcomes(source(), getter, concurrency=concurrency)
    next(results)
    next(results)

    assert taken == getter.fetched == [b"p0", b"p1"]
    results.close()


def test_messages_are_read_ahead_by_number_too_when_payloads_are_tiny():
    taken = 0

    def source() -> Iterator[bytes]:
        nonlocal taken
        for _ in range(10_000):
            taken += 1
            yield b"p1"

    results = outcomes(source(), Getter(), concurrency=4)
    next(results)

    assert taken <= 4 * 4 + 1
    results.close()


@pytest.mark.parametrize("limit", [100, 250, 1000])
def test_bytes_held_never_exceed_the_bound(limit):
    getter = Getter(seconds=0.001)
    sizes = [10, 90, 40, 60, 100, 1, 1, 1, 99, 50] * 10

    for payload in outcomes((b"p%d" % n for n in sizes), getter, concurrency=8, max_inflight_bytes=limit):
        getter.release(payload)

    assert len(getter.fetched) == 100
    assert getter.peak <= limit


def test_a_payload_over_the_bound_goes_alone():
    getter = Getter()
    sizes = [10, 5000, 10, 5000, 5000, 10]

    for payload in outcomes((b"p%d" % n for n in sizes), getter, concurrency=8, max_inflight_bytes=100):
        getter.release(payload)

    assert getter.peak <= 5000


def test_plain_messages_count_too():
    taken = 0

    def source() -> Iterator[bytes]:
        nonlocal taken
        for _ in range(20):
            taken += 1
            yield b"x" * 60

    results = outcomes(source(), Getter(), concurrency=8, max_inflight_bytes=200)
    next(results)

    assert taken <= 4
    results.close()


def test_pointers_without_a_size_are_learnt_from():
    """The first is fetched alone; after that each counts as the largest seen."""
    getter = Getter(declared=False, seconds=0.001)

    for payload in outcomes([b"p100"] * 30, getter, concurrency=8, max_inflight_bytes=350):
        getter.release(payload)

    assert 2 <= getter.most_running <= 3
    assert getter.peak <= 350


def test_threads_fetch_at_once():
    getter = Getter(seconds=0.01)

    ordered(getter, [b"p1"] * 40, concurrency=8)

    assert 2 <= getter.most_running <= 8


@pytest.mark.parametrize("concurrency", [1, 8])
def test_an_error_is_the_outcome_of_its_own_message_only(concurrency):
    getter = Getter(bad=frozenset({b"p2"}))

    got = ordered(getter, [b"p1", b"p2", b"p3"], concurrency=concurrency)

    assert got[0] == bytes(1)
    assert isinstance(got[1], PayloadNotFoundError)
    assert got[2] == bytes(3)


@pytest.mark.parametrize("concurrency", [1, 8])
def test_an_error_that_is_not_ours_ends_everything(concurrency):
    class Broken(Getter):
        def read(self, message):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        ordered(Broken(), [b"p1"] * 10, concurrency=concurrency)


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
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("claimcheck-fetch")]


def test_closing_closes_nothing_that_was_never_opened():
    outcomes([b"p1"], Getter(), concurrency=2).close()


# Adaptive concurrency -------------------------------------------------------------------------------------------


class Time:
    """A clock that the test advances: elapsed time and CPU time."""

    def __init__(self) -> None:
        self.wall = self.cpu = 0.0

    def fetch(self, wall: float, cpu: float):
        def act() -> bytes:
            self.wall += wall
            self.cpu += cpu
            return b""

        return act


def learnt(*, first: float = 0.5, wall: float, cpu: float) -> AdaptiveConcurrency:
    clock = Time()
    pace = AdaptiveConcurrency("auto", wall=lambda: clock.wall, cpu=lambda: clock.cpu)
    pace.measure(clock.fetch(first, 0.001))
    for _ in range(4):
        assert pace.threads == 1
        pace.measure(clock.fetch(wall, cpu))
    return pace


@pytest.mark.parametrize(
    ("wall", "cpu", "threads"),
    [
        (0.0005, 0.0005, 1),  # a local store: nothing to hide
        (0.0024, 0.0005, 1),  # short waits: threads would cost more
        (0.0030, 0.0009, 4),
        (0.0060, 0.0050, 1),
        (0.0200, 0.0010, 16),  # a network: mostly waiting
        (0.0500, 0.0000, 16),
        (0.0500, 0.0400, 2),
    ],
)
def test_auto_takes_threads_where_fetching_is_waiting(wall, cpu, threads):
    assert learnt(wall=wall, cpu=cpu).threads == threads


def test_auto_does_not_count_the_first_fetch_which_connects():
    assert learnt(first=60.0, wall=0.0005, cpu=0.0005).threads == 1


def test_auto_looks_again_after_a_minute():
    clock = Time()
    pace = AdaptiveConcurrency("auto", wall=lambda: clock.wall, cpu=lambda: clock.cpu)
    for _ in range(5):
        pace.measure(clock.fetch(0.02, 0.001))
    assert pace.threads == 16

    clock.wall += 61.0
    assert pace.threads == 1
    for _ in range(4):
        pace.measure(clock.fetch(0.001, 0.001))
    assert pace.threads == 1


def test_auto_finds_a_slow_store_by_itself():
    getter = Getter(seconds=0.01)

    ordered(getter, [b"p1"] * 60, concurrency="auto")

    assert getter.most_running > 4


def test_auto_is_not_misled_by_plain_messages():
    getter = Getter(seconds=0.01)

    ordered(getter, [b"other"] * 100 + [b"p1"] * 60, concurrency="auto")

    assert getter.most_running > 4


def test_a_number_is_taken_as_it_is():
    assert AdaptiveConcurrency(3).threads == 3


# Options --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [0, -1, 1.5, "64MB", None, True])
def test_bytes_that_cannot_be_meant(number):
    with pytest.raises(ConfigError, match="max_inflight_bytes"):
        Reading(config=from_dict({}), max_inflight_bytes=number)


# Values of columns -------------------------------------------------------------------------------------------------


columns = st.tuples(
    st.lists(st.none() | st.binary(max_size=20)), st.sampled_from([pa.binary(), pa.large_binary()]), st.integers(0, 5)
)


@given(columns)
def test_values_are_those_of_the_column_wherever_it_begins(drawn):
    values, kind, start = drawn
    column = pa.array(values, kind)[start:]

    assert [None if view is None else bytes(view) for view in views(column)] == values[start:]


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary()])
def test_values_are_not_copied(kind):
    column = pa.array([b"a" * 1000, None, b"b" * 1000], kind)

    first, _, last = views(column)

    assert pa.py_buffer(first).address == column.buffers()[2].address
    assert pa.py_buffer(last).address == column.buffers()[2].address + 1000


def test_a_value_outlives_its_batch():
    view = next(views(pa.array([bytes(range(256)) * 10_000])))

    assert view.format == "B"
    assert bytes(view) == bytes(range(256)) * 10_000


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary()])
@pytest.mark.parametrize(
    "values",
    [[[b"one"]], [None], [[]], [[b"a", b"b"]], [None, [b""], [b"t", b"wo"], [memoryview(b"three")], None], [None] * 9],
)
def test_a_column_is_built_as_arrow_builds_it(values, kind):
    column = binary_array(list(values), kind)
    column.validate(full=True)
    assert column.equals(pa.array([None if each is None else b"".join(each) for each in values], type=kind))
