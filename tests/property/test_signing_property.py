"""Whatever is done to signed messages, no reader delivers a payload that was not sent to the topic that it reads."""

from __future__ import annotations

import hashlib
import json
import uuid

from hypothesis import example, given
from hypothesis import strategies as st

import claimcheck
from claimcheck._wire import pointer as pointers
from claimcheck._wire.envelope import decode, encode_abort, encode_chunk, encode_literal
from claimcheck.config import HEADER
from claimcheck.errors import ClaimCheckError

KEYS = {"k1": "a secret of ours", "k2": "another secret!!"}
SIGNING = {"key_id": "k1", "keys": KEYS, "require_envelope": True}
STORES = {"m": {"type": "memory", "space": "signing"}}
LIMIT = claimcheck.WireLimit(1200, lambda key, headers: 600)
TOPICS = ("orders", "salaries")

Message = tuple[str, bytes, dict[str, object]]
"""Where it is read from, its value and its headers."""


def configured(strategy: str, **signing: object) -> claimcheck.ClaimCheck:
    return claimcheck.from_dict({"strategy": strategy, "stores": STORES, "signing": SIGNING | signing})


def sent_to(topic: str) -> tuple[list[Message], list[bytes]]:
    """Return the messages of some payloads, and the payloads."""
    messages, payloads = list[Message](), list[bytes]()
    for number, (strategy, size) in enumerate(
        (("external", 5000), ("chunking", 1600), ("chunking", 1600), ("inline", 9))
    ):
        cc = configured(strategy, key_id="k2" if number == 2 else "k1")
        payload = f"{topic} {number} ".encode().ljust(size, b".")
        with cc.outbound(payload, destination=topic, headers={}, limit=LIMIT) as out:
            messages += [(topic, bytes(each.data), dict(each.headers or {})) for each in out.envelopes]
            if number == 2 and out.abort is not None:
                messages.append((topic, out.abort.data, dict(out.abort.headers)))
        payloads.append(payload)
    return messages, payloads


SENT = {topic: sent_to(topic) for topic in TOPICS}
ALL = [message for topic in TOPICS for message in SENT[topic][0]]
READERS = [configured("external"), configured("external", max_age_seconds=1e9)]
index = st.integers(0, len(ALL) - 1)


def flip(messages: list[Message], at: int, bit: int) -> None:
    topic, data, headers = messages[at]
    changed = bytearray(data)
    changed[bit // 8 % len(data)] ^= 1 << bit % 8
    messages[at] = topic, bytes(changed), headers


def move(messages: list[Message], at: int, bit: int) -> None:
    _, data, headers = messages[at]
    messages[at] = TOPICS[bit % 2], data, headers


def swap(messages: list[Message], at: int, bit: int) -> None:
    other = bit % len(messages)
    messages[at], messages[other] = messages[other], messages[at]


def duplicate(messages: list[Message], at: int, bit: int) -> None:
    messages.insert(bit % len(messages), messages[at])


def drop(messages: list[Message], at: int, bit: int) -> None:
    if len(messages) > 1:
        del messages[at]


def take_headers(messages: list[Message], at: int, bit: int) -> None:
    topic, data, _ = messages[at]
    messages[at] = topic, data, messages[bit % len(messages)][2]


def drop_header(messages: list[Message], at: int, bit: int) -> None:
    topic, data, headers = messages[at]
    gone = sorted(headers)[bit % len(headers)] if headers else None
    messages[at] = topic, data, {name: value for name, value in headers.items() if name != gone}


def change_signature(messages: list[Message], at: int, bit: int) -> None:
    topic, data, headers = messages[at]
    if "claimcheck-signature" in headers:
        body = json.loads(str(headers["claimcheck-signature"]))
        name = sorted(body)[bit % len(body)]
        values = [5, "", "salaries", "orders", "k1", "k2", True, None, "abort", "chunks", [], "00" * 32]
        body[name] = values[bit % len(values)]
        messages[at] = topic, data, headers | {"claimcheck-signature": json.dumps(body)}


def forge(messages: list[Message], at: int, bit: int) -> None:
    """Add what can be made without a key, with the signature of another message."""
    name, topic = str(uuid.UUID(int=bit % 5)), TOPICS[at % 2]
    values = (
        b"forged",
        encode_literal(HEADER + b" forged"),
        encode_abort(name),
        encode_chunk(name, 0, 1, b"forged"),
        encode_chunk(name, bit % 3, 3, b"forged"),
    )
    messages.insert(at, (topic, values[bit % len(values)], messages[at][2] if bit % 2 else {}))


def forge_signature(messages: list[Message], at: int, bit: int) -> None:
    """Add an escaped payload or a chunk with a signature that is right but for its secret."""
    payload, topic, name = HEADER + b" forged", TOPICS[at % 2], str(uuid.UUID(int=99))
    checksum = f"sha256:{hashlib.sha256(payload).hexdigest()}"
    body = {"kind": "literal", "destination": topic, "created": 5, "key_id": "k1", "size": len(payload)}
    data = encode_literal(payload)
    if bit % 2:
        body |= {"kind": "chunks", "uuid": name, "chunks": 1}
        data = encode_chunk(name, 0, 1, payload)
    body["checksum"] = checksum
    mac = pointers.mac_of(body, b"no secret of ours", domain=b"claimcheck-signature\x00")
    messages.insert(
        at, (topic, data, {"claimcheck-type": "x", "claimcheck-signature": json.dumps(body | {"mac": mac})})
    )


ACTIONS = (forge_signature, flip, move, swap, duplicate, drop, take_headers, drop_header, change_signature, forge)
attacks = st.lists(st.tuples(st.sampled_from(ACTIONS), index, st.integers(0, 1 << 16)), max_size=8)


def read(cc: claimcheck.ClaimCheck, messages: list[Message]) -> dict[str, list[bytes]]:
    """Return what is delivered, by topic; any other outcome is an error of ours."""
    resolver, delivered = cc.resolver(), {topic: list[bytes]() for topic in TOPICS}
    for position, (topic, data, headers) in enumerate(messages):
        for outcome in resolver.feed(topic, position, data, headers=headers, key="k", destination=topic):
            if isinstance(outcome, claimcheck.Resolved):
                delivered[topic].append(outcome.payload)
            elif isinstance(outcome, claimcheck.Failed):
                assert type(outcome.error) is not ClaimCheckError, outcome.error
    return delivered


@given(attacks, st.sampled_from(READERS))
@example([], READERS[0])
@example([(move, 0, 1)], READERS[0])
def test_only_what_was_sent_to_a_topic_is_delivered_from_it(attack, cc):
    messages = list(ALL)
    for action, at, bit in attack:
        action(messages, at % len(messages), bit)
    for topic, delivered in read(cc, messages).items():
        assert set(delivered) <= set(SENT[topic][1])
    if not attack:  # the aborted payload was complete before
        assert {topic: sorted(found) for topic, found in read(cc, messages).items()} == {
            topic: sorted(payloads) for topic, (_, payloads) in SENT.items()
        }


def test_the_attacks_meet_all_kinds_of_messages():
    kinds = {type(decode(data)).__name__ for _, data, _ in ALL}
    assert kinds == {"PointerData", "Chunk", "Literal", "Abort"}
