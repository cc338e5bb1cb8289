"""Random faults on real servers: what was reported sent is received whole, whatever is killed, stopped, cut or full.

    python -m tests.fault.random_faults --runs 500 --out faults.json

Each run sends `COUNT` payloads through a broker and a store that only this program uses, lets one fault happen at a
random moment, waits until everything that was reported sent has been received, and compares sizes and SHA-256. The
seed of a run decides kind, moment and byte; ``--seed kafka-17`` repeats one.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import itertools
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tests import servers
from tests.fault.pipeline import THRESHOLD_BYTES, Journal, Pipeline
from tests.fault.proxy import Proxy
from tests.real.process import Server, free_ports, running
from tests.real.redis_servers import answers_ping, redis_command

COUNT = 20
BUCKET = "claims"
ROOM_BYTES = 96 << 20  # of the S3 server's disk
CUTS_BYTES = 3_000_000  # a line is cut somewhere in so many bytes


@dataclass
class Tally:
    """What happened in the runs with one kind of fault, in payloads unless it says otherwise.

    Attributes:
        runs: How many.
        sent: Reported to the sender as sent.
        lost: Of these, neither received nor reported as missing.
        wrong: Received with other bytes.
        missing: Reported as missing because the store no longer had them.
        twice: Received more than once.
        orphans: Stored, although no message points at them; they remain until they expire.
        stuck: Runs whose reader received nothing more until it was started again.
        stall: The longest time in seconds between two payloads.
        failed: Seeds of the runs with lost or wrong payloads.
    """

    runs: int = 0
    sent: int = 0
    lost: int = 0
    wrong: int = 0
    missing: int = 0
    twice: int = 0
    orphans: int = 0
    stuck: int = 0
    stall: float = 0.0
    failed: list[str] = field(default_factory=list)

    def add(self, other: Tally) -> None:
        for name, value in asdict(other).items():
            mine = getattr(self, name)
            setattr(self, name, max(mine, value) if name == "stall" else mine + value)


class Lab:
    """A broker and a store, each behind a proxy, and the processes of one run after the other.

    Attributes:
        kinds: Faults by name; each is a method that makes it happen and ends it again.
    """

    name: str
    reader = "receive"
    within_seconds = 100.0
    removing = ("the store evicts payloads", "payloads expire")

    def __init__(self, stack: contextlib.ExitStack) -> None:
        self.stack = stack
        self.folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="claimcheck-faults-")))
        self.broker_line = stack.enter_context(_proxy())
        self.store_line = stack.enter_context(_proxy())
        self.broker = self.open_broker()
        self.store = self.open_store()
        self.broker_line.lead(self.broker.port)
        self.store_line.lead(self.store.port)
        self.kinds: dict[str, Callable[[random.Random], None]] = {
            "the sender is killed": lambda rng: self._kill("send"),
            "the reader is killed": lambda rng: self._kill(self.reader),
            "the broker is killed": lambda rng: _restart(self.broker, rng),
            "the store is killed": lambda rng: _restart(self.store, rng),
            "the sender is stopped": lambda rng: self._pause(self._workers["send"].pid, rng.uniform(0.5, 3)),
            "the reader is stopped": lambda rng: self._pause(self._workers[self.reader].pid, rng.uniform(0.5, 3)),
            "the broker is stopped": lambda rng: self._pause(self.broker.pid, rng.uniform(0.5, 3)),
            "the store is stopped": lambda rng: self._pause(self.store.pid, rng.uniform(0.5, 3)),
            "a line to the broker is cut": lambda rng: _cut(self.broker_line, rng),
            "a line to the store is cut": lambda rng: _cut(self.store_line, rng),
            **self.more_kinds(),
        }
        self._workers: dict[str, subprocess.Popen[bytes]] = {}

    def open_broker(self) -> Server:
        raise NotImplementedError

    def open_store(self) -> Server:
        raise NotImplementedError

    def more_kinds(self) -> dict[str, Callable[[random.Random], None]]:
        return {}

    def store_config(self) -> dict[str, Any]:
        raise NotImplementedError

    def stored(self) -> Iterator[bytes]:
        """Yield the first bytes of everything that is stored."""
        raise NotImplementedError

    def clear(self) -> None:
        """Delete everything that is stored."""
        raise NotImplementedError

    def prepare(self, topic: str) -> None:
        """Create a topic where clients do not."""

    def address(self) -> str:
        return f"127.0.0.1:{self.broker_line.port}"

    # One run

    def run(self, seed: int, kind: str | None = None) -> tuple[str, Tally]:
        """Run once; returns the kind of fault and what came of it."""
        rng = random.Random(f"{self.name} {seed}")
        kind = kind or rng.choice(list(self.kinds))
        topic = f"{self.name}-{seed}-{time.time_ns()}"
        self.clear()
        self.prepare(topic)
        pipeline = self.pipeline(topic, seed, kind == "payloads expire")
        specification = self.folder / f"{topic}.json"
        specification.write_text(json.dumps(asdict(pipeline)))
        journal, stuck = Journal(pipeline.journal), False
        try:
            self._command = [sys.executable, "-m", "tests.fault.pipeline", "{}", str(specification)]
            self._start(self.reader)
            self._until(lambda: journal.lines("receiving"), journal)
            self._start("send")
            moment = rng.randrange(1, COUNT - 2)
            what = rng.choice(["sending"] if "sender" in kind else ["sending", "got"])
            self._until(lambda: len(journal.lines(what)) >= moment, journal)
            self.kinds[kind](rng)
            if not self._until(lambda: _is_done(journal), journal):
                self._report(journal)
                self._kill(self.reader)  # is it lost, or does the reader wait for ever?
                stuck = self._until(lambda: _is_done(journal), journal)
        finally:
            for role in list(self._workers):
                self._stop(role)
            for line in (self.broker_line, self.store_line):
                line.free()
            journal.close()
        tally = self._compare(pipeline, journal, kind)
        tally.stuck = int(stuck)
        if tally.lost or tally.wrong:
            tally.failed.append(f"{self.name}-{seed}")
        return kind, tally

    def pipeline(self, topic: str, seed: int, expires: bool = False) -> Pipeline:
        store = {**self.store_config(), "ttl_seconds": 2 if expires else 3600}
        config = {"strategy": "external", "threshold_bytes": THRESHOLD_BYTES, "stores": {"m": store}}
        place = self.folder / topic
        return Pipeline(
            broker="kafka", address=self.address(), topic=topic, config=config, journal=f"{place}.journal",
            count=COUNT, seed=seed,
        )  # fmt: skip

    def _report(self, journal: Journal) -> None:
        """Print where everybody waits."""
        for role, process in self._workers.items():
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGUSR1)
            time.sleep(0.5)
            print(f"{role}:\n{(self.folder / f'{role}.log').read_text()[-3000:]}")
        print("\n".join(f"{when} {words}" for when, words in journal.lines("sending", "sent", "got", "end")[-60:]))

    def _until(self, condition: Callable[[], object], journal: Journal) -> bool:
        """Wait; whoever has ended meanwhile is started again, as a supervisor would. Returns whether it is true."""
        end = time.monotonic() + self.within_seconds
        while not condition() and time.monotonic() < end:
            for role, process in list(self._workers.items()):
                if process.poll() is not None and not (role == "send" and journal.lines("end")):
                    self._start(role)
            time.sleep(0.05)
        return bool(condition())

    def _start(self, role: str) -> None:
        command = [part.format(role) if part == "{}" else part for part in self._command]
        log = (self.folder / f"{role}.log").open("ab")
        with log:
            self._workers[role] = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)

    def _stop(self, role: str) -> None:
        process = self._workers.pop(role)
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=10)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # and its Java
        process.wait()

    def _compare(self, pipeline: Pipeline, journal: Journal, kind: str) -> Tally:
        got: dict[int, list[str]] = {}
        for _, (number, digest, *_) in journal.lines("got"):
            got.setdefault(int(number), []).append(digest)
        missing, sent = set(journal.numbers("missing")), set(journal.numbers("sent"))
        meant = {number: hashlib.sha256(pipeline.payload(number)).hexdigest() for number in got}
        times = sorted(when for when, _ in journal.lines("got", "missing", "sending"))
        found = re.compile(rb"payload (\d+) ")
        stored = [int(match[1]) for start in self.stored() if (match := found.match(start))]
        excused = missing if kind in self.removing else set()
        return Tally(
            runs=1, sent=len(sent), missing=len(excused),
            lost=len(sent - got.keys() - excused),
            wrong=sum(digest != meant[number] for number, digests in got.items() for digest in digests),
            twice=sum(len(digests) > 1 for digests in got.values()),
            orphans=sum((Counter(stored) - Counter(got.keys() | missing)).values()),
            stall=max((after - before for before, after in itertools.pairwise(times)), default=0.0),
        )  # fmt: skip

    # Faults

    def _kill(self, role: str) -> None:
        process = self._workers[role]
        with contextlib.suppress(ProcessLookupError):  # it has just ended
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def _pause(self, pid: int, seconds: float, then: Callable[[], object] = lambda: None) -> None:
        """Stop a process for a while; it goes on when `then` has returned."""
        with contextlib.suppress(ProcessLookupError):  # it has just ended
            os.kill(pid, signal.SIGSTOP)
            time.sleep(seconds)
            then()
            os.kill(pid, signal.SIGCONT)


def _proxy() -> Proxy:
    proxy = Proxy("127.0.0.1", 0)
    [proxy.port] = free_ports(1)
    return proxy


def _restart(server: Server, rng: random.Random) -> None:
    server.kill()
    time.sleep(rng.uniform(0, 1))
    server.start()


def _cut(line: Proxy, rng: random.Random) -> None:
    lane = rng.choice([line.requests, line.answers])
    for _ in range(rng.randrange(1, 4)):
        lane.break_after(int(CUTS_BYTES ** rng.random()), reset=rng.random() < 0.5)


def _is_done(journal: Journal) -> bool:
    """Whether everything was sent, and what was reported sent has been received or is missing."""
    return bool(journal.lines("end")) and set(journal.numbers("sent")) <= set(journal.numbers("got", "missing"))


class KafkaLab(Lab):
    """Kafka and Redis, with its log on disk."""

    name = "kafka"

    def open_store(self) -> Server:
        import redis

        command = lambda location: redis_command("--appendonly", "yes", "--appendfsync", "always", location)  # noqa: E731
        server = self.stack.enter_context(running(command, answers_ping))
        self._redis = redis.Redis(port=server.port)
        self.stack.callback(self._redis.close)
        return server

    def more_kinds(self) -> dict[str, Callable[[random.Random], None]]:
        return {"the store evicts payloads": self._evict, "payloads expire": self._expire}

    def store_config(self) -> dict[str, Any]:
        return {"type": "redis", "url": f"redis://127.0.0.1:{self.store_line.port}/0", "timeout_seconds": 5}

    def stored(self) -> Iterator[bytes]:
        for key in self._redis.scan_iter(count=10_000):
            yield bytes(self._redis.getrange(key, 0, 30))  # type: ignore[arg-type]

    def clear(self) -> None:
        self._redis.flushall()

    def _evict(self, rng: random.Random) -> None:
        self._redis.config_set("maxmemory-policy", "allkeys-random")
        self._redis.config_set("maxmemory", int(self._redis.info("memory")["used_memory"]) * 2 // 3)
        time.sleep(rng.uniform(0.1, 1))
        self._redis.config_set("maxmemory", 0)

    def _expire(self, rng: random.Random) -> None:
        self._pause(self._workers[self.reader].pid, rng.uniform(2.5, 3.5))

    def open_broker(self) -> Server:
        server = self.stack.enter_context(servers.kafka(proxy_port=self.broker_line.port)).server
        assert server is not None
        return server

    def prepare(self, topic: str) -> None:
        from confluent_kafka.admin import AdminClient, NewTopic

        admin = AdminClient({"bootstrap.servers": self.address(), "log_level": 0})
        admin.create_topics([NewTopic(topic, 1, 1)], operation_timeout=30)[topic].result(60)


class SparkLab(KafkaLab):
    """Kafka, Redis, and a Spark stream as the reader."""

    name = "spark"
    reader = "spark"
    within_seconds = 300.0  # on a busy machine Spark starts slowly, and it starts twice

    def pipeline(self, topic: str, seed: int, expires: bool = False) -> Pipeline:
        folder = Path(os.environ[servers.SPARK_KAFKA_JARS])
        more = {
            "checkpoint": str(self.folder / f"{topic}.checkpoint"),
            "jars": ",".join(map(str, folder.glob("*.jar"))),
        }
        return Pipeline(**{**asdict(super().pipeline(topic, seed, expires)), **more, "pause": 0.5})


class PulsarLab(Lab):
    """Pulsar and S3."""

    name = "pulsar"

    def open_broker(self) -> Server:
        opened = servers.pulsar(5 << 20, durable=True, proxy_port=self.broker_line.port)
        broker = self.stack.enter_context(opened)
        assert broker.server is not None
        return broker.server

    def open_store(self) -> Server:
        import boto3

        os.environ.update(AWS_ACCESS_KEY_ID=servers.ACCESS_KEY, AWS_SECRET_ACCESS_KEY=servers.SECRET_KEY)
        gateway = self.stack.enter_context(servers.s3(prepare=self._mount))
        assert gateway.server is not None
        s3 = boto3.resource("s3", endpoint_url=gateway.endpoint_url, region_name=gateway.region)
        self._bucket = s3.Bucket(BUCKET)
        self._bucket.create()
        return gateway.server

    def _mount(self, folder: Path) -> None:
        """Let the server's folder be a small disk of its own, if that is allowed."""
        self._root = folder / "root"
        self._root.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", f"size={ROOM_BYTES}", "tmpfs", str(self._root)]
        self._is_mounted = subprocess.run(command, check=False, capture_output=True).returncode == 0
        if self._is_mounted:
            self.stack.callback(subprocess.run, ["umount", "--lazy", str(self._root)], check=True)

    def more_kinds(self) -> dict[str, Callable[[random.Random], None]]:
        kinds: dict[str, Callable[[random.Random], None]] = {"payloads expire": self._expire}
        if self._is_mounted:
            kinds["the store's disk is full"] = self._fill
        return kinds

    def _fill(self, rng: random.Random) -> None:
        filler = self._root / "filler"
        with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while file.write(b"\0" * (1 << 20)):
                pass
        time.sleep(rng.uniform(0.3, 2))
        filler.unlink()

    def _expire(self, rng: random.Random) -> None:
        """As by a lifecycle rule, while the reader is stopped."""
        self._pause(self._workers[self.reader].pid, rng.uniform(0.3, 1), self.clear)

    def store_config(self) -> dict[str, Any]:
        url = f"http://127.0.0.1:{self.store_line.port}"
        return {"type": "s3", "bucket": BUCKET, "endpoint_url": url, "timeout_seconds": 5}

    def stored(self) -> Iterator[bytes]:
        for found in self._bucket.objects.all():
            yield found.get(Range="bytes=0-30")["Body"].read()

    def clear(self) -> None:
        self._bucket.objects.all().delete()

    def pipeline(self, topic: str, seed: int, expires: bool = False) -> Pipeline:
        more = {"broker": "pulsar", "listener": "proxy", "address": f"pulsar://{self.address()}"}
        return Pipeline(**asdict(super().pipeline(topic, seed)) | more)


