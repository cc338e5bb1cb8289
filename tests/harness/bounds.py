"""Attacks the bounds in bytes of one reader, in a process of its own with little memory; prints what went wrong.

python -m tests.harness.bounds READER FOLDER ATTACK,... FAULT
"""

from __future__ import annotations

import json
import logging
import os
import resource
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from claimcheck._content import coder
from claimcheck._store import read
from tests.harness.bounds_attacks import MIB, Attack, Attacker, options
from tests.harness.bounds_drivers import DRIVERS

ROOT = Path(__file__).resolve().parents[2]
MOST = 144 * MIB
"""Memory for the reader, the payload that the caller processes, and copies for Arrow: all payloads need 192 MiB."""

FAULTS: dict[str, tuple[Any, str, Any]] = {
    "counts bytes on the wire": (coder.Unpacker, "size_of", lambda self, content: len(content)),
    "trusts declared sizes": (read, "TRUSTED_BYTES", 1 << 60),
}
"""Planted in the library, to see that an attack finds them: one for what is held, one for what is allocated."""

SECONDS = 120
"""For all attacks on a reader, which take about two. One that runs out of memory may wait for its threads for ever."""

ENVIRONMENT = {
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_THRESHOLD_": str(MIB // 8),  # otherwise it grows, and freed payloads leave holes that count, too
    "ARROW_DEFAULT_MEMORY_POOL": "system",
    "OMP_NUM_THREADS": "1",
}


def problems(reader: str, folder: Path, attacks: Sequence[str] = (), *, fault: str = "") -> dict[str, list[str]]:
    """Return what a reader did wrong, by attack, with a fault planted in the library if one is named."""
    names = attacks or DRIVERS[reader][1]
    command = [sys.executable, "-m", "tests.harness.bounds", reader, str(folder), ",".join(names), fault]
    environment = {**os.environ, **ENVIRONMENT}
    with (folder / "errors").open("w") as errors, (folder / "results").open("w") as results:
        try:
            subprocess.run(
                command, cwd=ROOT, env=environment, stdout=results, stderr=errors, timeout=SECONDS, check=False
            )
        except subprocess.TimeoutExpired:
            errors.write("it did not end")
    found: dict[str, list[str]] = dict(json.loads(line) for line in (folder / "results").read_text().splitlines())
    unfinished = ["the process ended: " + (folder / "errors").read_text()[-2000:]]
    every = {name: found.get(name, unfinished) for name in ("nothing", *names)}
    return {name: wrong for name, wrong in every.items() if wrong}


def attacked(reader: str, attack: Attack, folder: Path) -> list[str]:
    """Return the results that differ from those that an attack must have, and the error that ended it, if any."""
    driver, _ = DRIVERS[reader]
    results, ended = Counter[str](), list[str]()
    try:
        for result in driver(options(folder / "store") | attack.options, attack.messages, folder):
            results[result] += 1
    except BaseException as error:
        ended = [f"ended with {type(error).__name__}: {str(error)[:200]}"]
    expected = Counter(attack.expected)
    more = [f"{count} times {result}" for result, count in (results - expected).items()]
    less = [f"{count} times no {result}" for result, count in (expected - results).items()]
    return ended + more + less


def main(reader: str, folder: Path, names: Sequence[str], fault: str) -> None:
    """Attack a reader, and print a line for each attack."""
    logging.disable()
    threading.stack_size(MIB // 2)  # the default takes 8 MiB of what is allowed
    attacker = Attacker(folder / "store")
    attacks = {name: attacker.attack(name) for name in names}
    first = attacks[names[0]]
    _report("nothing", attacked(reader, Attack(first.messages[1:3] * 30, first.expected[1:3] * 30), folder))  # imports
    if fault:
        setattr(*FAULTS[fault])
    most = _used() + MOST
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    for name, attack in attacks.items():
        _report(name, attacked(reader, attack, folder))
    os._exit(0)  # threads of a reader that failed may wait for ever


def _report(name: str, wrong: list[str]) -> None:
    print(json.dumps([name, wrong]), flush=True)


def _used() -> int:
    """Return the address space of this process, which the limit is about."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("VmSize"))) << 10


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3].split(","), sys.argv[4])
