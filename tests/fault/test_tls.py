"""TLS of every store: certificates and host names are verified, in the same words for all."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import boto3
import pytest
from redis.connection import SSLConnection

from claimcheck._registry import build_store
from claimcheck.config import StoreConfig
from claimcheck.errors import ConfigError, StoreError, StoreUnavailableError
from claimcheck.stores.redis import RedisStore
from claimcheck.transports.pulsar._queries import PulsarTarget
from tests.check_rig import configuration, diagnosed, ids
from tests.integration.pulsar_rig import CERTIFICATES

BUCKET = "payloads"
OTHER_NAME = "127.1"  # the same machine, under a name that the certificates do not have


@dataclass
class Place:
    """A store behind TLS.

    Attributes:
        options: Its entry in a configuration, with ``{host}`` in addresses.
        host: The name that the certificate has.
        other: Another name of the same machine.
    """

    options: dict[str, Any]
    host: str = "127.0.0.1"
    other: str = OTHER_NAME
    opened: list[Any] = field(default_factory=list)

    def open(self, *, host: str = "", **changed: Any) -> Any:
        """Open the store, by the name that the certificate has or by another."""
        given = {
            name: value.replace("{host}", host or self.host) if isinstance(value, str) else value
            for name, value in (self.options | changed).items()
        }
        kind = given.pop("type")
        given = {name: value for name, value in given.items() if value is not None}
        self.opened.append(build_store(StoreConfig(kind, given), path="stores.store"))
        return self.opened[-1]


def redis_place(request: pytest.FixtureRequest) -> Place:
    parts = urlsplit(request.getfixturevalue("redis_tls_url"))
    url = parts._replace(netloc=parts.netloc.replace("127.0.0.1", "{host}"), query="").geturl()
    return Place({"type": "redis", "url": url, "tls_ca_file": parts.query.partition("=")[2]})


def older_redis_place(request: pytest.FixtureRequest) -> Place:
    """redis-py before version 6 did not compare host names unless told to."""
    constructor = SSLConnection.__init__
    named = [p for p in inspect.signature(constructor).parameters.values() if p.default is not p.empty]
    older = tuple(False if p.name == "ssl_check_hostname" else p.default for p in named)
    request.getfixturevalue("monkeypatch").setattr(constructor, "__defaults__", older)
    return redis_place(request)


def s3_place(request: pytest.FixtureRequest) -> Place:
    port, authority = request.getfixturevalue("s3_tls")
    client = boto3.client("s3", endpoint_url=f"https://localhost:{port}", verify=str(authority))
    if not client.list_buckets()["Buckets"]:
        client.create_bucket(Bucket=BUCKET)
    client.close()
    place = {"endpoint_url": f"https://{{host}}:{port}", "tls_ca_file": str(authority)}
    return Place({"type": "s3", "bucket": BUCKET, **place}, host="localhost", other="127.0.0.1")


def obstore_place(request: pytest.FixtureRequest) -> Place:
    place = s3_place(request)
    del place.options["bucket"]
    place.options |= {"type": "obstore", "url": f"s3://{BUCKET}"}
    return place


def pulsar_place(request: pytest.FixtureRequest) -> Place:
    broker, topic = request.getfixturevalue("secure_pulsar"), request.getfixturevalue("topic")
    url = broker.tls_url.replace("127.0.0.1", "{host}")
    told = {"tls_ca_file": str(broker.authority), "token": broker.token("operator"), "timeout_seconds": 3}
    return Place({"type": "pulsar-topic", "url": url, "topic": topic, **told})


PLACES: dict[str, tuple[str, Callable[[pytest.FixtureRequest], Place]]] = {
    "redis": ("redis", redis_place),
    "redis that does not check by itself": ("redis", older_redis_place),
    "s3": ("s3", s3_place),
    "obstore": ("s3", obstore_place),
    "pulsar-topic": ("pulsar", pulsar_place),
}
"""The mark of each store's server, and what opens it."""


@pytest.fixture(params=[pytest.param(name, marks=getattr(pytest.mark, mark)) for name, (mark, _) in PLACES.items()])
def place(request) -> Iterator[Place]:
    place = PLACES[request.param][1](request)
    yield place
    for store in place.opened:
        store.close()


