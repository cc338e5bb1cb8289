"""Why a broker does not let us in, or we do not trust it, and what to do about it. No part of a token is ever said."""

from __future__ import annotations

from claimcheck.spark.sources.errors import AccessError
from claimcheck.spark.sources.pulsar_connection import Connection
from claimcheck.spark.sources.pulsar_door import Refusal, refusal

__all__ = ["check_token", "not_trusted", "why"]


def check_token(connection: Connection) -> None:
    """Make sure that the broker takes the token; who is not there, or not trusted, is left to the client.

    Raises:
        AccessError: It does not.
        ConfigError: There is no token, or no certificates, where they were said to be.
    """
    found = _ask(connection)
    if found is not None and found[0] is Refusal.TOKEN:
        raise _refused(connection, "authTokenEnv")


def why(connection: Connection, before: str) -> AccessError | None:
    """Find out why the client did not get in; ``None`` where it could have.

    Args:
        connection: As the client has it.
        before: What went wrong.

    Raises:
        ConfigError: There is no token, or no certificates, where they were said to be.
    """
    found = _ask(connection)
    if found is None:
        return None
    if found[0] is Refusal.CERTIFICATE:
        return not_trusted(connection.hosts, found[1], before)
    return _refused(connection, before)


def not_trusted(where: str, said: str, before: str) -> AccessError:
    """Make the error for a certificate.

    Args:
        where: Whose it is.
        said: What is wrong with it.
        before: What went wrong.
    """
    return AccessError(
        f"{before}. The certificate of {where} is not trusted: {said}. tlsTrustCertsFilePath names a file with the "
        "certificates to trust, on the driver and on every executor; the URL has to name the host as they do"
    )


def _refused(connection: Connection, before: str) -> AccessError:
    where, name = connection.hosts, connection.token_env
    if name is None:
        return AccessError(
            f"{before}: {where} refuses who has no token. authTokenEnv names the environment variable that holds one, "
            "of the driver and of the executors (spark.executorEnv.NAME)"
        )
    return AccessError(
        f"{before}: {where} refuses the token in {name!r}, the environment variable that authTokenEnv names. It may be "
        f"out of date, or for another broker: set a new one for driver and executors (spark.executorEnv.{name}), and "
        "start them again"
    )


def _ask(connection: Connection) -> tuple[Refusal, str] | None:
    import certifi  # comes with the client, which falls back to it

    wants_tls = connection.service_url.startswith("pulsar+ssl:")
    return refusal(connection.service_url, connection.token(), connection.trust(certifi.where()) if wants_tls else None)
