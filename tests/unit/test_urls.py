"""Every URL that the library takes, by the rule of newer Pythons: brackets enclose a whole host."""

from __future__ import annotations

import re
import sys
import urllib.parse

import pytest

import claimcheck
import claimcheck.stores.obstore
import claimcheck.stores.redis
import claimcheck.stores.s3
from claimcheck._texts import split_url
from claimcheck.transports.pulsar._queries import AdminClient, AdminError

HOSTS = ("[::1]:7000", "one:7001", "two", "[2001:db8::1]")
LISTS = [",".join(HOSTS[i:] + HOSTS[:i]) for i in range(4)]
URLS = [
    *(("redis", "url", f"redis+cluster://{login}{hosts}/") for login in ("", "me:secret@") for hosts in LISTS),
    *(("redis", "url", f"rediss+sentinel://me:secret@{hosts}/main/1") for hosts in LISTS),
    *(("redis", "url", f"redis://{host}/0") for host in HOSTS),
    ("redis", "url", "unix:///run/redis.sock?db=1"),
    *(("s3", "endpoint_url", f"http://{host}") for host in HOSTS),
    *(("pulsar-topic", "url", f"pulsar://{hosts}") for hosts in LISTS),
    ("obstore", "url", "s3://bucket/prefix"),
    ("obstore", "url", "az://claims/srv"),
]
MORE = {"s3": {"bucket": "b"}, "pulsar-topic": {"topic": "claims"}}

_urlsplit = urllib.parse.urlsplit


def strict(url, *arguments, **options):
    """As of the fix of CVE-2025-0938, which interpreters older than it lack."""
    parts = _urlsplit(url, *arguments, **options)
    netloc = parts.netloc.decode() if isinstance(parts.netloc, bytes) else parts.netloc
    host = netloc.rpartition("@")[2]
    if ("[" in host or "]" in host) and not re.fullmatch(r"\[[^\[\]]*\](:.*)?", host):
        raise ValueError("Invalid IPv6 URL")
    return parts


@pytest.fixture(autouse=True)
def _newer_rule(monkeypatch):
    for module in list(sys.modules.values()):
        if getattr(module, "__name__", "").split(".")[0] in ("claimcheck", "urllib", "redis"):
            for name, member in list(vars(module).items()):
                if member is _urlsplit:
                    monkeypatch.setattr(module, name, strict)


@pytest.mark.parametrize(("kind", "option", "url"), URLS)
def test_a_store_takes_it_and_the_check_can_judge_it(kind, option, url):
    raw = {"stores": {"hot": {"type": kind, option: url, **MORE.get(kind, {})}}}
    with claimcheck.from_dict(raw) as cc:
        findings = cc.check().findings
        assert not [finding for finding in findings if finding.severity == "error"]
        ids = {finding.id for finding in findings}
        plain = url.startswith(("redis:", "redis+cluster:", "http:", "pulsar:"))
        assert ("connection-plain" in ids) == (plain and any(host in url for host in ("one", "two", "db8")))
        assert ("secret-in-file" in ids) == ("secret" in url)


def test_an_address_of_the_web_service_that_is_no_url_is_a_typed_error():
    with pytest.raises(AdminError, match="admin_url"):
        AdminClient("http://one,[::1]:8080")


@pytest.mark.parametrize(
    "url",
    [
        "redis://me:se%2Fcret@host:6380/3?a=yes#f",
        "unix:///run/x.sock?db=1",
        "HTTP://h",
        "x",
        "",
        "//",
        "a:b@c",
        "s3://b/k",
    ],
)
def test_a_url_is_split_as_python_splits_it(url):
    assert split_url(url) == _urlsplit(url)
