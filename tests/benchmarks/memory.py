"""Peak memory of sending and reading one large file: what the process holds beyond what it held before.

    python tests/benchmarks/memory.py [MIB]       default 1024; redis where redis-server is on PATH

Each figure is of a process of its own: the file goes through a decorated produce call, and comes back as a stream, in
pieces of 1 MiB. Caveats: the kernel's page cache is not counted; the server's memory is not counted; a peak is that of
the resident set (``VmHWM`` of /proc/self/status, so Linux only), which also grows with what other code imports.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

PIECE = 1 << 20


def peak_mib() -> float:
    """The highest resident set of this process so far, in MiB; ``ru_maxrss`` would begin with that of its parent."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


def measured(job: str, config: str, path: str) -> None:
    """In a process of its own: send or read, and print what it took."""
    import claimcheck

    cc = claimcheck.from_dict(json.loads(config))
    envelope = Path(path + ".envelope")

    @cc.offload(payload="value")
    def publish(value):
        return value

    cc.resolve(publish(bytes(2000)))  # connections and modules are there before the count begins
    before, begin = peak_mib(), time.perf_counter()
    if job == "send":
        with open(path, "rb") as file:
            envelope.write_bytes(publish(file))
    else:
        with cc.open(envelope.read_bytes()) as payload, open(os.devnull, "wb") as sink:
            shutil.copyfileobj(payload, sink, PIECE)
    print(json.dumps({"extra_mib": peak_mib() - before, "base_mib": before, "seconds": time.perf_counter() - begin}))


def run(name: str, store: dict[str, object], path: Path, size: int) -> None:
    """Measure one store in both directions."""
    config = json.dumps({"strategy": "external", "threshold_bytes": 1000, "stores": {name: store}})
    for job in ("send", "read"):
        command = [sys.executable, __file__, job, config, str(path)]
        result = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        rate = size / result["seconds"] / 1e6
        print(
            f"{name:12} {job:5} {size >> 20:6} MiB   peak extra {result['extra_mib']:7.1f} MiB"
            f"   (process before: {result['base_mib']:5.1f} MiB)   {rate:7.0f} MB/s"
        )


def main(mib: int) -> None:
    """Measure all stores on one file of random bytes."""
    with tempfile.TemporaryDirectory() as work, contextlib.ExitStack() as stack:
        path, block = Path(work) / "payload.bin", os.urandom(PIECE)
        with path.open("wb") as file:
            for number in range(mib):
                file.write(number.to_bytes(8, "big") + block[8:])
        run("filesystem", {"type": "filesystem", "path": f"{work}/claims"}, path, mib << 20)
        if shutil.which("redis-server"):
            from tests import servers

            run("redis", {"type": "redis", "url": stack.enter_context(servers.redis())}, path, mib << 20)


if __name__ == "__main__":
    if len(sys.argv) == 4:
        measured(*sys.argv[1:])
    else:
        main(int(sys.argv[1]) if len(sys.argv) > 1 else 1024)
