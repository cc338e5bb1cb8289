"""The connection options of sources and sinks. The only I/O is to read the file of certificates."""

from __future__ import annotations

import os
import re
import ssl
from dataclasses import dataclass

from claimcheck._validation import fail
from claimcheck.spark.sources._options import COUNT, SECONDS, TEXT, TRUTH, OptionType, Values

_HOST = r"(?:[\w.-]+|\[[0-9a-fA-F:.]+\])(?::\d{1,5})?"
_ADMIN_URL = re.compile(rf"https?://{_HOST}(?:/[^@?#\s]*)?")
_SERVICE_URL = re.compile(rf"pulsar(?:\+ssl)?://{_HOST}(?:,{_HOST})*/?")
_PLACE = re.compile(r"(?P<host>\[[^\]]+\]|[^\[\]:]+)(?::(?P<port>\d+))?")
_PORTS = {"pulsar": 6650, "pulsar+ssl": 6651}

CONNECTION_OPTIONS: dict[str, OptionType] = {
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
    """A broker's addresses and credentials; the name of the token's variable only, so that it can be part of a plan."""

    service_url: str
    admin_url: str | None = None
    token_env: str | None = None
    trust_certs: str | None = None
    allow_insecure: bool = False
    validate_hostname: bool = True
    timeout_seconds: float = 60.0
    io_threads: int = 1

    @classmethod
    def of(cls, values: Values, *, timeout_seconds: float) -> Connection:
        """Return the connection that parsed options describe."""
        url = values.get("serviceUrl")
        if url is None or not _SERVICE_URL.fullmatch(url) or any(port > 65535 for _, port in _addresses(url)):
            expected = "pulsar://host:port or pulsar+ssl://host:port, without a user; for tokens there is authTokenEnv"
            fail("serviceUrl", found="text" if url else "nothing", expected=expected)
        admin = values.get("adminUrl")
        if admin is not None and not _ADMIN_URL.fullmatch(admin):
            fail("adminUrl", found="text", expected="http://host:port or https://host:port, without a user")
        return cls(
            service_url=url,
            admin_url=admin,
            token_env=values.get("authTokenEnv"),
            trust_certs=values.get("tlsTrustCertsFilePath"),
            allow_insecure=values.get("tlsAllowInsecureConnection", False),
            validate_hostname=values.get("tlsValidateHostname", True),
            timeout_seconds=values.get("operationTimeoutSeconds", timeout_seconds),
            io_threads=values.get("ioThreads", 1),
        )

    @property
    def hosts(self) -> str:
        """The brokers' hosts and ports, for error messages."""
        return ", ".join(f"{host}:{port}" for host, port in _addresses(self.service_url))

    @property
    def tls(self) -> bool:
        """Whether the broker is connected with TLS."""
        return self.service_url.startswith("pulsar+ssl:")

    def token(self) -> str | None:
        """Return the token from this process's environment."""
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

    def trust(self) -> ssl.SSLContext:
        """Return an SSL context that trusts the named certificates, or else the machine's own."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        try:
            if self.trust_certs is None:
                context.load_default_certs()
            else:
                context.load_verify_locations(self.trust_certs)
        except OSError as error:  # errors of TLS are among them
            fail(
                "tlsTrustCertsFilePath",
                found=f"{self.trust_certs!r}, in which this process finds no certificates ({type(error).__name__})",
                expected="a file of certificates (PEM), on the driver and on every executor",
            )
        context.check_hostname = self.validate_hostname and not self.allow_insecure
        if self.allow_insecure:
            context.verify_mode = ssl.CERT_NONE
        return context


def _addresses(url: str) -> list[tuple[str, int]]:
    scheme, _, places = url.partition("://")
    matches = (_PLACE.fullmatch(place) for place in places.rstrip("/").split(","))
    return [(each["host"].strip("[]"), int(each["port"] or _PORTS[scheme])) for each in matches if each]
