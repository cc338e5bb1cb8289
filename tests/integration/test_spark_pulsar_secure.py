"""Spark and a Pulsar with tokens and TLS: errors tell why access is refused, and contain no secret."""

from dataclasses import replace

import pulsar
import pytest

from claimcheck.spark.sources import register
from tests import servers
from tests.integration.pulsar_rig import CERTIFICATES, Topic
from tests.spark.rig import batches_of, failure, stream, values

PULSAR = "claimcheck_pulsar"
RIGHT, WRONG, STRANGER = "CLAIMCHECK_TEST_RIGHT", "CLAIMCHECK_TEST_WRONG", "CLAIMCHECK_TEST_STRANGER"
TIMEOUT_SECONDS = 3  # the client tries for so long, and longer where it tries again


@pytest.fixture(scope="module")
def tokens(secure_pulsar):
    """Tokens by the names of their variables; the wrong one has a valid subject but another signature."""
    forged = replace(secure_pulsar, secret=b"?" * 32).token("operator")
    return {RIGHT: secure_pulsar.token("operator"), WRONG: forged, STRANGER: secure_pulsar.token("stranger")}


@pytest.fixture(scope="module")
def spark_tokens(spark, tokens, secure_pulsar):
    """Spark, whose processes have the tokens in their environment, as with `spark.executorEnv`."""
    more = {**tokens, CERTIFICATES: str(secure_pulsar.authority.parent)}
    spark.sparkContext.environment.update(more)
    register(spark)
    yield spark
    for name in more:
        del spark.sparkContext.environment[name]
    register(spark)


@pytest.fixture
def secret_topic(secure_pulsar, tokens, topic):
    client = pulsar.Client(secure_pulsar.open.service_url, authentication=pulsar.AuthenticationToken(tokens[RIGHT]))
    yield Topic(secure_pulsar.open, client, topic)
    client.close()


@pytest.fixture
def tls(secure_pulsar):
    """The options of a query that connects with TLS."""
    trusted = {"tlsTrustCertsFilePath": secure_pulsar.authority, "authTokenEnv": RIGHT}
    return {"serviceUrl": secure_pulsar.tls_url, "adminUrl": secure_pulsar.tls_admin_url, **trusted}


def batch(spark, topic, **told):
    return spark.read.format(PULSAR).options(**topic.options(subscription=None, **told)).load()


def refused(spark, topic, folder, **told):
    """Return the error texts of a batch and of a stream."""
    told["operationTimeoutSeconds"] = TIMEOUT_SECONDS
    query = stream(spark, PULSAR, topic.options(**told))
    return failure(batch(spark, topic, **told).collect), failure(lambda: batches_of(query, folder / "never"))


def rows(df):
    return sorted(bytes(row.value) for row in df.select("value").collect())


def test_a_function_makes_the_client_on_the_driver_and_in_workers(
    spark_tokens, secret_topic, secure_pulsar, tls, tmp_path, monkeypatch
):
    monkeypatch.setenv(CERTIFICATES, str(secure_pulsar.authority.parent))
    told = {name: value for name, value in tls.items() if name != "authTokenEnv"}
    told["client"] = "tests.integration.pulsar_rig:certified"
    secret_topic.send(range(20))
    seen = batches_of(stream(spark_tokens, PULSAR, secret_topic.options(**told)), tmp_path / "c")
    assert rows(batch(spark_tokens, secret_topic, **told)) == values(seen) == sorted(b"%d" % n for n in range(20))


def test_the_right_token_opens_and_is_written_down_nowhere(spark_tokens, secret_topic, tokens, tmp_path, capsys):
    told = {"authTokenEnv": RIGHT, "adminUrl": secret_topic.broker.admin_url}
    secret_topic.send(range(20))
    df = batch(spark_tokens, secret_topic, **told)
    streaming = stream(spark_tokens, PULSAR, secret_topic.options(**told, maxRowsPerTrigger=8))
    read = rows(df)
    seen = batches_of(streaming, tmp_path / "c")
    df.explain(True)
    streaming.explain(True)
    plans = capsys.readouterr().out
    kept = b"".join(path.read_bytes() for path in (tmp_path / "c").rglob("*") if path.is_file())
    assert read == values(seen) == sorted(b"%d" % n for n in range(20))
    assert PULSAR in plans
    assert secret_topic.full in kept.decode("utf-8", "replace")
    pieces = [part for token in tokens.values() for part in token.split(".")[1:]]
    assert not any(piece in plans or piece.encode() in kept for piece in pieces)


@pytest.mark.parametrize(
    ("variable", "expected"),
    [
        (WRONG, ("TransportError", "does it accept the token (authTokenEnv)")),
        ("NOBODY_SET_THIS", ("ConfigError", "authTokenEnv: found 'NOBODY_SET_THIS'", "spark.executorEnv")),
        (STRANGER, ("AccessError", "AuthorizationError", "its role lacks the permission")),
    ],
    ids=["wrong", "unset", "stranger"],
)
def test_who_has_not_the_right_token_is_told(spark_tokens, secret_topic, tokens, tmp_path, variable, expected):
    secret_topic.send([0])
    for text in refused(spark_tokens, secret_topic, tmp_path, authTokenEnv=variable):
        assert all(part in text for part in expected), text
        assert not any(token[-20:] in text for token in tokens.values())


def test_the_web_service_says_so_at_once(spark_tokens, secret_topic, tokens, tls):
    for variable in (WRONG, STRANGER):
        told = {"authTokenEnv": variable, "adminUrl": secret_topic.broker.admin_url}
        text = failure(batch(spark_tokens, secret_topic, **told).collect)
        assert "AccessError" in text
        assert "refuses the token (authTokenEnv), or the token's role lacks the permission" in text
        assert tokens[variable][-20:] not in text
    told = tls | {"tlsTrustCertsFilePath": None, "serviceUrl": secret_topic.broker.service_url}
    text = failure(batch(spark_tokens, secret_topic, **told).collect)
    assert all(part in text for part in ("AccessError", "adminUrl", "is not trusted"))


def test_a_certificate_of_nobody_that_is_trusted(spark_tokens, secret_topic, tls, tmp_path):
    servers.make_certificate(tmp_path)
    told = tls | {"adminUrl": None, "tlsTrustCertsFilePath": tmp_path / "ca.crt"}
    secret_topic.send([0])
    for text in refused(spark_tokens, secret_topic, tmp_path, **told):
        assert "TransportError" in text
        assert "is its certificate trusted (tlsTrustCertsFilePath)" in text
    missing = tls | {"tlsTrustCertsFilePath": tmp_path / "missing.crt"}
    text = failure(batch(spark_tokens, secret_topic, **missing).collect)
    assert "ConfigError" in text
    assert f"tlsTrustCertsFilePath: found '{tmp_path / 'missing.crt'}'" in text


def test_a_certificate_of_a_named_authority_for_the_host_that_it_names(spark_tokens, secret_topic, tls, tmp_path):
    sent = secret_topic.send(range(2))
    seen = batches_of(stream(spark_tokens, PULSAR, secret_topic.options(**tls)), tmp_path / "c")
    told = tls | {"serviceUrl": tls["serviceUrl"].replace("127.0.0.1", "127.1"), "adminUrl": None}
    told["operationTimeoutSeconds"] = TIMEOUT_SECONDS
    text = failure(batch(spark_tokens, secret_topic, **told).collect)
    assert values(seen) == sent
    assert "TransportError" in text
    assert "127.1" in text
    assert rows(batch(spark_tokens, secret_topic, **told, tlsValidateHostname="false")) == sent
