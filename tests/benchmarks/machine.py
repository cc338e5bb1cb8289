"""On what a run is made: the machine, the versions, and a network of its own."""

from __future__ import annotations

import contextlib
import fcntl
import importlib.metadata
import os
import platform
import shutil
import socket
import struct
import subprocess
import sys
from pathlib import Path

_CONGESTION = Path("/proc/sys/net/ipv4/tcp_congestion_control")
_INSIDE = "CLAIMCHECK_BENCH_NETWORK"
_LIBRARIES = "claimcheck-messaging confluent-kafka pulsar-client redis hiredis boto3 obstore pyspark isal"
_SIOCSIFFLAGS, _IFF_UP = 0x8914, 1


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
        **{name: _version(name) for name in _LIBRARIES.split()},
        "network": network,
        "congestion_control": _CONGESTION.read_text().strip() if _CONGESTION.exists() else "unknown",
    }


def _version(package: str) -> str:
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version(package)
    return "not installed"


def _model() -> str:
    file = Path("/proc/cpuinfo")
    lines = file.read_text().splitlines() if file.exists() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")


# The network -----------------------------------------------------------------------------------------------------


def enter_network() -> str:
    """Start this program again in a network namespace of its own, where that is possible, and say where it runs.

    The host's network may have a congestion control that paces (bbr), with which a loopback is half as fast as with
    reno, and unevenly so. Where a namespace is possible this returns in the new program only, which begins anew.
    """
    if _INSIDE not in os.environ:  # not started again yet
        for options in (["-n"], ["-rn"]):  # the second makes us root of the namespace, where we are not root already
            if _may_unshare(options):
                command = ["unshare", *options, "--", sys.executable, *sys.argv]
                os.execvpe(command[0], command, {**os.environ, _INSIDE: "1"})
        return "the host's own: no private network namespace could be made"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", _IFF_UP))
    try:
        _CONGESTION.write_text("reno")
    except OSError as error:
        return f"a private network namespace, where the congestion control cannot be changed: {error.strerror}"
    return "a private network namespace"


def _may_unshare(options: list[str]) -> bool:
    if shutil.which("unshare") is None:
        return False
    return subprocess.run(["unshare", *options, "true"], capture_output=True, check=False).returncode == 0
