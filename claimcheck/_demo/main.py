"""The demo from end to end: find the files, then for each strategy send them, read them, and compare."""

from __future__ import annotations

import shutil
import signal
import tempfile
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any

from claimcheck._demo.files import DemoError, Folder, Tally, find
from claimcheck._demo.produce import BROKER_LIMIT_BYTES, TOPIC, Order, Sent, produce
from claimcheck._demo.report import Watch, count, mega
from claimcheck._registry import import_vendor

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from rich.console import Console

    from claimcheck._demo.report import Run

__all__ = ["run"]

_DEAF = (signal.signal, (signal.SIGINT, signal.SIG_IGN))  # Ctrl-C is for the process that knows how to end the others
_SPARE_BYTES = 256 << 20


def run(directory: Path | None, *, console: Console) -> int:
    """Send every file below a folder through a small broker and back through Spark, with two strategies.

    Args:
        directory: The folder; by default the jars of the pyspark that is installed.
        console: Where progress and the table go.

    Returns:
        0 when every payload came back as it was sent, else 1.

    Raises:
        FolderError: The folder cannot be used; nothing was written.
        DemoError: There is too little space for a copy of it, or something failed on the way.
        MissingDependencyError: A package is missing; names the extra ``demo``, or ``java``.
    """
    pyspark = import_vendor("pyspark", extra="demo")
    for module in ("pyarrow", "pandas", "rich"):
        import_vendor(module, extra="demo")
    folder = find(directory or Path(pyspark.__path__[0], "jars"))
    with tempfile.TemporaryDirectory(prefix="claimcheck-demo-", ignore_cleanup_errors=True) as scratch:
        _check_space(folder, Path(scratch))
        return _run(folder, Path(scratch), console)


def _run(folder: Folder, scratch: Path, console: Console) -> int:
    from claimcheck._demo.job import warm_up
    from claimcheck._demo.report import show
    from claimcheck._demo.session import quiet_session

    limit = f"{BROKER_LIMIT_BYTES >> 20} MiB"
    console.print(f"{count(len(folder.sizes))} files, {mega(folder.total_bytes)}, below {folder.root}", highlight=False)
    console.print(f"The broker is one SQLite file that refuses messages above {limit}.", highlight=False)
    console.print(f"Starting Spark {import_vendor('pyspark', extra='demo').__version__} ...", highlight=False)
    with quiet_session(scratch) as spark:
        warm_up(spark)
        stages = [_Stage(strategy, folder, scratch / strategy, console, spark) for strategy in ("hybrid", "chunking")]
        runs = [stage.run() for stage in stages]
    show(console, runs, folder.skipped | {name: why for each in runs for name, why in each.sent.skipped.items()})
    return 1 if any(each.wrong for each in runs) else 0


@dataclass(frozen=True, slots=True)
class _Stage:
    """One strategy, with a broker and a store of its own, gone when it is done."""

    strategy: str
    folder: Folder
    scratch: Path
    console: Console
    spark: SparkSession

    def run(self) -> Run:
        self.scratch.mkdir()
        try:
            return self._there_and_back()
        finally:
            shutil.rmtree(self.scratch, ignore_errors=True)

    def _there_and_back(self) -> Run:
        from claimcheck._demo.job import Topic, read_as_dataframe, read_as_rdd
        from claimcheck._demo.report import Run

        tally = Tally(self.scratch / "tally")
        watch = Watch(self.console, self.folder, tally)
        sent = watch.over(f"{self.strategy:<9} write", partial(self._send, tally), cancel=self._stop.touch)
        topic, config = Topic(self.scratch / "broker.sqlite"), self._config()
        chunked = self.strategy == "chunking"
        as_rdd: Callable[..., Any] = partial(
            read_as_rdd, self.spark, topic, config, tally, chunks="reassemble" if chunked else "refuse"
        )
        cancel = self.spark.sparkContext.cancelAllJobs
        readings = [watch.over(f"{self.strategy:<9} RDD", as_rdd, cancel=cancel)]
        if not chunked:  # one row holds one message; chunks belong to several
            as_dataframe = partial(read_as_dataframe, self.spark, topic, config)
            readings.append(watch.over(f"{self.strategy:<9} DataFrame", as_dataframe, cancel=cancel, counted=False))
        return Run(self.strategy, sent, tuple(readings))

    def _send(self, tally: Tally) -> Sent:
        from claimcheck._demo.job import PARTITIONS
        from claimcheck.transports.local import LocalBroker

        broker = self.scratch / "broker.sqlite"
        with LocalBroker(broker) as made:
            made.create_topic(TOPIC, partitions=PARTITIONS)
        order = Order(self._config(), broker, self.folder.root, list(self.folder.sizes), tally, self._stop)
        try:
            with ProcessPoolExecutor(1, get_context("spawn"), *_DEAF) as producer:
                sent = producer.submit(produce, order).result()
        except BrokenProcessPool as error:
            raise DemoError("the producer process died; is there enough memory?") from error
        if not sent.sizes:
            raise DemoError(f"not one file below {self.folder.root} could be read any more")
        return sent

    @property
    def _stop(self) -> Path:
        return self.scratch / "stop"

    def _config(self) -> dict[str, Any]:
        if self.strategy == "chunking":
            return {"strategy": "chunking"}
        return {
            "strategy": self.strategy,
            "stores": {"disk": {"type": "filesystem", "path": str(self.scratch / "claims"), "create": True}},
        }


def _check_space(folder: Folder, scratch: Path) -> None:
    """SQLite may need every byte twice while it writes; one strategy is gone before the next begins."""
    needed, free = 2 * folder.total_bytes + _SPARE_BYTES, shutil.disk_usage(scratch).free
    if free < needed:
        raise DemoError(
            f"the demo needs {mega(needed)} for a copy of {folder.root}, {scratch.parent} has {mega(free)}: "
            "name a smaller folder with --dir, or a larger disk with TMPDIR"
        )
