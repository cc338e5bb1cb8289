"""The checker that the configuration and the constructors of stores share."""

import math
import threading
from dataclasses import dataclass
from typing import Annotated, Any

import pytest

import claimcheck
from claimcheck._validation import (
    SECRET,
    Check,
    Range,
    Seconds,
    Timeout,
    build,
    check_arguments,
    check_cc,
    check_int,
    check_seconds,
    without_secrets,
)
from claimcheck.errors import ConfigError


@dataclass(frozen=True)
class Inner:
    pin: int = 0
    words: dict[str, Any] | None = None


@dataclass(frozen=True)
class Sample:
    count: Annotated[int, Range(1, 9)] = 1
    life: Seconds = 1
    wait: Timeout | None = 1
    even: Annotated[int, Check(lambda n: n % 2 == 0, "an even number")] | None = None
    name: str = ""
    hidden: Annotated[Inner, SECRET] = Inner()
    shown: Inner = Inner()


@pytest.mark.parametrize(
    "good",
    [
        {"count": 1},
        {"count": 9},
        {"life": 0},
        {"life": 10**10},
        {"life": 0.5},
        {"wait": None},
        {"wait": 0.001},
        {"wait": 86_400},
        {"even": 4},
        {"even": None},
        {"hidden": {"pin": 5}},
    ],
)
def test_what_fits(good):
    assert build(Sample, good, "")


@pytest.mark.parametrize(
    ("bad", "text"),
    [
        ({"count": 0}, "x.count: found 0, expected an integer of at least 1 and at most 9"),
        ({"count": 10}, "x.count: found 10, expected an integer of at least 1 and at most 9"),
        ({"life": math.inf}, "x.life: found inf, expected a number of at least 0 and at most 10000000000"),
        ({"life": math.nan}, "x.life: found nan, expected a number of at least 0 and at most 10000000000"),
        ({"wait": 0}, "x.wait: found 0, expected a number of at least 0.001 and at most 86400 or nothing"),
        ({"even": 3}, "x.even: found 3, expected an even number or nothing"),
        ({"even": "3"}, "x.even: found '3', expected an even number or nothing"),
        ({"name": "a${B}"}, "x.name: found a placeholder, expected text; placeholders work only in store options"),
        ({"shown": {"pin": "1234"}}, "x.shown.pin: found '1234', expected an integer"),
        ({"hidden": {"pin": "1234"}}, "x.hidden.pin: found text, expected an integer"),
        ({"hidden": "1234"}, "x.hidden: found text, expected a mapping"),
    ],
)
def test_what_does_not(bad, text):
    with pytest.raises(ConfigError) as caught:
        build(Sample, bad, "x")

    assert str(caught.value).startswith(text)


def test_arguments_are_checked_under_their_own_names():
    check_arguments(Sample, count=5)
    with pytest.raises(ConfigError, match="^count: found 0") as caught:
        check_arguments(Sample, count=0)

    assert caught.value.path == "count"


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("nothing to hide", "nothing to hide"),
        ("at http://host/path", "at http://host/path"),
        ("at redis://me:hunter2@host/0 now", "at redis://***@host/0 now"),
        ("at redis://:hun/ter2@host", "at redis://***@host"),
        ("at redis://:hun@ter2@host", "at redis://***@host"),
        ("invalid host: me:hunter2@host:6650", "invalid host: ***@host:6650"),
        ("at 10:15: a@b", "at 10:15: a@b"),
        ("at unix:///socket?db=1&password=hunter2&x=1", "at unix:///socket?db=1&password=***&x=1"),
    ],
)
def test_texts_lose_their_passwords(text, clean):
    assert without_secrets(text) == clean


@pytest.mark.parametrize("bad", [0, -1, True, "2", 1.5, None, math.nan])
def test_any_other_argument_than_an_integer_in_range_is_refused(bad):
    with pytest.raises(ConfigError, match=r"^count: found .*, expected an integer of at least 1$") as caught:
        check_int("count", bad, minimum=1)

    assert caught.value.path == "count"


@pytest.mark.parametrize("bad", [0, -1, True, "2", None, math.nan, math.inf, threading.TIMEOUT_MAX * 2])
def test_any_other_argument_than_a_time_in_seconds_is_refused(bad):
    with pytest.raises(ConfigError, match="^wait: found .*, expected a number of seconds above 0$"):
        check_seconds("wait", bad)
    if bad != 0:
        with pytest.raises(ConfigError, match=r"^wait: found .*, expected a number of at least 0\.0 and at most"):
            check_seconds("wait", bad, allow_zero=True)


@pytest.mark.parametrize("bad", ["claimcheck.yaml", None, {}, claimcheck])
def test_only_a_claimcheck_is_one(bad):
    check_cc(claimcheck.from_dict({"strategy": "inline"}))
    with pytest.raises(
        ConfigError, match=r"^cc: found an object of type \w+, expected a ClaimCheck, as claimcheck.load returns"
    ) as caught:
        check_cc(bad)

    assert isinstance(caught.value, TypeError)
