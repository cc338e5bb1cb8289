"""What a sweep deletes, and what it reports; tests/property runs it beside everything else."""

from __future__ import annotations

import os
import re
import time
import uuid
from datetime import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

import claimcheck
from claimcheck._operate.sweep import Sweep
from claimcheck._store.contract import StoreContext
from claimcheck._store.listing import KeyLifetime, destination_of, parse_name, with_lifetime
from claimcheck._wire.pointer import PINNED, slug
from claimcheck.errors import ConfigError, ScanNotSupportedError, StoreError, StoreUnavailableError
from claimcheck.hooks import Hooks, SweepEvent
from claimcheck.stores._files import PARTIAL_SUFFIX, folder_for
from claimcheck.stores.filesystem import FilesystemStore
from claimcheck.stores.memory import MemoryStore
from claimcheck.testing import FaultyStore
from tests.clocks import Clock

OLD_KEY = "orders-6ba7b810-9dad-11d1-80b4-00c04fd430c8"


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def memory(clock):
    store = MemoryStore(space=str(uuid.uuid4()), ttl_seconds=10)
    store.context = StoreContext(name="mine", clock=clock)
    return store


@pytest.fixture
def disk(tmp_path):
    return FilesystemStore(path=str(tmp_path), ttl_seconds=10)


def sweep(store, clock, **options):
    return Sweep(**{"grace_seconds": 5, "dry_run": False, "clock": clock, "sleep": clock.sleep, **options}).run(store)


def files(folder):
    return sorted(path.name for path in folder.rglob("*") if not path.is_dir())


def age(path, seconds):
    now = path.lstat().st_mtime - seconds
    os.utime(path, (now, now), follow_symlinks=False)


def refuse(*_, **__):
    raise PermissionError(1, "Operation not permitted")


class TestVerdicts:
    def test_lifetime_and_grace_have_to_pass(self, memory, clock):
        pointer = memory.write(b"payload")

        for seconds in (9.9, 5.0):
            clock.sleep(seconds)
            assert sweep(memory, clock).kept == {"alive": 1}
            assert memory.read(pointer) == b"payload"
        clock.sleep(1.1)
        report = sweep(memory, clock)

        assert (report.scanned, report.expired, report.expired_bytes, report.deleted) == (1, 1, 7, 1)
        assert (report.kept, report.finished) == ({}, True)
        assert list(memory.scan()) == []

    @pytest.mark.parametrize("key", [OLD_KEY, f"ab/orders-60s_{OLD_KEY[-36:]}", f"ab/orders-never_{OLD_KEY[-36:]}"])
    def test_keys_of_earlier_releases_stay(self, disk, tmp_path, key):
        key = key.replace("ab/", folder_for(key, None))
        (tmp_path / key).parent.mkdir(exist_ok=True)
        (tmp_path / key).write_bytes(b"payload")
        age(tmp_path / key, 100)

        assert Sweep(dry_run=False, grace_seconds=5).run(disk).kept == {"unknown": 1}
        assert disk.read(claimcheck.Pointer(key=key, size=7)) == b"payload"


