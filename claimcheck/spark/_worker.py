"""What lives once per Python worker: a `ClaimCheck` and a `Pace` for each configuration, made at first use.

Spark keeps its Python workers for many tasks, so connections that are kept here survive the tasks too. A
configuration travels with the closure (well below 1 KiB); connections, locks and secrets never do.
"""

from __future__ import annotations

import os
import pickle
import re
import sys
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from claimcheck import config as configuration
from claimcheck._client import ClaimCheck
from claimcheck._validation import fail
from claimcheck.config import Config, StoreConfig, expand
from claimcheck.errors import ConfigError
from claimcheck.spark._fetching import Concurrency, Pace

if TYPE_CHECKING:
    from pyspark import TaskContext
    from pyspark.sql import SparkSession

__all__ = [
    "active_session",
    "AnyConfig",
    "as_config",
    "check_absolute",
    "check_paths",
    "check_reached",
    "check_store_paths",
    "check_writing",
    "claim_check",
    "is_one_machine",
    "pace",
    "partition_id",
    "query_id",
    "task_place",
]

AnyConfig = str | os.PathLike[str] | Mapping[str, Any] | Config | ClaimCheck
"""A path that is read on the driver, a mapping shaped as the YAML file, or what was made of one already."""

_lock = threading.Lock()
_claim_checks: dict[tuple[int, bytes], ClaimCheck] = {}
_paces: dict[tuple[int, bytes, Concurrency, str], Pace] = {}


def as_config(given: AnyConfig) -> Config:
    """Make the configuration that travels to the workers, placeholders unresolved.

    Raises:
        ConfigError: It cannot be read or holds what it may not.
    """
    if isinstance(given, ClaimCheck):
        return given.config
    if isinstance(given, (str, os.PathLike)):
        given = configuration.load(given)
    elif not isinstance(given, Config):
        given = configuration.from_dict(given)
    return ClaimCheck(given).config  # opens nothing, but looks at strategies and store options here, not in every task


def check_reached(config: Config) -> None:
    """Refuse a store that only the process that writes would find again.

    Args:
        config: Of one destination.

    Raises:
        ConfigError: It is ``memory``.
    """
    if config.store is not None and config.stores[config.store].type == "memory":
        fail(f"stores.{config.store}.type", found="'memory'", expected="a store that every process reaches")


def check_writing(config: Config) -> None:
    """Refuse such a store where payloads of a destination would rest in it. Raises as `check_reached`."""
    if config.strategy in ("external", "hybrid"):
        check_reached(config)


def claim_check(config: Config) -> ClaimCheck:
    """Return this process's `ClaimCheck` for a configuration; it stays open until the process ends."""
    with _lock:
        place = _place(config)
        if place not in _claim_checks:
            _claim_checks[place] = ClaimCheck(config)
        return _claim_checks[place]


def pace(config: Config, concurrency: Concurrency, operation: Literal["read", "write"] = "read") -> Pace:
    """Return what this process has learnt about the stores of a configuration."""
    with _lock:
        return _paces.setdefault((*_place(config), concurrency, operation), Pace(concurrency))


def task_place() -> tuple[str, int]:
    """Return what tells this task from others, the same in every attempt: the micro-batch, and the partition.

    Returns:
        The query and the number of its micro-batch, empty for what is no stream; the partition's number.
    """
    query, batch = query_id(), _property("streaming.sql.batchId")
    return f"{query}/{batch}" if query and batch else "", partition_id()


def query_id() -> str | None:
    """Return the id of the streaming query that this task works for, the same after a restart; ``None`` for a batch."""
    return _property("sql.streaming.queryId")


def partition_id() -> int:
    """Return the number of the partition that this task works on; 0 outside of Spark."""
    context = _context()
    return 0 if context is None else int(context.partitionId())


def _property(name: str) -> str | None:
    context = _context()
    return None if context is None else context.getLocalProperty(name)


def _context() -> TaskContext | None:
    from pyspark import TaskContext

    return TaskContext.get()


def _place(config: Config) -> tuple[int, bytes]:
    # The process id too: a forked child inherits this module, but must not share its parent's sockets.
    return os.getpid(), pickle.dumps(config)


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
