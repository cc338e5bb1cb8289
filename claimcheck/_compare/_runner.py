"""Runs the experiments of a comparison in order, removes what they created, and resumes an interrupted run."""

from __future__ import annotations

import contextlib
import datetime
import random
import shutil
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType
from typing import Any

from claimcheck._compare._broker import Broker, BrokerAddress, connect
from claimcheck._compare._cost import Prices, estimate, load_prices
from claimcheck._compare._journal import Journal, locked, state_folder
from claimcheck._compare._lab import PREFIX, Lab
from claimcheck._compare._machine import machine
from claimcheck._compare._model import CompareError, Comparison, Experiment
from claimcheck._compare._payloads import MAX_BYTES, MIN_BYTES, SIZE_RANGE, Payloads, representative
from claimcheck._compare._recommendation import Setting, recommend
from claimcheck._compare._schedule import Plan, Schedule, selected
from claimcheck._compare._store_space import StoreSpace
from claimcheck._texts import size_text
from claimcheck.config import Config, StoreConfig
from claimcheck.errors import ClaimCheckError, ConfigError, MissingDependencyError

__all__ = ["PREFIX", "Lab", "Options", "Progress", "compare"]

_LOCAL_SIZES = (64 << 10, 1 << 20, 10 << 20)
_SIZES = (*_LOCAL_SIZES, 100 << 20)
_ROUNDS, _QUICK_ROUNDS = 5, 2
_SAMPLED_MESSAGES = 1000
_LOCAL_SECONDS, _SECONDS = 10.0, 20.0  # after which an experiment stops repeating
_DISK_FACTOR, _DISK_BYTES = 60, 1 << 30
_STORES_YAML = """\
stores:
  files: {type: filesystem, path: claimcheck-payloads, create: true}  # shared by all machines
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What to compare.

    Attributes:
        address: The broker; ``None`` for an embedded one in a temporary folder.
        config: The configuration; ``None`` for a store of files in a temporary folder.
        sizes: Of the payloads; ``None`` for those of ``payloads`` or ``sample_topic``, or the default.
        payloads: A folder whose files are the payloads' contents.
        sample_topic: A topic whose payloads have the sizes to compare.
        only: Names of experiments; ``None`` for all.
        rounds: How often measurements are repeated; ``None`` for the default.
        quick: A short test run.
        resume: Whether to continue an interrupted run.
        prices: A price file; ``None`` for the example.
        state: The folder for journals.
    """

    address: BrokerAddress | None = None
    config: Config | None = None
    sizes: tuple[int, ...] | None = None
    payloads: str | None = None
    sample_topic: str | None = None
    only: tuple[str, ...] | None = None
    rounds: int | None = None
    quick: bool = False
    resume: bool = False
    prices: str | None = None
    state: Path = field(default_factory=state_folder)


@dataclass(frozen=True, slots=True)
class Progress:
    """What is being done.

    Attributes:
        name: The experiment.
        number: Its number, from 1.
        count: How many there are.
        text: What it does at the moment.
        seconds_left: About how long the run still takes.
        seconds: How long this experiment took, when it has finished; else ``None``.
    """

    name: str
    number: int
    count: int
    text: str
    seconds_left: float
    seconds: float | None = None


Show = Callable[[Progress], None]


def compare(
    options: Options, *, show: Show = lambda progress: None, note: Callable[[str], None] = lambda text: None
) -> Comparison:
    """Run the experiments and return their results. What they create is removed, also after an error.

    Args:
        options: What to compare.
        show: Called whenever something else begins.
        note: Called with a sentence if there is nothing to resume.

    Raises:
        CompareError: The comparison cannot run. What had finished is kept for ``resume``.
        StoreUnavailableError: The directory of a store of files does not exist.
        ConfigError: The price file is wrong.
        MissingDependencyError: A client is not installed; names the extra.
    """
    plans = selected(options.only)
    prices = load_prices(options.prices)
    identity = options.address or BrokerAddress("local", "")
    path = Journal.of(options.state, identity)
    with locked(path), contextlib.ExitStack() as stack:
        journal, old = _journal(path, options)
        if options.resume and not journal.finished:
            note("there is nothing to resume: this is a new run")
        folder = _scratch(stack, journal, options)
        broker = stack.enter_context(contextlib.closing(connect(options.address or BrokerAddress("local", folder))))
        _remove_leftovers(broker, old, options)
        lab = _lab(broker, journal, options, folder)
        with _noting(journal, len(plans)):
            _run(lab, plans, show)
        experiments = _with_cost(journal.finished, prices, lab)
        comparison = _comparison(lab, experiments, options)
        stack.callback(journal.remove)
        return comparison


