"""``make compare``: chunking, an external store and the broker's own means, measured with the same payloads.

    python -m tests.benchmarks.compare.main [OPTIONS]

Without ``--kafka`` and ``--pulsar`` it measures the embedded broker with a store of files, Kafka with Redis, and Pulsar
with S3, where the variables of tests/servers.py name them. Writes the results and a report of each into ``--out``.
"""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import sys
from collections.abc import Iterator
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
from claimcheck.config import Config
from claimcheck.errors import ClaimCheckError, ConfigError
from tests.benchmarks.compare.broker import MAX_BYTES, MIN_BYTES, BrokerAddress
from tests.benchmarks.compare.report import draw, render, summary
from tests.benchmarks.compare.runner import compare

BUCKET = "claimcheck-compare"

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(B|KiB|MiB)")
_UNITS = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20}
_FILE = click.Path(exists=True, dir_okay=False)


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
@click.option("--config", metavar="FILE", type=_FILE, help="Your configuration; its store is measured.")
@click.option(
    "--sizes", metavar="SIZES", callback=_sizes, default="", help="Payload sizes, for example 64KiB,1MiB,10MiB."
)
@click.option(
    "--only", metavar="NAMES", callback=_names, default="", help="Run some experiments only, for example speed,seek."
)
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
    # Experiments make stores fail and consumers die: what the library logs about that is expected.
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
    return os.environ.get(f"CLAIMCHECK_TEST_{name}", "")


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