LABS: dict[str, type[Lab]] = {"kafka": KafkaLab, "pulsar": PulsarLab, "spark": SparkLab}


@contextlib.contextmanager
def lab(name: str) -> Iterator[Lab]:
    """Start the servers of a lab; they stop at the end."""
    with contextlib.ExitStack() as stack:
        yield LABS[name](stack)


def table(tallies: dict[str, Tally]) -> str:
    """Return what was found as a table, one row per kind of fault."""
    names = ("runs", "sent", "lost", "wrong", "missing", "twice", "orphans", "stuck", "stall")
    lines = [f"| fault | {' | '.join(names[:-1])} | longest stall |", f"|---|{'---:|' * len(names)}"]
    total = Tally()
    for tally in tallies.values():
        total.add(tally)
    for kind, tally in [*sorted(tallies.items()), ("all", total)]:
        values = [str(getattr(tally, name)) for name in names[:-1]]
        lines.append(f"| {kind} | {' | '.join(values)} | {tally.stall:.1f} s |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--runs", type=int, default=12)
    parser.add_argument("--seed", default="0", help="where to begin, or a run to repeat, such as kafka-17")
    parser.add_argument("--lab", choices=list(LABS), action="append", help="default: all; Spark in one of 25 runs")
    parser.add_argument("--out", help="JSON file for the table")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # stops the servers
    one, _, first = options.seed.rpartition("-")
    labs = [one] if one else options.lab or list(LABS)
    runs, tallies, begin = (1 if one else options.runs), dict[str, Tally](), time.monotonic()
    share = {name: 1 if name == "spark" and len(labs) > 1 else 12 for name in labs}
    for name in labs:
        count = round(runs * share[name] / sum(share.values())) or 1
        with lab(name) as opened:
            for seed in range(int(first), int(first) + count):
                kind, tally = opened.run(seed)
                kind = f"{kind}, Spark" if name == "spark" else kind
                tallies.setdefault(kind, Tally()).add(tally)
                values = {**asdict(tally), "stall": round(tally.stall, 1)}
                words = [f"{key} {value}" for key, value in values.items() if value and key not in ("runs", "failed")]
                print(f"{time.monotonic() - begin:6.0f} s  {name}-{seed}  {kind}: {', '.join(words)}", flush=True)
    print(table(tallies))
    failed = [seed for tally in tallies.values() for seed in tally.failed]
    if options.out:
        Path(options.out).write_text(
            json.dumps({kind: asdict(tally) for kind, tally in sorted(tallies.items())}, indent=1)
        )
    sys.exit(f"lost or wrong payloads in {', '.join(failed)}" if failed else 0)


if __name__ == "__main__":
    main()
