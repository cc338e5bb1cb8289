"""``make compare``: pointers, chunks and whole messages, with the same payloads in turns.

    python -m tests.benchmarks.compare [OPTIONS]

Without a broker or a configuration it measures the embedded broker with files, and where the variables of
tests/servers.py name them, Kafka with Redis and Pulsar with S3. Writes a JSON file and a picture of each.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import cycle, islice
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import click

from claimcheck._client import ClaimCheck
from claimcheck._config_file import from_dict, read_yaml
from claimcheck._texts import printable, size_text
from claimcheck.cli._commands import BrokerOptions, broker_options, one_line
from claimcheck.config import Config, StoreConfig, expand
from claimcheck.errors import ClaimCheckError, ConfigError
from tests.benchmarks import rounds
from tests.benchmarks.bench import end_on_signals, write
from tests.benchmarks.brokers import STRATEGIES, Broker, BrokerError, Strategy, Target, connect
from tests.benchmarks.children import Child, ChildError, machine, peak_extra
from tests.benchmarks.picture import Lines, draw_lines
from tests.servers import PREFIX as VARIABLE

PREFIX = BUCKET = "claimcheck-compare"
PANELS = {
    "send": "Sending, MB/s",
    "receive": "Receiving, MB/s",
    "send_memory": "Peak memory while one is sent, MB",
    "receive_memory": "Peak memory while one is received, MB",
    "broker": "Bytes in the broker per payload",
}
_KIB, _MIB = 1 << 10, 1 << 20
_SIZES = 64 * _KIB, _MIB, 10 * _MIB, 100 * _MIB
_UNITS = {"B": 1, "KiB": _KIB, "MiB": _MIB}
_LEAST, _MOST = 16, 256 * _MIB  # the most that chunks carry by default
_ROUND_BYTES, _ROUND_PAYLOADS = 32 * _MIB, 200
_TTL_SECONDS = 3600.0  # what cannot be removed expires soon
_Result = dict[str, Any]

# One strategy and size, in a process of its own ------------------------------------------------------------------


def serve(
    pipe: Connection, strategy: Strategy, topic: str, target: Target, config: Config, size: int, count: int
) -> None:
    """Measure memory with one payload, then send or receive rounds of payloads, as the parent asks."""
    closing, body = contextlib.closing, rounds.payload_of(size)
    made = [number.to_bytes(4) + body[4:] for number in range(count)]
    with (
        ClaimCheck(config) as cc,
        closing(connect(target)) as broker,
        closing(broker.producer(strategy, topic, cc)) as producer,
    ):

        def read_first() -> None:  # with a new consumer, which has fetched nothing in advance
            with closing(broker.consumer(strategy, topic, cc)) as consumer:
                consumer.receive()

        producer.deliver(made[:1])  # imports and connections are not measured
        sent = peak_extra(lambda: producer.deliver(made[:1]))
        in_broker, total = broker.size(topic) // 2, 2
        read_first()
        pipe.send({"send_memory": sent / 1e6, "receive_memory": peak_extra(read_first) / 1e6, "broker": in_broker})
        with closing(broker.consumer(strategy, topic, cc)) as consumer:
            while True:
                command, answer = pipe.recv(), (0, 0)
                if command == "send":
                    producer.deliver(made)
                    total += count
                else:
                    consumer.rewind()
                if command == "receive":
                    assert all(len(consumer.receive()) == size for _ in made)
                if command == "check":  # compare everything that was sent with what arrives
                    expected = [*made[:1] * 2, *islice(cycle(made), total - 2)]
                    answer = total, sum(consumer.receive() == each for each in expected)
                pipe.send(answer)


# A run -----------------------------------------------------------------------------------------------------------

_OWN: dict[str, Callable[[dict[str, Any], str], dict[str, Any]]] = {
    "filesystem": lambda options, name: {"path": os.path.join(str(options["path"]), name), "create": True},
    "redis": lambda options, name: {"key_prefix": f"{options.get('key_prefix', 'claimcheck:')}{name}:"},
    "s3": lambda options, name: {"prefix": f"{str(options.get('prefix', '')).rstrip('/')}/{name}/".lstrip("/")},
    "obstore": lambda options, name: {"url": f"{str(options['url']).rstrip('/')}/{name}"},
}
"""The options that confine a store to the part that is removed at the end, by its type."""


class Run:
    """One broker and one store; topics and the part of the store exist until the end."""

    def __init__(self, target: Target, name: Callable[[str], str], user: Config, effort: rounds.Effort) -> None:
        self._target, self._effort = target, effort
        self._id = f"{PREFIX}-{secrets.token_hex(4)}"
        self._topic = lambda text: name(f"{self._id}-{text}")
        self.config, self.store = self._confined(user)
        self._chunking = replace(self.config, strategy="chunking", threshold_bytes="auto")
        self._begin = time.monotonic()

    def _confined(self, user: Config) -> tuple[Config, str]:
        """Return the configuration of pointers, whose store is the run's own part of the user's, and its name."""
        name = user.store or (next(iter(user.stores)) if len(user.stores) == 1 else "")
        entry = user.stores.get(name)
        if entry is None or entry.type not in _OWN:
            text = f"comparing needs one store of type {', '.join(_OWN)}: name it with 'store:'"
            raise ConfigError(text, path="store")
        options = {**entry.options, **_OWN[entry.type](dict(entry.options), self._id), "ttl_seconds": _TTL_SECONDS}
        stores = {name: replace(entry, options=options)}
        own = replace(user, strategy="external", threshold_bytes=0, store=name, stores=stores)
        return replace(own, reads_from=None, destinations=()), entry.type

    def measure(self, sizes: Sequence[int], *, warm_up: bool) -> tuple[str, list[_Result]]:
        """Return the broker's name and what was found, and remove everything, whatever happens."""
        with contextlib.closing(connect(self._target)) as broker, contextlib.ExitStack() as stack:
            stack.callback(self._clear)
            if warm_up:  # a broker on a new JVM is half as fast until it has compiled its code
                self._say("warm-up")
                self._measure(broker, min(max(sizes), 10 * _MIB))
            return broker.label, [found for size in sizes for found in self._measure(broker, size)]

    def _measure(self, broker: Broker, size: int) -> list[_Result]:
        count = max(1, min(_ROUND_PAYLOADS, _ROUND_BYTES // size))
        count, text = min(count, 4) if self._effort.is_quick else count, size_text(size)
        children: dict[Strategy, Child] = {}
        found: dict[str, _Result] = {}
        with contextlib.ExitStack() as stack:
            for strategy in STRATEGIES:
                topic = self._topic(f"{size}-{strategy}-{secrets.token_hex(2)}")
                try:
                    stack.callback(broker.delete, topic)
                    broker.create(topic, size if strategy == "native" else 0)
                except BrokerError as error:
                    self._say(f"{text}, without {strategy}: {error}")
                    continue
                self._say(f"{text}, {strategy}: memory and bytes in the broker")
                config = self.config if strategy == "external" else self._chunking
                child = stack.enter_context(Child(serve, strategy, topic, self._target, config, size, count))
                children[strategy] = child
                stack.push(partial(_kill, child))
                found[strategy] = {"strategy": strategy, "size": size, **_ask(strategy, child)}
            for command in ("send", "receive"):
                self._say(f"{text}, {command}: {self._effort.least} rounds of {count} payloads")
                variants = (
                    rounds.Variant(each, partial(_ask, each, child, command)) for each, child in children.items()
                )
                for series in rounds.compare(self._effort, size * count, *variants):
                    rates = [series.amount / sample.seconds / 1e6 for sample in series.samples]
                    found[series.name][command] = statistics.median(rates), *rounds.interval(rates)
            self._say(f"{text}: comparing what arrives")
            for strategy, child in children.items():
                sent, intact = _ask(strategy, child, "check")
                if sent != intact:
                    raise ClaimCheckError(f"{strategy}: {sent - intact} of {sent} payloads of {text} are damaged")
                found[strategy] |= {"sent": sent, "intact": intact}
        self._clear()
        return [*found.values()]

    def _clear(self) -> None:
        """Remove the payloads, which may be many, after each size."""
        [(name, entry)] = self.config.stores.items()
        with ClaimCheck(self.config) as cc:
            for deletion in (store := cc.store(name)).delete(store.scan()):
                if deletion.error:
                    raise ClaimCheckError(f"payloads of {self._id} could not be removed: {deletion.error}")
        if entry.type == "filesystem":
            path = expand(entry.options["path"], path=f"stores.{name}.path")
            shutil.rmtree(Path(path).expanduser(), ignore_errors=True)

    def _say(self, text: str) -> None:
        print(f"{time.monotonic() - self._begin:4.0f} s  {text}", file=sys.stderr, flush=True)


def _kill(child: Child, kind: object, *exc: object) -> None:
    """End a child of a failed run: to wait for its round would leave no time to remove the topics."""
    if kind is not None:
        child.kill()


def _ask(strategy: str, child: Child, command: str = "") -> Any:
    try:
        if command:
            child.send(command)
        return child.answer()
    except ChildError as error:
        raise ClaimCheckError(f"{strategy}: {error}") from error


# What was found --------------------------------------------------------------------------------------------------


def table(results: Sequence[_Result]) -> Iterator[str]:
    """Yield the lines of a table: medians, and 95 % intervals of the throughput."""
    yield "size     strategy        send, MB/s         receive, MB/s     peak MB: send  receive   bytes in broker"
    for each in results:
        rates = (f"{m:6.0f} ({low:.0f} to {high:.0f})" for m, low, high in (each["send"], each["receive"]))
        memory = f"{each['send_memory']:10.1f} {each['receive_memory']:8.1f}"
        size = size_text(each["size"])
        yield f"{size:<8} {each['strategy']:<9}{''.join(f'{rate:<22}' for rate in rates)}{memory} {each['broker']:>17,}"


def advice(results: Sequence[_Result]) -> str:
    """Return which strategy sends and receives fastest at each size, and from which size on pointers do."""
    slowest_first = sorted(results, key=lambda each: -1 / each["send"][0] - 1 / each["receive"][0])
    fastest = {each["size"]: each["strategy"] for each in slowest_first}
    said = ", ".join(f"{fastest[size]} at {size_text(size)}" for size in sorted(fastest))
    others = [size for size in fastest if fastest[size] != "external"]
    winning = [size for size in fastest if size > max(others, default=0)]
    where = f"are the fastest from {size_text(min(winning))} on" if winning else "are slower at the largest size"
    return f"Fastest to send and receive: {said}. Pointers (external) {where}."


def draw(document: _Result, path: Path) -> None:
    """Draw what a run has written as JSON."""
    panels = []
    for key, title in PANELS.items():
        lines: dict[str, list[tuple[float, float, float, float]]] = {}
        for each in (each for each in document["results"] if key in each):
            value = each[key]
            point = value if isinstance(value, list | tuple) else (value, value, value)
            lines.setdefault(each["strategy"], []).append((each["size"], *point))
        panels.append(Lines(title, lines, lambda size: size_text(int(size))))
    draw_lines(panels, path, printable(f"{document['broker']}, store {document['store']}"))


# The command line ------------------------------------------------------------------------------------------------


def _sizes(context: click.Context, parameter: click.Parameter, value: str) -> tuple[int, ...]:
    sizes = set()
    for text in value.split(",") if value else ():
        match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(B|KiB|MiB)", text.strip())
        size = int(float(match[1]) * _UNITS[match[2]]) if match else 0
        if not _LEAST <= size <= _MOST:
            ends = f"{size_text(_LEAST)} to {size_text(_MOST)}"
            raise click.BadParameter(f"found {text.strip()!r}, expected sizes of {ends}, for example 64KiB,1MiB")
        sizes.add(size)
    return tuple(sorted(sizes))


def _config(context: click.Context, parameter: click.Parameter, value: str | None) -> Config | None:
    try:
        return from_dict(read_yaml(value)) if value else None
    except (ClaimCheckError, OSError) as error:
        raise click.BadParameter(one_line(error)) from error


@click.command()
@broker_options
@click.option("--config", metavar="FILE", callback=_config, help="Measures its store.")
@click.option("--sizes", callback=_sizes, default="", help="Of payloads, for example 64KiB,1MiB,10MiB.")
@click.option("--rounds", "count", type=click.IntRange(2, 1000), help="Of each strategy.  [default: 7]")
@click.option("--quick", is_flag=True, help="A short trial; its figures mean nothing.")
@click.option("--out", type=click.Path(path_type=Path), default="compare-results", show_default=True)
@click.option("--brokers", default="embedded,kafka,pulsar", show_default=True, help="Of those found.")
def main(broker: BrokerOptions, config: Config | None, brokers: str, **given: Any) -> None:
    """Measure pointers, chunks and whole messages, with your broker and store or with those of the tests.

    Topics, and a prefix in the store, are named claimcheck-compare-... and removed at the end. Pulsar also needs
    --admin-url. Passwords and tokens come from variables, such as CLAIMCHECK_KAFKA_SASL_PASSWORD.
    """
    if bool(broker.admin_url) != bool(broker.pulsar):
        raise click.UsageError("--admin-url needs --pulsar, and --pulsar needs --admin-url")
    setups = _found(brokers.split(","))
    if broker.kafka or broker.pulsar or config:
        name = "kafka" if broker.kafka else "pulsar" if broker.pulsar else "embedded"
        setups = iter([(name, broker, config)])
    failed = False
    for setup in setups:
        print(setup[0], file=sys.stderr)
        try:
            _compare(setup, **given)
        except (ClaimCheckError, OSError) as error:
            print(f"compare: {one_line(error)}", file=sys.stderr)
            failed = True
    sys.exit(failed)


_Setup = tuple[str, BrokerOptions, Config | None]
"""A name, a broker and a configuration; the embedded broker if none is named, and files without a configuration."""


def _found(names: Sequence[str]) -> Iterator[_Setup]:
    """Yield what the environment names."""
    named = {name.removeprefix(VARIABLE): text for name, text in os.environ.items() if name.startswith(VARIABLE)}
    kafka, pulsar, admin = map(named.get, ("KAFKA_BOOTSTRAP_SERVERS", "PULSAR_URL", "PULSAR_ADMIN_URL"))
    if "embedded" in names:
        yield "embedded", BrokerOptions(), None
    if "kafka" in names and kafka:
        store = StoreConfig("redis", {"url": named.get("REDIS_URL")})
        yield "kafka", BrokerOptions(kafka=kafka), Config(stores={"redis": store}) if "REDIS_URL" in named else None
    if "pulsar" in names and pulsar and admin:
        s3 = _s3(named) if "S3_ENDPOINT" in named else None
        yield "pulsar", BrokerOptions(pulsar=pulsar, admin_url=admin), s3


def _s3(named: dict[str, str]) -> Config:
    import boto3

    names = {"AWS_ACCESS_KEY_ID": "S3_ACCESS_KEY", "AWS_SECRET_ACCESS_KEY": "S3_SECRET_KEY"}
    for variable, name in {**names, "AWS_DEFAULT_REGION": ""}.items():
        os.environ.setdefault(variable, named.get(name, "us-east-1"))
    client = boto3.client("s3", endpoint_url=named["S3_ENDPOINT"])
    with contextlib.suppress(client.exceptions.BucketAlreadyOwnedByYou):
        client.create_bucket(Bucket=BUCKET)
    return Config(stores={"s3": StoreConfig("s3", {"bucket": BUCKET, "endpoint_url": named["S3_ENDPOINT"]})})


def _compare(setup: _Setup, sizes: Sequence[int], count: int | None, quick: bool, out: Path) -> None:
    """Measure one broker, print what was found and write it down."""
    name, options, config = setup
    least, facts = count or (2 if quick else 7), machine()
    effort = rounds.Effort(0, least, least, divisor=2 if quick else 1)  # a divisor marks a quick run
    with tempfile.TemporaryDirectory(prefix=f"{PREFIX}-") as folder:
        files, target = StoreConfig("filesystem", {"path": folder}), options.target(()) or Path(folder)
        run = Run(target, options.topic, config or Config(stores={"files": files}), effort)
        sizes = sizes or _SIZES[: 2 if quick else 3 if isinstance(target, Path) else 4]
        label, results = run.measure(sizes, warm_up=not quick and not isinstance(target, Path))
    about = {"quick": quick, "broker": label, "store": run.store, "rounds": least}
    document = {**about, "machine": facts, "advice": advice(results), "results": results}
    print(f"{label}, store {run.store}", *table(results), advice(results), sep="\n")
    write(document, out / f"{name}.json")
    draw(document, out / f"{name}.png")


if __name__ == "__main__":
    end_on_signals()
    from tests.benchmarks.compare import main as start  # children import `serve` by the module's name

    start()
