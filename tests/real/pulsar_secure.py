"""A Pulsar broker that lets nobody in without a token, and that speaks TLS, too."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import json
import secrets
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.real.authority import make_certificate
from tests.real.process import free_ports
from tests.real.pulsar_broker import PulsarBroker, pulsar

_SUPER_USER = "operator"
_CONFIGURATION = """\
authenticationEnabled=true
authenticationProviders=org.apache.pulsar.broker.authentication.AuthenticationProviderToken
tokenSecretKey=data:;base64,{secret}
authorizationEnabled=true
superUserRoles={super_user}
brokerClientAuthenticationPlugin=org.apache.pulsar.client.impl.auth.AuthenticationToken
brokerClientAuthenticationParameters=token:{token}
brokerServicePortTls={tls_port}
webServicePortTls={tls_web_port}
tlsCertificateFilePath={folder}/server.crt
tlsKeyFilePath={folder}/server.key
tlsTrustCertsFilePath={folder}/ca.crt
"""


@dataclass(frozen=True)
class SecurePulsar:
    """The ways in; all of them ask for a token.

    Attributes:
        open: Of the doors without TLS, for its operator.
        tls_url: For clients.
        tls_admin_url: Of its web service.
        authority: The file with the certificate of who has signed its own.
        secret: What tokens are made with.
    """

    open: PulsarBroker
    tls_url: str
    tls_admin_url: str
    authority: Path
    secret: bytes = field(repr=False)

    def token(self, role: str) -> str:
        """Make a token for somebody."""
        return _token(self.secret, role)


@contextlib.contextmanager
def secure_pulsar() -> Iterator[SecurePulsar]:
    """Run one; ready when it says that it is well."""
    secret = secrets.token_bytes(32)
    token = _token(secret, _SUPER_USER)
    ports: dict[Path, list[int]] = {}

    def furnish(folder: Path) -> str:
        make_certificate(folder)
        ports[folder] = free_ports(2)
        return _CONFIGURATION.format(
            secret=base64.b64encode(secret).decode(),
            super_user=_SUPER_USER,
            token=token,
            tls_port=ports[folder][0],
            tls_web_port=ports[folder][1],
            folder=folder,
        )

    with pulsar(furnish=furnish, token=token) as broker:
        assert broker.server is not None
        folder = broker.server.spot.folder
        port, web_port = ports[folder]
        urls = f"pulsar+ssl://127.0.0.1:{port}", f"https://127.0.0.1:{web_port}"
        yield SecurePulsar(broker, *urls, folder / "ca.crt", secret)


def _token(secret: bytes, role: str) -> str:
    """A JSON Web Token of HS256."""
    text = ".".join(_base64(json.dumps(part).encode()) for part in ({"alg": "HS256"}, {"sub": role}))
    return f"{text}.{_base64(hmac.digest(secret, text.encode(), hashlib.sha256))}"


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
