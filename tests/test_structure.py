"""The size and the shape of the library only become better; `make structure` shows every figure."""

from __future__ import annotations

import json

import pytest

from tests import structure

FIGURES = structure.figures()
LIMITS = json.loads(structure.LIMITS.read_text())
SLACK = 0.01  # a limit that is further away from its figure has to be lowered


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_only_falls(name):
    assert FIGURES[name] <= LIMITS[name], "the house has a budget: take these lines from another room, or delete some"
    if name.startswith(("decorator", "resolve")):  # other interpreters make other calls
        return
    assert LIMITS[name] <= FIGURES[name] * (1 + SLACK), "well done; now: python tests/structure.py --lower"


def test_every_limit_belongs_to_a_figure():
    assert FIGURES.keys() == LIMITS.keys()


def test_a_circle_and_a_chain_are_found():
    used = {"a": {"b"}, "b": {"c"}, "c": {"b", "d"}, "d": set(), "e": {"a"}}
    assert {"b", "c"} in structure.components(used)
    assert structure.longest_chain(used) == 4
