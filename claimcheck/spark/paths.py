"""Refuses paths that mean another folder on each machine of a cluster.

A relative path is resolved where a store is opened. On a cluster that is the scratch folder of each executor: payloads
would be written where no other machine, and no later job, finds them.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from claimcheck.config import Config, StoreConfig, expand
from claimcheck.errors import ConfigError
from claimcheck.validation import fail

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["active_session", "check_absolute", "check_paths", "check_store_paths", "is_one_machine"]

_LOCAL_MASTER = re.compile(r"local(\[.*\])?")  # and not local-cluster, whose executors have folders of their own
_EXPECTED = (
    "an absolute path that driver and executors share: on a cluster each executor resolves a relative one in a folder "
    "of its own"
)


def check_paths(config: Config, spark: SparkSession) -> None:
    """Refuse stores with relative paths, unless the session runs on one machine.

    Raises:
        ConfigError: Names the path in the configuration.
    """
    if not is_one_machine(spark):
        check_store_paths(config)


def check_store_paths(config: Config) -> None:
    """Refuse filesystem stores with relative paths, of those that readers or writers may use.

    Raises:
        ConfigError: Names the path in the configuration.
    """
    for name in sorted({config.store or "", *config.readable} & config.stores.keys()):
        if _is_relative(config.stores[name]):
            expected = f"{_EXPECTED}. A default of a variable counts, too: it holds where the variable is not set"
            fail(f"stores.{name}.path", found="a relative path", expected=expected)


def check_absolute(name: str, path: str) -> None:
    """Refuse a relative path of an option.

    Raises:
        ConfigError: Names the option.
    """
    if not os.path.isabs(path):
        fail(name, found="a relative path", expected=_EXPECTED)


def is_one_machine(spark: SparkSession) -> bool:
    """Whether driver and workers are processes of one machine, with one working folder; unknown counts as no."""
    try:
        return _LOCAL_MASTER.fullmatch(spark.conf.get("spark.master") or "") is not None
    except Exception:  # some services do not show their configuration
        return False


def active_session() -> SparkSession | None:
    """Return the session of this process, if it has one; imports nothing."""
    if "pyspark.sql" not in sys.modules:
        return None
    from pyspark.sql import SparkSession

    return SparkSession.getActiveSession()


def _is_relative(store: StoreConfig) -> bool:
    """Whether a path is relative, with the variables of this process or with none."""
    if store.type != "filesystem":
        return False
    path = store.options.get("path")
    return _expands_to_relative(path, os.environ) or _expands_to_relative(path, {})


def _expands_to_relative(path: Any, environ: Mapping[str, str]) -> bool:
    try:
        return not os.path.isabs(str(expand(path, path="path", environ=environ)))
    except ConfigError:  # a variable that is set on the executors only
        return False
