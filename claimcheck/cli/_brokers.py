"""The options of commands that connect to a broker, and the credentials that are not options."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from functools import reduce
from pathlib import Path
from typing import Any, TypeVar

import click

from claimcheck._validation import fail
from claimcheck.config import expand

__all__ = ["broker_options", "kafka_settings", "pulsar_token"]

Command = TypeVar("Command", bound=Callable[..., Any])

_SETTING = re.compile(r"[a-z][a-z0-9._]*")
_OPTIONS = (
    click.option("--kafka", metavar="HOST:PORT", help="Bootstrap servers of Kafka."),
    click.option(
        "--kafka-config",
        metavar="FILE",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        help="Settings of librdkafka as name=value lines, with ${NAME} for variables.",
    ),
    click.option("--pulsar", metavar="URL", help="Service URL of Pulsar."),
    click.option("--admin-url", metavar="URL", help="Pulsar's web service."),
    click.option(
        "--tls-ca-file",
        metavar="FILE",
        type=click.Path(exists=True, dir_okay=False),
        help="CA certificates to trust, for Pulsar.",
    ),
)


def broker_options(command: Command) -> Command:
    """Add the options ``--kafka``, ``--kafka-config``, ``--pulsar``, ``--admin-url`` and ``--tls-ca-file``."""
    return reduce(lambda decorated, option: option(decorated), reversed(_OPTIONS), command)


def pulsar_token() -> str | None:
    """Return the token for Pulsar."""
    return os.environ.get("CLAIMCHECK_PULSAR_TOKEN")


def kafka_settings(path: Path | None) -> Mapping[str, str]:
    """Read settings of the Kafka client.

    Raises:
        ConfigError: A line is not ``name=value``, or a variable is not set. It quotes no line, which may be a secret.
    """
    settings = {}
    lines = path.read_text(encoding="utf-8").splitlines() if path else []
    for number, line in enumerate(lines, start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        name, equals, value = (part.strip() for part in line.partition("="))
        if not equals or not _SETTING.fullmatch(name):
            fail(f"{path}, line {number}", found="a line that is not a setting", expected="name=value or a comment (#)")
        settings[name] = expand(value, path=f"{path}, line {number}: {name}")
    return settings
