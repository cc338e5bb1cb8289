"""Runs the experiments of a comparison in order, and removes what they created."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import random
import secrets
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from claimcheck._texts import size_text
from claimcheck.config import Config, StoreConfig
from claimcheck.errors import ClaimCheckError, ConfigError
from tests.benchmarks.compare import (
    expiry,
    memory,
    partition_bytes,
    partitions,
    rebalance,
    rollback,
    seek,
    services,
    speed,
)
from tests.benchmarks.compare.broker import Broker, BrokerAddress, connect
from tests.benchmarks.compare.lab import PREFIX, Lab
from tests.benchmarks.compare.model import CompareError, Experiment
from tests.benchmarks.compare.recommendation import Setting, recommend
from tests.benchmarks.compare.store_space import StoreSpace
from tests.benchmarks.machine import machine

Run = Callable[[Lab], Experiment]

PLANS: dict[str, Run] = {
    "services": services.run,
    "partition": partition_bytes.run,
    "expiry": expiry.run,
    "seek": seek.run,
    "memory": memory.run,
    "partitions": partitions.run,
    "rebalance": rebalance.run,
    "rollback": rollback.run,
    "speed": speed.run,
}
"""All experiments in their order."""

_LOCAL_SIZES = (64 << 10, 1 << 20, 10 << 20)
_SIZES = (*_LOCAL_SIZES, 100 << 20)
_ROUNDS, _QUICK_ROUNDS = 5, 2
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
        sizes: Of the payloads; ``None`` for the default.
        only: Names of experiments; ``None`` for all.
        rounds: How often measurements are repeated; ``None`` for the default.
        quick: A short test run.
    """

    address: BrokerAddress | None = None
    config: Config | None = None
    sizes: tuple[int, ...] | None = None
    only: tuple[str, ...] | None = None
    rounds: int | None = None
    quick: bool = False


Show = Callable[[str], None]


def _silent(text: str) -> None:
    """Show nothing."""


def selected(only: Sequence[str] | None) -> dict[str, Run]:
    """Return the experiments to run."""
    unknown = [name for name in only or () if name not in PLANS]
    if unknown or only == ():
        problem = f"there is no experiment {unknown[0]!r}" if unknown else "no experiment is named"
        raise CompareError(f"{problem}; choose from {', '.join(PLANS)}")
    return {name: run for name, run in PLANS.items() if only is None or name in only}


def compare(options: Options, *, show: Show = _silent, done: Show = _silent) -> dict[str, Any]:
    """Run the experiments and return values for JSON. What they create is removed, also after an error."""
    plans = selected(options.only)
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix=PREFIX, ignore_cleanup_errors=True))
        broker = stack.enter_context(contextlib.closing(connect(options.address or BrokerAddress("local", folder))))
        lab = _lab(broker, options, folder)
        begin = lab.clock()
        finished = _run(lab, plans, show, done)
        return _comparison(lab, finished, options, lab.clock() - begin)


# Before the run ------------------------------------------------------------------------------------------------


def _lab(broker: Broker, options: Options, folder: str) -> Lab:
    run = secrets.token_hex(4)
    return Lab(
        broker=broker,
        space=StoreSpace.of(options.config or _default_config(folder), f"{PREFIX}{run}"),
        sizes=_sizes(broker, options),
        rounds=options.rounds or (_QUICK_ROUNDS if options.quick else _ROUNDS),
        quick=options.quick,
        rng=random.Random(run),
        run=run,
    )


def _default_config(folder: str) -> Config:
    store = StoreConfig("filesystem", {"path": str(Path(folder, "store")), "create": True})
    return Config(strategy="hybrid", stores={"files": store})


def _sizes(broker: Broker, options: Options) -> tuple[int, ...]:
    if options.sizes is not None:
        return tuple(sorted(set(options.sizes)))
    return _LOCAL_SIZES if broker.address.kind == "local" else _SIZES


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
        except ClaimCheckError as error:
            raise CompareError(f"store {name!r} does not take a payload of {size_text(largest)}: {error}") from error


# The run -------------------------------------------------------------------------------------------------------


def _run(lab: Lab, plans: dict[str, Run], show: Show, done: Show) -> list[Experiment]:
    with _cleaned(lab):
        _check_room(lab)
    finished = []
    for number, (plan, run) in enumerate(plans.items(), 1):
        name, begin = f"{number}/{len(plans)} {plan}", lab.clock()

        def progress(text: str, name: str = name) -> None:
            show(f"{name}: {text}")

        lab.progress = progress
        finished.append(_run_one(lab, plan, run))
        done(f"{name:<16} done in {lab.clock() - begin:.1f} s")
    return finished


def _run_one(lab: Lab, name: str, run: Run) -> Experiment:
    budget = _LOCAL_SECONDS if lab.broker.address.kind == "local" else _SECONDS
    lab.deadline = lab.clock() + budget
    with _cleaned(lab):
        try:
            return run(lab)
        except (CompareError, ConfigError):
            raise
        except ClaimCheckError as error:
            raise CompareError(f"{name}: {error}") from error


@contextlib.contextmanager
def _cleaned(lab: Lab) -> Iterator[None]:
    """Remove topics, payloads and processes after a block.

    A failed clean-up is added to the error as a note; alone, it is raised.
    """
    try:
        yield
    except BaseException as error:
        try:
            lab.clean_up()
        except Exception as second:
            what = "topics" if lab.topics else "payloads in the store"
            error.add_note(f"{what} whose names begin with {PREFIX}{lab.run} could not be removed ({second})")
        raise
    lab.clean_up()


# After the run -------------------------------------------------------------------------------------------------


def _comparison(lab: Lab, experiments: Sequence[Experiment], options: Options, seconds: float) -> dict[str, Any]:
    config = lab.space.config
    setting = Setting(
        limit_bytes=lab.broker.limit_bytes,
        store=lab.space.name,
        max_chunked_bytes=config.chunks.max_payload_bytes,
        stores_yaml="" if options.config is not None else _STORES_YAML,
    )
    recommendation = recommend(experiments, setting)
    return {
        "made": datetime.datetime.now(datetime.UTC).astimezone().isoformat(timespec="seconds"),
        "broker": lab.broker.label,
        "store": lab.space.label,
        "machine": machine(),
        "sizes": list(lab.sizes),
        "rounds": lab.rounds,
        "seconds": round(seconds, 1),
        "experiments": [dataclasses.asdict(each) for each in experiments],
        "recommendation": None if recommendation is None else dataclasses.asdict(recommendation),
    }
