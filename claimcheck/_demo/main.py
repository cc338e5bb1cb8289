"""The demo from end to end: send the files with each strategy, read them back, and compare."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from claimcheck._demo.read import (
    ReadPayload,
    ReadResult,
    Topic,
    quiet_session,
    read_as_dataframe,
    read_as_rdd,
    warm_up,
)
from claimcheck._demo.send import (
    BROKER_LIMIT_BYTES,
    PARTITIONS,
    TOPIC,
    DemoError,
    FileCounter,
    Folder,
    Order,
    Sent,
    find,
    produce,
)
from claimcheck._registry import import_vendor
from claimcheck.transports.local import LocalBroker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from rich.console import Console
    from rich.table import Table

_DEAF = (signal.signal, (signal.SIGINT, signal.SIG_IGN))  # the parent process handles Ctrl-C
_SPARE_BYTES = 256 << 20


def run(directory: Path | None, *, console: Console) -> int:
    """Send every file below a folder through a small broker and back through Spark, with two strategies."""
    pyspark = import_vendor("pyspark", extra="demo")
    for module in ("pyarrow", "pandas", "rich"):
        import_vendor(module, extra="demo")
    folder = find(directory or Path(pyspark.__path__[0], "jars"))
    with tempfile.TemporaryDirectory(prefix="claimcheck-demo-", ignore_cleanup_errors=True) as scratch:
        _check_space(folder, Path(scratch))
        return _run(folder, Path(scratch), console)


def _run(folder: Folder, scratch: Path, console: Console) -> int:

    limit = f"{BROKER_LIMIT_BYTES >> 20} MiB"
    console.print(f"{count(len(folder.sizes))} files, {mega(folder.total_bytes)}, below {folder.root}", highlight=False)
    console.print(f"The broker is one SQLite file that refuses messages above {limit}.", highlight=False)
    console.print(f"Starting Spark {import_vendor('pyspark', extra='demo').__version__} ...", highlight=False)
    with quiet_session(scratch) as spark:
        warm_up(spark)
        stages = [_Stage(strategy, folder, scratch / strategy, console, spark) for strategy in ("external", "chunking")]
        runs = [stage.run() for stage in stages]
    show(console, runs, folder.skipped | {name: why for each in runs for name, why in each.sent.skipped.items()})
    return 1 if any(each.wrong for each in runs) else 0


@dataclass(frozen=True, slots=True)
class _Stage:
    """One strategy with its own broker and store, which are deleted at the end."""

    strategy: str
    folder: Folder
    scratch: Path
    console: Console
    spark: SparkSession

    def run(self) -> Run:
        self.scratch.mkdir()
        try:
            return self._send_and_read()
        finally:
            shutil.rmtree(self.scratch, ignore_errors=True)

    def _send_and_read(self) -> Run:

        counter = FileCounter(self.scratch / "counter")
        watch = Watch(self.console, self.folder, counter)
        sent = watch.over(f"{self.strategy:<9} write", partial(self._send, counter), cancel=self._stop.touch)
        topic, config = Topic(self.scratch / "broker.sqlite"), self._config()
        chunked, cancel, readings = self.strategy == "chunking", self.spark.sparkContext.cancelAllJobs, []
        if not chunked:  # a payload is one message
            as_rdd = partial(read_as_rdd, self.spark, topic, config, counter)
            readings.append(watch.over(f"{self.strategy:<9} RDD", as_rdd, cancel=cancel))
        as_dataframe = partial(read_as_dataframe, self.spark, topic, config, chunked=chunked)
        readings.append(watch.over(f"{self.strategy:<9} DataFrame", as_dataframe, cancel=cancel, counted=False))
        return Run(self.strategy, sent, tuple(readings))

    def _send(self, counter: FileCounter) -> Sent:

        broker = self.scratch / "broker.sqlite"
        with LocalBroker(broker) as new:
            new.create_topic(TOPIC, partitions=PARTITIONS)
        order = Order(self._config(), broker, self.folder.root, list(self.folder.sizes), counter, self._stop)
        try:
            with ProcessPoolExecutor(1, get_context("spawn"), *_DEAF) as producer:
                sent = producer.submit(produce, order).result()
        except BrokenProcessPool as error:
            raise DemoError("the producer process died; is there enough memory?") from error
        if not sent.sizes:
            raise DemoError(f"no file below {self.folder.root} can be read any more")
        return sent

    @property
    def _stop(self) -> Path:
        return self.scratch / "stop"

    def _config(self) -> dict[str, object]:
        if self.strategy == "chunking":
            return {"strategy": "chunking"}
        return {
            "strategy": self.strategy,
            "stores": {"disk": {"type": "filesystem", "path": str(self.scratch / "claims"), "create": True}},
        }


def _check_space(folder: Folder, scratch: Path) -> None:
    """SQLite may need every byte twice; each strategy deletes its files before the next begins."""
    needed, free = 2 * folder.total_bytes + _SPARE_BYTES, shutil.disk_usage(scratch).free
    if free < needed:
        raise DemoError(
            f"the demo needs {mega(needed)} for a copy of {folder.root}, but {scratch.parent} has {mega(free)}: "
            "name a smaller folder with --dir, or a larger disk with TMPDIR"
        )


# Progress ------------------------------------------------------------------------------------------------------

T = TypeVar("T")

_LOOK_SECONDS = 0.1
_LINE_SECONDS = 5.0
_TITLE = 20


@dataclass(frozen=True, slots=True)
class Watch:
    """Shows the progress of work in another thread."""

    console: Console
    folder: Folder
    counter: FileCounter
    clock: Callable[[], float] = time.monotonic

    def over(self, title: str, work: Callable[[], T], *, cancel: Callable[[], object], counted: bool = True) -> T:
        """Do the work and return its result; an interrupt cancels it."""
        self.counter.reset()
        with ThreadPoolExecutor(1, thread_name_prefix="claimcheck-demo") as threads:
            future = threads.submit(work)
            show = self._bar if self.console.is_terminal else self._lines
            try:
                show(title, future, counted=counted)
            except BaseException:
                with contextlib.suppress(Exception):
                    cancel()
                raise
            return future.result()

    def _bar(self, title: str, future: Future[T], *, counted: bool) -> None:
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        columns = (TextColumn("{task.description}"), BarColumn(18), TextColumn("{task.fields[text]}"))
        with Progress(*columns, TimeElapsedColumn(), console=self.console) as progress:
            everything = max(self.folder.total_bytes, 1)
            task = progress.add_task(title.ljust(_TITLE), total=everything if counted else None, text="")
            while not self._done(future):
                files, size = self.counter.total()
                text = self._progress(files, size) if counted else "running"
                progress.update(task, completed=size, text=text)
            if future.exception() is None:
                progress.update(task, total=everything, completed=everything, text="done")

    def _lines(self, title: str, future: Future[T], *, counted: bool) -> None:
        begin = last = self.clock()
        while not self._done(future):
            if self.clock() - last >= _LINE_SECONDS:
                last = self.clock()
                self._line(
                    title, self._progress(*self.counter.total()) if counted else f"running for {last - begin:.0f} s"
                )
        if future.exception() is None:
            self._line(title, f"done in {self.clock() - begin:.1f} s")

    def _line(self, title: str, text: str) -> None:
        self.console.print(f"{title:<{_TITLE}} {text}", highlight=False, markup=False)

    def _progress(self, files: int, size: int) -> str:
        return f"{count(files)} of {count(len(self.folder.sizes))} files, {mega(size)}"

    def _done(self, future: Future[T]) -> bool:
        return bool(wait([future], timeout=_LOOK_SECONDS).done)


def count(number: int) -> str:
    """Format a number with separators."""
    return f"{number:,}"


def mega(size: float) -> str:
    """Format a number of bytes in a readable unit."""
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f} B" if unit == "B" else f"{size:,.1f} {unit}"
        size /= 1000
    return f"{size:,.1f} GB"


_SHOWN = 10
_NOTHING = "-"


@dataclass(frozen=True, slots=True)
class Run:
    """The results of one strategy."""

    strategy: str
    sent: Sent
    readings: tuple[ReadResult, ...]

    @property
    def payload_bytes(self) -> int:
        """Bytes of all files that were sent."""
        return sum(self.sent.sizes.values())

    def reading(self, name: str) -> ReadResult | None:
        """Return a reading by its name, or ``None``."""
        return next((reading for reading in self.readings if reading.name == name), None)

    @property
    def wrong(self) -> dict[str, str]:
        """The mismatches, by name and reading."""
        return {
            f"{name} ({self.strategy}, {reading.name})": why
            for reading in self.readings
            for name, why in mismatches(self.sent, reading.payloads)
        }


def mismatches(sent: Sent, payloads: Sequence[ReadPayload]) -> Iterator[tuple[str, str]]:
    """Yield the name and the reason of each payload that was lost, changed, duplicated or never sent."""
    seen: set[bytes] = set()
    for each in payloads:
        name = os.fsdecode(each.key)
        if each.key not in sent.digests:
            yield name, "was never sent"
        elif each.key in seen:
            yield name, "came twice"
        elif each.digest != sent.digests[each.key]:
            yield name, f"changed: {count(sent.sizes[each.key])} bytes went out, {count(each.size)} came back"
        seen.add(each.key)
    for key in sent.digests.keys() - seen:
        yield os.fsdecode(key), "did not come back"


def show(console: Console, runs: Sequence[Run], skipped: Mapping[str, str]) -> None:
    """Print the table, the skipped files and the mismatches."""
    console.print()
    console.print(_table(runs))
    _list(console, "Skipped", skipped)
    wrong = {name: why for run in runs for name, why in run.wrong.items()}
    _list(console, "Mismatches", wrong)
    if not wrong:
        times = sum(len(run.readings) for run in runs)
        files = count(len(runs[0].sent.sizes))
        console.print(f"[green]Every one of the {files} files came back unchanged, {_times(times)}.[/green]")


def _table(runs: Sequence[Run]) -> Table:
    from rich import box
    from rich.table import Table

    limit = f"{BROKER_LIMIT_BYTES >> 20} MiB"
    table = Table(title=f"Payloads of any size through a broker with a limit of {limit}", box=box.SIMPLE_HEAD)
    table.add_column("", no_wrap=True)
    for run in runs:
        table.add_column(run.strategy, justify="right", no_wrap=True, min_width=14)
    for title, cells in _rows(runs):
        if title:
            table.add_row(title, *cells)
        else:
            table.add_section()
    table.add_row("[bold]mismatches[/bold]", *(_verdict(len(run.wrong)) for run in runs))
    return table


def _rows(runs: Sequence[Run]) -> Iterator[tuple[str, list[str]]]:
    """Yield titles and cells; an empty title is a separator."""
    yield "files", [count(len(run.sent.sizes)) for run in runs]
    yield "payload", [mega(run.payload_bytes) for run in runs]
    yield "through the broker", [mega(run.sent.broker_bytes) for run in runs]
    yield "  of the payload", [_ratio(run.sent.broker_bytes, run.payload_bytes) for run in runs]
    yield "", []
    yield "envelopes", [count(sum(run.sent.envelopes.values())) for run in runs]
    for kind, title in _KINDS.items():
        if kind in ("pointer", "chunk", "plain") or any(kind in run.sent.envelopes for run in runs):
            yield f"  {title}", [_number(run.sent.envelopes.get(kind, 0)) for run in runs]
    yield "", []
    yield "written", [_speed(run.payload_bytes, run.sent.seconds) for run in runs]
    for name, title in (("RDD", "read as RDD, in the workers"), ("DataFrame", "read as DataFrame, into Spark")):
        yield title, [_reading_speed(run, name) for run in runs]
    yield "", []
    archives = [[each for each in run.readings[0].payloads if each.entries is not None] for run in runs]
    yield "archives", [count(len(each)) for each in archives]
    yield "  entries in them", [count(sum(one.entries or 0 for one in each)) for each in archives]
    yield "  uncompressed", [mega(sum(one.unpacked for one in each)) for each in archives]
    yield "", []


_KINDS = {
    "pointer": "pointers to the store",
    "chunk": "chunks",
    "plain": "plain messages, small enough",
    "literal": "escaped literals",
    "abort": "aborts",
}


def _number(number: int) -> str:
    return count(number) if number else _NOTHING


def _ratio(part: int, whole: int) -> str:
    share = 100 * part / whole if whole else 0
    return f"{share:.1f} %" if share >= 0.1 else "< 0.1 %" if whole else _NOTHING


def _speed(size: int, seconds: float) -> str:
    return f"{mega(size / seconds)}/s" if seconds > 0 else _NOTHING


def _reading_speed(run: Run, name: str) -> str:
    reading = run.reading(name)
    return _NOTHING if reading is None else _speed(run.payload_bytes, reading.seconds)


def _verdict(number: int) -> str:
    return "[bold green]0[/bold green]" if number == 0 else f"[bold red]{count(number)}[/bold red]"


def _times(number: int) -> str:
    return {1: "once", 2: "twice", 3: "three times"}.get(number, f"{number} times")


def _list(console: Console, title: str, lines: Mapping[str, str]) -> None:
    if not lines:
        return
    console.print(f"{title} ({count(len(lines))}):", highlight=False)
    for name, why in list(lines.items())[:_SHOWN]:
        shown = name.encode("utf-8", "replace").decode()  # a file's name may not be text
        console.print(f"  {shown}: {why}", highlight=False, markup=False)
    if len(lines) > _SHOWN:
        console.print(f"  and {count(len(lines) - _SHOWN)} more", highlight=False)
