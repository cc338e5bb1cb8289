"""From names to classes, and from options to stores: whatever goes wrong is ours, and says where."""

import pickle
import sys
import types
from typing import Literal

import pytest

from claimcheck._registry import build_store, check_store
from claimcheck._store.store import Store
from claimcheck._validation import fail
from claimcheck.config import StoreConfig
from claimcheck.errors import ConfigError, MissingDependencyError, StoreError, StoreUnavailableError, import_vendor


class VendorStore(Store):
    def _write(self, pointer, source): ...
    def _read(self, pointer): ...
    def _delete(self, pointer): ...


@pytest.fixture
def use(monkeypatch):
    """Put a class where a configuration finds it."""

    def put(cls, **options):
        module = types.ModuleType("third_party")
        module.Its = cls
        monkeypatch.setitem(sys.modules, "third_party", module)
        return StoreConfig("third_party:Its", options)

    return put


def failing_with(error):
    class Its(VendorStore):
        def __init__(self, *, drive: int = 0) -> None:
            raise error

    return Its


@pytest.mark.parametrize(
    ("raised", "expected"),
    [
        (OSError("no such tape at ftp://me:hunter2@host"), StoreError),
        (ConnectionError("down"), StoreUnavailableError),
        (TimeoutError("slow"), StoreUnavailableError),
        (ValueError("there is no drive 9"), ConfigError),
        (RuntimeError("odd"), ConfigError),
        (MissingDependencyError("no driver"), None),
        (StoreError("ours already"), None),
    ],
)
def test_what_a_constructor_raises_is_ours_and_names_the_store(use, raised, expected):
    text = r"store 'hot' \(stores.hot\) cannot be created" if expected else str(raised)
    with pytest.raises(expected or type(raised), match=text) as caught:
        build_store(use(failing_with(raised)), path="stores.hot")
    if expected is None:
        assert caught.value is raised
        return
    assert type(caught.value) is expected
    assert caught.value.__cause__ is raised
    assert str(raised).replace("me:hunter2", "***") in str(caught.value)
    assert getattr(caught.value, "store", "hot") == "hot"
    assert getattr(caught.value, "path", "stores.hot") == "stores.hot"
    pickle.loads(pickle.dumps(caught.value))


def test_what_a_constructor_finds_wrong_gets_its_whole_path(use):
    class Its(VendorStore):
        def __init__(self, *, drive: int) -> None:
            fail("drive", found=str(drive), expected="1 to 8")

    with pytest.raises(ConfigError, match=r"^stores\.hot\.drive: found 9, expected 1 to 8$") as caught:
        build_store(use(Its, drive=9), path="stores.hot")

    assert (caught.value.path, caught.value.found, caught.value.expected) == ("stores.hot.drive", "9", "1 to 8")


@pytest.mark.parametrize("url", ["", "not a url", "redis://:47/11@host"])
def test_an_address_from_the_environment_is_judged_when_the_store_is_opened(monkeypatch, url):
    monkeypatch.setenv("REDIS_URL", url)
    config = StoreConfig("redis", {"url": "${REDIS_URL}"})
    check_store(config, path="stores.r")

    with pytest.raises(ConfigError, match=r"^stores\.r\.url: found text, expected redis://") as caught:
        build_store(config, path="stores.r")

    assert caught.value.path == "stores.r.url"


class Unfinished(Store):
    def _write(self, pointer, source): ...


class Unreadable(VendorStore):
    def __init__(self, *, drive: "NoSuchName") -> None: ...  # type: ignore[name-defined]  # noqa: F821


@pytest.mark.parametrize(
    ("target", "text"),
    [
        *((target, "type: ") for target in (dict, object, failing_with, "text", types.ModuleType("m"))),
        (Unfinished, "all of its abstract methods"),
        (Unreadable, "NoSuchName"),
    ],
)
def test_what_is_no_store_that_can_be_made(use, target, text):
    for check in (check_store, build_store):
        with pytest.raises(ConfigError, match=text) as caught:
            check(use(target), path="stores.hot")
        assert caught.value.path == "stores.hot.type"


@pytest.mark.parametrize("source", ["1/0", "raise OSError('disk')", "import no_such_module", "x = "])
def test_modules_that_cannot_be_imported(tmp_path, monkeypatch, source):
    (tmp_path / "broken_third_party.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match=r"^stores\.hot\.type: cannot import") as caught:
        check_store(StoreConfig("broken_third_party:Its"), path="stores.hot")
    assert caught.value.__cause__ is not None


class TestOptions:
    def test_of_a_store_that_takes_any(self, use, monkeypatch):
        class Its(VendorStore):
            def __init__(self, *, drive: int, **options: int) -> None:
                self.got = options | {"drive": drive}

        monkeypatch.setenv("SPEED", "5")
        config = use(Its, drive=3, speed="${SPEED}", heads=2)
        check_store(config, path="stores.hot")

        assert build_store(config, path="stores.hot").got == {"drive": 3, "speed": 5, "heads": 2}
        with pytest.raises(ConfigError) as caught:
            check_store(use(Its, drive=3, heads="many"), path="stores.hot")
        assert caught.value.path == "stores.hot.heads"
        with pytest.raises(ConfigError, match="unknown key"):
            build_store(StoreConfig("third_party:Its", {"drive": 3, 5: 5}), path="stores.hot")

    def test_of_a_store_that_takes_none(self, use):
        build_store(use(VendorStore), path="stores.hot")

        with pytest.raises(ConfigError, match="expected nothing: this takes no options"):
            check_store(use(VendorStore, drive=3), path="stores.hot")

    def test_are_never_quoted_where_they_may_be_secret(self, use):
        class Its(VendorStore):
            def __init__(
                self, *, token: str = "", count: int = 0, both: int | str = 0, auto: int | Literal["auto"] = 0
            ) -> None: ...

        for options in ({"token": 4711}, {"count": "4711"}, {"both": ["4711"]}, {"token": None}, {"both": 47.11}):
            with pytest.raises(ConfigError) as caught:
                check_store(use(Its, **options), path="stores.hot")
            assert "4711" not in str(caught.value).replace(".", "")
        for options in ({"count": 1.5}, {"auto": 1.5}):
            with pytest.raises(ConfigError, match=r"found 1\.5"):
                check_store(use(Its, **options), path="stores.hot")


def test_a_missing_vendor_names_its_extra():
    with pytest.raises(MissingDependencyError, match=r"claimcheck-messaging\[s3\]") as caught:
        import_vendor("no_such_vendor.errors", extra="s3")

    assert (caught.value.package, caught.value.extra) == ("no_such_vendor", "s3")
