"""The options that name a broker and its credentials, the same for each command that connects to one.

Passwords and tokens do not belong on a command line, which other users of the machine can see. They come from the file
of ``--kafka-config`` and from environment variables: ``CLAIMCHECK_KAFKA_SASL_PASSWORD`` is librdkafka's
``sasl.password``, likewise for every ``security.*``, ``sasl.*`` and ``ssl.*``. Pulsar has ``CLAIMCHECK_PULSAR_TOKEN``,
``_NAMESPACE``, ``_TLS_TRUST_CERTS_FILE_PATH`` and ``_LISTENER_NAME``.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from claimcheck._doctor._topics import KafkaTarget, PulsarTarget
from claimcheck._validation import fail
from claimcheck.config import expand
from claimcheck.errors import ConfigError

if TYPE_CHECKING:
    from claimcheck.transports.local import LocalBroker

_SETTING = re.compile(r"[a-z][a-z0-9._]*")
_KAFKA_PREFIXES = ("security.", "sasl.", "ssl.")
_PULSAR_NAMES = ("token", "namespace", "tls_trust_certs_file_path", "listener_name")
_OPTIONS = (
    click.option("--kafka", metavar="HOST:PORT", help="Kafka's bootstrap servers."),
    click.option(
        "--kafka-config",
        metavar="FILE",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        help="Settings of librdkafka as name=value lines, with ${NAME} for variables.",
    ),
    click.option("--pulsar", metavar="URL", help="Pulsar's service URL."),
    click.option("--admin-url", metavar="URL", help="Pulsar's web service."),
    click.option(
        "--tls-ca-file",
        metavar="FILE",
        type=click.Path(exists=True, dir_okay=False),
        help="CA certificates to trust, for Pulsar.",
    ),
)

local_option = click.option(
    "--local", metavar="FILE", type=click.Path(exists=True, dir_okay=False), help="The file of the embedded broker."
)


@dataclass(frozen=True, slots=True)
class BrokerOptions:
    """The broker that a command line names: Kafka, Pulsar or none."""

    kafka: str | None = field(default=None, repr=False)
    pulsar: str | None = field(default=None, repr=False)
    admin_url: str | None = field(default=None, repr=False)
    settings: Mapping[str, str] = field(default_factory=dict, repr=False)

    def target(
        self, topics: Iterable[str], groups: tuple[str, ...] = (), dead_letters: Iterable[str] = ()
    ) -> KafkaTarget | PulsarTarget | None:
        """Return topics of this broker, and the groups or subscriptions that matter; ``None`` without a broker."""
        names, dead = tuple(map(self.topic, topics)), tuple(map(self.topic, dead_letters))
        if self.kafka:
            return KafkaTarget(self.kafka, names, groups, dead, self.settings)
        if not (self.pulsar or self.admin_url):
            return None
        token, ca_file, listener = map(self.settings.get, ("token", "tls_trust_certs_file_path", "listener_name"))
        return PulsarTarget(self.pulsar, self.admin_url, names, groups, dead, token, ca_file, listener)

    def topic(self, name: str) -> str:
        """Return the name of a topic with the namespace of ``CLAIMCHECK_PULSAR_NAMESPACE``, if it has none."""
        namespace = self.settings.get("namespace")
        return name if self.kafka or "/" in name or not namespace else f"{namespace}/{name}"


def broker_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of brokers to a command, which receives them as one argument, ``broker``."""

    @functools.wraps(command)
    def called(
        *,
        kafka: str | None,
        kafka_config: Path | None,
        pulsar: str | None,
        admin_url: str | None,
        tls_ca_file: str | None,
        **arguments: Any,
    ) -> Any:
        if kafka and (pulsar or admin_url or tls_ca_file):
            raise click.UsageError("--kafka cannot be combined with options of Pulsar: run the command for one broker")
        if kafka_config and not kafka:
            raise click.UsageError("--kafka-config needs --kafka")
        if tls_ca_file and not (pulsar or admin_url):
            raise click.UsageError("--tls-ca-file needs --pulsar or --admin-url")
        settings = _from_environment(os.environ, "kafka" if kafka else "pulsar")
        if kafka_config:
            settings |= _from_file(kafka_config)
        if tls_ca_file:
            settings["tls_trust_certs_file_path"] = tls_ca_file
        return command(broker=BrokerOptions(kafka, pulsar, admin_url, settings), **arguments)

    for option in reversed(_OPTIONS):
        called = option(called)
    return called


def check_one_broker(broker: BrokerOptions, *local: str | None) -> None:
    """Raise `click.UsageError` unless exactly one broker is named; ``local`` is the value of ``--local``, if any."""
    if sum(each is not None for each in (broker.kafka, broker.pulsar, *local)) != 1:
        raise click.UsageError(f"name one broker: --kafka{', --pulsar or --local' if local else ' or --pulsar'}")


def local_broker(path: str) -> LocalBroker:
    """Open the embedded broker of ``--local``."""
    from claimcheck.transports.local import LocalBroker
    from claimcheck.transports.local._database import is_broker_file

    if not is_broker_file(path):
        raise ConfigError(f"{path} is not the file of an embedded broker: check its name", path="--local")
    return LocalBroker(path)


def _from_environment(environ: Mapping[str, str], kind: str) -> dict[str, str]:
    """Return the settings that variables set; empty values and other variables of the same prefix are ignored."""
    prefix = f"CLAIMCHECK_{kind.upper()}_"
    found = {
        name.removeprefix(prefix).lower(): text for name, text in environ.items() if name.startswith(prefix) and text
    }
    if kind == "pulsar":
        return {name: found[name] for name in _PULSAR_NAMES if name in found}
    dotted = {name.replace("_", "."): text for name, text in found.items()}
    return {name: text for name, text in dotted.items() if name.startswith(_KAFKA_PREFIXES)}


def _from_file(path: Path) -> dict[str, str]:
    """Read settings of the Kafka client."""
    settings = {}
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        name, equals, value = (part.strip() for part in line.partition("="))
        if not equals or not _SETTING.fullmatch(name):
            fail(f"{path}, line {number}", found="a line that is not a setting", expected="name=value or a comment (#)")
        settings[name] = expand(value, path=f"{path}, line {number}: {name}")
    return settings
