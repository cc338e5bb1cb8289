"""In a process of its own: send or receive one payload through Kafka, and print how many bytes that took at its peak.

python kafka_child.py '{"job": "receive-chunks", "size": 104857600, "servers": "...", "topic": "...", "redis": "..."}'

The same is done with a small payload first, so that modules and connections are not counted.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[2]))  # at the end: what is installed wins

import claimcheck
from tests.benchmarks.kafka_pipe import Pipe
from tests.benchmarks.memory_child import peak_extra
from tests.benchmarks.rounds import MIB, payload_of


def main(what: dict[str, Any]) -> None:
    """Warm up, work, print."""
    strategy = "external" if what["job"].endswith("pointer") else "chunking"
    store = {"type": "redis", "url": what["redis"], "ttl_seconds": 60}
    with claimcheck.from_dict({"strategy": strategy, "stores": {"hot": store}}) as cc:
        pipe = Pipe(what["servers"], what["topic"], cc)
        print(_sent(pipe, what["size"]) if what["job"].startswith("send") else _received(pipe))
        pipe.close()


def _sent(pipe: Pipe, size: int) -> int:
    pipe.deliver(payload_of(2 * MIB))
    payload = payload_of(size)
    return peak_extra(lambda: pipe.deliver(payload))[0]


def _received(pipe: Pipe) -> int:
    """The payload lies in the topic already: the client reads as far ahead as it may."""
    pipe.read(1)
    pipe.rest()
    return peak_extra(lambda: pipe.read(2))[0]


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
