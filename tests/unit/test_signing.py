"""Signed messages: what a signature covers, and which messages readers refuse."""

from __future__ import annotations

import asyncio
import json
import uuid
from dataclasses import replace

import pytest

import claimcheck
from claimcheck._config_file import from_dict
from claimcheck._content.data_keys import LocalKeys
from claimcheck._wire import pointer as pointers
from claimcheck._wire.envelope import decode, encode_abort, encode_chunk, encode_literal, encode_pointer
from claimcheck._wire.signing import Seal
from claimcheck.config import HEADER, canonical
from claimcheck.errors import ConfigError, PointerRejectedError
from claimcheck.testing import RecordingBroker
from tests.vectors import FOLDER, UUID

KEYS = {"k1": "a secret of ours", "k2": "another secret!!"}
SIGNING = {"key_id": "k1", "keys": KEYS}
STORES = {"hot": {"type": "memory", "space": "test_signing"}, "cold": {"type": "memory", "space": "test_signing_2"}}
BIG = bytes(range(256)) * 40
LITERAL = HEADER + b" and then some"
SMALL_LIMIT = claimcheck.WireLimit(2000, lambda key, headers: 1000)
TOPIC = "persistent://public/default/orders"
NOW = 1_765_000_000.0


def configured(strategy="external", *, signing=SIGNING, **options):
    return claimcheck.from_dict({"strategy": strategy, "store": "hot", "stores": STORES, "signing": signing} | options)


def sent(cc, payload=BIG, *, destination="orders", **options):
    with cc.outbound(payload, destination=destination, headers={"a": "b"}, limit=SMALL_LIMIT, **options) as out:
        return list(out.envelopes), out.abort


def received(cc, envelopes, *, destination: str | None = "orders"):
    """Return all outcomes of one partition that has these messages."""
    resolver = cc.resolver()
    return [
        outcome
        for position, each in enumerate(envelopes)
        for outcome in resolver.feed(0, position, each.data, headers=each.headers, key="k", destination=destination)
    ]


def refusal(cc, envelopes, **options):
    """Return the error of messages of which none is delivered."""
    outcomes = received(cc, envelopes, **options)
    assert not [each for each in outcomes if isinstance(each, claimcheck.Resolved)]
    (error,) = [each.error for each in outcomes if isinstance(each, claimcheck.Failed)]
    assert isinstance(error, PointerRejectedError)
    return error


def changed(envelope, **fields):
    """Return an envelope whose signature has other fields."""
    body = json.loads(envelope.headers["claimcheck-signature"]) | fields
    return replace(envelope, headers={**envelope.headers, "claimcheck-signature": json.dumps(body)})


def unsigned(envelope):
    return replace(envelope, headers={k: v for k, v in envelope.headers.items() if k != "claimcheck-signature"})


