"""What the functions of `claimcheck.spark` accept as a DataFrame, and how their own jobs are described."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from claimcheck.errors import ArgumentTypeError
from claimcheck.spark import _repartition as repartitioning
from claimcheck.spark import map_payloads, offload, pin, reassemble, repartition_by_payload, resolve
from tests.spark.rig import frame

DESCRIPTION = "spark.job.description"
FUNCTIONS: dict[str, Callable[[Any, Any], Any]] = {
    "resolve": lambda df, config: resolve("value", config=config)(df),
    "map_payloads": lambda df, config: map_payloads(len, "n int", column="value", config=config)(df),
    "offload": lambda df, config: offload("value", destination="orders", config=config)(df),
    "reassemble": lambda df, config: reassemble("value", config=config)(df),
    "repartition_by_payload": lambda df, config: repartition_by_payload("value", config=config)(df),
    "pin": lambda df, config: pin(df, config=config, store="disk"),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_frame_of_pandas_is_refused_by_name(name: str, config: Any) -> None:
    pandas = pytest.importorskip("pandas")

    with pytest.raises(ArgumentTypeError, match="df: .*DataFrame of Spark"):
        FUNCTIONS[name](pandas.DataFrame({"value": [b"x"]}), config)


@pytest.mark.parametrize("own", [None, "nightly load"])
def test_jobs_of_a_function_are_described_unless_the_caller_did(
    spark: Any, config: Any, own: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen, ranges, context = list[str](), repartitioning._bin_ranges, spark.sparkContext

    def watched(*arguments: Any) -> Any:
        seen.append(context.getLocalProperty(DESCRIPTION))
        return ranges(*arguments)

    monkeypatch.setattr(repartitioning, "_bin_ranges", watched)
    context.setLocalProperty(DESCRIPTION, own)
    try:
        frame(spark, [b"x"]).transform(repartition_by_payload("value", config=config))
        after = context.getLocalProperty(DESCRIPTION)
    finally:
        context.setLocalProperty(DESCRIPTION, None)

    assert seen == [own or "claimcheck: repartition_by_payload: read the sizes of payloads"]
    assert after == own
