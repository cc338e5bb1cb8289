"""Runs the experiments of a comparison in order, and removes what they created."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import random
import secrets
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from claimcheck.config import Config, StoreConfig
from claimcheck.errors import ClaimCheckError, ConfigError
from tests.benchmarks.children import ChildError
from tests.benchmarks.compare import delivery, expiry, memory, partition_bytes, rollback, speed
from tests.benchmarks.compare.broker import BrokerAddress, connect
from tests.benchmarks.compare.lab import PREFIX, Lab
from tests.benchmarks.compare.model import CompareError, Experiment
from tests.benchmarks.compare.recommendation import Setting, recommend
from tests.benchmarks.compare.store_space import StoreSpace
from tests.benchmarks.machine import machine

Plan = Callable[[Lab], Experiment]
Show = Callable[[str], None]

PLANS: dict[str, Plan] = {
    "services": delivery.services,
    "partition": partition_bytes.run,
    "expiry": expiry.run,
    "seek": delivery.seek,
    "memory": memory.run,
    "partitions": delivery.partitions,
    "rebalance": delivery.rebalance,
    "rollback": rollback.run,
    "speed": speed.run,
}
"""All experiments in their order."""

NOT_EMBEDDED = ("rebalance",)
"""Those that need groups with several members."""

_LOCAL_SIZES = (64 << 10, 1 << 20, 10 << 20)
_SIZES = (*_LOCAL_SIZES, 100 << 20)
_ROUNDS, _QUICK_ROUNDS = 5, 2
_STORES_YAML = """\
stores:
  files: {type: filesystem, path: claimcheck-payloads, create: true}  # shared by all machines
"""


def selected(only: Sequence[str], kind: str) -> dict[str, Plan]:
    """Return the experiments to run on a kind of broker: all if none is named."""
    if unknown := [name for name in only if name not in PLANS]:
        raise CompareError(f"there is no experiment {unknown[0]!r}; choose from {', '.join(PLANS)}")
    left_out = NOT_EMBEDDED if kind == "local" else ()
    return {name: plan for name, plan in PLANS.items() if name not in left_out and (not only or name in only)}


def compare(
    address: BrokerAddress | None = None,
    config: Config | None = None,
    *,
    sizes: Sequence[int] = (),
    only: Sequence[str] = (),
    rounds: int | None = None,
    quick: bool = False,
    show: Show = lambda text: None,
    done: Show = lambda text: None,
) -> dict[str, Any]:
    """Run the experiments and return values for JSON. What they create is removed, also after an error.

    Without a broker and a configuration, those are an embedded one and files in a temporary folder.
    """
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix=PREFIX, ignore_cleanup_errors=True))
        broker = stack.enter_context(contextlib.closing(connect(address or BrokerAddress("local", folder))))
        plans = selected(only, broker.address.kind)
        files = StoreConfig("filesystem", {"path": str(Path(folder, "store")), "create": True})
        run, is_local = secrets.token_hex(4), broker.address.kind == "local"
        lab = Lab(
            broker=broker,
            space=StoreSpace.of(config or Config(strategy="hybrid", stores={"files": files}), f"{PREFIX}{run}"),
            sizes=tuple(sorted(set(sizes or (_LOCAL_SIZES if is_local else _SIZES)))),
            rounds=rounds or (_QUICK_ROUNDS if quick else _ROUNDS),
            quick=quick,
            rng=random.Random(run),
            run=run,
        )
        begin = time.monotonic()
        finished = _run(lab, plans, show, done)
        stores_yaml = _STORES_YAML if config is None else ""
        return _comparison(lab, finished, time.monotonic() - begin, stores_yaml)


# The run -------------------------------------------------------------------------------------------------------


def _run(lab: Lab, plans: dict[str, Plan], show: Show, done: Show) -> list[Experiment]:
    finished = []
    for number, (plan, run) in enumerate(plans.items(), 1):
        name, begin = f"{number}/{len(plans)} {plan}", time.monotonic()
        lab.progress = lambda text, name=name: show(f"{name}: {text}")  # type: ignore[misc]
        try:
            finished.append(run(lab))
        except (CompareError, ConfigError):
            raise
        except (ClaimCheckError, ChildError) as error:
            raise CompareError(f"{plan}: {error}") from error
        finally:
            lab.space.clear()  # an experiment removes its topics and processes itself
        done(f"{name:<16} done in {time.monotonic() - begin:.1f} s")
    return finished


def _comparison(lab: Lab, experiments: Sequence[Experiment], seconds: float, stores_yaml: str) -> dict[str, Any]:
    most = lab.space.config.chunks.max_payload_bytes
    recommendation = recommend(experiments, Setting(lab.broker.limit_bytes, lab.space.name, most, stores_yaml))
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
