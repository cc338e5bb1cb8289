"""Put the same payloads through claimcheck and through what else there is for Python, and draw both.

    python tests/benchmarks/peers.py [--quick] [--only NAME,NAME] [--out FOLDER] [--environments FOLDER]

Every library works in a process of its own, round by round in turns with the others, against the same servers with
their default settings: one Redis, one S3 server (versitygw), one file system; SQS, where a library needs it to send its
pointer, is moto's. Some libraries cannot be installed beside each other, so each has an environment. A library that
cannot be installed or does not work is named and left out.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

sys.path.append(str(Path(__file__).resolve().parents[2]))  # at the end: what is installed wins

from tests import servers
from tests.benchmarks.bench import begin, write_down
from tests.benchmarks.children import Child, ChildError
from tests.benchmarks.lab import BUCKET, CREDENTIALS, HERE, Lab, needed
from tests.benchmarks.machine import is_inside
from tests.benchmarks.picture import Lines, draw_lines
from tests.benchmarks.rounds import MIB, QUICK, rotated, size_text
from tests.benchmarks.rows import progress

ROUNDS = {MIB // 16: 21, MIB: 15, 16 * MIB: 9, 64 * MIB: 7}  # by size of the payload
QUICK_ROUNDS = {MIB // 16: 3, MIB: 3}
METHOD = (
    "Every library puts a payload and gets it back, in turns with all others, and what came back is compared. Seconds "
    "are the median over the rounds of put and get together; up to 1 MiB, a round has 8 payloads in a row. Extra "
    "memory is the peak of the library's process beyond what it had before, in a first round that counts for nothing "
    "else; the payload that is put is not in it, the one that comes back is."
)
_LEFT_OUT = "CLAIMCHECK_BENCH_LEFT_OUT"


class Peer(NamedTuple):
    """A library: its adapter's name, what its payloads rest in, and what is installed for it where this does not do."""

    name: str
    store: str
    requirements: tuple[str, ...] = ()

    def folder(self, root: Path) -> Path:
        """Of its environment; libraries with the same requirements share one."""
        return root / self.requirements[0].replace("==", "-").replace("[", "-").replace("]", "")

    def python(self, root: Path) -> Path:
        return self.folder(root) / "bin" / "python" if self.requirements else Path(sys.executable)


_BOTO3 = "boto3==1.44.5"
_PROXYSTORE = ("proxystore==1.1.0", "redis==8.1.0")
PEERS = (
    Peer("claimcheck redis", "redis"),
    Peer("claimcheck s3", "s3"),
    Peer("claimcheck obstore", "s3"),
    Peer("claimcheck file", "file"),
    Peer("redis-py", "redis"),
    Peer("boto3", "s3"),
    Peer("obstore", "s3"),
    Peer("proxystore redis", "redis", _PROXYSTORE),
    Peer("proxystore file", "file", _PROXYSTORE),
    Peer("amazon-sqs-extended-client", "s3", ("amazon-sqs-extended-client==1.0.1", _BOTO3)),
    Peer("sqs-extended-client", "s3", ("sqs-extended-client==0.0.11", _BOTO3)),
    Peer("boto3-large-message-utils", "s3", ("boto3-large-message-utils==0.2.0", _BOTO3)),
    Peer("faust-large-message-serializer", "s3", ("faust-large-message-serializer==2.0.1", _BOTO3)),
    Peer("kaf-s3-connector", "s3", ("kaf-s3-connector==2.0.1", "confluent-kafka==2.16.1", _BOTO3)),
    Peer("temporalio", "s3", ("temporalio[aioboto3]==1.35.0", "aioboto3==15.5.0")),
)
"""All that could be found and installed, with three floors: what the vendors' drivers do by themselves."""


def main(arguments: Sequence[str]) -> int:
    """Install, measure, report."""
    options = _options(arguments)
    for program in ("redis-server", "versitygw"):
        needed(program)
    if not is_inside():  # a private network reaches no registry
        os.environ[_LEFT_OUT] = json.dumps(_prepare(options.only, options.environments))
    facts = begin({"method": METHOD})
    results = Results(json.loads(os.environ[_LEFT_OUT]))
    _measure(QUICK_ROUNDS if options.quick else ROUNDS, options, results)
    print(*results.table(), sep="\n")
    document = {"machine": facts, "method": METHOD, "quick": options.quick, **results.as_dict()}
    write_down(document, options.out / "peers.json")
    draw_peers(results.rates(), options.out / "peers.png")
    print(f"Drawn: {options.out / 'peers.png'}")
    return 0


