"""What the base class promises for every store, shown on the smallest one; tests/conformance shows it for each."""

import logging
import uuid
from dataclasses import replace

import pytest

from claimcheck._store.contract import StoreContext
from claimcheck._store.store import Store
from claimcheck._wire.pointer import Pointer, slug
from claimcheck.errors import (
    ConfigError,
    IntegrityError,
    KeyTakenError,
    MissingDependencyError,
    PayloadNotFoundError,
    PayloadTooLargeError,
    PointerRejectedError,
    StoreError,
    StoreUnavailableError,
)
from claimcheck.stores.filesystem import FilesystemStore
from claimcheck.stores.memory import MemoryStore
from claimcheck.testing import FaultyStore
from tests.clocks import Clock

UUID = uuid.UUID("6ba7b810-9dad-11d1-80b4-00c04fd430c8")


NOW = 1_700_000_000.5


class DictStore(Store):
    """What an author would write, with hooks to break it."""

    prefix = "p/"

    def __init__(self):
        self.payloads = {}
        self.deleted = []
        self.context = StoreContext(name="mine", clock=lambda: NOW, new_uuid=lambda: UUID)

    def _write(self, pointer, source):
        self.payloads[pointer.key] = b"".join(source)

    def _read(self, pointer):
        yield self.payloads[pointer.key]

    def _delete(self, pointer):
        self.deleted.append(pointer)
        self.payloads.pop(pointer.key, None)

    def _translate(self, error):
        return PayloadNotFoundError if isinstance(error, KeyError) else super()._translate(error)


def failing(error):
    def fail(*_):
        raise error

    return fail


def test_pointer_is_made_by_the_base():
    store = DictStore()
    store.ttl_seconds = 60

    pointer = store.write(b"payload", destination="orders")

    assert pointer == Pointer(
        key=f"p/orders-20231114T221320Z-60s.{UUID}",
        store="mine",
        size=7,
        checksum="crc32:422c6a15",
        created_ms=1_700_000_000_500,
        expires_ms=1_700_000_060_500,
    )


def test_segments_are_counted():
    store = DictStore()
    store.segment_bytes = 10

    assert [store.write(bytes(n)).segments for n in (0, 1, 10, 11, 20, 21)] == [1, 1, 1, 2, 2, 3]
    assert [store.write(bytes(n)).segment_bytes for n in (0, 10, 11)] == [None, None, 10]


def test_more_segments_than_a_reader_would_follow_are_not_written():
    store = DictStore()
    store.segment_bytes = 1

    with pytest.raises(PayloadTooLargeError, match="1000000 segments of 1 bytes"):
        store.write(bytes(1_000_001))

    assert store.payloads == {}


@pytest.mark.parametrize(
    ("destination", "expected"),
    [
        ("orders", "orders"),
        ("persistent://a/b", "persistent_a_b"),
        ("", "_"),
        ("..", "_"),
        ("...a", "a"),
        ("ünï", "_n_"),
        ("x" * 99, "x" * 64),
        ("." * 5 + "x", "x"),
        ("nul\0nul", "nul_nul"),
    ],
)
def test_slug(destination, expected):
    assert slug(destination) == expected


class TestFailedWrite:
    def test_is_undone_with_the_pointer_that_it_would_have_had(self):
        store = DictStore()
        store.segment_bytes = 10
        written = store._write

        def write(pointer, source):
            written(pointer, source)
            raise ConnectionResetError("gone")

        store._write = write
        with pytest.raises(StoreUnavailableError, match="mine.*ConnectionResetError"):
            store.write(bytes(25))

        assert [(p.size, p.segments) for p in store.deleted] == [(25, 3)]
        assert store.payloads == {}

    @pytest.mark.parametrize("payload", [b"payload", b""])
    @pytest.mark.parametrize(
        "error", [ConnectionRefusedError("down"), TimeoutError(), OSError("full"), KeyboardInterrupt()]
    )
    def test_is_undone_even_when_nothing_was_taken(self, payload, error):
        """Its place may have been opened already."""
        store = DictStore()

        def write(pointer, source):
            store.payloads[pointer.key] = b""
            raise error

        store._write = write
        with pytest.raises((StoreError, KeyboardInterrupt)):
            store.write(payload)

        assert store.payloads == {}

    @pytest.mark.parametrize("error", [MissingDependencyError("no driver"), ConfigError("wrong")])
    def test_is_not_undone_when_the_medium_was_never_asked(self, error):
        store = DictStore()
        store._write = failing(error)

        with pytest.raises(type(error)):
            store.write(b"payload")

        assert store.deleted == []

    def test_never_begins_where_the_medium_cannot_be_reached(self):
        store = DictStore()
        store._reach = failing(ConnectionRefusedError("down"))

        with pytest.raises(StoreUnavailableError, match="write of .* failed: ConnectionRefusedError") as caught:
            store.write(b"payload")

        assert store.payloads == {}
        assert store.deleted == getattr(caught.value, "__notes__", []) == []

    def test_leaves_a_taken_key_alone(self):
        store = DictStore()

        def write(pointer, source):
            list(source)
            raise KeyTakenError("there is one already")

        store._write = write
        with pytest.raises(KeyTakenError) as caught:
            store.write(b"payload")

        assert store.deleted == []
        assert (caught.value.store, caught.value.key) == ("mine", f"p/_-20231114T221320Z-never.{UUID}")

    def test_keeps_its_error_when_undoing_fails_too(self, caplog):
        store = DictStore()

        def write(pointer, source):
            list(source)
            raise OSError(28, "No space left on device")

        store._write, store._delete = write, failing(RuntimeError("second"))
        with caplog.at_level(logging.WARNING), pytest.raises(StoreError, match="No space left") as caught:
            store.write(b"payload")

        assert type(caught.value) is StoreError
        assert any("RuntimeError" in note for note in caught.value.__notes__)
        assert "could not delete" in caplog.text

    def test_is_an_error_when_the_author_forgot_a_part(self):
        store = DictStore()
        store._write = lambda pointer, source: next(iter(source))

        with pytest.raises(StoreError, match="DictStore._write is broken"):
            store.write(bytes(3 << 20))

        assert len(store.deleted) == 1


