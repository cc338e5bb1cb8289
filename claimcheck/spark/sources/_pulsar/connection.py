"""The connection options of sources and sinks. No I/O except to read the file of certificates."""

from __future__ import annotations

import os
import re
import ssl
from dataclasses import dataclass
from typing import Any

from claimcheck._validation import fail
from claimcheck.spark.sources._options import COUNT, SECONDS, TEXT, TRUTH, Kind
from claimcheck.spark.sources._pulsar.handshake import hosts_of

__all__ = ["CONNECTION_OPTIONS", "Connection", "connection_of"]

_HOST = r"(?:[\w.-]+|\[[0-9a-fA-F:.]+\])(?::\d{1,5})?"
_ADMIN_URL = re.compile(rf"https?://{_HOST}(?:/[^@?#\s]*)?")
_SERVICE_URL = re.compile(rf"pulsar(?:\+ssl)?://{_HOST}(?:,{_HOST})*/?")

CONNECTION_OPTIONS: dict[str, Kind] = {
    "serviceUrl": TEXT,
    "adminUrl": TEXT,
    "authTokenEnv": TEXT,
    "tlsTrustCertsFilePath": TEXT,
    "tlsAllowInsecureConnection": TRUTH,
    "tlsValidateHostname": TRUTH,
    "operationTimeoutSeconds": SECONDS,
    "ioThreads": COUNT,
}
"""The options that sources and sinks share."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """A broker's addresses and credentials; the name of the token's variable only, so that it can be part of a plan.

    Attributes:
        service_url: The broker, for clients.
        admin_url: The web service, if it may be used.
        token_env: The environment variable that holds the token, in the process that connects.
        trust_certs: Path of the certificates to trust.
        allow_insecure: Whether untrusted certificates are accepted.
        validate_hostname: Whether the certificate has to name the host.
        timeout_seconds: For one request.
        io_threads: I/O threads of the client.
    """

    service_url: str
    admin_url: str | None = None
    token_env: str | None = None
    trust_certs: str | None = None
    allow_insecure: bool = False
    validate_hostname: bool = True
    timeout_seconds: float = 60.0
    io_threads: int = 1

    @property
    def hosts(self) -> str:
        """The brokers' hosts and ports, for error messages."""
        return ", ".join(f"{host}:{port}" for host, port in hosts_of(self.service_url))

    def token(self) -> str | None:
        """Return the token from this process's environment.

        Raises:
            ConfigError: The variable is not set in this process.
        """
        if self.token_env is None:
            return None
        if not os.environ.get(self.token_env):
            fail(
                "authTokenEnv",
                found=f"{self.token_env!r}, which is not set in this process",
                expected="an environment variable that driver and executors have when Spark starts "
                "(spark.executorEnv.NAME)",
            )
        return os.environ[self.token_env]

    def trust(self, default: str | None) -> ssl.SSLContext:
        """Return an SSL context that trusts what the client trusts.

        Args:
            default: Path of the certificates to trust if none are named; ``None`` for the machine's own.

        Raises:
            ConfigError: The file with the certificates cannot be read in this process.
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        try:
            self._load(context, self.trust_certs or default)
        except OSError as error:  # errors of TLS are among them
            fail(
                "tlsTrustCertsFilePath",
                found=f"{self.trust_certs!r}, which holds no certificates for this process ({type(error).__name__})",
                expected="a file of certificates (PEM), on the driver and on every executor",
            )
        context.check_hostname = self.validate_hostname and not self.allow_insecure
        if self.allow_insecure:
            context.verify_mode = ssl.CERT_NONE
        return context

    @staticmethod
    def _load(context: ssl.SSLContext, path: str | None) -> None:
        if path is None:
            context.load_default_certs()
        else:
            context.load_verify_locations(path)


def connection_of(values: dict[str, Any]) -> Connection:
    """Return the connection that parsed options describe.

    Raises:
        ConfigError: ``serviceUrl`` or ``adminUrl`` is missing or not valid.
    """
    url = values.get("serviceUrl")
    if url is None or not _SERVICE_URL.fullmatch(url) or any(port > 65535 for _, port in hosts_of(url)):
        expected = "pulsar://host:port or pulsar+ssl://host:port, without a user; for tokens there is authTokenEnv"
        fail("serviceUrl", found="text" if url else "nothing", expected=expected)
    admin = values.get("adminUrl")
    if admin is not None and not _ADMIN_URL.fullmatch(admin):
        fail("adminUrl", found="text", expected="http://host:port or https://host:port, without a user")
    return Connection(
        service_url=url,
        admin_url=admin,
        token_env=values.get("authTokenEnv"),
        trust_certs=values.get("tlsTrustCertsFilePath"),
        allow_insecure=values.get("tlsAllowInsecureConnection", False),
        validate_hostname=values.get("tlsValidateHostname", True),
        timeout_seconds=values.get("operationTimeoutSeconds", 60.0),
        io_threads=values.get("ioThreads", 1),
    )
