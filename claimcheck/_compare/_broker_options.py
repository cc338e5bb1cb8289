"""Settings for authentication and TLS from environment variables: passwords do not belong on a command line.

``CLAIMCHECK_KAFKA_SASL_PASSWORD`` is librdkafka's ``sasl.password``; likewise for every ``security.*``, ``sasl.*`` and
``ssl.*``. Pulsar has ``CLAIMCHECK_PULSAR_TOKEN``, ``_NAMESPACE``, ``_TLS_TRUST_CERTS_FILE_PATH`` and
``_LISTENER_NAME``.
"""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["PULSAR_OPTIONS", "options_from"]

PULSAR_OPTIONS = ("token", "namespace", "tls_trust_certs_file_path", "listener_name")
"""The options of a Pulsar address."""

_KAFKA_PREFIXES = ("security.", "sasl.", "ssl.")


def options_from(environ: Mapping[str, str], kind: str) -> dict[str, str]:
    """Return the `BrokerAddress.options` that environment variables set; others of these prefixes are ignored.

    Args:
        environ: For example `os.environ`. Empty values are ignored.
        kind: ``kafka`` or ``pulsar``.
    """
    prefix = f"CLAIMCHECK_{kind.upper()}_"
    found = {
        name.removeprefix(prefix).lower(): text for name, text in environ.items() if name.startswith(prefix) and text
    }
    if kind == "pulsar":
        return {name: found[name] for name in PULSAR_OPTIONS if name in found}
    dotted = {name.replace("_", "."): text for name, text in found.items()}
    return {name: text for name, text in dotted.items() if name.startswith(_KAFKA_PREFIXES)}
