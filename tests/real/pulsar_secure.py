"""A Pulsar broker that requires a token, with and without TLS."""

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

from tests.real.certificates import make_certificate
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
    """Addresses of the broker; all of them require a token.

    Attributes:
        open: The endpoints without TLS, with the superuser's token.
        tls_url: For clients.
        tls_admin_url: For the admin API.
        authority: File with the certificate of the authority.
        secret: Key that signs tokens.
    """

    open: PulsarBroker
    tls_url: str
    tls_admin_url: str
    authority: Path
    secret: bytes = field(repr=False)

    def token(self, role: str) -> str:
        """Make a token for a role."""
        return _token(self.secret, role)


@contextlib.contextmanager
def secure_pulsar() -> Iterator[SecurePulsar]:
    """Run a broker, which is ready when it reports itself as healthy."""
    secret = secrets.token_bytes(32)
    token = _token(secret, _SUPER_USER)
    ports: dict[Path, list[int]] = {}

    def prepare(folder: Path) -> str:
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

    with pulsar(prepare=prepare, token=token) as broker:
        assert broker.server is not None
        folder = broker.server.location.folder
        port, web_port = ports[folder]
        urls = f"pulsar+ssl://127.0.0.1:{port}", f"https://127.0.0.1:{web_port}"
        yield SecurePulsar(broker, *urls, folder / "ca.crt", secret)


def _token(secret: bytes, role: str) -> str:
    """Return a JSON Web Token signed with HS256."""
    text = ".".join(_base64(json.dumps(part).encode()) for part in ({"alg": "HS256"}, {"sub": role}))
    return f"{text}.{_base64(hmac.digest(secret, text.encode(), hashlib.sha256))}"


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
