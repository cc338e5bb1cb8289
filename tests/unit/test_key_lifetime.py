"""Lifetimes in keys: what is written is read again, and no destination can imitate one."""

from __future__ import annotations

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from claimcheck._store.listing import KeyLifetime, destination_of, parse_name, with_lifetime
from claimcheck._wire.pointer import PINNED, slug

UUID = uuid.UUID("6ba7b810-9dad-11d1-80b4-00c04fd430c8")
NOW = 1_700_000_000_500
LOOKALIKES = ["orders-20261122T113004Z-5s.x", "orders-5s_x", "a-20261122T113004Z-5s", "never", "a-never", "-", "x-5s"]
destinations = st.one_of(st.text(max_size=80), st.sampled_from(LOOKALIKES))
moments = st.integers(0, 200_000_000_000_000)


def marked(destination, *, created=NOW, expires=NOW + 60_000, key=f"{{}}-{UUID}"):
    name = key.format(slug(destination))
    return with_lifetime(name, UUID, created_ms=created, expires_ms=expires, max_bytes=1024)


def test_forms():
    assert marked("orders") == f"orders-20231114T221320Z-60s.{UUID}"
    assert marked("orders", expires=None) == f"orders-20231114T221320Z-never.{UUID}"
    assert marked("orders", key=f"{{}}-{{{{{UUID}}}}}") == f"orders-20231114T221320Z-60s.{{{UUID}}}"


@given(destination=destinations, created=moments, lifetime=st.none() | st.integers(0, 10**13))
def test_a_fresh_key_never_expires_before_its_pointer(destination, created, lifetime):
    expires = None if lifetime is None else created + lifetime
    known = parse_name(marked(destination, created=created, expires=expires))

    assert known.created_ms in range(created, created + 1000)
    if expires is None:
        assert known == KeyLifetime(known.created_ms, None)
    else:
        assert expires <= known.created_ms + known.lifetime_ms < expires + 2000


@given(destination=destinations)
def test_the_key_of_an_earlier_release_says_nothing(destination):
    for name in (f"{slug(destination)}-{UUID}", f"{slug(destination)}-60s_{UUID}", f"{slug(destination)}-never_{UUID}"):
        assert parse_name(name) == KeyLifetime()
        assert destination_of(name) == slug(destination)


@pytest.mark.parametrize(
    "name",
    ["", "notes.txt", str(UUID), f"-{UUID}", f"a/b-{UUID}", f"orders{UUID}", f"orders-{UUID}-0", f"orders.{UUID}",
     f"orders-20261122T113004Z.{UUID}", f"orders-20261322T113004Z-5s.{UUID}", f"orders-5_{UUID}", f"-5s_{UUID}",
     f"orders-20261122T113004Z-5s.{str(UUID).upper()}", f"{'x' * 65}-{UUID}", f"or ders-{UUID}", f"orders-{{{UUID}",
     f"orders-\u0665s_{UUID}"],
)  # fmt: skip
def test_names_of_others(name):
    assert parse_name(name) is None


def test_a_key_that_would_be_too_long_stays_as_it_is():
    assert with_lifetime(f"orders-{UUID}", UUID, created_ms=NOW, expires_ms=NOW, max_bytes=60) == (f"orders-{UUID}")
    assert marked("orders", created=10**18) == f"orders-{UUID}", "a clock far beyond the year 9999"


@given(destination=destinations, topic=destinations)
def test_a_pinned_copy_has_a_lifetime_and_the_name_of_no_topic(destination, topic):
    name = marked(PINNED + destination)
    assert parse_name(name).lifetime_ms == 60_000
    assert topic.startswith(PINNED) or destination_of(name) != slug(topic)
