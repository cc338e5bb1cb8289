"""The README's table of versions is true for the installed pyspark."""

from __future__ import annotations

from pathlib import Path

import pyspark
import pytest

from tests.spark.shipping_smoke import FEATURES, YES, Lab, attempt
from tests.spark_versions import REQUIREMENTS, parse, table

README = (Path(__file__).resolve().parents[2] / "docs/guides/spark-jobs.md").read_text()
HERE = pyspark.__version__.rpartition(".")[0]


def said() -> dict[str, dict[str, str]]:
    """Return the table by version and feature; empty if there is no table."""
    try:
        return parse(README, REQUIREMENTS)
    except LookupError:
        return {}


def promised() -> list[str]:
    return [feature for feature, answer in said().get(HERE, {}).items() if answer == YES]


@pytest.mark.parametrize("feature", promised())
def test_what_is_promised_runs(feature, spark, worker_env, tmp_path, monkeypatch, request):
    for name, value in worker_env.items():  # for features that start processes
        monkeypatch.setenv(name, value)
    if feature == "Spark Connect":
        request.getfixturevalue("spark_connect")

    assert attempt(feature, Lab(spark, tmp_path)) == YES


def test_the_readme_speaks_of_what_can_be_tried():
    if not said():
        pytest.skip("the README has no table of versions yet")
    assert list(said()[HERE]) == list(FEATURES)
    assert {answer.split(":")[0] for answers in said().values() for answer in answers.values()} <= {YES, "no"}


def test_a_table_is_read_as_it_was_written():
    found = {version: {"`a`": YES, "b": f"no: {version} | x"} for version in ("3.5", "4.0")}
    text = f"before\n\n{table(found)}\n\nafter"

    assert parse(text.replace("\\|", "/"), ["3.5", "4.0"])["4.0"] == {"`a`": YES, "b": "no: 4.0 / x"}
    with pytest.raises(LookupError):
        parse(text, ["4.0"])
