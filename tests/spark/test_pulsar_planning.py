"""How triggers of the Pulsar source end and how its ranges are divided, without a broker."""

import threading
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from claimcheck.spark.sources._pulsar_client import IN_PARALLEL, in_parallel
from claimcheck.spark.sources._pulsar_reader import end_within, share, split
from claimcheck.spark.sources._source import OffsetRange
from claimcheck.transports.pulsar._queries import NOTHING

LEDGERS = st.dictionaries(st.integers(1, 30), st.integers(1, 20), min_size=1, max_size=6)


def unknown(partition):
    return {}


def bounds(ranges):
    return [(each.partition, each.start, each.end) for each in ranges]


@given(ledgers=LEDGERS, least=st.integers(1, 12), known=st.booleans(), data=st.data())
def test_the_parts_of_a_range_hold_each_entry_once(ledgers, least, known, data):
    entries = [(ledger, entry) for ledger in sorted(ledgers) for entry in range(ledgers[ledger])]
    start = data.draw(st.sampled_from([NOTHING, *entries[:-1]]))
    end = data.draw(st.sampled_from([each for each in entries if each > start]))

    parts = split([OffsetRange("p", start, end)], least, lambda name: ledgers if known else {})

    assert [parts[0].start, *(part.end for part in parts)] == [*(part.start for part in parts), end]
    inside = [[each for each in entries if part.start < each <= part.end] for part in parts]
    assert all(inside)
    assert all(part.start in entries for part in parts[1:])  # they exist, which proves that nothing was deleted
    if start[0] == end[0] and len(inside) > 1:
        assert len(parts) == min(least, sum(map(len, inside)))
        assert max(map(len, inside)) - min(map(len, inside)) <= 2


def test_only_large_partitions_are_divided():
    ranges = [OffsetRange("hot", (1, 9), (1, 909)), OffsetRange("cold", (2, 0), (2, 100))]

    parts = bounds(split(ranges, 4, unknown))

    assert [each for each in parts if each[0] == "cold"] == [("cold", (2, 0), (2, 100))]
    assert len(parts) == 5
    assert bounds(split(ranges, 2, unknown)) == bounds(ranges)
    assert split([], 4, unknown) == []


def test_ledgers_of_unknown_size_stay_whole():
    parts = split([OffsetRange("p", (1, 5), (7, 99))], 4, unknown)

    assert [part.start for part in parts] == [(1, 5), (7, 24), (7, 49), (7, 74)]


@pytest.mark.parametrize("rows", [1, 999, 1000])
def test_a_batch_with_more_rows_than_the_limit_is_the_end(rows):
    entries = [((1, number), 1000) for number in range(3)]

    end = end_within(entries, OffsetRange("p", NOTHING, (1, 2)), rows, unknown, sample=50, is_first=True)

    assert end == ((1, 0), 1000)


def test_a_share_takes_whole_entries_and_at_first_at_least_one():
    entries = [((1, number), 10) for number in range(5)]

    def within(limit, *, is_first):
        return end_within(entries, OffsetRange("p", (0, 0), (1, 4)), limit, unknown, sample=1000, is_first=is_first)

    assert within(25, is_first=True) == within(25, is_first=False) == ((1, 1), 20)
    assert within(1, is_first=True) == ((1, 0), 10)
    assert within(1, is_first=False) == ((0, 0), 0)


@pytest.mark.parametrize(("size", "read"), [(5000, 50), (4999, 5001)], ids=["in this ledger", "beyond it"])
def test_rows_are_estimated_in_a_ledger_that_has_enough_entries(size, read):
    entries = (((1, number) if number < size else (2, number - size), 1) for number in count())
    offsets = OffsetRange("p", NOTHING, (9, 9))

    _, spent = end_within(entries, offsets, 5000, lambda _: {1: size}, sample=50, is_first=True)

    assert spent == 5000
    assert next(entries)[0] == ((1, read) if read < size else (2, read - size))


def test_what_small_partitions_leave_is_for_large_ones():
    last, rounds = {"a": 3, "b": 9, "c": 200, "d": 200}, []

    def end_of(name, begin, limit):
        rounds.append(name)
        end = min(last[name], begin + limit)
        return end, end - begin

    def within(rows):
        rounds.clear()
        return share(dict.fromkeys(last, 0), last, rows, end_of)

    assert within(61) == {"a": 3, "b": 9, "c": 24, "d": 24}
    assert rounds == [*"abcd", *"cd"]  # finished partitions are not read again
    assert within(1) == dict.fromkeys(last, 1)  # every partition makes progress, once


def test_calls_that_have_not_begun_when_one_fails_are_skipped():
    begun, together = [], threading.Barrier(IN_PARALLEL)

    def call(number):
        begun.append(number)
        together.wait(60)
        raise ValueError(number)

    with pytest.raises(ValueError, match=r"\d+"):
        in_parallel(call, range(10 * IN_PARALLEL))

    assert len(begun) == IN_PARALLEL
    assert in_parallel(str, range(2 * IN_PARALLEL)) == [str(number) for number in range(2 * IN_PARALLEL)]
