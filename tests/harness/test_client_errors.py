"""After an error of any client, a payload is deleted only if its message is definitely not in the topic."""

from __future__ import annotations

import pytest

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
