"""Data keys: how they are wrapped, kept and refused, and that they are nowhere in texts."""

from __future__ import annotations

import base64
import copy
import json
import pickle

import pytest

import claimcheck
from claimcheck._config_file import from_dict
from claimcheck._content.data_keys import DataKeys, LocalKeys
from claimcheck.config import EncryptionConfig
from claimcheck.errors import ConfigError, IntegrityError, StoreUnavailableError
from tests.clocks import Clock
from tests.unit.tiny_s3 import Answer, TinyS3
from tests.vectors import DATA_KEY, TINK

K1, K2 = (base64.b64encode(bytes([n]) * 32).decode() for n in (1, 2))
HERE = f"{__name__}:Service"
CONTEXT = {"claimcheck": "1"}


class Service:
    """A key service that counts calls and can fail. Keys are names; wrapping is visible."""

    calls: list[str] = []
    error: Exception | None = None
    deleted: set[str] = set()

    def __init__(self, *, keys: dict[str, str], url: str = "", tries: int = 1) -> None:
        self.keys, self.url, self.tries = keys, url, tries

    def wrap(self, data_key, *, key_id, context):
        self._called("wrap")
        return json.dumps([self.keys[key_id], context]).encode() + b"|" + data_key

    def unwrap(self, wrapped, *, key_id, context):
        self._called("unwrap")
        head, _, key = wrapped.partition(b"|")
        if json.loads(head) != [self.keys[key_id], context] or self.keys[key_id] in self.deleted:
            raise ValueError("forged")
        return key

    def _called(self, name):
        self.calls.append(name)
        if self.error:
            raise self.error


@pytest.fixture(autouse=True)
def _fresh_service(monkeypatch):
    monkeypatch.setattr(Service, "calls", [])
    monkeypatch.setattr(Service, "error", None)
    monkeypatch.setattr(Service, "deleted", set())


def local(key_id: str | None = "k1", **keys: str) -> DataKeys:
    return DataKeys(EncryptionConfig(key_id=key_id, keys=keys or {"k1": K1, "k2": K2}))


def service(clock=None, *, options=None) -> DataKeys:
    config = EncryptionConfig(key_id="k1", keys={"k1": "one", "k2": "two"}, provider=HERE, options=options or {})
    return DataKeys(config, clock=clock or Clock())


# Local keys ----------------------------------------------------------------------------------------------------


def test_a_wrapped_key_is_in_the_format_of_tink():
    keys, vector = LocalKeys(keys={"k1": base64.b64encode(DATA_KEY).decode()}), TINK["data_key"]
    key = keys.unwrap(bytes.fromhex(vector["wrapped"]), key_id="k1", context=CONTEXT)
    assert key.hex() == vector["data_key"]


def test_no_changed_byte_of_a_wrapped_key_is_accepted():
    made = local().new(CONTEXT)
    for place in range(len(made.wrapped)):
        changed = bytearray(made.wrapped)
        changed[place] ^= 1
        with pytest.raises(IntegrityError, match=r"encryption\.keys\.k1"):
            local().open("k1", bytes(changed), CONTEXT)
    for cut in (b"", made.wrapped[:11], made.wrapped[:12], made.wrapped[:-1], made.wrapped + b"x"):
        with pytest.raises(IntegrityError):
            local().open("k1", cut, CONTEXT)


def test_a_variable_that_is_missing_or_wrong_affects_only_its_own_key_and_is_not_quoted(monkeypatch):
    monkeypatch.setenv("KEY_TWO", K2 + "\n")
    monkeypatch.setenv("KEY_THREE", "hunter2hunter2hunter2")
    keys = local("k2", k1="${KEY_ONE}", k2="${KEY_TWO}", k3="${KEY_THREE}")
    assert keys.open("k2", keys.new(CONTEXT).wrapped, CONTEXT)
    with pytest.raises(ConfigError, match="KEY_ONE"):
        keys.open("k1", b"x", CONTEXT)
    with pytest.raises(ConfigError, match=r"encryption\.keys\.k3.*openssl") as caught:
        keys.open("k3", b"x", CONTEXT)
    assert "hunter2" not in str(caught.value)
    with pytest.raises(ConfigError, match=r"encryption\.key_id"):
        local(None).new(CONTEXT)  # a process that only reads


def test_no_text_has_a_key_and_nothing_can_be_pickled():
    keys = local()
    made = keys.new(CONTEXT)
    keys.open("k1", made.wrapped, CONTEXT)
    config = from_dict({"encryption": {"keys": {"k1": K1}}})
    for text in (repr(keys), repr(made), repr(config), str(vars(LocalKeys))):
        assert K1 not in text
        assert repr(made.key)[2:-1] not in text
    for secret in (keys, made):
        with pytest.raises(TypeError, match="cannot be pickled"):
            pickle.dumps(secret)
        with pytest.raises(TypeError, match="cannot be pickled"):
            copy.copy(secret)


