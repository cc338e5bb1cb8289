"""The findings of the check about buckets: rules, versions and access, on a simulated and a real server."""

from __future__ import annotations

import json
import re
import time
import uuid
from pathlib import Path

import boto3
import pytest

from tests.check_rig import configuration, diagnosed, ids, text

EXPIRY = {"ID": "old", "Status": "Enabled", "Filter": {"Prefix": "claims/"}, "Expiration": {"Days": 2}}
ABORT = {"AbortIncompleteMultipartUpload": {"DaysAfterInitiation": 1}}
GOOD = {**EXPIRY, **ABORT}
NONCURRENT = {"NoncurrentVersionExpiration": {"NoncurrentDays": 1}}
OURS = ("s3-", "store-no-expiry", "store-failed", "clock-")


@pytest.fixture(scope="module")
def client(moto_url):
    """A client of a server that supports lifecycle rules."""
    return boto3.client("s3", endpoint_url=moto_url)


@pytest.fixture
def bucket(client):
    name = f"test-{uuid.uuid4().hex}"
    client.create_bucket(Bucket=name)
    return name


def hot(client, bucket, **more):
    place = {"bucket": bucket, "prefix": "claims", "endpoint_url": client.meta.endpoint_url}
    return configuration({"type": "s3", **place, **more})


def put_rules(client, bucket, *rules):
    client.put_bucket_lifecycle_configuration(Bucket=bucket, LifecycleConfiguration={"Rules": list(rules)})


def test_a_good_bucket_has_no_finding_and_nothing_is_left_in_it(client, bucket):
    put_rules(client, bucket, GOOD)
    assert ids(diagnosed(hot(client, bucket)), *OURS) == []
    assert client.list_objects_v2(Bucket=bucket)["KeyCount"] == 0
    assert client.get_bucket_lifecycle_configuration(Bucket=bucket)["Rules"] == [GOOD]


def test_a_bucket_without_rules_keeps_everything(client, bucket):
    report = diagnosed(hot(client, bucket))
    assert ids(report, *OURS) == ["s3-no-abort", "s3-no-expiry"]
    assert "warning stores.hot: no lifecycle rule deletes objects below 'claims/'" in text(report, "s3-no-expiry")


def test_the_rule_of_the_guide_is_good(client, bucket):
    guide = Path("docs/guides/operations.md").read_text()
    rules = json.loads(re.search(r"```json\n(.*?)```", guide, re.DOTALL)[1])
    client.put_bucket_lifecycle_configuration(Bucket=bucket, LifecycleConfiguration=rules)
    assert ids(diagnosed(hot(client, bucket, ttl_seconds=7 * 86_400)), *OURS) == []


@pytest.mark.parametrize(
    ("rules", "found"),
    [
        ([{**GOOD, "Status": "Disabled"}], ["s3-no-abort", "s3-no-expiry"]),
        ([{**GOOD, "Filter": {"Prefix": "other/"}}], ["s3-no-abort", "s3-no-expiry"]),
        ([{**GOOD, "Filter": {"Prefix": ""}}], []),
        ([{**GOOD, "Filter": {"Prefix": "cl"}}], []),
        ([EXPIRY], ["s3-no-abort"]),
        ([{**GOOD, "Expiration": {"Days": 1}}], []),  # just the lifetime
        ([GOOD, {**EXPIRY, "ID": "tag", "Filter": {"Tag": {"Key": "a", "Value": "b"}}, "Expiration": {"Days": 1}}], []),
        ([{**GOOD, "Filter": {"And": {"Prefix": "claims/", "Tags": [{"Key": "a", "Value": "b"}]}}}],
         ["s3-no-abort", "s3-no-expiry"]),
    ],
)  # fmt: skip
def test_rules_that_do_or_do_not_apply(client, bucket, rules, found):
    put_rules(client, bucket, *rules)
    assert ids(diagnosed(hot(client, bucket)), *OURS) == found


@pytest.mark.parametrize("prefix", ["", "claims/", "claims/orders"])
def test_a_rule_that_deletes_before_the_lifetime_ends_is_an_error(client, bucket, prefix):
    put_rules(client, bucket, GOOD | {"Expiration": {"Days": 8}}, {**EXPIRY, "ID": "x", "Filter": {"Prefix": prefix}})
    report = diagnosed(hot(client, bucket, ttl_seconds=7 * 86_400))
    assert ids(report, *OURS) == ["s3-expiry-early"]
    words = "error stores.hot: the lifecycle rule 'x' deletes payloads after 2 days, but ttl_seconds is 7 days"
    assert text(report, "s3-expiry-early") == words


def test_a_rule_that_archives_payloads_is_an_error(client, bucket):
    moving = {"ID": "cold", "Status": "Enabled", "Filter": {"Prefix": ""}}
    put_rules(client, bucket, GOOD, {**moving, "Transitions": [{"Days": 0, "StorageClass": "GLACIER"}]})
    assert ids(diagnosed(hot(client, bucket)), *OURS) == ["s3-archived"]
    put_rules(client, bucket, GOOD, {**moving, "Transitions": [{"Days": 30, "StorageClass": "GLACIER"}]})
    assert ids(diagnosed(hot(client, bucket)), *OURS) == []


def test_versions_stay_unless_a_rule_deletes_them(client, bucket):
    put_rules(client, bucket, GOOD)
    client.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    assert ids(diagnosed(hot(client, bucket)), *OURS) == ["s3-versioning"]
    put_rules(client, bucket, {**GOOD, **NONCURRENT})
    assert ids(diagnosed(hot(client, bucket)), *OURS) == []


def test_a_bucket_that_is_missing_is_an_error(client):
    assert "store-failed" in ids(diagnosed(hot(client, "missing-bucket")), *OURS)


# A real server ---------------------------------------------------------------------------------------------------


def test_what_a_server_does_not_support_is_named(s3_resource, s3_bucket):
    report = diagnosed(hot(s3_resource.meta.client, s3_bucket))
    assert set(ids(report, *OURS)) == {"s3-not-examined"}
    assert any("could not examine the lifecycle rules" in each.message for each in report.findings)


def test_the_clock_of_a_real_server(s3_resource, s3_bucket):
    raw = hot(s3_resource.meta.client, s3_bucket)
    report = diagnosed(raw, clock=lambda: time.time() - 120)
    assert "this machine's clock is 2 minutes behind the server's" in text(report, "clock-skew")
    assert ids(diagnosed(raw), "clock-") == []


def test_a_missing_bucket_is_one_finding(client):
    report = diagnosed(hot(client, f"missing-{uuid.uuid4().hex}"))
    (error,) = [each for each in report.findings if each.severity != "info"]
    assert error.id == "store-failed"
    assert error.fix.startswith("Check the bucket")
    assert ids(report, "s3-", "store-not") == []
