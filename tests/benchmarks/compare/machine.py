"""On what a comparison was made."""

from __future__ import annotations

import contextlib
import os
import platform
from importlib import metadata
from pathlib import Path

_CLIENTS = ("claimcheck", "confluent-kafka", "pulsar-client", "redis", "boto3", "obstore")


def machine() -> dict[str, str]:
    """Return processor, cores, memory, system, Python and the versions of the installed clients."""
    facts = {
        "processor": _processor() or platform.processor() or platform.machine(),
        "cores": str(os.cpu_count() or 1),
        "memory": _memory(),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
    }
    for name in _CLIENTS:
        with contextlib.suppress(metadata.PackageNotFoundError):
            facts[name] = metadata.version(name)
    return facts


def _processor() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return ""


def _memory() -> str:
    try:
        return f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / (1 << 30):.1f} GiB"
    except (ValueError, OSError):
        return "unknown"
