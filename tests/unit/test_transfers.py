"""How many connections are used, on lines that are computed; and payloads that come in parts.

tests/unit/test_s3_reading.py has parts over HTTP.
"""

import os
import threading
from contextlib import closing

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from claimcheck._reader import fill, lend_to
from claimcheck._threads import Interrupted, interruptible
from claimcheck.errors import StoreUnavailableError
from claimcheck.stores._parts import MAX_CONNECTIONS, PartsReader, SameVersion, in_parts
from claimcheck.stores._transfers import Memory, TransferPolicy, Transfers

MIB = 1 << 20
PAYLOAD = bytes(range(256)) * 100


class Line:
    """A network with a rate for each connection and one for all, on a clock of its own."""

    def __init__(self, each, total):
        self.each, self.total = each, total
        self.now = 0.0
        self.transfers = Transfers(Memory(64 * MIB), clock=lambda: self.now)

    def rate(self, connections):
        return min(self.each, self.total / connections)

    def use(self, seconds):
        """Spend time on a payload, without a measurement."""
        with self.transfers.payload():
            self.now += seconds

    def transfer(self, mebibytes, payloads=1):
        """Move a payload, beside others that have one connection each."""
        for _ in range(payloads):
            self.transfers.begin()
        left = mebibytes * MIB
        while left > 0:
            connections = self.transfers.level + payloads - 1
            seconds = MIB / self.rate(connections)
            self.now += seconds
            for _ in range(self.transfers.level):
                self.transfers.record(MIB, seconds, connections)
                left -= MIB
        for _ in range(payloads):
            self.transfers.end()


def best(each, total, gain):
    """The number of connections that a search should find."""
    found = 1
    for level in (4, MAX_CONNECTIONS):
        if min(level * each, total) < gain * min(found * each, total):
            break
        found = level
    return found


@given(each=st.integers(5, 590), share=st.floats(1, 40))
@settings(max_examples=60, deadline=None)
def test_finds_the_number_that_the_line_rewards(each, share):
    line = Line(each * 1e6, each * 1e6 * share)
    line.transfer(2000)

    assert line.transfers.level in {best(each * 1e6, each * 1e6 * share, gain) for gain in (1.249, 1.251)}
    assert line.transfers.settled


def test_one_payload_of_some_size_is_enough_to_find_it():
    line = Line(90e6, 700e6)
    line.transfer(128)

    assert line.transfers.level == 16
    assert line.transfers.settled


def measured(transfers, connections, *rates):
    for rate in rates:
        for _ in range(connections):
            transfers.record(MIB, MIB / rate, connections)


def test_new_connections_that_begin_slowly_are_not_judged_by_that():
    transfers = Transfers(Memory(64 * MIB), clock=lambda: 0.0)
    transfers.begin()
    measured(transfers, 1, 1e6, *[90e6] * 6)
    assert transfers.level == 4

    measured(transfers, 4, 1e6, *[90e6] * 3)  # first the network finds out how much it can take
    assert transfers.level == 16


def test_a_moment_in_which_the_machine_is_busy_does_not_end_the_search():
    transfers = Transfers(Memory(64 * MIB), clock=lambda: 0.0)
    transfers.begin()
    measured(transfers, 1, *[90e6] * 3, 400e6, *[90e6] * 4)
    measured(transfers, 4, 90e6, 5e6, 20e6, 90e6, 90e6, 90e6)

    assert transfers.level == 16


def test_payloads_that_fill_half_of_the_connections_end_the_search():
    transfers = Transfers(Memory(64 * MIB), clock=lambda: 0.0)
    transfers.begin()
    measured(transfers, 1, *[90e6] * 3, 400e6, *[90e6] * 4)
    measured(transfers, 4, *[90e6] * 4)
    for _ in range(300):
        transfers.record(MIB, MIB / 30e6, 8)

    assert transfers.level == 4
    assert transfers.settled


def test_a_fast_connection_stays_alone():
    line = Line(2e9, 9e9)
    line.transfer(100)

    assert line.transfers.single


