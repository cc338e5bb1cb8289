"""Checks of a valid configuration: insecure or unwise settings, and whether its stores work."""

from __future__ import annotations

import base64
import ipaddress
import os
import re
import time
from collections.abc import Iterator
from typing import Protocol
from urllib.parse import parse_qs, urlsplit

from claimcheck._content.coder import package_users
from claimcheck._content.data_keys import DataKeys
from claimcheck._operate.findings import CheckReport, Finding, Severity, finding, reason_of
from claimcheck._store.store import Store
from claimcheck._texts import split_url
from claimcheck._validation import Problems, is_placeholder
from claimcheck._wire.digest import CRYPTOGRAPHIC
from claimcheck.config import MIN_KEY_BYTES, Config, StoreConfig, expand, signing_key
from claimcheck.errors import ConfigError, MissingDependencyError, StoreUnavailableError

_PROBE = b"claimcheck check"
_HOUR = 3600
_UNLIMITED = ("filesystem", "s3", "obstore")  # the types that have no default
_TEMPORARY = ("/tmp", "/var/tmp", "/dev/shm")
_PLAIN_SCHEMES = {"redis", "redis+cluster", "redis+sentinel", "http", "pulsar"}
_FALSE = {"0", "F", "FALSE", "N", "NO"}  # as redis-py reads an option in an address
_UNREACHED = "Start the server or mount the volume, or correct the address; check the network and TLS."
_FIXES = {
    "package-missing": "Install the package that the message names.",
    "signing-key-missing": "Set the variable in this environment, or correct the key.",
    "encryption-key-failed": "Correct encryption.keys and encryption.options, or set their variables here.",
    "store-invalid": "Correct the option, set its variable here, or install the package that the message names.",
    "store-failed": "Check the bucket, database or directory, the login, and its rights to write, read and delete.",
}
_DEFAULT = re.compile(r"\$\{[^}]*:-[^}]+\}")
_WEAK = re.compile(r"change.?me|passw[o0]rd|example|placeholder|default|insecure", re.IGNORECASE)
_LEAST_CHARACTERS = 8
_SECRETS = ("password", "secret", "secret_key", "secret_id", "token", "api_key")  # ends of options' names
_ADDRESSES = ("url", "endpoint_url", "admin_url")


class Configured(Protocol):
    """What every check needs of a `claimcheck.ClaimCheck`."""

    @property
    def config(self) -> Config: ...

    def store(self, name: str) -> Store: ...


def check(cc: Configured, *, open: bool = False) -> CheckReport:  # noqa: A002 - the public name
    """Return what is wrong, insecure or unwise in a configuration."""
    parts = (_general, _signing, _encryption, _secrets)
    findings = [each for part in parts for each in part(cc.config)]
    for name, store in cc.config.stores.items():
        findings += _store(f"stores.{name}", store)
    if open:
        findings += _open_settings(cc.config)
        findings += _open_encryption(cc.config)
        findings += [_open_store(cc, name) for name in cc.config.stores]
    return CheckReport.of(findings)


# The configuration ---------------------------------------------------------------------------------------------


def _general(config: Config) -> Iterator[Finding]:
    if config.reads_from is not None and config.store is not None and config.store not in config.reads_from:
        fix = f"Add {config.store!r} to reads_from, unless this process only writes."
        message = f"this process cannot read from {config.store!r}, its own store"
        yield finding("warning", "reads-from-own-store", "reads_from", message, fix)