class TestRuns:
    def test_the_rate_is_kept(self, memory, clock):
        for _ in range(10):
            memory.write(b"")
        clock.sleep(100)
        begin = clock()

        assert sweep(memory, clock, rate=2).deleted == 10
        assert clock() - begin == 5

    def test_an_entry_that_cannot_be_deleted_does_not_keep_the_others(self, memory, clock):
        faulty = FaultyStore(store=memory)
        faulty.context = memory.context
        for _ in range(5):
            faulty.write(b"")
        clock.sleep(100)
        delete, calls = memory._discard, []

        def discard(entries):
            for entry in entries:
                calls.append(entry)
                if len(calls) == 2:
                    yield memory._failed(entry, PermissionError("no"))
                else:
                    yield from delete([entry])

        memory._discard = discard
        report = sweep(faulty, clock)

        assert (report.deleted, report.failed) == (4, 1)
        assert isinstance(report.errors[0], StoreError)
        assert "no" in str(report.errors[0])

    def test_an_unreachable_store_ends_it(self, memory, clock):
        events = []
        faulty = FaultyStore(store=memory)
        faulty.context = StoreContext(name="mine", clock=clock, hooks=Hooks((events.append,)))
        faulty.write(b"")
        clock.sleep(100)
        faulty.fail("rollback")

        reports = []
        with pytest.raises(StoreUnavailableError):
            Sweep(grace_seconds=5, dry_run=False, clock=clock).run(faulty, on_batch=reports.append)

        assert [(each.expired, each.finished) for each in reports] == [(1, False)]
        assert isinstance(events[-1], SweepEvent)
        assert (events[-1].store, events[-1].expired, events[-1].deleted) == ("mine", 1, 0)
        assert isinstance(events[-1].error, StoreUnavailableError)

    @pytest.mark.parametrize("options", [{"grace_seconds": -1}, {"grace_seconds": float("nan")}, {"rate": 0}])
    def test_wrong_options(self, options):
        with pytest.raises(ConfigError, match=next(iter(options))):
            Sweep(**options)

    def test_a_store_that_cannot_be_listed(self):
        class Opaque(MemoryStore):
            _scan = claimcheck.Store._scan

        with pytest.raises(ScanNotSupportedError, match="Opaque cannot list"):
            Sweep().run(Opaque())

    def test_from_a_configuration(self):
        events = []
        with claimcheck.from_dict(
            {"stores": {"m": {"type": "memory", "space": "swept", "ttl_seconds": 0}}}, hooks=[events.append]
        ) as cc:
            cc.store("m").context = StoreContext(name="m", clock=lambda: time.time() - 2, hooks=cc.hooks)
            cc.store("m").write(b"payload")

            assert cc.sweep("m", grace_seconds=0).expired == 1
            assert cc.sweep("m", grace_seconds=0, dry_run=False).deleted == 1
            assert cc.sweep("m").scanned == 0
        assert [event.deleted for event in events if isinstance(event, SweepEvent)] == [0, 1, 0]


