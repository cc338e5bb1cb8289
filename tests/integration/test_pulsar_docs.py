"""The pages' Python blocks about Pulsar run, on a real broker."""

import pytest

from tests.docs_pages import cases, run


@pytest.mark.parametrize(("page", "needs"), cases("pulsar"))
def test_python_runs(page, needs, pulsar_broker, request, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    addresses = {"pulsar://localhost:6650": pulsar_broker.service_url}
    if "s3" in needs:
        addresses["http://localhost:9000"] = request.getfixturevalue("s3_server").endpoint_url
    run(page, needs, tmp_path, addresses)["cc"].close()