def _signing(config: Config) -> Iterator[Finding]:
    signing = config.signing
    fix = "Set signing.key_id and signing.keys."
    if not signing.keys and config.encryption.keys:
        message = "payloads are encrypted, but messages are not signed: anyone who can write to a topic can send again"
        message += " what was encrypted for it, point at any of its payloads, or send a plain message"
        yield finding("warning", "encryption-without-signing", "signing", message, fix)
        return
    if not signing.keys:
        message = "messages are not signed: anyone who can write to a topic can point at any payload in your stores"
        yield finding("info", "signing-off", "signing", message, fix)
        return
    if not signing.require:
        message = "keys are configured, but readers accept envelopes without a signature"
        fix = "Set it to true when all writers sign."
        yield finding("warning", "signing-optional", "signing.require", message, fix)
    if not signing.bind_destination or "*" in signing.accept_from.get("*", ()):
        path, fix = "signing.accept_from", "List the topics that carry messages of other topics, and these topics."
        if not signing.bind_destination:
            path, fix = "signing.bind_destination", "Set it to true when all messages of earlier releases have expired"
            fix += "; list mirrors in signing.accept_from."
        message = "keys are configured, but readers accept a signed message from any topic"
        yield finding("warning", "signing-unbound", path, message, fix)
    if config.stores and config.content_checksum not in CRYPTOGRAPHIC and not config.encryption.require:
        message = f"signatures do not cover the content of stored payloads, because {config.checksum} can be forged"
        yield finding("warning", "signing-weak-checksum", "checksum", message, "Use sha256, the default.")


def _encryption(config: Config) -> Iterator[Finding]:
    encryption = config.encryption
    if not encryption.keys:
        return
    if not encryption.require:
        message = "keys are configured, but readers accept payloads that are not encrypted"
        fix = "Set it to true when all payloads that are not encrypted have expired."
        yield finding("warning", "encryption-optional", "encryption.require", message, fix)
    if encryption.key_id is not None and not encryption.inline:
        strategies = {config.strategy, *(override.strategy for _, override in config.destinations)}
        message = "payloads up to the threshold are sent as they are, not encrypted"
        if is_inline := "inline" in strategies:
            message += ", and so are all payloads of the strategy inline"
        severity: Severity = "warning" if is_inline else "info"
        yield finding(
            severity, "encryption-small-plain", "encryption.inline", message, "Set it to true to encrypt them."
        )


def _secrets(config: Config) -> Iterator[Finding]:
    """Yield secrets that are written out, also in options of third-party classes, and keys with the same secret."""
    keys = {f"signing.keys.{name}": secret for name, secret in config.signing.keys.items()}
    if config.encryption.provider == "local":
        keys |= {f"encryption.keys.{name}": secret for name, secret in config.encryption.keys.items()}
    sections = {f"stores.{name}": store.options for name, store in config.stores.items()}
    sections["encryption.options"] = config.encryption.options
    options = {f"{path}.{name}": value for path, section in sections.items() for name, value in section.items()}
    secrets = keys | {
        path: value for path, value in options.items() if isinstance(value, str) and path.endswith(_SECRETS)
    }
    for path, secret in secrets.items():
        if not is_placeholder(secret):
            fix = "Put it into an environment variable and write ${NAME}."
            message = "the secret is in the configuration itself"
            yield finding("warning", "secret-in-file", path, message, fix)
        elif _DEFAULT.search(secret):
            message = "the secret has a default, which is used wherever the variable is not set"
            yield finding("warning", "secret-default", path, message, "Remove the default: write ${NAME}.")
    first = dict[str, str]()
    for path, secret in keys.items():
        value = _value(secret, path)
        if first.setdefault(value, path) != path:
            message = f"the same secret as {first[value]}"
            yield finding("warning", "secret-reused", path, message, "Generate a secret for each key.")
        if not is_placeholder(value) and _is_weak(value):
            message = "the secret can be guessed: it has few different characters, or is a text such as 'change me'"
            yield finding("warning", "secret-weak", path, message, "Use the output of `openssl rand -base64 32`.")


def _value(secret: str, path: str) -> str:
    """Return the value of a secret, or its placeholder if the variable is not set here."""
    try:
        return str(expand(secret, path=path))
    except ConfigError:
        return secret