# Use of data keys ----------------------------------------------------------------------------------------------


def test_an_opened_data_key_is_kept_until_it_is_too_old():
    clock = Clock()
    keys = service(clock)
    made = keys.new(CONTEXT)
    assert [keys.open("k1", made.wrapped, CONTEXT) for _ in range(3)] == [made.key] * 3
    assert Service.calls == ["wrap", "unwrap"]
    Service.deleted.add("one")
    clock.now += 299.9
    assert keys.open("k1", made.wrapped, CONTEXT) == made.key
    clock.now += 0.1
    with pytest.raises(IntegrityError):
        keys.open("k1", made.wrapped, CONTEXT)


def test_a_refusal_is_remembered_for_some_seconds_and_delays_no_key():
    """A hundred identical forged messages must not make a hundred calls of a key service."""
    clock = Clock()
    keys = service(clock)
    made = keys.new(CONTEXT)
    for _ in range(100):
        with pytest.raises(IntegrityError):
            keys.open("k1", b"forged|" + bytes(32), CONTEXT)
    assert Service.calls == ["wrap", "unwrap"]
    assert keys.open("k1", made.wrapped, CONTEXT) == made.key
    clock.now += 10
    with pytest.raises(IntegrityError):
        keys.open("k1", b"forged|" + bytes(32), CONTEXT)
    assert Service.calls.count("unwrap") == 3


def test_keys_in_use_are_kept_in_a_bounded_number_and_not_replaced_by_refusals():
    keys = service()
    made = [keys.new(CONTEXT) for _ in range(1100)]
    for each in made:
        keys.open("k1", each.wrapped, CONTEXT)
    for number in range(1100):
        with pytest.raises(IntegrityError):
            keys.open("k1", b"%d|" % number + bytes(32), CONTEXT)
    Service.calls.clear()
    keys.open("k1", made[-1].wrapped, CONTEXT)
    assert Service.calls == []
    keys.open("k1", made[0].wrapped, CONTEXT)
    assert Service.calls == ["unwrap"]
    assert len(keys._opened) <= 1000


def test_a_data_key_opens_in_its_own_context_only():
    for keys in (local(), service()):
        made = keys.new({"claimcheck": "2", "destination": "orders"})
        keys.open("k1", made.wrapped, {"claimcheck": "2", "destination": "orders"})
        with pytest.raises(IntegrityError):
            keys.open("k1", made.wrapped, {"claimcheck": "2", "destination": "salaries"})


# Providers -----------------------------------------------------------------------------------------------------


def test_options_of_a_provider_are_checked_before_use_and_may_be_variables(monkeypatch):
    monkeypatch.setenv("TRIES", "3")
    service(options={"url": "x", "tries": "${TRIES}"}).check()
    for options in ({"urll": "x"}, {"tries": "many"}):
        with pytest.raises(ConfigError) as caught:
            service(options=options).check()
        assert caught.value.path == f"encryption.options.{next(iter(options))}"
        assert "many" not in str(caught.value)


@pytest.mark.parametrize("provider", ["vault", f"{__name__}:Clock", f"{__name__}:Nothing", "no_such_module:Keys"])
def test_a_provider_that_is_none_is_named(provider):
    why = ".*Clock', which has no wrap and no unwrap" if "Clock" in provider else ""
    with pytest.raises(ConfigError, match=rf"encryption\.provider{why}"):
        DataKeys(EncryptionConfig(key_id="k1", keys={"k1": "x"}, provider=provider)).check()


@pytest.mark.parametrize(
    ("error", "when_writing", "when_reading"),
    [
        (ConnectionResetError("secret"), StoreUnavailableError, StoreUnavailableError),
        (StoreUnavailableError("busy"), StoreUnavailableError, StoreUnavailableError),
        (PermissionError("secret"), ConfigError, IntegrityError),
    ],
)
def test_errors_of_a_provider_are_errors_of_claimcheck(error, when_writing, when_reading):
    clock = Clock()
    keys = service(clock)
    made = keys.new(CONTEXT)
    Service.error = error
    with pytest.raises(when_writing) as written:
        keys.new(CONTEXT)
    with pytest.raises(when_reading) as read:
        keys.open("k1", made.wrapped, CONTEXT)
    assert "secret" not in f"{written.value} {read.value}"
    Service.error = None
    clock.now += 10 if when_reading is IntegrityError else 0  # what may succeed later is not remembered
    assert keys.open("k1", made.wrapped, CONTEXT) == made.key


