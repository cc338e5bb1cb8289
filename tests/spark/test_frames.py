"""What the functions of `claimcheck.spark` accept as a DataFrame."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from claimcheck.errors import ArgumentTypeError
from claimcheck.spark import map_payloads, offload, pin, reassemble, repartition_by_payload, resolve

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
