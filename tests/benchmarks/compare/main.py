"""``make compare``: chunking, an external store and the broker's own means, measured with the same payloads.

    python -m tests.benchmarks.compare.main [OPTIONS]

Without ``--kafka`` and ``--pulsar`` it measures the embedded broker with a store of files, Kafka with Redis, and Pulsar
with S3, where the variables of tests/servers.py name them. Writes the results and a report of each into ``--out``.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import json
import logging
import os
import random
import re
import secrets
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.markdown import Markdown

from claimcheck._config_file import from_dict, read_yaml
from claimcheck._texts import size_text
from claimcheck.cli._commands import BrokerOptions, broker_options, one_line
from claimcheck.cli._files import is_terminal, reported
from claimcheck.config import Config, StoreConfig
from claimcheck.errors import ClaimCheckError, ConfigError
from tests.benchmarks.children import ChildError, machine
from tests.benchmarks.compare.broker import MAX_BYTES, MIN_BYTES, BrokerAddress, CompareError, connect
from tests.benchmarks.compare.lab import PREFIX, Lab
from tests.benchmarks.compare.measures import MEASURES, Measure
from tests.benchmarks.compare.recommendation import Setting, recommend
from tests.benchmarks.compare.report import draw, render, summary
from tests.servers import PREFIX as VARIABLE

BUCKET = "claimcheck-compare"

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(B|KiB|MiB)")
_UNITS = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20}
_LOCAL_SIZES = (64 << 10, 1 << 20, 10 << 20)
_SIZES = (*_LOCAL_SIZES, 100 << 20)
_ROUNDS, _QUICK_ROUNDS = 5, 2
_STORES_YAML = """\
stores:
  files: {type: filesystem, path: claimcheck-payloads, create: true}  # shared by all machines