class TestOwnPointers:
    @pytest.mark.parametrize("prefix", ["/p/", "../p", "p\t", "x" * 1000])
    def test_that_would_not_be_followed_are_not_written(self, prefix):
        store = DictStore()
        store.prefix = prefix

        with pytest.raises(StoreError, match="would reject its own pointer, so nothing was written"):
            store.write(b"payload")

        assert store.payloads == {}

    def test_of_a_version_that_is_not_read_are_not_written(self):
        store = DictStore()
        store.pointer_version = 1

        with pytest.raises(StoreError, match="nothing was written"):
            store.write(b"payload")

    @pytest.mark.parametrize("ttl", [float("inf"), float("nan"), 1e300, -1])
    def test_that_would_live_for_no_time_that_can_be_written_down(self, ttl):
        store = DictStore()
        store.ttl_seconds = ttl

        with pytest.raises(ConfigError) as caught:
            store.write(b"payload")

        assert caught.value.path == "stores.mine.ttl_seconds"
        assert store.payloads == {}


class TestLimit:
    @pytest.fixture
    def store(self):
        store = DictStore()
        store.context = StoreContext(name="mine", max_payload_bytes=10)
        return store

    def test_of_one_write_may_be_lower(self, store):
        with pytest.raises(PayloadTooLargeError) as caught:
            store.write(bytes(6), limit=5)

        assert caught.value.limit == 5
        assert store.payloads == {}
        assert store.write(bytes(5), limit=5).size == 5
        assert store.write(bytes(10)).size == 10

    def test_of_one_write_is_never_above_what_the_store_reads(self, store):
        with pytest.raises(PayloadTooLargeError):
            store.write(bytes(11), limit=20)


class TestErrors:
    @pytest.mark.parametrize(
        ("raised", "expected"),
        [
            (ConnectionError("x"), StoreUnavailableError),
            (TimeoutError("x"), StoreUnavailableError),
            (FileNotFoundError("x"), PayloadNotFoundError),
            (KeyError("x"), PayloadNotFoundError),
            (OSError("x"), StoreError),
            (RuntimeError("x"), StoreError),
        ],
    )
    def test_vendors_errors_are_mapped_and_chained(self, raised, expected):
        store = DictStore()
        pointer = store.write(b"payload")
        store._read = failing(raised)

        with pytest.raises(StoreError) as caught:
            store.read(pointer)

        assert type(caught.value) is expected
        assert caught.value.__cause__ is raised
        assert (caught.value.store, caught.value.key) == ("mine", pointer.key)

    def test_a_missing_file_while_writing_is_not_a_missing_payload(self):
        store = DictStore()
        store._write = failing(FileNotFoundError("no such directory"))

        with pytest.raises(StoreError) as caught:
            store.write(b"payload")

        assert type(caught.value) is StoreError

    def test_addresses_lose_their_passwords(self):
        store = DictStore()
        store._write = failing(RuntimeError("cannot reach http://me:hunter2@host/ today"))

        with pytest.raises(StoreError, match=r"//\*\*\*@host") as caught:
            store.write(b"payload")

        assert "hunter2" not in str(caught.value)

    def test_missing_payload_says_since_when(self):
        store = DictStore()
        store.ttl_seconds = 60
        pointer = store.write(b"payload")
        store.payloads.clear()

        with pytest.raises(PayloadNotFoundError, match="written 2023-11-14T22:13:20") as caught:
            store.read(pointer)

        assert (caught.value.created_ms, caught.value.expires_ms) == (1_700_000_000_500, 1_700_000_060_500)

    def test_missing_payload_of_any_year(self):
        assert "written 9223372036854775808 ms" in str(DictStore().missing(Pointer(key="k", created_ms=2**63 - 1)))


