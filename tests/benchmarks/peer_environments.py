"""An environment for each library that is compared: some of them cannot be installed beside each other."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

_BOTO3 = "boto3==1.44.5"


@dataclass(frozen=True, slots=True)
class Peer:
    """One line of the picture.

    Attributes:
        name: As it is printed, and of its adapter.
        store: What its payloads rest in: ``redis``, ``s3`` or ``file``.
        requirements: What is installed for it, in an environment of its own; nothing where this one will do.
    """

    name: str
    store: str
    requirements: tuple[str, ...] = field(default=())

    @property
    def folder(self) -> str:
        """Of its environment; libraries with the same requirements share one."""
        return self.requirements[0].replace("==", "-").replace("[", "-").replace("]", "")


_PROXYSTORE = ("proxystore==1.1.0", "redis==8.1.0")
PEERS = (
    Peer("claimcheck redis", "redis"),
    Peer("claimcheck s3", "s3"),
    Peer("claimcheck obstore", "s3"),
    Peer("claimcheck file", "file"),
    Peer("redis-py", "redis"),
    Peer("boto3", "s3"),
    Peer("obstore", "s3"),
    Peer("proxystore redis", "redis", _PROXYSTORE),
    Peer("proxystore file", "file", _PROXYSTORE),
    Peer("amazon-sqs-extended-client", "s3", ("amazon-sqs-extended-client==1.0.1", _BOTO3)),
    Peer("sqs-extended-client", "s3", ("sqs-extended-client==0.0.11", _BOTO3)),
    Peer("boto3-large-message-utils", "s3", ("boto3-large-message-utils==0.2.0", _BOTO3)),
    Peer("faust-large-message-serializer", "s3", ("faust-large-message-serializer==2.0.1", _BOTO3)),
    Peer("kaf-s3-connector", "s3", ("kaf-s3-connector==2.0.1", "confluent-kafka==2.16.1", _BOTO3)),
    Peer("temporalio", "s3", ("temporalio[aioboto3]==1.35.0", "aioboto3==15.5.0")),
)
"""All that could be found and installed, with three floors: what the vendors' drivers do by themselves."""


def prepare(peers: Sequence[Peer], root: Path) -> dict[str, str]:
    """Install what is not there yet; gives the error of each library that cannot be installed, by its name."""
    tried: dict[tuple[str, ...], str] = {(): ""}
    for peer in peers:
        if peer.requirements not in tried:
            tried[peer.requirements] = _error_of_install(peer, root)
    return {peer.name: tried[peer.requirements] for peer in peers if tried[peer.requirements]}


def python_of(peer: Peer, root: Path) -> Path:
    """The interpreter that runs it."""
    return root / peer.folder / "bin" / "python" if peer.requirements else Path(sys.executable)


def _error_of_install(peer: Peer, root: Path) -> str:
    """Make the environment unless an earlier run did; gives what pip said last where that fails."""
    stamp, wanted = root / peer.folder / "installed", "\n".join(peer.requirements)
    if stamp.exists() and stamp.read_text() == wanted:
        return ""
    print(f"Installing {', '.join(peer.requirements)} into {root / peer.folder} (once)", file=sys.stderr, flush=True)
    pip = [str(python_of(peer, root)), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    for command in ([sys.executable, "-m", "venv", str(root / peer.folder)], [*pip, *peer.requirements]):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            return (done.stderr.strip().splitlines() or ["it cannot be installed"])[-1]
    stamp.write_text(wanted)
    return ""