def test_a_few_fast_bytes_prove_nothing():
    line = Line(90e6, 90e6)
    line.transfers.begin()
    line.transfers.record(MIB, MIB / 90e6, 1)

    assert line.transfers.level == 1
    assert not line.transfers.settled


def test_several_payloads_teach_nothing():
    line = Line(90e6, 700e6)
    line.transfer(100, payloads=3)

    assert line.transfers.level == 1


def test_a_line_that_changes_is_noticed_later():
    line = Line(90e6, 90e6)
    line.transfer(100)
    assert line.transfers.single

    line.total = 700e6
    line.transfer(100)
    assert line.transfers.single, "not before the time has come"
    line.use(11)
    line.transfer(100)
    assert line.transfers.level == 16

    line.total = 90e6
    line.use(11)
    line.transfer(100)
    assert line.transfers.single


def test_a_store_that_is_used_now_and_then_keeps_what_it_has_learned():
    line = Line(90e6, 700e6)
    line.transfer(128)
    for _ in range(10):
        line.now += 3600
        line.transfer(16)
        assert (line.transfers.level, line.transfers.settled) == (16, True)


def test_what_stays_the_same_is_measured_less_and_less_often():
    line = Line(90e6, 700e6)
    line.transfer(128)
    for pause in (11, 21, 41):
        assert line.transfers.settled
        line.use(pause - 2)
        assert line.transfers.settled
        line.use(2)
        assert not line.transfers.settled
        line.transfer(128)


class Uploads:
    """Uploads whose duration is computed, on a clock of its own."""

    def __init__(self, *, single, parts, at_most=None):
        self.policy = TransferPolicy(64 * MIB)
        self.policy._single = at_most
        self.now, self.single, self.parts = 0.0, single, parts
        self.policy.puts.clock = lambda: self.now

    def send(self, mebibytes):
        """Send a payload; returns whether it was sent in one request."""
        with self.policy.upload(mebibytes * MIB) as single:
            self.now += mebibytes * MIB / (self.single if single else self.parts)
        return single


def test_uploads_begin_in_parts_and_stay_so_if_one_request_is_slower():
    uploads = Uploads(single=90e6, parts=300e6)

    assert [uploads.send(16) for _ in range(6)] == [False, False, True, True, False, False]
    assert uploads.policy.puts.settled


def test_uploads_whose_requests_cost_what_parts_gain_are_sent_in_one():
    uploads = Uploads(single=500e6, parts=550e6)

    assert [uploads.send(16) for _ in range(6)] == [False, False, True, True, True, True]
    assert uploads.policy.puts.single
    assert uploads.policy.single_put_bytes == 64 * MIB


def test_a_slow_small_upload_saves_the_large_one_in_one_request():
    uploads = Uploads(single=67e6, parts=300e6)

    assert uploads.send(4)
    assert not any(uploads.send(16) for _ in range(6))
    assert uploads.policy.puts.settled


def test_an_upload_in_one_request_that_was_enough_is_measured_again():
    uploads = Uploads(single=500e6, parts=550e6)
    for _ in range(4):
        uploads.send(16)
    uploads.single, uploads.parts = 67e6, 300e6
    with uploads.policy.puts.payload():
        uploads.now += 11

    assert uploads.send(4), "which is slow, and shows it"
    assert not any(uploads.send(16) for _ in range(6))
    assert uploads.policy.puts.settled


@pytest.mark.parametrize(("size", "options"), [(256, {}), (32, {"at_most": 0})])
def test_uploads_that_cannot_be_sent_in_one_request_do_not_wait_for_its_measurement(size, options):
    uploads = Uploads(single=90e6, parts=300e6, **options)
    for _ in range(3):
        uploads.send(size)

    assert uploads.policy.puts.level == MAX_CONNECTIONS
    assert uploads.policy.puts.settled


def test_connections_are_shared_but_each_payload_has_one():
    transfers = Transfers(Memory(64 * MIB), fixed=3)

    assert [transfers.connect() for _ in range(4)] == [True, True, True, False]
    assert transfers.connect(always=True)
    transfers.disconnect()
    transfers.disconnect()
    assert transfers.connect()


