"""Stores on real servers: four gibibytes, a key service."""

import json
import os
import shutil
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from claimcheck._content.data_keys import DataKeys
from claimcheck.config import EncryptionConfig
from claimcheck.errors import ConfigError, IntegrityError, StoreUnavailableError
from tests.conftest import ROOT

# Four gibibytes through each store --------------------------------------------------------------------------------

GIB = 1 << 30

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


def needs(kind, available, gib):
    """Skip the test where there is too little room; where servers are required, it fails instead."""
    if available < gib * GIB and not os.environ.get("CLAIMCHECK_REQUIRE_SERVERS"):
        pytest.skip(f"needs {gib} GiB of {kind}, {available / GIB:.1f} are free")


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads the memory use from Linux's /proc")
@pytest.mark.parametrize(
    ("kind", "known", "gib", "most_mib"),
    [("filesystem", "known", 4, 8), ("redis", "unknown", 1, 8), ("s3", "unknown", 1, 5 * 16 + 8)],
)
def test_gibibytes_pass_in_the_memory_of_a_few_pieces(tmp_path, request, kind, known, gib, most_mib):
    size = gib * GIB + 4711
    if kind == "redis":
        memory = Path("/proc/meminfo").read_text().partition("MemAvailable:")[2].split()[0]
        needs("memory", int(memory) << 10, gib + 2)
        options = {"url": request.getfixturevalue("redis_url"), "ttl_seconds": 600}
    else:
        needs("disk space", shutil.disk_usage(tmp_path).free, 2 * gib + 1)
        options = {"path": str(tmp_path)}
    if kind == "s3":
        options = {"bucket": request.getfixturevalue("s3_bucket")}
        options["endpoint_url"] = request.getfixturevalue("s3_server").endpoint_url
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps({"type": kind, **options}), str(size), known],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    taken = json.loads(run.stdout)
    assert taken["size"] == size
    assert max(taken["write"], taken["read"]) < most_mib << 20, taken


# The example of a key provider, on a Vault or OpenBao server; CI has none -----------------------------------------

URL, TOKEN = (os.environ.get(f"CLAIMCHECK_TEST_VAULT_{name}", "") for name in ("URL", "TOKEN"))
CONTEXT = {"claimcheck": "2", "destination": "orders"}


@pytest.mark.skipif(not URL, reason="CLAIMCHECK_TEST_VAULT_URL is not set")
def test_the_example_of_a_key_provider_in_transit(monkeypatch):
    """The token must be allowed to mount engines."""
    hvac = pytest.importorskip("hvac")
    monkeypatch.syspath_prepend(str(ROOT / "examples" / "key_providers"))
    monkeypatch.setenv("VAULT_TOKEN", TOKEN)
    client, mount = hvac.Client(url=URL, token=TOKEN), f"test-{uuid.uuid4().hex[:8]}"
    transit = client.secrets.transit

    def data_keys(**options):
        options = {"url": URL, "token": "${VAULT_TOKEN}", "mount_point": mount, **options}
        keys = {"k1": "payloads", "k2": "nothing"}
        return DataKeys(
            EncryptionConfig(key_id="k1", keys=keys, provider="vault_transit:VaultTransit", options=options)
        )

    client.sys.enable_secrets_engine("transit", path=mount)
    try:
        transit.create_key("payloads", mount_point=mount)
        old = data_keys().new(CONTEXT)
        transit.rotate_key("payloads", mount_point=mount)
        new = data_keys().new(CONTEXT)
        assert (old.wrapped[:9], new.wrapped[:9]) == (b"vault:v1:", b"vault:v2:")
        assert [data_keys().open("k1", each.wrapped, CONTEXT) for each in (old, new)] == [old.key, new.key]
        foreign = transit.encrypt_data("payloads", plaintext="AAAA", mount_point=mount)["data"]["ciphertext"]
        for forged in (new.wrapped[:-6] + b"AAAAA=", foreign.encode(), b"\xff", b""):
            with pytest.raises(IntegrityError, match=r"encryption\.keys\.k1"):
                data_keys().open("k1", forged, CONTEXT)
        with pytest.raises(ConfigError, match="token"):
            data_keys(token="wrong").new(CONTEXT)
        with pytest.raises(StoreUnavailableError):
            data_keys(url="http://127.0.0.1:1").new(CONTEXT)
    finally:
        client.sys.disable_secrets_engine(mount)
