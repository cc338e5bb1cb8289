"""On what a run was made: the machine, the versions, the network."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import subprocess
from pathlib import Path
from typing import Any

CONGESTION = Path("/proc/sys/net/ipv4/tcp_congestion_control")
LIBRARIES = ("claimcheck-messaging", "redis", "hiredis", "boto3", "obstore", "isal")
PROGRAMS = ("redis-server", "cc")


def machine(network: str) -> dict[str, Any]:
    """Describe this machine and what is installed."""
    return {
        "cpu": line_of("/proc/cpuinfo", "model name") or platform.processor(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": memory_gib(),
        "kernel": platform.release(),
        "load_at_start": os.getloadavg()[0],
        "python": platform.python_version(),
        "libraries": {name: version_of(name) for name in LIBRARIES},
        "programs": {name: _program(name) for name in PROGRAMS},
        "congestion_control": CONGESTION.read_text().strip() if CONGESTION.exists() else "unknown",
        "network": network,
    }


def lines(facts: dict[str, Any]) -> list[str]:
    """Say the same to a person."""
    libraries = ", ".join(f"{name} {version}" for name, version in facts["libraries"].items())
    memory, load = f"{facts['memory_gib']} GiB", f"load {facts['load_at_start']:.1f}"
    return [
        f"Machine: {facts['cpu']}, {facts['cores']} cores, {memory}, Linux {facts['kernel']}, {load}",
        f"Versions: Python {facts['python']}, {libraries}",
        *facts["programs"].values(),
        f"Network: loopback, congestion control {facts['congestion_control']} ({facts['network']})",
    ]


def memory_gib() -> float:
    """The memory of this machine."""
    return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30), 1)


def version_of(package: str) -> str:
    """The installed version of a package."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def line_of(file: str, key: str) -> str:
    for line in Path(file).read_text().splitlines() if Path(file).exists() else ():
        if line.startswith(key):
            return line.partition(":")[2].strip()
    return ""


def _program(name: str) -> str:
    if shutil.which(name) is None:
        return f"{name} is not on PATH"
    done = subprocess.run([name, "--version"], capture_output=True, text=True, check=False)
    return (done.stdout or done.stderr).strip().partition("\n")[0]
