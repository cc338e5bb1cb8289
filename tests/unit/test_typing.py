"""The types that a program sees; mypy checks the assertions, pytest runs them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import assert_type

import claimcheck
from claimcheck import Payload

CONFIG = {"strategy": "external", "threshold_bytes": 100, "stores": {"hot": {"type": "memory", "space": "typing"}}}


def test_a_decorated_function_keeps_its_signature() -> None:
    cc = claimcheck.from_dict(CONFIG)

    @cc.offload(payload="value", destination="topic")
    def publish(topic: str, value: Payload, *, retries: int = 3) -> int:
        return retries

    checked: Callable[[str, Payload], int] = publish
    assert list(inspect.signature(publish).parameters) == ["topic", "value", "retries"]
    assert assert_type(publish("orders", bytes(1000), retries=4), int) == 4
    assert checked("orders", b"small") == 3


def test_resolve_returns_the_type_that_it_was_given() -> None:
    cc = claimcheck.from_dict(CONFIG)
    messages: list[bytes | None] = [cc.seal(cc.store("hot").write(b"payload")), None]
    assert [assert_type(cc.resolve(message), bytes | None) for message in messages] == [b"payload", None]
    assert assert_type(cc.resolve(b"plain"), bytes) == b"plain"


def test_send_returns_the_result_of_the_produce_call() -> None:
    with claimcheck.from_dict(CONFIG).outbound(bytes(1000), destination="orders") as out:
        assert assert_type(out.send(lambda envelope: len(envelope.data)), int) < 1000