def _prepare(peers: Sequence[Peer], root: Path) -> dict[str, str]:
    """Install what is not there yet; gives what pip said last of each library that cannot be installed, by its name."""
    tried = {peer.requirements: peer for peer in peers if peer.requirements}
    errors = {requirements: _error_of_install(peer, root) for requirements, peer in tried.items()}
    return {peer.name: error for peer in peers if (error := errors.get(peer.requirements))}


def _error_of_install(peer: Peer, root: Path) -> str:
    folder, wanted = peer.folder(root), "\n".join(peer.requirements)
    stamp = folder / "installed"
    if stamp.exists() and stamp.read_text() == wanted:
        return ""
    print(f"Installing {', '.join(peer.requirements)} into {folder} (once)", file=sys.stderr, flush=True)
    pip: list[str | Path] = [
        peer.python(root),
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        *peer.requirements,
    ]
    venv: list[str | Path] = [sys.executable, "-m", "venv", folder]
    for command in (venv, pip):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            return str(done.stderr).strip().rpartition("\n")[2] or "it cannot be installed"
    stamp.write_text(wanted)
    return ""


# The run ---------------------------------------------------------------------------------------------------------


def _measure(rounds: dict[int, int], options: argparse.Namespace, results: Results) -> None:
    """Start all libraries anew for each size, with no other payload in their memory, and let them take turns."""
    show = progress(sum(rounds.values()))
    with Lab(QUICK) as lab, contextlib.ExitStack() as stack:
        start, clear = _ground(lab, stack, options.environments)
        for size, count in rounds.items():
            with contextlib.ExitStack() as children:
                peers = [peer for peer in options.only if peer.name not in results.left_out]
                running = {peer: children.enter_context(start(peer)) for peer in peers}
                for peer in peers:
                    with results.failure_of(peer, running):
                        results.versions[peer.name] = str(running[peer].answer()["version"])
                for number in range(count):
                    show(f"{size_text(size)}, round {number + 1} of {count}, {len(running)} libraries")
                    for peer in rotated(list(running), number):
                        with results.failure_of(peer, running):
                            results.add(peer, size, running[peer].ask({"size": size, "number": number}))
                    clear()


def _ground(lab: Lab, stack: contextlib.ExitStack, root: Path) -> tuple[Callable[[Peer], Child], Callable[[], None]]:
    """Start the servers that all libraries share; returns what starts a library, and what removes every payload.

    Files stay until the end: for seconds after many were deleted, ext4 takes long to find an inode for a new one.
    """
    import boto3
    import redis

    files, logs = lab.folder / "files", lab.folder / "logs"
    files.mkdir()
    logs.mkdir()
    s3, sqs = stack.enter_context(servers.s3()).endpoint_url, stack.enter_context(_moto())
    bucket = boto3.resource("s3", endpoint_url=s3).create_bucket(Bucket=BUCKET)
    places = {"BENCH_REDIS_URL": lab.redis_by_default, "BENCH_FOLDER": str(files)}
    environment = {**os.environ, **CREDENTIALS, **places, "AWS_ENDPOINT_URL_S3": s3, "AWS_ENDPOINT_URL_SQS": sqs}

    def start(peer: Peer) -> Child:
        command = peer.python(root), HERE / "peer_child.py", peer.name
        return Child(*command, env=environment, log=logs / f"{peer.name}.log")

    def clear() -> None:
        with contextlib.closing(redis.Redis.from_url(lab.redis_by_default)) as client:
            client.flushdb()
        bucket.objects.all().delete()

    return start, clear


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


# The results -----------------------------------------------------------------------------------------------------


