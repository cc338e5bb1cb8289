"""Results for the tests of the report: those that the documentation shows, and others with hostile texts."""

from __future__ import annotations

import functools
import json
from dataclasses import replace

from tests.benchmarks.compare.model import MODES, Comparison, Experiment, Point, Recommendation, Series, from_json
from tests.docs_pages import ROOT

HOSTILE = (
    "<script>alert(1)</script>\"'><img src=http://evil.example/x onerror=alert(2)>${HOME}&amp;$x^2$ \x00\x1b\u202e"
)
"""A name that would run a script, request a picture, be read as mathematics, or control a terminal."""


@functools.cache
def comparison() -> Comparison:
    """Return a complete result: that of a run on Kafka with Redis."""
    return from_json(Comparison, json.loads((ROOT / "docs/pictures/compare-kafka.json").read_text()))


def hostile() -> Comparison:
    """Return a result in which every text of users and servers is `HOSTILE`."""
    found = comparison()
    bad = Experiment(
        name=HOSTILE,
        title=HOSTILE,
        claimed={"external": HOSTILE, "chunking": HOSTILE},
        measured=dict.fromkeys(MODES, HOSTILE),
        verdict="disagrees",
        explanation=HOSTILE,
        columns=(HOSTILE, "n"),
        rows=((HOSTILE, 1), (None, 2.5)),
        series=(Series(HOSTILE, HOSTILE, HOSTILE, HOSTILE, {HOSTILE: (Point(1, 1, 1, 1), Point(2, 2, 2, 2))}),),
    )
    recommendation = Recommendation(HOSTILE, HOSTILE, 1, HOSTILE, (HOSTILE,), (HOSTILE,), HOSTILE)
    return replace(
        found,
        made=HOSTILE,
        broker=HOSTILE,
        store=HOSTILE,
        machine={HOSTILE: HOSTILE},
        experiments=(bad, *found.experiments),
        recommendation=recommendation,
    )
