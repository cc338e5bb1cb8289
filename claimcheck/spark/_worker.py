"""State kept once per Python worker: a `ClaimCheck` and its measured concurrency for each configuration.

Spark reuses Python workers for many tasks, so connections survive the tasks. The configuration is pickled with the
function (1 to 2 KiB); connections, locks and secrets never are.
"""

from __future__ import annotations

import contextlib
import gc
import os
import pickle
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from claimcheck._client import ClaimCheck
from claimcheck._config_file import from_dict, load
from claimcheck.config import Config
from claimcheck.spark._fetching import AdaptiveConcurrency, Concurrency

if TYPE_CHECKING:
    from pyspark import TaskContext

AnyConfig = str | os.PathLike[str] | Mapping[str, Any] | Config | ClaimCheck
"""A path, which is read on the driver, a mapping shaped like the YAML file, a `Config` or a `ClaimCheck`."""

_MALLOC_PARAMETERS = {-8: 1, -3: 4 << 20, -1: 8 << 20}  # mallopt(3): arenas, thresholds for mmap and for trimming

_lock = threading.Lock()
_claim_checks: dict[tuple[int, bytes], ClaimCheck] = {}
_tuned_in: set[int] = set()
_concurrencies: dict[tuple[int, bytes, Concurrency, str], AdaptiveConcurrency] = {}


def as_config(given: AnyConfig) -> Config:
    """Return the configuration to send to the workers, placeholders unresolved; raises `ConfigError` if invalid."""
    if isinstance(given, ClaimCheck):
        return given.config
    if isinstance(given, (str, os.PathLike)):
        given = load(given)
    elif not isinstance(given, Config):
        given = from_dict(given)
    return ClaimCheck(given).config  # opens nothing; checks strategies and store options here rather than in each task


def claim_check(config: Config, *, uses_keys: bool = True) -> ClaimCheck:
    """Return this process's `ClaimCheck` for a configuration; it stays open until the process ends."""
    with _lock:
        key = _process_key(config)
        if key not in _claim_checks:
            _claim_checks[key] = ClaimCheck(config)
        _tune_worker()
        if uses_keys:
            _claim_checks[key].opened.check_keys()
        return _claim_checks[key]


def _tune_worker() -> None:
    """Adapt a Python worker of Spark, at the start of its first two tasks; the user's own process stays as it is."""
    if (context := _task()) is None or len(_tuned_in) == 2 or (task := context.taskAttemptId()) in _tuned_in:
        return
    if not _tuned_in:
        _return_memory()
    # Spark collects garbage in its workers after every task. That takes 50 ms with pandas, nearly all for modules.
    # The first task imports most of them, and the second begins when garbage was just collected.
    gc.freeze()
    _tuned_in.add(task)


def _return_memory() -> None:
    """Make glibc return the memory of large payloads to the system, and share that of small ones between threads."""
    if any(name.startswith(("MALLOC_", "GLIBC_TUNABLES")) for name in os.environ):
        return
    with contextlib.suppress(Exception):  # another system, or another allocator
        import ctypes

        for parameter, value in _MALLOC_PARAMETERS.items():
            ctypes.CDLL(None).mallopt(parameter, value)


def adaptive_concurrency(
    config: Config, concurrency: Concurrency, operation: Literal["read", "write"] = "read"
) -> AdaptiveConcurrency:
    """Return this process's measurements for the stores of a configuration."""
    with _lock:
        key = (*_process_key(config), concurrency, operation)
        return _concurrencies.setdefault(key, AdaptiveConcurrency(concurrency))


def _process_key(config: Config) -> tuple[int, bytes]:
    # A forked child inherits this module, but must not share its parent's sockets: hence the process id.
    return os.getpid(), pickle.dumps(config)


def _task() -> TaskContext | None:
    from pyspark import TaskContext

    return TaskContext.get()


def task_id() -> tuple[str, int]:
    """Return what identifies this task in every attempt: query and micro-batch (empty for a batch), and partition."""
    query, batch = _local_property("sql.streaming.queryId"), _local_property("streaming.sql.batchId")
    return f"{query}/{batch}" if query and batch else "", partition_id()


def query_id() -> str | None:
    """Return the id of this task's streaming query, which survives restarts; ``None`` for a batch."""
    return _local_property("sql.streaming.queryId")


def partition_id() -> int:
    """Return the number of this task's partition; 0 outside Spark."""
    return 0 if (context := _task()) is None else int(context.partitionId())


def _local_property(name: str) -> str | None:
    return None if (context := _task()) is None else context.getLocalProperty(name)
