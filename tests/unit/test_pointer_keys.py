"""Which keys are followed."""

from __future__ import annotations

import pytest

from claimcheck._wire.pointer import is_key, is_key_prefix


@pytest.mark.parametrize("key", ["a", "a/b", "a" * 1024, "é" * 512, "漢" * 341, "...", "a..b"])
def test_good_keys(key):
    assert is_key(key)


@pytest.mark.parametrize(
    "key", ["", "/a", "\\a", "a/../b", "..\\a", "./a", "a\n", "a" * 1025, "é" * 513, "漢" * 342, "\ud800", "a\0"]
)
def test_keys_that_are_refused(key):
    assert not is_key(key)


def test_a_prefix_is_limited_in_bytes():
    assert is_key_prefix("é" * 450)
    assert not is_key_prefix("é" * 451)
