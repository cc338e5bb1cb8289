"""What an S3 store lists, how a repeated task renews a lifetime, and the lifecycle rule; on a mocked server."""

from __future__ import annotations

import uuid

import pytest

from claimcheck._operate.sweep import Sweep
from claimcheck._store.contract import StoreContext
from claimcheck.errors import ConfigError
from claimcheck.stores.s3 import S3Store
from claimcheck.stores.s3._lifecycle import apply, rule_for, rules_of
from tests.unit.cli.rig import ok, run

UUID = uuid.UUID("6ba7b810-9dad-11d1-80b4-00c04fd430c8")
DAY = 86_400
OTHER = {"ID": "logs", "Status": "Enabled", "Filter": {"Prefix": "logs/"}, "Expiration": {"Days": 3}}


@pytest.fixture
def bucket(mocked_s3):
    mock, s3 = mocked_s3
    mock.reset()
    return s3.create_bucket(Bucket="payloads")


@pytest.fixture
def open_store(bucket):
    opened = []

    def build(name="cold", **options):
        store = S3Store(**{"bucket": bucket.name, "prefix": "claims", "ttl_seconds": DAY, **options})
        store.context = StoreContext(name=name)
        opened.append(store)
        return store

    yield build
    for store in opened:
        store.close()


def requests_of(store, names):
    """The requests of a store with these names, with their headers."""
    seen = []
    for name in names:
        store._s3().meta.events.register_last(f"before-call.s3.{name}", lambda params, **_: seen.append(params))
    return seen


class TestListing:
    def test_has_only_the_stores_own_objects(self, open_store, bucket):
        pointer = open_store().write(b"payload", destination="orders")
        for key in ("claims/notes.txt", f"claims/team/orders-{UUID}", f"orders-{UUID}", "claims/"):
            bucket.put_object(Key=key, Body=b"of others")

        assert [entry.key for entry in open_store().scan()] == [pointer.key]

    def test_parts_divide_days_into_hours_and_keys_without_a_time_by_uuids(self, open_store, bucket):
        store = open_store()
        for hour in range(48):
            store.context = StoreContext(clock=lambda hour=hour: 1_700_006_400 + 3600 * hour)  # midnight
            store.write(b"payload", destination="orders")
            bucket.put_object(Key=f"claims/orders-60s_{uuid.uuid4()}", Body=b"of an earlier release")
        bucket.put_object(Key="claims/zz-of-others", Body=b"")

        parts = [[entry.key for entry in store.scan(partition=part)] for part in store.partitions(24)]

        assert sorted(key for part in parts for key in part) == sorted(entry.key for entry in store.scan())
        assert len(parts) == 24
        assert max(map(len, parts)) <= 24, "no part has a quarter of all"

    def test_of_a_store_without_a_prefix_has_nothing_else_of_the_bucket(self, open_store, bucket):
        open_store().write(b"of the other store")
        bucket.put_object(Key="data.csv", Body=b"of others")
        pointer = open_store(prefix="").write(b"payload", destination="orders")

        assert [entry.key for entry in open_store(prefix="").scan()] == [pointer.key]

    def test_goes_on_after_a_thousand_objects(self, open_store, bucket):
        store = open_store(ttl_seconds=0)
        keys = [store._key("orders", uuid.uuid4(), created_ms=0, expires_ms=DAY * 1000) for _ in range(1001)]
        for key in keys:
            bucket.put_object(Key=key, Body=b"")

        assert Sweep(dry_run=False).run(store).deleted == 1001
        assert list(bucket.objects.all()) == []


class TestLifecycleRule:
    def test_is_added_once_and_changes_no_other(self, open_store, bucket):
        bucket.LifecycleConfiguration().put(LifecycleConfiguration={"Rules": [OTHER]})
        store = open_store(ttl_seconds=7 * DAY)
        rule = rule_for(store, grace_seconds=3600, others=[])

        assert [apply(store, rule), apply(store, rule)] == [True, False]

        rules = {each["ID"]: each for each in rules_of(store)}
        assert OTHER.items() <= rules["logs"].items()
        ours = rules["claimcheck:claims/"]
        assert (ours["Filter"], ours["Expiration"]) == ({"Prefix": "claims/"}, {"Days": 8})
        assert ours["AbortIncompleteMultipartUpload"] == {"DaysAfterInitiation": 1}

    def test_is_replaced_when_the_lifetime_changes(self, open_store):
        for days in (1, 30):
            store = open_store(ttl_seconds=days * DAY)
            assert apply(store, rule_for(store, grace_seconds=0, others=[]))

        (rule,) = rules_of(store)
        assert rule["Expiration"] == {"Days": 30}

    @pytest.mark.parametrize(
        ("options", "other", "text"),
        [
            ({"ttl_seconds": None}, None, "ttl_seconds: not set"),
            ({"prefix": ""}, None, "every object in the bucket"),
            ({}, {"prefix": "claims/team", "ttl_seconds": 2 * DAY}, "also delete payloads of the store 'other'"),
            ({}, {"prefix": "claims/team", "ttl_seconds": None}, "also delete payloads of the store 'other'"),
        ],
    )
    def test_that_would_delete_too_much_is_refused(self, open_store, options, other, text):
        others = [] if other is None else [open_store("other", **other)]

        with pytest.raises(ConfigError, match=text):
            rule_for(open_store(**options), grace_seconds=0, others=others)

    def test_may_cover_a_store_with_a_shorter_lifetime(self, open_store):
        inside = open_store("other", prefix="claims/team", ttl_seconds=1)
        assert rule_for(open_store(), grace_seconds=0, others=[inside]).days == 1


class TestCommand:
    @pytest.fixture(autouse=True)
    def _config(self, bucket, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        bucket.LifecycleConfiguration().put(LifecycleConfiguration={"Rules": [OTHER]})
        cold = "cold: {type: s3, bucket: payloads, prefix: claims/, ttl_seconds: 604800}"
        (tmp_path / "claimcheck.yaml").write_text(f"store: cold\nstores: {{{cold}, m: {{type: memory}}}}")

    def test_shows_and_applies(self, open_store, tmp_path):
        shown = ok("lifecycle").stdout.splitlines()
        applied, again = ok("lifecycle", "--apply").stdout, ok("lifecycle", "--apply").stdout

        assert shown == [
            "cold: bucket payloads, prefix claims/: delete objects after 8 days, abort incomplete uploads after 1 day",
            "  the rule is missing: --apply adds it",
        ]
        assert "the rule was written" in applied
        assert "nothing changed" in again, again
        assert "the rule is there" in ok("lifecycle").stdout
        text = (tmp_path / "claimcheck.yaml").read_text()
        (tmp_path / "claimcheck.yaml").write_text(text.replace("604800", "1209600"))
        assert "the rule differs" in ok("lifecycle").stdout
        assert len(rules_of(open_store())) == 2

    @pytest.mark.parametrize(("arguments", "code"), [(["--store", "m"], 3), (["--store", "none"], 3)])
    def test_refuses(self, arguments, code):
        assert run("lifecycle", *arguments).exit_code == code