class TestFiles:
    def test_only_files_of_the_store_are_listed(self, disk, tmp_path):
        pointer = disk.write(b"payload", destination="orders")
        (tmp_path / "ab").mkdir()
        (tmp_path / "2026-01-01").mkdir()
        (tmp_path / "lost+found").mkdir()
        (tmp_path / "notes.txt").write_text("not a payload")
        (tmp_path / "ab" / ".hidden.partial").write_text("not a leftover")
        (tmp_path / "2026-01-01" / OLD_KEY).write_text("not in a folder of payloads")
        (tmp_path / "lost+found" / OLD_KEY).write_text("neither")
        (tmp_path / "elsewhere").mkdir()
        (tmp_path / "elsewhere" / OLD_KEY).write_text("beyond a link")
        (tmp_path / "cd").symlink_to(tmp_path / "elsewhere")
        (tmp_path / OLD_KEY).symlink_to(tmp_path / "notes.txt")

        assert [entry.key for entry in disk.scan()] == [pointer.key]

    def test_only_files_in_the_folder_of_their_key_are_listed(self, disk, tmp_path):
        kept = disk.write(b"payload")
        folder, _, name = kept.key.rpartition("/")
        shard = folder[-2:]
        wrong = "00" if shard != "00" else "01"
        for each in (name, f"{wrong}/{name}", f"2026-01-01/{shard}/{name}", f"{shard}/{OLD_KEY}", f"{{{name}}}"):
            (tmp_path / each).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / each).write_bytes(b"not a payload of this store")
            age(tmp_path / each, 10**6)
        (tmp_path / f".{name}.01234567{PARTIAL_SUFFIX}").write_bytes(b"not a leftover")

        assert [entry.key for entry in disk.scan()] == [kept.key]
        with pytest.raises(claimcheck.PointerRejectedError):
            disk.delete([claimcheck.StoreEntry(key=name)])

    def test_a_folder_that_cannot_be_listed_does_not_keep_the_others(self, disk, tmp_path, monkeypatch):
        for _ in range(30):
            disk.write(b"payload")
        folders = sorted({path.parent for path in tmp_path.rglob("*") if path.is_file()})
        refused, scandir = folders[:2], os.scandir
        inside = sum(len(os.listdir(each)) for each in refused)
        monkeypatch.setattr(os, "scandir", lambda path: refuse() if path in refused else scandir(path))

        monkeypatch.setattr(disk, "_server_time", lambda: None)
        report = Sweep(dry_run=False, grace_seconds=0, clock=lambda: 10**10).run(disk)

        assert (report.failed, report.deleted, report.finished) == (2, 30 - inside, True)
        assert "cannot be listed: Operation not permitted" in str(report.errors[0])
        with pytest.raises(StoreError, match=r"cannot be listed.*and 1 more"):
            list(disk.scan())

    def test_a_folder_that_cannot_be_opened_does_not_keep_the_others(self, disk, monkeypatch):
        pointers = [disk.write(b"payload") for _ in range(30)]
        entries = list(disk.scan())
        refused = os.path.dirname(pointers[0].key)
        opened = disk._directory
        monkeypatch.setattr(disk, "_directory", lambda folder: refuse() if folder == refused else opened(folder))

        outcomes = {each.entry.key: each.outcome for each in disk.delete(entries)}

        assert outcomes == {
            each.key: "failed" if os.path.dirname(each.key) == refused else "deleted" for each in pointers
        }

    def test_flat_files_of_earlier_releases_are_read_and_listed(self, disk, tmp_path):
        (tmp_path / OLD_KEY).write_bytes(b"payload")
        pointer = claimcheck.Pointer(key=OLD_KEY, store="store", size=7)
        assert disk.read(pointer) == b"payload"
        age(tmp_path / OLD_KEY, 200)

        (entry,) = disk.scan()
        assert (entry.key, entry.has_lifetime) == (OLD_KEY, False)
        assert Sweep(dry_run=False, grace_seconds=0).run(disk).kept == {"unknown": 1}

    def test_leftovers_go_after_the_grace(self, disk, tmp_path):
        pointer = disk.write(b"payload")
        kept = tmp_path / pointer.key
        partials = [kept.with_name(f".{kept.name}.0123456{i}{PARTIAL_SUFFIX}") for i in range(2)]
        for partial in partials:
            partial.write_bytes(b"half")
        age(partials[0], 4000)

        report = Sweep(dry_run=False).run(disk)

        assert (report.leftovers, report.expired_bytes, report.deleted) == (1, 4, 1)
        assert report.kept == {"alive": 1, "recent": 1}
        assert files(tmp_path) == sorted([kept.name, partials[1].name])

    def test_empty_folders_go(self, disk, tmp_path):
        for each in ("2026-01-01/ab", "cd"):
            (tmp_path / each).mkdir(parents=True)
            age(tmp_path / each, 4000)

        assert Sweep(dry_run=False).run(disk).leftovers == 2
        assert list(tmp_path.iterdir()) == []

    def test_a_folder_that_disappears_meanwhile_is_not_an_error(self, disk, tmp_path):
        first, second = disk.write(b"payload"), disk.write(b"payload")
        entries = disk.scan()
        seen = next(entries).key
        other = second if seen == first.key else first

        disk.rollback(other)

        assert list(entries) == []
        assert disk.read(first if seen == first.key else second)


@pytest.fixture(params=["memory", "filesystem", "redis", "s3"])
def medium(request, tmp_path):
    """A store of each kind with a payload that expires in a minute."""
    options: dict[str, object] = {"type": request.param, "ttl_seconds": 60}
    if request.param == "redis":
        options |= {"url": request.getfixturevalue("redis_url"), "key_prefix": f"{tmp_path.name}:"}
    elif request.param == "s3":
        server = request.getfixturevalue("s3_server")
        options |= {"bucket": request.getfixturevalue("s3_bucket"), "endpoint_url": server.endpoint_url}
    else:
        options |= {"path": str(tmp_path)} if request.param == "filesystem" else {"space": tmp_path.name}
    with claimcheck.from_dict({"strategy": "external", "stores": {"hot": options}}) as cc:
        store = cc.store("hot")
        store.write(b"payload", destination="orders")
        yield store


