"""After an error of any client, a payload is deleted only if its message is definitely not in the topic."""

from __future__ import annotations

import pytest

from claimcheck._send import classification as _sending
from claimcheck.transports.kafka import _client as kafka
from claimcheck.transports.pulsar import _send as pulsar
from tests.harness.client_errors import CLIENTS, all_errors, mistakes, wrapper_mistakes


@pytest.mark.parametrize("client", CLIENTS)
def test_only_a_refusal_of_the_message_itself_deletes_its_payload(client):
    assert list(mistakes(client)) == []


@pytest.mark.parametrize(("client", "wrapper"), [("confluent-kafka", kafka), ("pulsar-client", pulsar)])
def test_a_wrapper_knows_more_codes_of_its_own_client(client, wrapper):
    assert list(wrapper_mistakes(client, wrapper.classify)) == []


def test_the_harness_raises_what_clients_really_have():
    counts = {client: len(list(all_errors(client))) for client in CLIENTS}
    assert min(counts.values()) >= 10, counts
    assert sum(counts.values()) > 800, counts


def by_words(error):
    """Timeouts and connections by their names: ambiguous errors have other names."""
    names = [cls.__name__.lower() for cls in type(error).__mro__]
    vague = isinstance(error, OSError | EOFError) or not isinstance(error, Exception)
    return "unknown" if vague or any("timeout" in name or "connect" in name for name in names) else "failed"


def without_codes(error):
    """The table by classes only."""
    listed = {name for _, name in _sending._DEFINITE}
    return "failed" if any(cls.__name__ in listed for cls in type(error).__mro__) else "unknown"


def never_sure(_):
    return "unknown"


@pytest.mark.parametrize(
    ("fault", "client", "reported"),
    [
        (by_words, "httpx", "RemoteProtocolError by_coroutine: deleted"),
        (without_codes, "confluent-kafka", "KafkaException _MSG_TIMED_OUT by_future: deleted"),
        (never_sure, "aiokafka", "MessageSizeTooLargeError by_function: kept"),
    ],
)
def test_a_planted_fault_is_reported(monkeypatch, fault, client, reported):
    monkeypatch.setattr(_sending, "classify_error", fault)
    assert f"{client} {reported}" in set(mistakes(client))
