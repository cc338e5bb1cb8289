"""Four gibibytes through each store, in the memory of a few pieces."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT

GIB = 1 << 30
SIZE = 4 * GIB + 4711

PROGRAM = """
import io, json, re, sys
import claimcheck

options, size, known = json.loads(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == "known"
block = bytes(range(251)) * 4200


class Endless(io.RawIOBase):  # the period of its bytes divides no segment or part
    position = 0
    def readable(self): return True
    def seekable(self): return known
    def tell(self): return self.position
    def seek(self, offset, whence=0):
        self.position = offset + (size if whence == 2 else self.position if whence == 1 else 0)
        return self.position
    def read(self, count=-1):
        start = self.position % 251
        piece = block[start : start + min(count, 1 << 20, size - self.position)]
        self.position += len(piece)
        return piece


def peak():
    with open("/proc/self/status") as status:
        return int(re.search(r"VmHWM:\\s+(\\d+)", status.read())[1]) << 10


store = claimcheck.from_dict({"strategy": "external", "stores": {"large": options}}).store("large")
small = store.write(bytes(100_000))  # opens connections and imports modules before the measurement
store.read(small)
store.rollback(small)
before = peak()
pointer = store.write(Endless())
written = peak()
total, buffer = 0, memoryview(bytearray(1 << 20))
with store.open(pointer) as file:
    while count := file.readinto(buffer):
        assert buffer[:251] == block[total % 251 : total % 251 + 251][:count]
        total += count
tail = store.read_range(pointer, size - 1000, 2000)
store.rollback(pointer)
start = (size - 1000) % 251
assert tail == block[start : start + 1000]
print(json.dumps({"size": total, "write": written - before, "read": peak() - before}))
"""


def through(options, known):
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(options), str(SIZE), known],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


def needs(folder, gib):
    """Skip the test where the disk is too small; where servers are required, it fails instead."""
    free = shutil.disk_usage(folder).free
    if free < gib * GIB and not os.environ.get("CLAIMCHECK_REQUIRE_SERVERS"):
        pytest.skip(f"needs {gib} GiB of disk space, {free / GIB:.1f} are free")


def needs_memory(gib):
    available = int(Path("/proc/meminfo").read_text().partition("MemAvailable:")[2].split()[0]) << 10
    if available < gib * GIB and not os.environ.get("CLAIMCHECK_REQUIRE_SERVERS"):
        pytest.skip(f"needs {gib} GiB of memory, {available / GIB:.1f} are available")


def within(taken, mib):
    assert taken["size"] == SIZE
    assert max(taken["write"], taken["read"]) < mib << 20, taken


pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads the memory use from Linux's /proc"),
]


def test_filesystem(tmp_path):
    needs(tmp_path, 5)
    within(through({"type": "filesystem", "path": str(tmp_path)}, "known"), 8)


def test_redis(redis_url):
    needs_memory(6)
    within(through({"type": "redis", "url": redis_url, "ttl_seconds": 600}, "unknown"), 8)


def test_s3(s3_server, s3_bucket, tmp_path):
    needs(tmp_path, 10)
    options = {"type": "s3", "bucket": s3_bucket, "endpoint_url": s3_server.endpoint_url}
    within(through(options, "unknown"), 5 * 16 + 8)
