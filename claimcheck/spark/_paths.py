"""Whether the processes of a session reach the stores of a configuration; checked on the driver."""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from claimcheck._validation import fail
from claimcheck.config import Config, StoreConfig, expand
from claimcheck.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_EXPECTED_PATH = (
    "an absolute path that driver and executors share: on a cluster each executor resolves a relative path in its own "
    "folder"
)
_LOCAL_MASTER = re.compile(r"local(\[.*\])?")  # not local-cluster, whose executors have separate folders


def check_reached(config: Config) -> None:
    """Check that every process can read the store of a destination, or raise a `ConfigError`: ``memory`` is private."""
    if config.store is not None and config.stores[config.store].type == "memory":
        fail(f"stores.{config.store}.type", found="'memory'", expected="a store that every process can reach")


def check_writing(config: Config) -> None:
    """Check the same where a destination's strategy writes to the store. Raises as `check_reached`."""
    if config.strategy in ("external", "hybrid"):
        check_reached(config)


def check_paths(config: Config, spark: SparkSession) -> None:
    """Check the paths of stores, unless the session runs on one machine. Raises as `check_store_paths`."""
    if not is_one_machine(spark):
        check_store_paths(config)


def check_store_paths(config: Config) -> None:
    """Check the paths of the filesystem stores in use, or raise a `ConfigError` that names a relative one."""
    for name in sorted({config.store or "", *config.readable} & config.stores.keys()):
        if _is_relative(config.stores[name]):
            expected = f"{_EXPECTED_PATH}. The default of a variable applies where the variable is not set"
            fail(f"stores.{name}.path", found="a relative path", expected=expected)


def check_absolute(name: str, path: str) -> None:
    """Check that an option is an absolute path, or raise a `ConfigError` that names the option."""
    if not os.path.isabs(path):
        fail(name, found="a relative path", expected=_EXPECTED_PATH)


def is_one_machine(spark: SparkSession) -> bool:
    """Return whether driver and workers share one machine and working folder; ``False`` if unknown."""
    try:
        return _LOCAL_MASTER.fullmatch(spark.conf.get("spark.master") or "") is not None
    except Exception:  # some services hide their configuration
        return False


def active_session() -> SparkSession | None:
    """Return the active session of this process, if any, without importing pyspark."""
    if "pyspark.sql" not in sys.modules:
        return None
    from pyspark.sql import SparkSession

    return SparkSession.getActiveSession()


def _is_relative(store: StoreConfig) -> bool:
    """Whether a path is relative, with the variables of this process or without any."""
    environs: tuple[Mapping[str, str], ...] = (os.environ, {})
    for environ in environs if store.type == "filesystem" else ():
        with contextlib.suppress(ConfigError):  # a variable that is set only on the executors
            if not os.path.isabs(str(expand(store.options.get("path"), path="path", environ=environ))):
                return True
    return False
