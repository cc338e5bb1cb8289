"""Runs ``claimcheck compare`` on every broker that the environment names, and writes each report into a folder.

    python tests/compare/everywhere.py [--out FOLDER] [OPTIONS OF claimcheck compare ...]

The embedded broker is compared with a store of files, Kafka with Redis, and Pulsar with S3, where they are found; the
variables are those of tests/servers.py.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

PREFIX = "CLAIMCHECK_TEST_"
FILES = {"type": "filesystem", "create": True}
BUCKET = "claimcheck-compare"


@dataclass(frozen=True, slots=True)
class Run:
    """One comparison."""

    name: str
    options: tuple[str, ...] = ()
    store: dict[str, Any] | None = field(default=None, repr=False)


def runs(folder: Path) -> Iterator[Run]:
    """Yield what the environment allows."""
    files = {**FILES, "path": str(folder / "store")}
    yield Run("embedded")
    if kafka := _variable("KAFKA_BOOTSTRAP_SERVERS"):
        redis = _variable("REDIS_URL")
        yield Run("kafka", ("--kafka", kafka), {"type": "redis", "url": redis} if redis else files)
    if pulsar := _variable("PULSAR_URL"):
        admin = _variable("PULSAR_ADMIN_URL")
        more = ("--admin-url", admin) if admin else ()
        yield Run("pulsar", ("--pulsar", pulsar, *more), _s3() or files)


def _variable(name: str) -> str:
    return os.environ.get(f"{PREFIX}{name}", "")


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


def compare(run: Run, out: Path, folder: Path, more: list[str]) -> int:
    """Run one comparison; its JSON and its report are written."""
    command = [sys.executable, "-m", "claimcheck", "compare", *run.options, *more]
    if run.store is not None:
        config = folder / f"{run.name}.yaml"
        config.write_text(yaml.safe_dump({"strategy": "hybrid", "stores": {"payloads": run.store}}))
        command += ["--config", str(config)]
    print(f"\n{run.name}", flush=True)
    with (out / f"{run.name}.json").open("wb") as file:
        return subprocess.call([*command, "--json", "--force", "--html", str(out / f"{run.name}.html")], stdout=file)


def show(path: Path) -> None:
    """Print the summary of a JSON file."""
    import json

    from rich.console import Console

    from claimcheck._compare._model import Comparison, from_json
    from claimcheck._compare._terminal import show as summary

    summary(from_json(Comparison, json.loads(path.read_text())), Console(width=100))


def main() -> int:
    """Run all comparisons; return the first failure's status."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("compare-results"))
    parser.add_argument("--brokers", help="Some of them only, for example kafka,pulsar.")
    options, more = parser.parse_known_args()
    options.out.mkdir(parents=True, exist_ok=True)
    worst = 0
    with tempfile.TemporaryDirectory(prefix="claimcheck-everywhere-") as name:
        for run in runs(Path(name)):
            if options.brokers and run.name not in options.brokers.split(","):
                continue
            status = compare(run, options.out, Path(name), more)
            if status == 0:
                show(options.out / f"{run.name}.json")
            worst = worst or status
    return worst


if __name__ == "__main__":
    sys.exit(main())