@pytest.mark.parametrize(("memory", "single", "part"), [(64 * MIB, 16 * MIB - 1, 5 * MIB), (0, 64 * MIB, 8 * MIB)])
def test_without_memory_one_connection_sends_larger_payloads_at_once(memory, single, part):
    policy = TransferPolicy(memory)

    assert (policy.single_put_bytes, policy.put_part_bytes(40 * MIB)) == (single, part)


def test_without_memory_a_payload_has_one_connection():
    policy = TransferPolicy(0)

    assert policy.gets.single
    assert [policy.begin_part(8 * MIB, others=n) for n in (0, 1)] == [True, False]
    assert policy.begin_part(8 * MIB, others=0), "each payload has one"


def test_parts_beyond_the_memory_wait():
    policy = TransferPolicy(28 * MIB)

    assert [policy.begin_part(8 * MIB, others=n) for n in range(4)] == [True, True, False, False]
    policy.end_part(8 * MIB)
    assert policy.begin_part(8 * MIB, others=1)
    assert policy.begin_part(0, others=2), "the caller's memory is not counted"


class Part:
    """A reader of a part of the payload that returns a little at a time."""

    def __init__(self, start, stop):
        self.data = memoryview(PAYLOAD[start:stop])
        self.closed = False

    def readinto(self, buffer):
        count = min(len(buffer), len(self.data), 700)
        buffer[:count] = self.data[:count]
        self.data = self.data[count:]
        return count

    def close(self):
        self.closed = True


class Opener:
    """Opens parts and remembers them."""

    def __init__(self):
        self.parts = []

    def __call__(self, start, stop):
        part = Part(start, len(PAYLOAD) if stop is None else stop)
        self.parts.append((start, stop, part))
        return part


@pytest.fixture
def opener():
    return Opener()


def reader_of(opened, start, stop, *, connections, memory=10_000, part_bytes=1000):
    transfers = Transfers(Memory(memory), fixed=connections)
    reader = PartsReader(opened, start, stop, transfers=transfers, part_bytes=part_bytes)
    reader._read = 1 << 30  # as if so much had been read in sequence
    return reader


def assert_idle(transfers):
    assert transfers.active == 0
    assert transfers.memory.reserve(transfers.memory.limit), "all memory was given back"


@pytest.mark.parametrize("lent", [True, False])
@pytest.mark.parametrize("connections", [1, 2, 3, 50])
@pytest.mark.parametrize(("start", "stop"), [(0, len(PAYLOAD)), (1, 2), (999, 10_001), (0, 1000)])
def test_parts_make_the_whole_in_order(opener, start, stop, connections, lent):
    reader = reader_of(opener, start, stop, connections=connections)
    room = memoryview(bytearray(stop - start))
    if lent:
        lend_to(reader, room)
    done = 0
    while count := reader.readinto(room[done : done + 900] if done < len(room) else memoryview(bytearray(1))):
        done += count
    reader.close()

    assert room == PAYLOAD[start:stop]
    assert all(part.closed for _, _, part in opener.parts)
    assert_idle(reader._transfers)


@pytest.mark.parametrize("lent", [700, 5000, 5500])
def test_only_a_part_of_the_payload_is_read_into_lent_memory(opener, lent):
    reader = reader_of(opener, 0, len(PAYLOAD), connections=3)
    room, rest = memoryview(bytearray(lent)), memoryview(bytearray(len(PAYLOAD) - lent))
    assert fill_lent(reader, room) + fill(reader, rest) == len(PAYLOAD)
    reader.close()

    assert bytes(room) + bytes(rest) == PAYLOAD


def fill_lent(reader, room):
    lend_to(reader, room)
    return fill(reader, room)


def test_reading_one_piece_fetches_nothing_ahead(opener):
    with closing(
        PartsReader(opener, 0, 25_000, transfers=Transfers(Memory(10_000), fixed=8), part_bytes=1000)
    ) as reader:
        reader.readinto(memoryview(bytearray(10)))

        assert [start for start, _, _ in opener.parts] in ([0], [0, 1000], [1000, 0])


