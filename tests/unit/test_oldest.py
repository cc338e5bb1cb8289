"""The lower bounds of pyproject.toml, from which `make test-oldest` takes its versions."""

from __future__ import annotations

import tomllib

import pytest

from tests.oldest import ROOT, lower_bounds

PROJECT = {
    "name": "other",
    "dependencies": ["PyYAML>=6.0.1"],
    "optional-dependencies": {
        "s3": ["boto3>=1.30"],
        "aws-kms": ["other[s3]", "Boto3>=1.36,<2"],
        "test": ["x~=1.2"],
    },
}


@pytest.mark.parametrize("requirement", ["redis", "redis<9", "redis!=5", "redis[hiredis]"])
@pytest.mark.parametrize("extra", ["redis", "test", "spark"])
def test_a_requirement_without_a_lower_bound_is_an_error(requirement, extra):
    changed = {**PROJECT, "optional-dependencies": {extra: [requirement]}}
    with pytest.raises(ValueError, match=f"redis.* in {extra} has no lower bound"):
        lower_bounds(changed)


def test_every_requirement_of_claimcheck_has_a_lower_bound():
    bounds = lower_bounds(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"])
    assert {"redis", "boto3", "cryptography", "zstandard", "lz4", "xxhash", "pulsar-client"} <= set(bounds)
