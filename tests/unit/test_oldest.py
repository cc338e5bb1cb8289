"""The lower bounds of pyproject.toml, from which `make test-oldest` takes its versions."""

from __future__ import annotations

import tomllib

import pytest

from tests.oldest import ROOT, lower_bounds


@pytest.mark.parametrize(("requirement", "extra"), [("redis<9", "test"), ("redis!=5", "redis"), ("redis[x]", "spark")])
def test_a_requirement_without_a_lower_bound_is_an_error(requirement, extra):
    changed = {"name": "other", "dependencies": ["PyYAML>=6.0.1"], "optional-dependencies": {extra: [requirement]}}
    with pytest.raises(ValueError, match=f"redis.* in {extra} has no lower bound"):
        lower_bounds(changed)


def test_every_requirement_of_claimcheck_has_a_lower_bound():
    bounds = lower_bounds(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"])
    assert {"redis", "boto3", "cryptography", "zstandard", "lz4", "xxhash", "pulsar-client"} <= set(bounds)
