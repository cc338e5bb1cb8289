"""How long a sweep takes, and its peak memory: small expired payloads in a folder, a Redis or a bucket.

    python tests/benchmarks/sweep.py filesystem 1000000
    python tests/benchmarks/sweep.py redis 100000 redis://localhost:6379/0
    python tests/benchmarks/sweep.py s3 10000 http://localhost:9000

The payloads are made without the store, in the layout of its keys; one in ten is not expired and has to stay. For a
folder, the same files are also deleted by a loop of `os.scandir` and `os.unlink` and by ``rm -rf``, for comparison.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
DAY = 86_400
PAYLOAD = b"x" * 100


def keys(store: Any, count: int) -> list[str]:
    """Keys of payloads of which nine in ten expired long ago."""
    now = int(time.time()) * 1000
    moments = [now if i % 10 == 0 else now - 30 * DAY * 1000 for i in range(count)]
    return [
        store._key("orders", uuid.uuid4(), created_ms=moment, expires_ms=store._expires_ms(moment, None), fresh=True)
        for moment in moments
    ]


def fill_folder(store: Any, count: int, folder: str) -> None:
    """Create the files."""
    made = set()
    for key in keys(store, count):
        parent, _, _ = key.rpartition("/")
        if parent not in made:
            os.makedirs(f"{folder}/{parent}", exist_ok=True)
            made.add(parent)
        descriptor = os.open(f"{folder}/{key}", os.O_WRONLY | os.O_CREAT)
        os.write(descriptor, PAYLOAD)
        os.close(descriptor)


def fill_redis(store: Any, count: int, url: str) -> None:
    """Set keys that do not expire by themselves."""
    import redis

    client, names = redis.Redis.from_url(url), keys(store, count)
    for first in range(0, count, 10_000):
        pipeline = client.pipeline(transaction=False)
        for key in names[first : first + 10_000]:
            pipeline.set(f"{key}-0", PAYLOAD)
        pipeline.execute()


def fill_bucket(store: Any, count: int, bucket: str) -> None:
    """Put the objects."""
    client = store._s3()
    client.create_bucket(Bucket=bucket)
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda key: client.put_object(Bucket=bucket, Key=key, Body=PAYLOAD), keys(store, count)))


def compare(store: Any, count: int, folder: str) -> None:
    """Delete the same files as the sweep does, by the least that Python needs, and all of them by a program in C."""
    loop = "import sys, {0}; {0}.unlink_old(sys.argv[1], sys.argv[2])".format(Path(__file__).stem)
    today = time.strftime("%Y-%m-%d", time.gmtime())
    for name, command in (
        ("bare loop", [sys.executable, "-c", loop, folder, today]),
        ("rm -rf", ["rm", "-rf", folder]),
    ):
        fill_folder(store, count, folder)
        before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        subprocess.run(command, check=True, cwd=Path(__file__).parent)
        seconds, after = time.perf_counter() - begin, resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu = sum(getattr(after, each) - getattr(before, each) for each in ("ru_utime", "ru_stime"))
        print(f"{name}: {seconds:.1f} s, {cpu:.1f} s of CPU", flush=True)
        subprocess.run(["rm", "-rf", folder], check=True)
        os.mkdir(folder)


def unlink_old(folder: str, today: str) -> None:
    """Delete all files in folders of other days."""
    for day in os.scandir(folder):
        for part in os.scandir(day) if day.name != today else ():
            for file in os.scandir(part):
                os.unlink(file.path)


def clear(options: dict[str, Any], store: Any) -> None:
    """Delete what stays, and a bucket."""
    store.delete(store.scan())
    if options["type"] == "s3":
        store._s3().delete_bucket(Bucket=options["bucket"])


def main(kind: str, count: int, address: str = "") -> None:
    """Fill a store, and sweep it in a process of its own."""
    from claimcheck._registry import build_store
    from claimcheck.config import StoreConfig

    with tempfile.TemporaryDirectory(prefix="claimcheck-bench-") as folder:
        place: dict[str, tuple[dict[str, Any], Callable[..., None], str]] = {
            "filesystem": ({"path": folder}, fill_folder, folder),
            "redis": ({"url": address, "key_prefix": f"bench-{uuid.uuid4().hex}:"}, fill_redis, address),
            "s3": ({"bucket": (bucket := f"bench-{uuid.uuid4().hex}"), "endpoint_url": address}, fill_bucket, bucket),
        }
        options, fill, where = place[kind]
        store = build_store(StoreConfig(kind, {**options, "ttl_seconds": DAY}), path="stores.swept")
        if kind == "filesystem":
            compare(store, count, folder)
        begin = time.perf_counter()
        fill(store, count, where)
        print(f"{kind}: {count:,} payloads made in {time.perf_counter() - begin:.1f} s", flush=True)
        raw = json.dumps({"stores": {"swept": {"type": kind, **options, "ttl_seconds": DAY}}})
        subprocess.run(
            [sys.executable, __file__, "--sweep", raw], check=True, env={**os.environ, "PYTHONPATH": str(ROOT)}
        )
        clear({"type": kind, **options}, store)


def sweep(raw: str) -> None:
    """Sweep, and print time and peak memory of this process."""
    import claimcheck

    with claimcheck.from_dict(json.loads(raw)) as cc:
        report = cc.sweep("swept", dry_run=False)
    usage = resource.getrusage(resource.RUSAGE_SELF)
    status = Path("/proc/self/status").read_text()  # not ru_maxrss, which begins with the memory of the parent
    peak = next(int(line.split()[1]) >> 10 for line in status.splitlines() if line.startswith("VmHWM"))
    print(f"listed {report.scanned:,}, deleted {report.deleted:,}, failed {report.failed}, kept {dict(report.kept)}")
    print(
        f"{report.duration_seconds:.1f} s, {report.deleted / report.duration_seconds:,.0f} deletions/s, "
        f"{usage.ru_utime + usage.ru_stime:.1f} s of CPU, peak memory {peak} MiB"
    )


if __name__ == "__main__":
    if sys.argv[1] == "--sweep":
        sweep(sys.argv[2])
    else:
        sys.path.insert(0, str(ROOT))
        main(sys.argv[1], int(sys.argv[2]), *sys.argv[3:])
