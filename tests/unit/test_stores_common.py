"""Prefixes, and sizes of parts."""

import pytest

from claimcheck.stores._common import folder, part_size


@pytest.mark.parametrize(("size", "expected"), [(0, 16), (100, 16), (160_000, 16), (160_001, 17)])
def test_parts_grow_where_ten_thousand_are_not_enough(size, expected):
    class Sized:
        pass

    source = Sized()
    source.size = size

    assert part_size(source, 1000, part=16) == expected


@pytest.mark.parametrize(("limit", "expected"), [(160_000, 16), (1_000_000, 100)])
def test_parts_of_unknown_payloads_are_enough_for_the_largest(limit, expected):
    class Unsized:
        size = None

    assert part_size(Unsized(), limit, part=16) == expected


@pytest.mark.parametrize(("given", "prefix"), [("", ""), ("/", ""), ("a", "a/"), ("a/", "a/"), ("/a/b/", "a/b/")])
def test_prefixes_are_folders(given, prefix):
    assert folder(given) == prefix
