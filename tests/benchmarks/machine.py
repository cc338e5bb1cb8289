"""On what a run was made: the machine, the versions, the network."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import subprocess
from pathlib import Path

CONGESTION = Path("/proc/sys/net/ipv4/tcp_congestion_control")
_LIBRARIES = (
    "claimcheck-messaging", "confluent-kafka", "pulsar-client", "redis", "hiredis", "boto3", "obstore", "pyspark",
    "isal",
)  # fmt: skip
_PROGRAMS = ("redis-server", "cc")


def machine(network: str = "the host's own") -> dict[str, str]:
    """Describe this machine and what is installed."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30)
    return {
        "processor": _model() or platform.processor() or platform.machine(),
        "cores": str(os.cpu_count() or 1),
        "memory": f"{memory:.1f} GiB",
        "system": f"{platform.system()} {platform.release()}",
        "load at start": f"{os.getloadavg()[0]:.1f}",
        "python": platform.python_version(),
        **{name: _version(name) for name in _LIBRARIES},
        **{name: _program(name) for name in _PROGRAMS},
        "network": network,
        "congestion_control": CONGESTION.read_text().strip() if CONGESTION.exists() else "unknown",
    }


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _model() -> str:
    file = Path("/proc/cpuinfo")
    lines = file.read_text().splitlines() if file.exists() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")


def _program(name: str) -> str:
    if shutil.which(name) is None:
        return "not on PATH"
    done = subprocess.run([name, "--version"], capture_output=True, text=True, check=False)
    return (done.stdout or done.stderr).strip().partition("\n")[0]