class TestAClockThatIsAhead:
    """By two days: all payloads seem to have expired."""

    def run(self, store, *, ahead: float, **options):
        options = {"dry_run": False, "grace_seconds": 0, **options}
        return Sweep(clock=lambda: time.time() + ahead, **options).run(store)

    def test_nothing_is_deleted_if_the_store_has_a_clock(self, medium):
        if isinstance(medium, MemoryStore):
            pytest.skip("it has none")
        with pytest.raises(StoreError, match="this machine's clock is ahead of the store's") as caught:
            self.run(medium, ahead=2 * 86_400)
        here, there = map(datetime.fromisoformat, re.findall(r"(\S+) (?:here|there)", str(caught.value)))
        assert abs((here - there).total_seconds() - 2 * 86_400) < 60
        assert len(list(medium.scan())) == 1

    @pytest.mark.parametrize("ahead", [0, 30, -86_400])
    def test_smaller_differences_and_a_clock_that_is_behind_do_not_matter(self, medium, ahead):
        assert self.run(medium, ahead=ahead).kept == {"alive": 1}

    def test_a_report_is_made_by_this_clock(self, medium):
        assert self.run(medium, ahead=2 * 86_400, dry_run=True).scanned == 1

    def test_a_store_that_does_not_tell_its_time_is_swept(self, tmp_path, monkeypatch):
        def refuse(self):
            raise PermissionError

        monkeypatch.setattr(FilesystemStore, "_server_time", refuse)
        store = FilesystemStore(path=str(tmp_path), ttl_seconds=60)
        store.write(b"payload")
        assert self.run(store, ahead=100).deleted == 1


UUID = uuid.UUID("6ba7b810-9dad-11d1-80b4-00c04fd430c8")


NOW = 1_700_000_000_500


LOOKALIKES = ["orders-20261122T113004Z-5s.x", "orders-5s_x", "a-20261122T113004Z-5s", "never", "a-never", "-", "x-5s"]


destinations = st.one_of(st.text(max_size=80), st.sampled_from(LOOKALIKES))


moments = st.integers(0, 200_000_000_000_000)


def marked(destination, *, created=NOW, expires=NOW + 60_000, key=f"{{}}-{UUID}"):
    name = key.format(slug(destination))
    return with_lifetime(name, UUID, created_ms=created, expires_ms=expires, max_bytes=1024)


def test_forms():
    assert marked("orders") == f"orders-20231114T221320Z-60s.{UUID}"
    assert marked("orders", expires=None) == f"orders-20231114T221320Z-never.{UUID}"
    assert marked("orders", key=f"{{}}-{{{{{UUID}}}}}") == f"orders-20231114T221320Z-60s.{{{UUID}}}"


@given(destination=destinations, created=moments, lifetime=st.none() | st.integers(0, 10**13))
def test_a_fresh_key_never_expires_before_its_pointer(destination, created, lifetime):
    expires = None if lifetime is None else created + lifetime
    known = parse_name(marked(destination, created=created, expires=expires))

    assert known.created_ms in range(created, created + 1000)
    if expires is None:
        assert known == KeyLifetime(known.created_ms, None)
    else:
        assert expires <= known.created_ms + known.lifetime_ms < expires + 2000


@given(destination=destinations)
def test_the_key_of_an_earlier_release_says_nothing(destination):
    for name in (f"{slug(destination)}-{UUID}", f"{slug(destination)}-60s_{UUID}", f"{slug(destination)}-never_{UUID}"):
        assert parse_name(name) == KeyLifetime()
        assert destination_of(name) == slug(destination)


@pytest.mark.parametrize(
    "name",
    ["", "notes.txt", str(UUID), f"-{UUID}", f"a/b-{UUID}", f"orders{UUID}", f"orders-{UUID}-0", f"orders.{UUID}",
     f"orders-20261122T113004Z.{UUID}", f"orders-20261322T113004Z-5s.{UUID}", f"orders-5_{UUID}", f"-5s_{UUID}",
     f"orders-20261122T113004Z-5s.{str(UUID).upper()}", f"{'x' * 65}-{UUID}", f"or ders-{UUID}", f"orders-{{{UUID}",
     f"orders-\u0665s_{UUID}"],
)  # fmt: skip
def test_names_of_others(name):
    assert parse_name(name) is None


def test_a_key_that_would_be_too_long_stays_as_it_is():
    assert with_lifetime(f"orders-{UUID}", UUID, created_ms=NOW, expires_ms=NOW, max_bytes=60) == (f"orders-{UUID}")
    assert marked("orders", created=10**18) == f"orders-{UUID}", "a clock far beyond the year 9999"


@given(destination=destinations, topic=destinations)
def test_a_pinned_copy_has_a_lifetime_and_the_name_of_no_topic(destination, topic):
    name = marked(PINNED + destination)
    assert parse_name(name).lifetime_ms == 60_000
    assert topic.startswith(PINNED) or destination_of(name) != slug(topic)