def _is_weak(secret: str) -> bool:
    """Whether a secret is a placeholder for people, or has few different characters, also as base64."""
    try:
        key = base64.b64decode(secret, validate=True)
    except ValueError:
        key = b""
    few = min(len(set(secret)), len(set(key)) if len(key) >= MIN_KEY_BYTES else _LEAST_CHARACTERS)
    return few < _LEAST_CHARACTERS or any(_WEAK.search(text) for text in (secret, key.decode("latin-1")))


# Stores --------------------------------------------------------------------------------------------------------


def _store(path: str, store: StoreConfig) -> Iterator[Finding]:
    yield from _lifetime(path, store)
    for option in _ADDRESSES:
        if isinstance(url := store.options.get(option), str):
            yield from _password(f"{path}.{option}", url)
            yield from check_address(f"{path}.{option}", url)
    if store.type == "memory":
        text = "payloads are in this process's memory: no other process can read them, and they are lost when it ends"
        yield finding("warning", "store-memory", path, text, "Use another type outside of tests.")
    if store.type == "filesystem":
        yield from _directory(f"{path}.path", str(store.options.get("path", "")))


def _lifetime(path: str, store: StoreConfig) -> Iterator[Finding]:
    ttl = store.options.get("ttl_seconds", "default")
    if isinstance(ttl, (int, float)) and ttl < _HOUR:
        message = f"payloads expire after {ttl:g} s; a consumer that is further behind loses them"
        fix = "Set it at least to the retention of the topics."
        yield finding("warning", "lifetime-short", f"{path}.ttl_seconds", message, fix)
    if ttl is None or (ttl == "default" and store.type in _UNLIMITED):
        message = "payloads have no lifetime: no sweep deletes them, and lifecycle rules do not know when they may"
        fix = "Set it at least to the retention of the topics, unless payloads have to be kept forever."
        yield finding("warning", "lifetime-none", f"{path}.ttl_seconds", message, fix)
    elif store.type in _UNLIMITED:
        place = "bucket" if store.type != "filesystem" else "directory"
        message = f"expired payloads stay in this {place} until something deletes them"
        fix = "Run 'claimcheck sweep --yes' every day"
        fix += ", or add a lifecycle rule to the bucket." if store.type == "s3" else "."
        yield finding("info", "store-no-expiry", path, message, fix)


def _password(path: str, url: str) -> Iterator[Finding]:
    if not is_placeholder(url) and (split_url(url).password or "password=" in url):
        fix = "Put it into an environment variable and write ${NAME}."
        yield finding("warning", "secret-in-file", path, "the password is in the configuration itself", fix)


def check_address(path: str, url: str) -> Iterator[Finding]:
    """Yield what is insecure about a connection to an address; it may have ``${NAME}`` in it."""
    try:
        parts = split_url(expand(url, path=path))
    except (ConfigError, ValueError):  # the variable is not set here, which `open` reports
        return
    remote = remote_hosts(parts.netloc)
    if parts.scheme in _PLAIN_SCHEMES and remote:
        scheme = {"http": "https", "pulsar": "pulsar+ssl"}.get(parts.scheme, parts.scheme.replace("redis", "rediss", 1))
        fix = f"Use {scheme}://, or a network that no one else can read."
        message = f"connections to {remote[0]} are not encrypted"
        yield finding("warning", "connection-plain", path, message, fix)
    query = parse_qs(parts.query)
    if query.get("ssl_cert_reqs") == ["none"]:
        fix = "Remove ssl_cert_reqs=none."
        yield finding("warning", "certificate-unverified", path, "certificates are not verified", fix)
    if query.get("ssl_check_hostname", [""])[0].upper() in _FALSE:
        message = "any valid certificate is accepted, even one for another host"
        yield finding("warning", "hostname-unverified", path, message, "Remove ssl_check_hostname.")