@pytest.mark.parametrize(("found", "text"), [(b"12345", "5 bytes"), (None, "an object of type NoneType")])
def test_a_provider_that_returns_a_key_of_another_length_or_none_is_not_believed(monkeypatch, found, text):
    monkeypatch.setattr(Service, "unwrap", lambda *_, **__: found)
    with pytest.raises(IntegrityError, match=text):
        service().open("k1", b"wrapped", CONTEXT)


LONGEST = 16 << 10


@pytest.mark.parametrize(
    ("wrapped", "found"), [("text", "type str"), (b"", "0 bytes"), (bytes(LONGEST + 1), "16385 bytes")]
)
def test_a_wrapped_key_that_readers_could_not_use_is_refused_before_anything_is_stored(
    tmp_path, monkeypatch, wrapped, found
):
    disk, encryption = {"type": "filesystem", "path": str(tmp_path)}, {"key_id": "k1", "keys": {"k1": "x"}}
    with claimcheck.from_dict({"stores": {"disk": disk}, "encryption": encryption | {"provider": HERE}}) as cc:
        monkeypatch.setattr(Service, "wrap", lambda *_, **__: wrapped)
        with pytest.raises(ConfigError, match=f"Service' returned .*{found} from wrap"):
            cc.store("disk").write(b"payload", destination="orders")
        assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
        monkeypatch.setattr(Service, "wrap", lambda _, key, **__: key.ljust(LONGEST))
        monkeypatch.setattr(Service, "unwrap", lambda _, wrapped, **__: memoryview(wrapped)[:32])
        pointer = cc.store("disk").write(b"payload", destination="orders")
        assert cc.store("disk").read(pointer) == b"payload"


# AWS ------------------------------------------------------------------------------------------------------------


KMS_CONTEXT = {"claimcheck": "2", "destination": "orders"}


@pytest.fixture
def kms(moto_url):
    import boto3

    return boto3.client("kms", endpoint_url=moto_url, region_name="eu-central-1")


def provider(url: str, key_id: str = "k1", **keys: str) -> DataKeys:
    options = {"endpoint_url": url, "region_name": "eu-central-1", "timeout_seconds": 2}
    config = EncryptionConfig(key_id=key_id, keys=keys, provider="aws-kms", options=options)
    keys_ = DataKeys(config)
    keys_.check()
    return keys_


def test_keys_by_alias_and_arn_wrap_and_unwrap(kms, moto_url):
    one, two = (kms.create_key()["KeyMetadata"]["Arn"] for _ in range(2))
    kms.create_alias(AliasName="alias/one", TargetKeyId=one)
    keys = {"k1": "alias/one", "k2": two}
    for key_id in keys:
        made = provider(moto_url, key_id, **keys).new(KMS_CONTEXT)
        assert made.key not in made.wrapped
        assert provider(moto_url, **keys).open(key_id, made.wrapped, KMS_CONTEXT) == made.key
    # The service knows context and key: what was wrapped otherwise is refused.
    foreign = kms.encrypt(KeyId=one, Plaintext=bytes(32), EncryptionContext={"claimcheck": "3"})["CiphertextBlob"]
    with pytest.raises(IntegrityError, match=r"encryption\.keys\.k1.*InvalidCiphertext"):
        provider(moto_url, **keys).open("k1", foreign, KMS_CONTEXT)


@pytest.mark.parametrize(
    ("code", "when_writing", "when_reading"),
    [
        ("AccessDeniedException", ConfigError, ConfigError),
        ("NotFoundException", ConfigError, IntegrityError),
        ("KMSInvalidStateException", ConfigError, IntegrityError),
        ("InvalidCiphertextException", ConfigError, IntegrityError),
        pytest.param("ThrottlingException", StoreUnavailableError, StoreUnavailableError, marks=pytest.mark.slow),
    ],
)
def test_answers_of_the_service_are_errors_of_claimcheck(code, when_writing, when_reading):
    """The SDK repeats a throttled call, and waits before that."""
    with TinyS3() as server:
        server.answers = [Answer(400, body=json.dumps({"__type": code, "message": "no"}).encode())] * 50
        keys = provider(server.url, k1="alias/one")
        with pytest.raises(when_writing, match=code):
            keys.new(KMS_CONTEXT)
        with pytest.raises(when_reading, match=code):
            keys.open("k1", b"wrapped", KMS_CONTEXT)


def test_a_service_that_cannot_be_reached_is_worth_another_try():
    keys = provider("http://127.0.0.1:1", k1="alias/one")
    for call in (lambda: keys.new(KMS_CONTEXT), lambda: keys.open("k1", b"x", KMS_CONTEXT)):
        with pytest.raises(StoreUnavailableError, match="cannot be reached") as caught:
            call()
        assert caught.value.retryable
