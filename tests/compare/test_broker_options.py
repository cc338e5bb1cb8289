"""Settings of the clients from environment variables."""

from claimcheck._compare._broker import BrokerAddress
from claimcheck._compare._broker_options import options_from

ENVIRON = {
    "CLAIMCHECK_KAFKA_SASL_PASSWORD": "hunter2",
    "CLAIMCHECK_KAFKA_SECURITY_PROTOCOL": "SASL_SSL",
    "CLAIMCHECK_KAFKA_SSL_CA_LOCATION": "",
    "CLAIMCHECK_PULSAR_TLS_TRUST_CERTS_FILE_PATH": "ca.pem",
    "CLAIMCHECK_PULSAR_URL": "pulsar://for-something-else",
    "CLAIMCHECK_KAFKA_TOPIC": "for-something-else",
    "CLAIMCHECK_TEST_KAFKA_JARS": "jars",
    "HOME": "/",
}


def test_names_are_those_of_the_clients():
    assert options_from(ENVIRON, "kafka") == {"sasl.password": "hunter2", "security.protocol": "SASL_SSL"}
    assert options_from(ENVIRON, "pulsar") == {"tls_trust_certs_file_path": "ca.pem"}


def test_an_address_shows_no_option():
    address = BrokerAddress("kafka", "u:hunter2@host:9092", options=(("sasl.password", "hunter2"),))
    assert "hunter2" not in repr(address)