class TestDestinations:
    def test_all_names_of_a_topic_are_one(self):
        same = {
            "orders": ["orders", "public/default/orders", TOPIC, f"{TOPIC}-partition-3"],
            "orders-partition-3": ["orders-partition-3"],
            "acme/eu/orders": ["acme/eu/orders", "persistent://acme/eu/orders-partition-12"],
            "non-persistent://public/default/orders": ["non-persistent://public/default/orders-partition-1"],
            "": [""],
        }
        for name, names in same.items():
            assert {canonical(each) for each in (name, *names)} == {name}

    def test_every_way_of_reading_takes_the_destination(self):
        cc = configured()
        ((envelope,), _) = sent(cc)
        ways = {
            "resolve": cc.resolve,
            "aresolve": lambda data, **where: asyncio.run(cc.aresolve(data, **where)),
            "open": lambda data, **where: cc.open(data, **where).read(),
        }
        forwarded = cc.seal(cc.pointer(envelope.data, destination="orders"), destination="copies")
        for read in ways.values():
            assert read(envelope.data, destination="orders") == read(forwarded, destination="copies") == BIG
        for read in (*ways.values(), cc.pointer):
            for where in ({}, {"destination": "salaries"}, {"destination": "copies"}):
                with pytest.raises(PointerRejectedError) as caught:
                    read(envelope.data, **where)
                assert caught.value.reason == "destination"

    def test_other_topics_can_be_accepted(self):
        strategy = "chunking"
        envelopes, _ = sent(configured(strategy))
        reader = configured(signing=SIGNING | {"accept_from": {"*.dlt": ["orders", "audit.*"], "mirror": [TOPIC]}})
        for name in ("orders.dlt", "any.dlt", "mirror", "persistent://public/default/mirror-partition-0", "orders"):
            assert received(reader, envelopes, destination=name)[0].payload == BIG
        assert refusal(reader, envelopes, destination="audit").reason == "destination"
        others, _ = sent(configured(strategy), destination="salaries")
        assert refusal(reader, others, destination="any.dlt").reason == "destination"
        audited, _ = sent(configured(strategy), destination="audit.eu")
        assert received(reader, audited, destination="any.dlt")[0].payload == BIG

    def test_a_signed_pointer_without_a_destination_is_refused(self):
        """Otherwise a pointer of an earlier release could be replayed on any topic."""
        cc = configured()
        bare = cc.seal(cc.store("hot").write(BIG))
        with pytest.raises(PointerRejectedError, match="names no destination") as caught:
            cc.resolve(bare, destination="orders")
        assert caught.value.reason == "destination"
        migrating = configured(signing=SIGNING | {"bind_destination": False})
        assert migrating.resolve(bare) == BIG
        ((new,), _) = sent(migrating)
        assert cc.resolve(new.data, destination="orders") == BIG  # its writers bind already

    def test_a_decorated_function_must_say_where_it_sends(self):
        with pytest.raises(ConfigError, match="destination"):
            configured().offload(payload="value")(lambda value: None)
        configured(signing=SIGNING | {"bind_destination": False}).offload(payload="value")(lambda value: None)

    def test_a_reader_of_a_destination_reads_only_its_stores(self):
        cc = configured(destinations={"orders": {"reads_from": ["cold"]}})
        ((envelope,), _) = sent(cc)
        for name in ("orders", f"{TOPIC}-partition-0"):
            with pytest.raises(PointerRejectedError, match="reads_from of this destination") as caught:
                cc.resolve(envelope.data, destination=name)
            assert (caught.value.reason, caught.value.store) == ("store", "hot")
        ((other,), _) = sent(cc, destination="audit")
        assert cc.resolve(other.data, destination="audit") == BIG


@pytest.mark.parametrize("strategy", ["external", "chunking"])
def test_an_old_message_is_refused_and_one_without_a_time(strategy):
    cc, reader = configured(strategy), configured(signing=SIGNING | {"max_age_seconds": 60})
    store, clock = cc.store("hot"), reader.opened.seal
    cc.opened.seal._clock = lambda: NOW
    store.context = replace(store.context, clock=lambda: NOW)
    envelopes, _ = sent(cc)
    clock._clock = lambda: NOW + 60
    assert received(reader, envelopes)[0].payload == BIG
    clock._clock = lambda: NOW + 60.01
    error = refusal(reader, envelopes)
    assert error.reason == "age"
    assert "max_age_seconds is 60" in str(error)
    timeless = replace(store.write(BIG, destination="orders"), created_ms=None)
    with pytest.raises(PointerRejectedError, match="has no time in its signature"):
        reader.resolve(cc.seal(timeless), destination="orders")