def test_only_the_right_host_of_a_known_authority_is_trusted(place):
    store = place.open()
    assert store.read(store.write(b"payload")) == b"payload"
    for wrong in ({"host": place.other}, {"tls_ca_file": None}):
        with pytest.raises(StoreUnavailableError):
            place.open(**wrong).write(b"payload")
    with pytest.raises(ConfigError, match="/nowhere/ca.crt"):
        place.open(tls_ca_file="/nowhere/ca.crt").write(b"payload")


@pytest.mark.parametrize(
    ("query", "changed"),
    [("ssl_check_hostname=false", {}), ("ssl_cert_reqs=none", {"tls_ca_file": None})],
    ids=["not the host", "nothing"],
)
def test_redis_verifies_less_where_that_is_said(request, query, changed):
    place = older_redis_place(request)
    with place.open(host=OTHER_NAME, url=f"{place.options['url']}?{query}", **changed) as store:
        assert store.read(store.write(b"payload")) == b"payload"


def test_a_file_for_a_redis_without_tls_is_refused():
    with pytest.raises(ConfigError, match="tls_ca_file"):
        RedisStore(url="redis://localhost", tls_ca_file="ca.crt")


def test_a_certificate_of_the_client_opens_pulsar(secure_pulsar, topic, request, monkeypatch):
    monkeypatch.setenv(CERTIFICATES, str(secure_pulsar.authority.parent))
    function = "tests.integration.pulsar_rig:certified"
    secure_pulsar.open.request("PUT", f"persistent/public/default/{topic}")
    place = pulsar_place(request)
    with place.open(token=None, client=function) as store:
        assert store.read(store.write(b"payload")) == b"payload"
    asked = {"token": None, "client": function, "admin_url": secure_pulsar.tls_admin_url}
    with place.open(**asked) as store, pytest.raises(ConfigError, match="retention"):  # it was asked, and there is none
        store.write(b"payload")
    urls, authority = (secure_pulsar.tls_url, secure_pulsar.tls_admin_url), str(secure_pulsar.authority)
    target = PulsarTarget(*urls, topics=(topic,), function=function, ca_file=authority)
    report = diagnosed(configuration({"type": "memory"}, threshold_bytes=100_000), pulsar=target)
    assert ids(report, "pulsar-", "connection-") == ["pulsar-message-ttl"]


# Pulsar's web service, and what the check of servers finds there ---------------------------------------------------


def test_the_web_service_of_pulsar_is_verified_in_the_same_way(secure_pulsar, request):
    place = pulsar_place(request)
    with (
        place.open(admin_url=secure_pulsar.tls_admin_url) as store,
        pytest.raises(ConfigError, match="retention"),  # it was asked, and there is none
    ):
        store.write(b"payload")
    with (
        place.open(admin_url=secure_pulsar.tls_admin_url.replace("127.0.0.1", OTHER_NAME)) as store,
        pytest.raises(StoreError, match="certificate"),
    ):
        store.write(b"payload")


def test_others_than_a_superuser_are_told_what_was_not_examined_and_strangers_are_refused(
    secure_pulsar, topic, monkeypatch
):
    def found(token, **changed):
        urls = {"url": secure_pulsar.tls_url, "admin_url": secure_pulsar.tls_admin_url}
        target = PulsarTarget(**{**urls, "topics": (topic,), "ca_file": authority, "token": token, **changed})
        report = diagnosed(configuration({"type": "memory"}, threshold_bytes=100_000), pulsar=target)
        assert superuser not in str(report)
        return report, set(ids(report, "pulsar-", "connection-"))

    superuser, authority = secure_pulsar.token("operator"), str(secure_pulsar.authority)
    secure_pulsar.open.request("PUT", f"persistent/public/default/{topic}")
    secure_pulsar.open.request("POST", "namespaces/public/default/permissions/reader", ["consume"])
    assert found(superuser)[1] == {"pulsar-message-ttl"}
    report, kinds = found(secure_pulsar.token("reader"))
    assert (kinds, report.ok) == ({"pulsar-not-examined"}, True)
    text = " ".join(each.message for each in report.findings)
    assert all(f"could not examine the {what}: " in text for what in ("policies", "size limits"))
    monkeypatch.setattr("claimcheck._operate.check_topics._SECONDS", 2)
    for token, changed in ((None, {}), (superuser, {"ca_file": None})):
        assert found(token, url=None, **changed)[1] == {"pulsar-unreachable"}
        assert found(token, admin_url=None, **changed)[1] == {"pulsar-not-examined", "pulsar-unreachable"}
