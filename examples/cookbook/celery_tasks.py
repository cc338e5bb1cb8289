"""Celery: a task gets an argument of any size, and the queue a pointer.

    python examples/cookbook/celery_tasks.py

Needs celery, packaging, redis, and Redis at REDIS_URL (default: redis://localhost:6379/0). Payloads are in claims/.
"""

from __future__ import annotations

import os

from celery import Celery
from celery.contrib.testing.worker import start_worker
from celery.result import AsyncResult

import claimcheck
from claimcheck.errors import StoreUnavailableError

REDIS_URL = os.environ.get("REDIS_URL", "redis://localhost:6379/0")

app = Celery("cookbook", broker=REDIS_URL, backend=REDIS_URL)
app.conf.task_default_queue = "cookbook"
stores = {"disk": {"type": "filesystem", "path": "claims", "create": True}}
cc = claimcheck.from_dict({"threshold_bytes": 64_000, "stores": stores})


@app.task(autoretry_for=(StoreUnavailableError,), retry_backoff=True)
def count_words(document: bytes) -> int:
    return len(cc.resolve(document).split())


@cc.offload(payload="document")
def send(document: bytes) -> AsyncResult:
    return count_words.delay(document)


def main() -> None:
    """Send a small and a large argument, and run a worker in this process."""
    results = [send(b"two words"), send(b"word " * 1_000_000)]
    with start_worker(app, pool="solo", perform_ping_check=False):
        print(*[f"{result.get(timeout=30):,} words" for result in results], sep="\n")


if __name__ == "__main__":
    main()
