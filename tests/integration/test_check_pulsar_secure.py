"""The check of a broker with tokens and TLS: what a role may not see is named."""

from __future__ import annotations

import pytest

from claimcheck.transports.pulsar._queries import PulsarTarget
from tests.check_rig import configuration, diagnosed, ids

RAW = configuration({"type": "memory"}, threshold_bytes=100_000)


@pytest.fixture
def seen(secure_pulsar, topic):
    secure_pulsar.open.request("PUT", f"persistent/public/default/{topic}")

    def seen(token=None, ca_file=str(secure_pulsar.authority), **more):
        urls = {"url": secure_pulsar.tls_url, "admin_url": secure_pulsar.tls_admin_url, **more}
        return diagnosed(RAW, pulsar=PulsarTarget(**urls, topics=(topic,), token=token, ca_file=ca_file))

    return seen


def test_a_superuser_sees_everything(secure_pulsar, seen):
    assert ids(seen(secure_pulsar.token("operator")), "pulsar-", "connection-") == ["pulsar-message-ttl"]


def test_a_role_without_rights_on_policies_is_told_what_was_not_examined(secure_pulsar, seen):
    secure_pulsar.open.request("POST", "namespaces/public/default/permissions/reader", ["consume"])
    report = seen(secure_pulsar.token("reader"))
    assert set(ids(report, "pulsar-")) == {"pulsar-not-examined"}
    assert report.ok
    text = " ".join(each.message for each in report.findings)
    assert all(f"could not examine the {what}: " in text for what in ("policies", "size limits"))


@pytest.mark.parametrize("admin", [True, False])
def test_a_missing_token_or_a_certificate_of_an_unknown_authority_is_an_error(secure_pulsar, seen, admin, monkeypatch):
    monkeypatch.setattr("claimcheck._operate.check_topics._SECONDS", 2)
    only = {"url": None} if admin else {"admin_url": None}
    rest = [] if admin else ["pulsar-not-examined"]
    for report in (seen(None, **only), seen(secure_pulsar.token("operator"), ca_file=None, **only)):
        assert ids(report, "pulsar-") == [*rest, "pulsar-unreachable"]
        assert secure_pulsar.token("operator") not in str(report)
