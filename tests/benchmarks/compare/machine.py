"""On what a comparison was made."""

from __future__ import annotations

import os
import platform

from tests.benchmarks.machine import line_of, memory_gib, version_of

_CLIENTS = ("claimcheck-messaging", "confluent-kafka", "pulsar-client", "redis", "boto3", "obstore")


def machine() -> dict[str, str]:
    """Return processor, cores, memory, system, Python and the versions of the clients."""
    return {
        "processor": line_of("/proc/cpuinfo", "model name") or platform.processor() or platform.machine(),
        "cores": str(os.cpu_count() or 1),
        "memory": f"{memory_gib()} GiB",
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        **{name: version_of(name) for name in _CLIENTS},
    }
