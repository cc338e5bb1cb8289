"""A network of the run's own, because the host's may have a congestion control that holds back a loopback.

With ``bbr``, which paces, a loopback is half as fast as with ``reno``, and unevenly so.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import socket
import struct
import subprocess
import sys

from tests.benchmarks.machine import CONGESTION

CONTROL = "reno"
_INSIDE = "CLAIMCHECK_BENCH_NETWORK"
_SIOCSIFFLAGS = 0x8914
_IFF_UP = 1


def enter() -> str:
    """Start this program again in a network namespace of its own, where that is possible, and say where it runs.

    Where it is possible this returns in the new program only, which begins from the start and comes here again.
    """
    if not inside():
        for options in (["-n"], ["-rn"]):  # the second makes us root of the namespace, where we are not root already
            if _may_unshare(options):
                command = ["unshare", *options, "--", sys.executable, *sys.argv]
                os.execvpe(command[0], command, {**os.environ, _INSIDE: "1"})
        return "the host's own: no private network namespace could be made"
    _loopback_up()
    try:
        CONGESTION.write_text(CONTROL)
    except OSError as error:
        return f"a private network namespace, where the congestion control cannot be changed: {error.strerror}"
    return "a private network namespace"


def inside() -> bool:
    """Whether this program was started again already."""
    return _INSIDE in os.environ


def _may_unshare(options: list[str]) -> bool:
    """Whether a namespace can be made, and is of use: outside of it nothing would have changed."""
    if shutil.which("unshare") is None:
        return False
    return subprocess.run(["unshare", *options, "true"], capture_output=True, check=False).returncode == 0


def _loopback_up() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", _IFF_UP))