class TestCheck:
    def test_version_1_is_refused_unless_the_store_reads_it(self):
        store = DictStore()
        pointer = Pointer(key="p/x", version=1)

        with pytest.raises(PointerRejectedError, match="version 1") as caught:
            store.check(pointer)
        store.reads_v1 = True
        store.check(pointer)

        assert caught.value.reason == "version"

    @pytest.mark.parametrize(
        ("reason", "changes"),
        [
            ("store", {"store": "other"}),
            ("scope", {"key": "q/x"}),
            ("scope", {"key": "p/../x"}),
            ("size", {"size": 2**62}),
            ("size", {"segments": 2}),
            ("size", {"segments": 2_000_000, "segment_bytes": 1, "size": 2_000_000}),
            ("feature", {"codec": "zstd"}),
            ("feature", {"encryption": "aes"}),
            ("feature", {"checksum": "md5:00"}),
        ],
    )
    def test_reason_is_one_word(self, reason, changes):
        with pytest.raises(PointerRejectedError) as caught:
            DictStore().check(Pointer(**{"key": "p/x", "store": "mine", "size": 7} | changes))

        assert caught.value.reason == reason

    def test_authors_can_compare_sizes_before_reading(self):
        with pytest.raises(IntegrityError) as caught:
            DictStore().check_size(Pointer(key="p/x", size=7), 6)

        assert (caught.value.expected, caught.value.actual) == (7, 6)


@pytest.mark.parametrize("wrong", [None, "key", b"an envelope"])
def test_what_is_no_pointer_is_refused_with_the_way_out(wrong):
    store = MemoryStore()
    for use in (store.read, store.open, store.rollback):
        with pytest.raises(PointerRejectedError, match="resolve") as caught:
            use(wrong)
        assert caught.value.reason == "type"


class TestWhyAPayloadIsGone:
    """The error says what the pointer and the clock tell."""

    @pytest.fixture
    def gone(self):
        clock = Clock()
        store = MemoryStore(space=str(uuid.uuid4()), ttl_seconds=600)
        store.context = StoreContext(clock=clock)
        pointer = store.write(b"payload", destination="orders")
        store.rollback(pointer)

        def gone(after: float, **changes) -> str:
            clock.sleep(after)
            with pytest.raises(PayloadNotFoundError) as caught:
                store.read(replace(pointer, **changes))
            return str(caught.value).partition(" is gone ")[2]

        return gone

    def test_it_has_expired(self, gone):
        ends = "it expired 5 minutes ago, at 1970-01-01T00:26:40+00:00"
        assert gone(900) == f"(written 1970-01-01T00:16:40+00:00): {ends}"

    def test_it_should_be_there(self, gone):
        text = "it should be readable until 1970-01-01T00:26:40+00:00: it was evicted, rolled back or deleted"
        assert gone(300).endswith(text)

    def test_it_has_no_lifetime(self, gone):
        assert gone(300, expires_ms=None).endswith(": it expired, was evicted, was rolled back or was deleted")

    def test_any_time_that_a_pointer_claims_has_a_text(self, gone):
        assert gone(1, expires_ms=10**18).endswith("deleted")
        assert "ago, at -1" in gone(1, expires_ms=-(10**18))


LARGE = bytes(range(256)) * (9 << 12)


@pytest.fixture
def copied_store(tmp_path):
    return FilesystemStore(path=tmp_path / "source", create=True, ttl_seconds=60)


@pytest.fixture
def archive(tmp_path):
    copied_store = FilesystemStore(path=tmp_path / "archive", create=True)
    copied_store.context = StoreContext(name="archive")
    return copied_store


def files(tmp_path, folder="archive"):
    return [path for path in (tmp_path / folder).rglob("*") if path.is_file()]


@pytest.mark.parametrize("size", [1000, len(LARGE)])
def test_a_damaged_payload_leaves_no_copy(copied_store, archive, tmp_path, size):
    pointer = copied_store.write(LARGE[:size])
    (path,) = files(tmp_path, "source")
    path.write_bytes(bytes(size))

    with pytest.raises(IntegrityError):
        copied_store.copy(pointer, to=archive)

    assert files(tmp_path) == []


def test_errors_of_either_store_are_its_own(archive):
    source = FaultyStore(store=MemoryStore(space="copies"))
    target = FaultyStore(store=archive)
    pointer = source.write(b"payload")
    for store in (source, target):
        store.fail("read" if store is source else "write")
        with pytest.raises(StoreUnavailableError):
            source.copy(pointer, to=target)
        store.heal()


@pytest.mark.parametrize(("shortest", "lifetime"), [(None, 60), (30, 60), (90, 90)])
def test_a_payload_may_live_longer_than_others(copied_store, shortest, lifetime):
    pointer = copied_store.write(b"payload", min_ttl_seconds=shortest)

    assert pointer.expires_ms - pointer.created_ms == lifetime * 1000
    assert f"-{lifetime}s." in pointer.key


@pytest.mark.parametrize("seconds", [-1, float("nan"), "7d"])
def test_no_lifetime(copied_store, seconds):
    with pytest.raises(ConfigError, match="ttl_seconds"):
        copied_store.write(b"payload", min_ttl_seconds=seconds)
