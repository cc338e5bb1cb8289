"""Tells a refused token from a time-out, with the first frame of Pulsar's protocol.

The Pulsar client cannot: when a broker refuses a token, or requires one, the client reconnects until its operation
times out, raises ``Timeout`` as for a broker that does not exist, and logs no other reason at warning level (measured
with client 3.13 and broker 4.2). The web service could tell, but ``adminUrl`` is optional.

The token is sent only where the client would send it, over TLS only to a broker whose certificate is trusted.
"""

from __future__ import annotations

import enum
import re
import socket
import ssl
from collections.abc import Iterator

__all__ = ["Refusal", "hosts_of", "refusal"]

_SECONDS = 5.0  # for each step; a slower broker is left to the client
_PLACE = re.compile(r"(?P<host>\[[^\]]+\]|[^\[\]:]+)(?::(?P<port>\d+))?")
_PORTS = {"pulsar": 6650, "pulsar+ssl": 6651}
_MAX_ANSWER_BYTES = 1 << 16
_CONNECT, _ERROR = 2, 14  # numbers of commands, and of the fields that hold them
_AUTHENTICATION_ERROR = 3
_PROTOCOL = 19


class Refusal(enum.Enum):
    """Why a broker cannot be used."""

    TOKEN = "the broker refuses the token"
    CERTIFICATE = "its certificate is not trusted"


def refusal(url: str, token: str | None, tls: ssl.SSLContext | None) -> tuple[Refusal, str] | None:
    """Connect to the first host of a service URL that answers.

    Args:
        url: With one host or several.
        token: The token to send, if any.
        tls: The certificates to trust, if the URL requires TLS.

    Returns:
        Why the broker refuses the connection, with a detail; ``None`` if it does not, or no host answers.
    """
    for host, port in hosts_of(url):
        try:
            with socket.create_connection((host, port), _SECONDS) as line:
                if tls is None:
                    return _asked(line, token)
                with tls.wrap_socket(line, server_hostname=host) as inner:
                    return _asked(inner, token)
        except ssl.SSLCertVerificationError as error:
            return Refusal.CERTIFICATE, str(error.verify_message)
        except (OSError, ValueError, IndexError):
            continue
    return None


def hosts_of(url: str) -> list[tuple[str, int]]:
    """Return the hosts and ports of a service URL: ``pulsar://a:6650,b`` has two."""
    scheme, _, places = url.partition("://")
    found = (_PLACE.fullmatch(place) for place in places.rstrip("/").split(","))
    return [(each["host"].strip("[]"), int(each["port"] or _PORTS[scheme])) for each in found if each]


def _asked(line: socket.socket, token: str | None) -> tuple[Refusal, str] | None:
    line.sendall(_frame(_command(_CONNECT, _connect(token))))
    size = int.from_bytes(_exactly(line, 4))
    answer = dict(_fields(_command_of(_exactly(line, size)))) if size <= _MAX_ANSWER_BYTES else {}
    error = answer.get(_ERROR)
    if isinstance(error, bytes) and dict(_fields(error)).get(2) == _AUTHENTICATION_ERROR:
        return Refusal.TOKEN, ""
    return None


def _connect(token: str | None) -> bytes:
    """Encode `CommandConnect`: client version, protocol version and token."""
    fields = _text(1, b"claimcheck") + _number(4, _PROTOCOL)
    return fields if token is None else fields + _text(3, token.encode()) + _text(5, b"token")


# Protobuf, as far as it is needed here --------------------------------------------------------------------------------


def _frame(command: bytes) -> bytes:
    return (len(command) + 4).to_bytes(4) + len(command).to_bytes(4) + command


def _command(kind: int, body: bytes) -> bytes:
    return _number(1, kind) + _text(kind, body)


def _command_of(frame: bytes) -> bytes:
    return frame[4 : 4 + int.from_bytes(frame[:4])]


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _text(field: int, value: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(value)) + value


def _varint(value: int) -> bytes:
    found = bytearray()
    while value > 127:
        found.append(value & 127 | 128)
        value >>= 7
    return bytes([*found, value])


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield numbers and texts with their fields; raise `ValueError` for anything else."""
    at = 0
    while at < len(message):
        tag, at = _read_varint(message, at)
        value, at = _read_varint(message, at)
        if tag & 7 == 0:
            yield tag >> 3, value
        elif tag & 7 == 2:
            yield tag >> 3, message[at : at + value]
            at += value
        else:
            raise ValueError(tag)


def _read_varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at


def _exactly(line: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size:
        more = line.recv(size - len(found))
        if not more:
            raise ConnectionError("the broker closed the connection")
        found += more
    return found
