"""Settings of the clients, passwords among them, from environment variables: they do not belong on a command line.

``CLAIMCHECK_KAFKA_SASL_PASSWORD`` is the setting ``sasl.password`` of librdkafka, and likewise for all of its settings.
``CLAIMCHECK_PULSAR_TOKEN``, ``_NAMESPACE``, ``_TLS_TRUST_CERTS_FILE_PATH`` and ``_LISTENER_NAME`` are those of Pulsar.
"""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["options_from"]

_SEPARATORS = {"kafka": ".", "pulsar": "_"}


def options_from(environ: Mapping[str, str], kind: str) -> tuple[tuple[str, str], ...]:
    """Return the `BrokerAddress.options` that environment variables set.

    Args:
        environ: For example `os.environ`. Empty values are ignored.
        kind: ``kafka`` or ``pulsar``; other brokers have none.
    """
    prefix, separator = f"CLAIMCHECK_{kind.upper()}_", _SEPARATORS.get(kind)
    if separator is None:
        return ()
    found = {name.removeprefix(prefix): value for name, value in environ.items() if name.startswith(prefix) and value}
    return tuple(sorted((name.lower().replace("_", separator), value) for name, value in found.items()))
