"""Put the same payloads through claimcheck and through what else there is for Python, and draw both.

    python tests/benchmarks/peers.py [--quick] [--only NAME,NAME] [--out FOLDER] [--environments FOLDER]

Every library works in a process of its own, round by round in turns with the others, against the same servers with
their default settings: one Redis, one S3 server (versitygw), one file system; SQS, where a library needs it to send its
pointer, is moto's. A library that cannot be installed or does not work is named and left out.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[2]))  # at the end: what is installed wins

from tests import servers
from tests.benchmarks import network
from tests.benchmarks.lab import BUCKET, CREDENTIALS, HERE, Lab
from tests.benchmarks.machine import machine
from tests.benchmarks.peer_environments import PEERS, Peer, prepare, python_of
from tests.benchmarks.peer_process import PeerProcess
from tests.benchmarks.peer_results import METHOD, Results
from tests.benchmarks.picture import Lines, draw_lines
from tests.benchmarks.report import progress
from tests.benchmarks.rounds import MIB, QUICK, size_text

ROUNDS = {MIB // 16: 21, MIB: 15, 16 * MIB: 9, 64 * MIB: 7}  # by size of the payload
QUICK_ROUNDS = {MIB // 16: 3, MIB: 3}
Show = Callable[[str], None]
_LEFT_OUT = "CLAIMCHECK_BENCH_LEFT_OUT"


def main(arguments: Sequence[str]) -> int:
    """Install, measure, report."""
    options = _options(arguments)
    for program in ("redis-server", "versitygw"):
        if shutil.which(program) is None:
            sys.exit(f"There is no {program} on PATH, which the libraries are compared on (see .ci/run)")
    if not network.inside():  # a private network reaches no registry
        os.environ[_LEFT_OUT] = json.dumps(prepare(options.only, options.environments))
    where = network.enter()
    results = Results(json.loads(os.environ[_LEFT_OUT]))
    for number in (signal.SIGINT, signal.SIGTERM):  # a run that is broken off still stops its servers
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    facts = machine(where)
    print(*(f"{name}: {value}" for name, value in facts.items()), "", METHOD, "", sep="\n", flush=True)
    _measure(QUICK_ROUNDS if options.quick else ROUNDS, options, results)
    print(*results.table(), sep="\n")
    document = {"made": datetime.now(UTC).isoformat(timespec="seconds"), "machine": facts, "method": METHOD}
    _write_down(results, {**document, "quick": options.quick}, options.out)
    return 0


def _measure(rounds: dict[int, int], options: argparse.Namespace, results: Results) -> None:
    peers = [peer for peer in options.only if peer.name not in results.left_out]
    show = progress(sum(rounds.values()))
    with Lab(QUICK) as lab, contextlib.ExitStack() as stack:
        ground = _Ground(lab, stack)
        for size, count in rounds.items():
            _one_size(peers, size, count, options.environments, ground, results, show)


def _one_size(
    peers: Sequence[Peer],
    size: int,
    rounds: int,
    root: Path,
    ground: _Ground,
    results: Results,
    show: Callable[[str], None],
) -> None:
    """Start all libraries anew, with no payload of another size in their memory, and let them take turns."""
    with contextlib.ExitStack() as stack:
        running = {peer: stack.enter_context(ground.process(peer, root)) for peer in peers}
        for peer, process in list(running.items()):
            with results.failure_of(peer, running):
                results.versions[peer.name] = process.version()
        for number in range(rounds):
            show(f"{size_text(size)}, round {number + 1} of {rounds}, {len(running)} libraries")
            for peer in _rotated(list(running), number):
                with results.failure_of(peer, running):
                    results.add(peer, size, running[peer].round(size, number))
            ground.clear()


class _Ground:
    """The servers, and the folder for files, that all libraries share."""

    def __init__(self, lab: Lab, stack: contextlib.ExitStack) -> None:
        self.folder, self._logs = lab.folder / "files", lab.folder / "logs"
        self._logs.mkdir()
        self._redis, self._s3, self._sqs = (
            lab.redis_by_default,
            stack.enter_context(servers.s3()),
            stack.enter_context(_moto()),
        )
        self._bucket = _bucket(self._s3.endpoint_url)
        self.folder.mkdir()

    def process(self, peer: Peer, root: Path) -> PeerProcess:
        """Start a library."""
        ours = {"BENCH_REDIS_URL": self._redis, "BENCH_FOLDER": str(self.folder)}
        theirs = {"AWS_ENDPOINT_URL_S3": self._s3.endpoint_url, "AWS_ENDPOINT_URL_SQS": self._sqs}
        log = self._logs / f"{peer.name}.log"
        return PeerProcess(python_of(peer, root), peer.name, {**os.environ, **CREDENTIALS, **ours, **theirs}, log)

    def clear(self) -> None:
        """Remove every payload from Redis and S3, so that memory does not fill up.

        Files stay until the end: for seconds after many were deleted, ext4 takes long to find an inode for a new one.
        """
        import redis

        with contextlib.closing(redis.Redis.from_url(self._redis)) as client:
            client.flushdb()
        self._bucket.objects.all().delete()


def _bucket(url: str) -> Any:
    import boto3

    return boto3.resource("s3", endpoint_url=url).create_bucket(Bucket=BUCKET)


@contextlib.contextmanager
def _moto() -> Iterator[str]:
    """Run moto's SQS in a thread of this process, which has nothing else to do meanwhile."""
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # else a line for each request
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        yield f"http://{host}:{port}"
    finally:
        server.stop()


def _rotated(peers: list[Peer], number: int) -> list[Peer]:
    first = number % len(peers) if peers else 0
    return peers[first:] + peers[:first]


def _write_down(results: Results, document: dict[str, Any], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "peers.json").write_text(json.dumps({**document, **results.as_dict()}, indent=1) + "\n")
    draw_peers(results.rates(), folder / "peers.png")
    print(f"Written: {folder / 'peers.json'}\nDrawn: {folder / 'peers.png'}")


STORES = {"redis": "Redis", "s3": "S3", "file": "Files"}


def draw_peers(rates: Mapping[str, Mapping[str, Mapping[int, float]]], path: Path) -> None:
    """Draw MB/s by payload size of each library, one panel for each store."""
    panels = [
        Lines.of(f"{text}: MB/s, write and read together", rates[store], lambda size: size_text(int(size)))
        for store, text in STORES.items()
        if store in rates
    ]
    draw_lines(
        panels, path, "Writing a payload and reading it back, on one 2-core machine", columns=len(panels), shared=True
    )


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Compare claimcheck with other libraries.")
    parser.add_argument("--quick", action="store_true", help="few rounds and small payloads, to try it")
    parser.add_argument("--only", type=_peers, default=PEERS, metavar="NAMES", help="libraries, separated by commas")
    parser.add_argument("--out", type=Path, default=Path("bench-results"), help="folder for JSON and PNG")
    parser.add_argument(
        "--environments", type=Path, default=HERE.parents[1] / ".venv-peers", help="folder for what they need"
    )
    return parser.parse_args(arguments)


def _peers(text: str) -> list[Peer]:
    names = text.split(",")
    if unknown := set(names) - {peer.name for peer in PEERS}:
        known = ", ".join(peer.name for peer in PEERS)
        raise argparse.ArgumentTypeError(f"no such library: {', '.join(sorted(unknown))}; there are {known}")
    return [peer for peer in PEERS if peer.name in names]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