class Results:
    """Collects the rounds by name and size; the first is one for memory."""

    def __init__(self, left_out: dict[str, str]) -> None:
        self.left_out = left_out  # why, by name
        self.versions: dict[str, str] = {}
        self.stores: dict[str, str] = {}
        self.rounds: dict[str, dict[int, list[dict[str, float]]]] = {}

    def add(self, peer: Peer, size: int, taken: dict[str, float]) -> None:
        self.stores[peer.name] = peer.store
        self.rounds.setdefault(peer.name, {}).setdefault(size, []).append(taken)

    @contextlib.contextmanager
    def failure_of(self, peer: Peer, running: dict[Peer, Any]) -> Iterator[None]:
        """Let a library fail for itself only: it is out of the running, with the reason."""
        try:
            yield
        except ChildError as error:
            self.left_out[peer.name] = str(error)
            del running[peer]

    def label(self, name: str) -> str:
        first, _, rest = name.partition(" ")
        return f"{first} {self.versions[name]} {rest}".strip()

    def seconds(self, name: str, size: int) -> float:
        """Of put and get together, at the median."""
        return statistics.median(one["put"] + one["get"] for one in self.rounds[name][size][1:])

    def extra(self, name: str, size: int) -> float:
        """Bytes of memory at the peak."""
        return self.rounds[name][size][0]["extra"]

    def rates(self) -> dict[str, dict[str, dict[int, float]]]:
        """MB/s of put and get together, by store, library and size."""
        found: dict[str, dict[str, dict[int, float]]] = {}
        for name, by_size in self.rounds.items():
            rates = {size: size / self.seconds(name, size) / 1e6 for size in sorted(by_size)}
            found.setdefault(self.stores[name], {})[self.label(name)] = rates
        return found

    def table(self) -> list[str]:
        """Seconds and extra memory of all, as Markdown."""
        sizes = sorted({size for by_size in self.rounds.values() for size in by_size})
        lines = ["| library | store | " + " | ".join(f"{size_text(size)}: ms, MiB" for size in sizes) + " |"]
        lines.append("|---" * (2 + len(sizes)) + "|")
        for name, rounds in self.rounds.items():
            cells = [
                f"{self.seconds(name, size) * 1000:.1f}, {self.extra(name, size) / MIB:.1f}" if size in rounds else "-"
                for size in sizes
            ]
            lines.append(f"| {self.label(name)} | {self.stores[name]} | {' | '.join(cells)} |")
        return [*lines, *(f"Left out: {name}: {why}" for name, why in self.left_out.items())]

    def as_dict(self) -> dict[str, Any]:
        """For JSON, with every round."""
        libraries = [
            {"name": name, "version": self.versions[name], "store": self.stores[name], "sizes": [
                {"size": size, "seconds": self.seconds(name, size), "extra": self.extra(name, size), "rounds": rounds}
                for size, rounds in by_size.items()
            ]}
            for name, by_size in self.rounds.items()
        ]  # fmt: skip
        return {"libraries": libraries, "left_out": self.left_out}


STORES = {"redis": "Redis", "s3": "S3", "file": "Files"}


def draw_peers(rates: Mapping[str, Mapping[str, Mapping[int, float]]], path: Path) -> None:
    """Draw MB/s by payload size of each library, one panel for each store."""
    panels = [
        Lines.of(f"{text}: MB/s, write and read together", rates[store], lambda size: size_text(int(size)))
        for store, text in STORES.items()
        if store in rates
    ]
    title = "Writing a payload and reading it back, on one 2-core machine"
    draw_lines(panels, path, title, columns=len(panels), shared=True)


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Compare claimcheck with other libraries.")
    parser.add_argument("--quick", action="store_true", help="few rounds and small payloads, to try it")
    parser.add_argument("--only", type=_peers, default=PEERS, metavar="NAMES", help="libraries, separated by commas")
    parser.add_argument("--out", type=Path, default=Path("bench-results"), help="folder for JSON and PNG")
    environments = HERE.parents[1] / ".venv-peers"
    parser.add_argument("--environments", type=Path, default=environments, help="folder for what they need")
    return parser.parse_args(arguments)


def _peers(text: str) -> list[Peer]:
    if unknown := set(text.split(",")) - {peer.name for peer in PEERS}:
        known = ", ".join(peer.name for peer in PEERS)
        raise argparse.ArgumentTypeError(f"no such library: {', '.join(sorted(unknown))}; there are {known}")
    return [peer for peer in PEERS if peer.name in text.split(",")]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