"""


def _sizes(ctx: click.Context, param: click.Parameter, value: str) -> tuple[int, ...]:
    """Parse sizes that are separated by commas."""
    sizes = []
    for text in value.split(",") if value else ():
        match = _SIZE.fullmatch(text.strip())
        size = int(float(match[1]) * _UNITS[match[2]]) if match else 0
        if not MIN_BYTES <= size <= MAX_BYTES:
            ends = f"{size_text(MIN_BYTES)} to {size_text(MAX_BYTES)}"
            problem = f"found {text.strip()!r}, expected sizes of {ends}, for example 64KiB,1MiB"
            raise click.BadParameter(problem, ctx, param)
        sizes.append(size)
    return tuple(sizes)


def _names(ctx: click.Context, param: click.Parameter, value: str) -> tuple[str, ...]:
    return tuple(filter(None, value.split(",")))


@click.command()
@broker_options
@click.option(
    "--config",
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False),
    help="Your configuration; its store is measured.",
)
@click.option(
    "--sizes", metavar="SIZES", callback=_sizes, default="", help="Payload sizes, for example 64KiB,1MiB,10MiB."
)
@click.option("--only", metavar="NAMES", callback=_names, default="", help=f"Measure a part: {','.join(MEASURES)}.")
@click.option("--rounds", type=click.IntRange(1, 1000), help="How often measurements are repeated.  [default: 5]")
@click.option("--quick", is_flag=True, help="A short test run; its figures are not reliable.")
@click.option("--out", metavar="DIR", type=click.Path(path_type=Path), default="compare-results", show_default=True)
@click.option(
    "--brokers",
    metavar="NAMES",
    callback=_names,
    default="embedded,kafka,pulsar",
    show_default=True,
    help="Of those found.",
)
def main(broker: BrokerOptions, config: str | None, out: Path, brokers: tuple[str, ...], **given: Any) -> None:
    """Measure which strategy, store and threshold fit, with your broker and store or with those of the tests.

    Creates topics named claimcheck-compare-..., and payloads below that name in the store, and removes both. Pulsar
    also needs --admin-url. Passwords and tokens come from environment variables, such as
    CLAIMCHECK_KAFKA_SASL_PASSWORD and CLAIMCHECK_PULSAR_TOKEN.
    """
    logging.getLogger("claimcheck").addHandler(logging.NullHandler())
    try:
        if broker.kafka or broker.pulsar or broker.admin_url or config:
            runs = [_own(broker, config)]
        else:
            runs = [run for run in _found() if run[0] in brokers]
    except ClaimCheckError as error:
        sys.exit(_failed(error))
    sys.exit(sum([_measured(*run, out, **given) for run in runs]) > 0)


# What is measured ----------------------------------------------------------------------------------------------

Run = tuple[str, BrokerAddress | None, Config | None]
"""The name of a comparison, the broker, and the configuration; ``None`` for the embedded broker, and for files."""


def _own(broker: BrokerOptions, config: str | None) -> Run:
    if bool(broker.admin_url) != bool(broker.pulsar):
        raise click.UsageError("--admin-url needs --pulsar, and --pulsar needs --admin-url")
    settings = tuple(broker.settings.items())
    address = None
    if broker.kafka:
        address = BrokerAddress("kafka", broker.kafka, options=settings)
    elif broker.pulsar:
        address = BrokerAddress("pulsar", broker.pulsar, broker.admin_url, settings)
    return address.kind if address else "embedded", address, from_dict(read_yaml(config)) if config else None


def _found() -> Iterator[Run]:
    """Yield what the environment allows."""
    yield "embedded", None, None
    if kafka := _variable("KAFKA_BOOTSTRAP_SERVERS"):
        redis = _variable("REDIS_URL")
        yield "kafka", BrokerAddress("kafka", kafka), _config({"type": "redis", "url": redis} if redis else None)
    if (pulsar := _variable("PULSAR_URL")) and (admin := _variable("PULSAR_ADMIN_URL")):
        yield "pulsar", BrokerAddress("pulsar", pulsar, admin), _config(_s3())


def _config(store: dict[str, Any] | None) -> Config | None:
    return from_dict({"strategy": "hybrid", "stores": {"payloads": store}}) if store else None


def _variable(name: str) -> str:
    return os.environ.get(VARIABLE + name, "")


def _s3() -> dict[str, Any] | None:
    endpoint = _variable("S3_ENDPOINT")
    if not endpoint:
        return None
    import boto3

    os.environ.setdefault("AWS_ACCESS_KEY_ID", _variable("S3_ACCESS_KEY"))
    os.environ.setdefault("AWS_SECRET_ACCESS_KEY", _variable("S3_SECRET_KEY"))
    os.environ.setdefault("AWS_DEFAULT_REGION", "us-east-1")
    client = boto3.client("s3", endpoint_url=endpoint)
    if BUCKET not in [bucket["Name"] for bucket in client.list_buckets()["Buckets"]]:
        client.create_bucket(Bucket=BUCKET)
    return {"type": "s3", "bucket": BUCKET, "endpoint_url": endpoint}


# A run ---------------------------------------------------------------------------------------------------------

Show = Callable[[str], None]


def _measured(name: str, address: BrokerAddress | None, config: Config | None, out: Path, **given: Any) -> int:
    """Measure, write the results and show their summary; return the exit status."""
    click.echo(name, err=True)
    try:
        out.mkdir(parents=True, exist_ok=True)
        with reported("starting", lambda error: None) as status:
            comparison = compare(address, config, show=status, done=partial(click.echo, err=True), **given)
        (out / f"{name}.json").write_text(json.dumps(comparison, indent=2) + "\n")
        (out / f"{name}.md").write_text(render(comparison, f"{name}.png"), encoding="utf-8")
        draw(comparison, out / f"{name}.png")
    except (ClaimCheckError, OSError) as error:
        return _failed(error)
    Console(width=None if is_terminal(sys.stdout) else 100).print(Markdown(summary(comparison)))
    return 0


def compare(
    address: BrokerAddress | None = None,
    config: Config | None = None,
    *,
    sizes: Sequence[int] = (),
    only: Sequence[str] = (),
    rounds: int | None = None,
    quick: bool = False,
    show: Show = lambda text: None,
    done: Show = lambda text: None,
) -> dict[str, Any]:
    """Measure and return values for JSON. What was created is removed, also after an error.

    Without a broker and a configuration, those are an embedded one and files in a temporary folder.
    """
    if unknown := [name for name in only if name not in MEASURES]:
        raise CompareError(f"there is no measurement {unknown[0]!r}; choose from {', '.join(MEASURES)}")
    names, run, begin = [name for name in MEASURES if not only or name in only], secrets.token_hex(4), time.monotonic()
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix=PREFIX, ignore_cleanup_errors=True))
        broker = stack.enter_context(contextlib.closing(connect(address or BrokerAddress("local", folder))))
        files = StoreConfig("filesystem", {"path": str(Path(folder, "store")), "create": True})
        lab = Lab(
            broker=broker,
            user=config or Config(strategy="hybrid", stores={"files": files}),
            run=run,
            sizes=tuple(sorted(set(sizes or (_LOCAL_SIZES if broker.address.kind == "local" else _SIZES)))),
            rounds=rounds or (_QUICK_ROUNDS if quick else _ROUNDS),
            quick=quick,
            rng=random.Random(run),
        )
        found = [_one(lab, name, f"{number}/{len(names)} {name}", show, done) for number, name in enumerate(names, 1)]
        setting = Setting(
            broker.limit_bytes,
            lab.store,
            lab.user.chunks.max_payload_bytes,
            _STORES_YAML if config is None else "",
        )
        advice = recommend({name: value for each in found for name, value in each.facts.items()}, setting)
        return {
            "made": datetime.datetime.now(datetime.UTC).astimezone().isoformat(timespec="seconds"),
            "broker": broker.label,
            "store": f"{lab.store} ({lab.user.stores[lab.store].type})" if lab.store else "none",
            "machine": machine(),
            "sizes": list(lab.sizes),
            "rounds": lab.rounds,
            "seconds": round(time.monotonic() - begin, 1),
            "measures": [dataclasses.asdict(each) for each in found],
            "recommendation": None if advice is None else dataclasses.asdict(advice),
        }


def _one(lab: Lab, name: str, title: str, show: Show, done: Show) -> Measure:
    """Measure one thing, and remove what it stored; it removes its topics and processes itself."""
    begin = time.monotonic()
    lab.progress = lambda text: show(f"{title}: {text}")
    try:
        found = MEASURES[name](lab)
    except (CompareError, ConfigError):
        raise
    except (ClaimCheckError, ChildError) as error:
        raise CompareError(f"{name}: {error}") from error
    finally:
        lab.clear_store()
    done(f"{title:<16} done in {time.monotonic() - begin:.1f} s")
    return found


def _failed(error: Exception) -> int:
    for problem in error.problems if isinstance(error, ConfigError) else (error,):
        click.echo(f"compare: {one_line(problem)}", err=True)
    return 1


def _end(number: int, frame: object) -> None:
    """End the run; further signals must not interrupt the clean-up."""
    signal.signal(number, signal.SIG_IGN)
    sys.exit(128 + number)


if __name__ == "__main__":
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, _end)
    main()
