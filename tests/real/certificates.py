"""A test certificate authority and a server certificate for this machine, made with openssl."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path


def make_certificate(folder: Path, *, names: str = "IP:127.0.0.1,DNS:localhost") -> None:
    """Write ``ca.crt``, ``server.crt`` and ``server.key`` (PKCS 8), with all extensions that strict clients check."""
    openssl = _openssl(folder)
    key = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes"
    (folder / "server.ext").write_text(
        f"subjectAltName={names}\nkeyUsage=critical,digitalSignature\nextendedKeyUsage=serverAuth\n"
        "basicConstraints=critical,CA:false\nsubjectKeyIdentifier=hash\nauthorityKeyIdentifier=keyid\n"
    )
    openssl(
        f"req -x509 {key} -keyout ca.key -out ca.crt -days 2 -subj /CN=claimcheck-test-authority "
        "-addext keyUsage=critical,keyCertSign"
    )
    openssl(f"req {key} -keyout server.key -out server.csr -subj /CN=claimcheck-test-server")
    signer = "-CA ca.crt -CAkey ca.key -CAcreateserial"
    openssl(f"x509 -req -in server.csr {signer} -out server.crt -days 2 -extfile server.ext")


def _openssl(folder: Path) -> Callable[[str], object]:
    def run(arguments: str) -> object:
        return subprocess.run(["openssl", *arguments.split()], cwd=folder, check=True, capture_output=True, timeout=20)

    return run