def test_without_memory_everything_is_read_in_this_thread():
    threads = set()

    def opened(start, stop):
        threads.add(threading.current_thread())
        return Part(start, stop)

    with closing(reader_of(opened, 0, len(PAYLOAD), connections=4, memory=0)) as reader:
        room = memoryview(bytearray(len(PAYLOAD)))
        while len(room):
            room = room[reader.readinto(room[:500]) :]

    assert threads == {threading.current_thread()}


def test_parts_ahead_are_bounded_by_the_memory():
    opened, gate = [], threading.Semaphore(0)

    def build(start, stop):
        opened.append(start)
        gate.release()
        return Part(start, stop)

    reader = reader_of(build, 0, len(PAYLOAD), connections=50, memory=3000)
    room = memoryview(bytearray(1000))
    for done in range(1, 6):
        assert fill(reader, room) == 1000
        assert len(opened) <= done + 4  # what was read, three in memory, and one that is read directly
    reader.close()


def test_a_short_part_is_the_end():
    reader = reader_of(lambda start, stop: Part(start, stop - 5), 0, 3000, connections=2)

    assert fill(reader, memoryview(bytearray(3000))) == 995
    reader.close()


def test_an_error_comes_where_it_belongs():
    def build(start, stop):
        if start == 1000:
            raise ConnectionError("the second part")
        return Part(start, stop)

    reader = reader_of(build, 0, 3000, connections=3)
    assert fill(reader, memoryview(bytearray(1000))) == 1000

    with pytest.raises(ConnectionError, match="second"):
        fill(reader, memoryview(bytearray(10)))
    reader.close()
    reader.close()
    assert_idle(reader._transfers)


def test_a_cancelled_caller_does_not_wait_for_a_part():
    stop, release = threading.Event(), threading.Event()

    class Stuck(Part):
        def readinto(self, buffer):
            if threading.current_thread() is not threading.main_thread():
                stop.set()
                release.wait(30)
            return super().readinto(buffer)

    def all_of_it():
        while reader.readinto(memoryview(bytearray(1000))):
            pass

    with closing(reader_of(Stuck, 0, 9000, connections=3)) as reader:
        with pytest.raises(Interrupted):
            interruptible(stop, all_of_it)
        release.set()


def test_closing_stops_what_is_under_way():
    release, begun = threading.Event(), threading.Semaphore(0)

    class Slow(Part):
        def readinto(self, buffer):
            if threading.current_thread() is threading.main_thread():
                return super().readinto(buffer)
            begun.release()
            release.wait(10)
            return super().readinto(buffer)

    reader = reader_of(Slow, 0, 9000, connections=3)
    reader.readinto(memoryview(bytearray(10)))
    assert begun.acquire(timeout=10)
    assert begun.acquire(timeout=10)
    closing_thread = threading.Thread(target=reader.close)
    closing_thread.start()
    while not reader._closed:
        pass
    release.set()
    closing_thread.join(10)

    assert not begun.acquire(blocking=False), "a part went on after the close"
    assert_idle(reader._transfers)


@pytest.mark.parametrize(
    ("stop", "connections", "requests"), [(5000, 3, 5), (1000, 3, 1), (5000, 1, 1), (None, 3, 1), (25_600, 2, 26)]
)
def test_parts_only_where_there_are_several(opener, stop, connections, requests):
    transfers = Transfers(Memory(5000), fixed=connections)
    with closing(in_parts(opener, 0, stop, transfers=transfers, part_bytes=1000)) as reader:
        fill(reader, memoryview(bytearray(stop or len(PAYLOAD))))

    assert len(opener.parts) == requests


def test_a_forked_process_begins_with_no_connection_in_use(monkeypatch):
    transfers = Transfers(Memory(0), fixed=2)
    transfers.begin()
    transfers.connect()
    monkeypatch.setattr(os, "getpid", lambda: -1)
    transfers.begin()

    assert transfers.active == 0


def test_parts_of_two_versions_are_never_joined():
    version = SameVersion("cold", "key")
    version.check(None)
    version.check('"a"')
    version.check('"a"')
    version.check(None)

    with pytest.raises(StoreUnavailableError, match="replaced"):
        version.check('"b"')
