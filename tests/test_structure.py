"""The size and the shape of the library only become better; `make structure` shows every figure."""

from __future__ import annotations

import graphlib
import json

import pytest

from tests import structure

FIGURES = structure.figures()
LIMITS = json.loads(structure.LIMITS.read_text())
SLACK = 0.01  # a limit that is further away from its figure has to be lowered


def test_every_figure_has_a_limit_and_only_falls():
    assert FIGURES.keys() == LIMITS.keys()
    above = {name: value for name, value in FIGURES.items() if value > LIMITS[name]}
    assert not above, "the house has a budget: take these lines from another room, or delete some"
    low = {
        name: value
        for name, value in FIGURES.items()
        if not name.startswith(("decorator", "resolve")) and value * (1 + SLACK) < LIMITS[name]
    }  # other interpreters make other calls
    assert not low, "well done; now: python tests/structure.py --lower"


def test_a_chain_and_a_circle_are_found():
    used = {"a": {"b"}, "b": {"c", "d"}, "c": {"d"}, "d": set[str](), "e": {"a"}}
    assert structure.longest_chain(used) == 5
    with pytest.raises(graphlib.CycleError):
        structure.longest_chain({**used, "d": {"b"}})