# Before the run ------------------------------------------------------------------------------------------------


def _journal(path: Path, options: Options) -> tuple[Journal, Journal | None]:
    """Return the journal of this run, and that of an interrupted one."""
    old = Journal.read(path)
    journal = Journal(path)
    if old is not None and old.finished and options.resume:
        journal = replace(journal, settings=old.settings, finished=list(old.finished), seconds=old.seconds)
    return journal, old


def _scratch(stack: contextlib.ExitStack, journal: Journal, options: Options) -> str:
    """Create a temporary folder for the embedded broker and the store of files; the journal knows it."""
    folder = tempfile.mkdtemp(prefix=PREFIX)
    journal.folders.append(folder)
    stack.callback(_remove_folder, journal, folder)
    return folder


def _remove_folder(journal: Journal, folder: str) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    with contextlib.suppress(ValueError):
        journal.folders.remove(folder)
    if journal.path.exists():
        journal.write()


def _remove_leftovers(broker: Broker, old: Journal | None, options: Options) -> None:
    """Remove what an interrupted run could not."""
    if old is None:
        return
    for topic in old.topics:
        broker.delete_topic(topic)
    if old.stored and options.config is not None:
        StoreSpace.of(options.config, f"{PREFIX}{old.run}").clear()
    for folder in old.folders:
        if Path(folder).name.startswith(PREFIX):
            shutil.rmtree(folder, ignore_errors=True)


def _lab(broker: Broker, journal: Journal, options: Options, folder: str) -> Lab:
    space = StoreSpace.of(options.config or _default_config(folder), f"{PREFIX}{journal.run}")
    rounds = options.rounds or (_QUICK_ROUNDS if options.quick else _ROUNDS)
    sizes = _sizes(broker, journal, options)
    settings: dict[str, Any] = {"sizes": list(sizes), "rounds": rounds, "quick": options.quick, "store": space.label}
    if journal.settings and journal.settings != settings:
        raise CompareError("the interrupted run had other options: use the same ones, or leave out --resume")
    journal.settings = settings
    journal.write()
    return Lab(
        broker=broker,
        space=space,
        journal=journal,
        sizes=sizes,
        rounds=rounds,
        payloads=Payloads(options.payloads),
        quick=options.quick,
        rng=random.Random(journal.run),
    )


def _default_config(folder: str) -> Config:
    store = StoreConfig("filesystem", {"path": str(Path(folder, "store")), "create": True})
    return Config(strategy="hybrid", stores={"files": store})


def _sizes(broker: Broker, journal: Journal, options: Options) -> tuple[int, ...]:
    if options.sizes is not None:
        sizes = tuple(sorted(set(options.sizes)))
    elif options.payloads is not None:
        sizes = Payloads(options.payloads).sizes()
    elif options.sample_topic is not None:
        # A topic grows: a resumed run uses the sizes of its beginning.
        known = journal.settings.get("sizes")
        topic = options.sample_topic
        found = known or broker.sample_sizes(topic, _SAMPLED_MESSAGES)
        sizes = tuple(known) if known else representative(found, f"in the topic {topic}")
    else:
        sizes = _LOCAL_SIZES if broker.address.kind == "local" else _SIZES
    wrong = [size for size in sizes if not MIN_BYTES <= size <= MAX_BYTES]
    if wrong or not sizes:
        text = f"payloads must have {SIZE_RANGE}"
        raise CompareError(f"{text}, not {size_text(wrong[-1])}" if wrong else text)
    return sizes