class TestChunks:
    def test_other_bytes_another_count_or_another_uuid_are_refused_also_where_signatures_are_optional(self):
        """Where they are required: see `tests/property/test_hostile_property.py`."""
        envelopes, _ = sent(configured("chunking"))
        own, pieces = decode(envelopes[0].data).uuid, [bytes(decode(each.data).piece) for each in envelopes]
        reader = configured(signing=SIGNING | {"require": False})
        assert received(reader, sent(configured("chunking", signing={}))[0])[0].payload == BIG

        def with_pieces(pieces, own=own):
            data = [encode_chunk(own, n, len(pieces), piece) for n, piece in enumerate(pieces)]
            return [*map(claimcheck.Envelope, data[:-1]), replace(envelopes[-1], data=data[-1])]

        assert received(reader, with_pieces(pieces))[0].payload == BIG
        for forged in (
            with_pieces([pieces[1], pieces[0], *pieces[2:]]),
            with_pieces([pieces[0] + pieces[1], *pieces[2:]]),
            with_pieces(pieces[:-1]),
            with_pieces(pieces, own=str(uuid.UUID(int=5))),
        ):
            assert "differs from what was signed" in str(refusal(reader, forged))

    @pytest.mark.parametrize(
        "fields",
        [
            *({"key_id": "k2"}, {"key_id": "k3"}, {"key_id": None}, {"mac": "00" * 32}, {"mac": 5}),
            *({"destination": "salaries"}, {"created": 5}, {"size": True}, {"more": 1}, {"kind": "literal"}),
        ],
    )
    def test_any_other_field_is_refused(self, fields):
        *rest, last = sent(configured("chunking"))[0]
        for require in (True, False):
            error = refusal(configured(signing=SIGNING | {"require": require}), [*rest, changed(last, **fields)])
            assert error.reason == "signature"

    def test_every_one_of_several_signatures_must_be_valid(self, monkeypatch):
        """A second writer with the same uuid is as good."""
        monkeypatch.setattr("claimcheck._send.strategies.uuid4", lambda: uuid.UUID(int=77))
        cc, other = configured("chunking"), configured("chunking", signing=SIGNING | {"key_id": "k2"})
        (first, _), (second, _) = sent(cc), sent(other)
        assert received(cc, [*first[:-1], *second])[0].payload == BIG
        forged = changed(first[-1], created=5)
        resolver = cc.resolver()
        outcomes = []
        for position, each in enumerate([first[-1], forged, *first[:-1]]):
            outcomes += resolver.feed(0, position, each.data, headers=each.headers, key="k", destination="orders")
        assert [type(each) for each in outcomes] == [claimcheck.Failed]

    def test_a_call_without_headers_cannot_send_signed_chunks(self):
        broker = RecordingBroker()
        cc = configured("chunking")

        @cc.offload(payload="value", destination="topic", key="key")
        def produce(topic, value, key=None):
            broker.send(topic, value)

        produce("orders", b"small")
        with pytest.raises(ConfigError, match="takes no headers"):
            produce("orders", bytes(2_000_000))
        assert len(broker.messages) == 1

    def test_chunks_stay_within_the_limit(self):
        cc = configured("chunking", signing={"key_id": "k" * 100, "keys": {"k" * 100: KEYS["k1"]}})
        limit = claimcheck.WireLimit(3000)
        with cc.outbound(BIG, destination="o" * 200, limit=limit, key=b"k") as out:
            sizes = [len(each.data) + limit.overhead(each.key, each.headers) for each in out.envelopes]
        assert max(sizes) <= 3000
        with pytest.raises(ConfigError, match="too long"):
            sent(cc, destination="o" * 3000)


class TestAborts:
    def test_a_forged_abort_drops_nothing(self, monkeypatch):
        cc = configured("chunking")
        envelopes, abort = sent(cc)
        own = decode(envelopes[0].data).uuid
        with monkeypatch.context() as patch:
            patch.setattr("claimcheck._send.strategies.uuid4", lambda: uuid.UUID(own))
            _, elsewhere = sent(configured("chunking"), destination="salaries")
        forged = [
            claimcheck.Envelope(encode_abort(own)),
            claimcheck.Envelope(encode_abort(own), {"claimcheck-type": "abort"}),
            unsigned(abort),
            changed(abort, created=5),
            elsewhere,
            replace(abort, headers=envelopes[-1].headers),  # the signature of the chunks
            claimcheck.Envelope(encode_abort(own), sent(cc)[1].headers),  # that of another payload's abort envelope
        ]
        for bad in forged:
            outcomes = received(cc, [*envelopes[:2], bad, *envelopes[2:]])
            assert [type(each) for each in outcomes] == [claimcheck.Failed, claimcheck.Resolved]
            assert isinstance(outcomes[0].error, PointerRejectedError)
            assert outcomes[0].positions == (2,)
            assert outcomes[1].payload == BIG


class TestWholeMessages:
    def test_an_escaped_payload_is_signed(self):
        cc = configured()
        ((envelope,), _) = sent(cc, LITERAL)
        assert envelope.data == encode_literal(LITERAL)
        assert cc.open(envelope.data, destination="orders", headers=envelope.headers).read() == LITERAL
        other = replace(envelope, data=encode_literal(LITERAL[:-1] + b"X"))
        for bad in (unsigned(envelope), other, changed(envelope, size=35), changed(envelope, destination="x")):
            assert refusal(cc, [bad]).reason == "signature"
        assert refusal(cc, [envelope], destination="salaries").reason == "destination"
        with pytest.raises(PointerRejectedError, match="not signed"):
            cc.resolve(envelope.data, destination="orders")
        lenient = configured(signing=SIGNING | {"require": False})
        assert received(lenient, [unsigned(envelope)])[0].payload == LITERAL
        assert refusal(lenient, [other]).reason == "signature"