def remote_hosts(places: str) -> list[str]:
    """Return the hosts in ``[user:password@]host:port,...`` that are not this machine."""
    hosts = [urlsplit(f"//{place}").hostname or "" for place in places.rpartition("@")[2].split(",") if place]
    return [host for host in hosts if not _is_loopback(host)]


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def _directory(path: str, directory: str) -> Iterator[Finding]:
    if is_placeholder(directory):
        return
    full = os.path.abspath(os.path.expanduser(directory))
    if any(full == each or full.startswith(f"{each}/") for each in _TEMPORARY):
        message = f"{full} may be emptied at any time, for example by a restart"
        fix = "Use a permanent directory, on a volume that all readers share."
        yield finding("warning", "filesystem-temporary", path, message, fix)
    elif not os.path.isabs(os.path.expanduser(directory)):
        message = "a relative path names a different directory in every process that starts elsewhere"
        fix = f"Use an absolute path, for example {full}."
        yield finding("warning", "filesystem-relative", path, message, fix)


# Opening -------------------------------------------------------------------------------------------------------


def _open_settings(config: Config) -> Iterator[Finding]:
    """Use what settings that are not of a store need, so that a missing package is found before the first payload."""
    for path, use in package_users(config):
        try:
            use()
        except MissingDependencyError as error:
            yield _failure(path, error, id="package-missing")
    for name, secret in config.signing.keys.items():
        path = f"signing.keys.{name}"
        try:
            signing_key(secret, path=path)
        except ConfigError as error:
            yield _failure(path, error, id="signing-key-missing")


def _open_encryption(config: Config) -> Iterator[Finding]:
    """Resolve every local key, and wrap and unwrap a data key with the current one."""
    encryption, path, begin = config.encryption, "encryption", time.perf_counter()
    if not encryption.keys:
        return
    try:
        problems, keys = Problems(), DataKeys(encryption)
        keys.check_keys(problems)
        problems.raise_all()
        if encryption.key_id is not None:
            path = f"encryption.keys.{encryption.key_id}"
            _use_keys(keys, path)
    except Exception as error:
        yield _failure(path, error, id="encryption-key-failed")
        return
    milliseconds = (time.perf_counter() - begin) * 1000
    used = "wrapped and unwrapped a data key" if encryption.key_id else "created the provider of the keys"
    message = f"{used} in {milliseconds:,.0f} ms (provider {encryption.provider})"
    yield finding("info", "encryption-works", "encryption", message)


def _use_keys(keys: DataKeys, path: str) -> None:
    context = {"claimcheck": "check"}
    made = keys.new(context)
    if keys.open(made.key_id, made.wrapped, context) != made.key:
        raise ConfigError("the provider unwraps a data key as another one", path=path)


def _open_store(cc: Configured, name: str) -> Finding:
    path, begin = f"stores.{name}", time.perf_counter()
    try:
        done = _write_read_delete(cc.store(name), encrypted=bool(cc.config.encryption.require))
    except ConfigError as error:
        return _failure(path, error, id="store-invalid")
    except Exception as error:
        return _failure(path, error, id="store-failed")
    milliseconds = (time.perf_counter() - begin) * 1000
    message = f"{done} a small payload in {milliseconds:,.0f} ms"
    return finding("info", "store-works", path, message)


def _write_read_delete(store: Store, *, encrypted: bool) -> str:
    """Return what was done. A process that only reads cannot encrypt, and would reject what it wrote."""
    pointer = store.write(_PROBE, destination="claimcheck-check")
    try:
        if encrypted and pointer.encryption is None:
            return "wrote and deleted"
        store.read(pointer)
    finally:
        store.rollback(pointer)
    return "wrote, read and deleted"


def _failure(path: str, error: Exception, *, id: str) -> Finding:  # noqa: A002 - the name of the field
    text = reason_of(error).removeprefix(f"store {path.removeprefix('stores.')!r}: ")
    if isinstance(error, ConfigError) and error.path:
        text, path = text.removeprefix(f"{error.path}: "), error.path
    fix = _UNREACHED if isinstance(error, StoreUnavailableError) else _FIXES[id]
    return finding("error", id, path, text, fix, error=error)