def _check_room(lab: Lab) -> None:
    """Try the largest payload before the run, rather than fail in its middle."""
    largest, name = lab.sizes[-1], lab.space.name
    if lab.broker.address.kind == "local":
        needed, free = _DISK_BYTES + _DISK_FACTOR * largest, shutil.disk_usage(lab.broker.address.url).free
        if free < needed:
            text = f"the embedded broker needs {size_text(needed)}, but its disk has {size_text(free)}"
            raise CompareError(f"{text}: use smaller --sizes, or a larger disk with TMPDIR")
    if name is None:
        return
    with lab.claimcheck("external") as cc:
        try:
            store = cc.store(name)
            store.rollback(store.write(lab.payload(largest, 0), destination=PREFIX.rstrip("-")))
        except MissingDependencyError:
            raise
        except ClaimCheckError as error:
            raise CompareError(f"store {name!r} does not take a payload of {size_text(largest)}: {error}") from error


# The run -------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _noting(journal: Journal, count: int) -> Iterator[None]:
    """Keep the journal of a run that fails if there is something to resume or to remove, and add a note about it."""
    try:
        yield
    except BaseException as error:
        if journal.finished:
            error.add_note(f"{len(journal.finished)} of {count} experiments are finished; --resume continues this run")
        elif not journal.topics and not journal.stored:
            journal.remove()
        raise


def _run(lab: Lab, plans: Sequence[Plan], show: Show) -> None:
    done = {each.name for each in lab.journal.finished}
    waiting = [plan for plan in plans if plan.name not in done]
    schedule = Schedule(waiting, lab.broker.address.kind, lab.clock)
    with _cleaned(lab):
        _check_room(lab)
    for number, plan in enumerate(waiting, len(plans) - len(waiting) + 1):

        def progress(text: str, plan: Plan = plan, number: int = number, seconds: float | None = None) -> None:
            left = schedule.seconds_left(plan)
            show(Progress(plan.name, number, len(plans), text.removeprefix(f"{plan.name}: "), left, seconds))

        schedule.begin()
        lab.report = progress
        progress("")
        experiment = _run_one(lab, plan)
        lab.journal.finished.append(experiment)
        lab.journal.seconds += schedule.end(plan)
        lab.journal.write()
        progress("done", seconds=lab.clock() - schedule.started)


def _run_one(lab: Lab, plan: Plan) -> Experiment:
    budget = _LOCAL_SECONDS if lab.broker.address.kind == "local" else _SECONDS
    lab.deadline = lab.clock() + budget
    with _cleaned(lab):
        try:
            return plan.load()(lab)
        except (CompareError, ConfigError, MissingDependencyError):
            raise
        except ClaimCheckError as error:
            raise CompareError(f"{plan.name}: {error}") from error


@contextlib.contextmanager
def _cleaned(lab: Lab) -> Iterator[None]:
    """Remove topics, payloads and processes after a block, undisturbed by a second Ctrl-C.

    A failed clean-up is added to the error as a note; alone, it is raised.
    """
    try:
        yield
    except BaseException as error:
        try:
            with _deaf():
                lab.clean_up()
        except Exception as second:
            what = "topics" if lab.journal.topics else "payloads in the store"
            error.add_note(f"{what} could not be removed ({second}); the next comparison of this broker removes them")
        raise
    with _deaf():
        lab.clean_up()


@contextlib.contextmanager
def _deaf() -> Iterator[None]:
    """Ignore Ctrl-C during a block."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before: Callable[[int, FrameType | None], Any] | int | None = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


# After the run -------------------------------------------------------------------------------------------------


def _with_cost(finished: Sequence[Experiment], prices: Prices, lab: Lab) -> tuple[Experiment, ...]:
    """Add the cost, which is computed from what a payload takes up in the broker."""
    partition = next((each for each in finished if each.name == "partition"), None)
    if partition is None:
        return tuple(finished)
    return (*finished, estimate(prices, partition.facts, lab.sizes))


def _comparison(lab: Lab, experiments: tuple[Experiment, ...], options: Options) -> Comparison:
    config = lab.space.config
    setting = Setting(
        limit_bytes=lab.broker.limit_bytes,
        store=lab.space.name,
        max_chunked_bytes=config.chunks.max_payload_bytes,
        stores_yaml="" if options.config is not None else _STORES_YAML,
    )
    return Comparison(
        made=datetime.datetime.now(datetime.UTC).astimezone().isoformat(timespec="seconds"),
        broker=lab.broker.label,
        store=lab.space.label,
        machine=machine(),
        sizes=lab.sizes,
        rounds=lab.rounds,
        seconds=round(lab.journal.seconds, 1),
        experiments=experiments,
        recommendation=recommend(experiments, setting),
    )