class TestFormat:
    """The signed bytes, as any implementation has to make them."""

    def vectors(self):
        return [line for line in (FOLDER / "signatures.txt").read_text().splitlines() if not line.startswith("#")]

    def test_the_golden_signatures_are_made_and_accepted(self):
        chunks, abort, literal, pointer = self.vectors()
        config = from_dict({"stores": STORES, "signing": SIGNING, "checksum": "crc32"})
        seal = Seal(config, clock=lambda: NOW)
        checksums = [json.loads(each)["checksum"] for each in (chunks, literal)]
        assert seal.statement("chunks", "orders", uuid=UUID, chunks=2, size=10, checksum=checksums[0]) == chunks
        assert seal.statement("abort", TOPIC, uuid=UUID) == abort
        assert seal.statement("literal", "orders", size=34, checksum=checksums[1]) == literal
        seal.check_chunks([chunks], uuid=UUID, count=2, pieces=[b"middle", b"last"], destination="orders")
        seal.check_abort([abort], uuid=UUID, destination="orders")
        escaped = decode(encode_literal(b"PRF_wdkafcli_header_ and then some"))
        seal.check_whole(escaped, [("claimcheck-signature", literal.encode())], "orders")
        accepted = seal.accept(b"\x02" + pointer.encode(), destination="orders")
        assert seal.sign(replace(accepted, key_id=None, mac=None)) == b"\x02" + pointer.encode()

    def test_the_signature_of_a_pointer_is_none_of_a_statement_whose_unknown_fields_are_signed(self):
        """Both are HMACs with the same key: what is signed must say which it is."""
        body = {"kind": "abort", "uuid": UUID, "destination": "orders", "created": 5, "key_id": "k1", "new": [1]}
        secret, seal = KEYS["k1"].encode(), Seal(from_dict({"stores": STORES, "signing": SIGNING}))
        statement = pointers.mac_of(body, secret, domain=b"claimcheck-signature\x00")
        seal.check_abort([json.dumps(body | {"mac": statement})], uuid=UUID, destination="orders")
        with pytest.raises(PointerRejectedError, match="does not match its signature"):
            seal.check_abort(
                [json.dumps(body | {"mac": pointers.mac_of(body, secret)})], uuid=UUID, destination="orders"
            )


class TestDowngrade:
    def test_version_1_unsigned_and_other_keys_are_refused(self):
        cc = configured()
        pointer = cc.store("hot").write(BIG, destination="orders")
        stranger = configured(signing={"key_id": "k3", "keys": {"k3": "0123456789abcdef"}})
        v1 = pointers.Pointer(key=pointer.key, version=1)
        for message in (
            configured(signing={}).seal(pointer),
            stranger.seal(pointer),
            encode_pointer(pointers.encode(v1)),
            cc.seal(pointer).replace(b'"key_id":"k1"', b'"key_id":"k2"'),
            cc.seal(pointer).replace(b'"destination":"orders",', b""),
            cc.seal(pointer).replace(b'"destination":"orders"', b'"destination":"sorder"'),
        ):
            for name in ("orders", "sorder"):
                with pytest.raises(PointerRejectedError) as caught:
                    cc.resolve(message, destination=name)
                assert caught.value.reason == "signature"

    @pytest.mark.parametrize(("strategy", "size"), [("external", 10_000), ("chunking", 10_000), ("external", 10)])
    def test_no_key_service_is_called_for_a_message_without_a_valid_signature(self, monkeypatch, strategy, size):
        unwrapped, unwrap = [], LocalKeys.unwrap
        monkeypatch.setattr(LocalKeys, "unwrap", lambda *args, **more: unwrapped.append(1) or unwrap(*args, **more))
        section = {"key_id": "k", "keys": {"k": "A" * 42 + "E="}, "inline": True}
        forger, reader = (configured(strategy, signing=signing, encryption=section) for signing in ({}, SIGNING))
        envelopes, _ = sent(forger, bytes(size), key="k")
        refusal(reader, envelopes)
        assert not unwrapped
        (outcome,) = received(forger, envelopes)
        assert isinstance(outcome, claimcheck.Resolved)
        assert len(unwrapped) == 1

    def test_a_missing_secret_is_an_error_of_all_where_signatures_are_required(self, monkeypatch):
        monkeypatch.delenv("CLAIMCHECK_SIGNING_SECRET", raising=False)
        envelopes, _ = sent(configured("chunking"))
        keys = {"keys": {"k1": "${CLAIMCHECK_SIGNING_SECRET}"}}
        (outcome,) = received(configured(signing=keys), envelopes)
        assert isinstance(outcome.error, ConfigError)
        (outcome,) = received(configured(signing=keys | {"require": False}), envelopes)
        assert isinstance(outcome.error, PointerRejectedError)
        assert isinstance(outcome.error.__cause__, ConfigError)
