"""The doctor on a broker with tokens and TLS: what a role may not see is named."""

from __future__ import annotations

import os

import pytest

from claimcheck._doctor._topics import PulsarTarget
from tests import servers
from tests.doctor_rig import configuration, diagnosed, ids

RAW = configuration({"type": "memory"}, threshold_bytes=100_000)


@pytest.fixture(scope="module")
def doors(pulsar_jars):
    if servers.PULSAR_JARS not in os.environ:
        pytest.skip("no jars to start a broker with TLS")
    with servers.secure_pulsar() as doors:
        yield doors


@pytest.fixture
def seen(doors, topic):
    doors.open.request("PUT", f"persistent/public/default/{topic}")

    def seen(token=None, ca_file=str(doors.authority), **more):
        urls = {"url": doors.tls_url, "admin_url": doors.tls_admin_url, **more}
        return diagnosed(RAW, pulsar=PulsarTarget(**urls, topics=(topic,), token=token, ca_file=ca_file))

    return seen


def test_a_superuser_sees_everything(doors, seen):
    assert ids(seen(doors.token("operator")), "pulsar-", "connection-") == ["pulsar-message-ttl"]


def test_a_role_without_rights_on_policies_is_told_what_was_not_examined(doors, seen):
    doors.open.request("POST", "namespaces/public/default/permissions/reader", ["consume"])
    report = seen(doors.token("reader"))
    assert set(ids(report, "pulsar-")) == {"pulsar-not-examined"}
    assert report.ok
    text = " ".join(each.message for each in report.findings)
    assert all(f"could not examine the {what}: " in text for what in ("retention", "message TTL", "size limits"))


@pytest.mark.parametrize("admin", [True, False])
def test_a_missing_token_or_a_certificate_of_an_unknown_authority_is_an_error(doors, seen, admin):
    only = {"url": None} if admin else {"admin_url": None}
    rest = [] if admin else ["pulsar-not-examined"]
    for report in (seen(None, **only), seen(doors.token("operator"), ca_file=None, **only)):
        assert ids(report, "pulsar-") == [*rest, "pulsar-unreachable"]
        assert doors.token("operator") not in str(report)
