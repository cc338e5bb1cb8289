"""The configuration that commands work with, and the options that they share."""

from __future__ import annotations

import os
from collections.abc import Callable

import click

from claimcheck._check import CheckReport
from claimcheck._client import ClaimCheck, load
from claimcheck.errors import ConfigError

CONFIG = "claimcheck.yaml"
"""The default path."""

config_option = click.option(
    "--config",
    metavar="FILE",
    envvar="CLAIMCHECK_CONFIG",
    default=CONFIG,
    show_default=True,
    show_envvar=True,
    help="The configuration.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")


def loaded(config: str) -> ClaimCheck:
    """Load a configuration file."""
    if not os.path.exists(config):
        text = f"{config} does not exist: name the configuration, set CLAIMCHECK_CONFIG, or run 'claimcheck init'"
        raise ConfigError(text, path=config)
    return load(config)


def reported(config: str, examine: Callable[[ClaimCheck], CheckReport]) -> CheckReport:
    """Return the report about a configuration file; an invalid one is a report of its own."""
    try:
        with loaded(config) as cc:
            return examine(cc)
    except ConfigError as error:
        return CheckReport.of_error(error)
