"""The README's Spark examples run without a server."""

import re
from pathlib import Path

import yaml

import claimcheck
from claimcheck.transports.local import LocalBroker, LocalProducer

README = (Path(__file__).parents[2] / "README.md").read_text()


def test_its_python_runs(spark, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    stores = {"disk": {"type": "filesystem", "path": str(tmp_path / "claims"), "create": True}}
    Path("claimcheck.yaml").write_text(yaml.safe_dump({"threshold_bytes": 1000, "stores": stores}))
    payloads = [b"small", b"large" * 1000]
    with claimcheck.load("claimcheck.yaml") as cc, LocalBroker("broker.sqlite") as broker:
        broker.create_topic("orders")
        producer = LocalProducer(broker, cc)
        for payload in payloads:
            producer.send("orders", payload)
    (code,) = re.findall(r"```python spark\n(.*?)```", README, re.DOTALL)
    for name in ("broker.sqlite", "payloads"):  # Spark's working folder
        code = code.replace(f'"{name}"', f'"{tmp_path / name}"')
    names = {}

    exec(compile(code, "README.md", "exec", dont_inherit=True), names)

    assert "|     1| 5000|" in capsys.readouterr().out
    written = spark.read.parquet(str(tmp_path / "payloads")).sort("offset").collect()
    assert [bytes(row.payload) for row in written] == payloads
    assert names["rdd"].collect() == payloads
    with claimcheck.load("claimcheck.yaml") as cc, LocalBroker("broker.sqlite") as broker:
        sent = [cc.resolve(message.value) for message in broker.fetch("orders", 0, 2, 10)]
    assert sent == payloads
    assert (names["metrics"].rows, names["metrics"].payload_bytes) == (2, 5005)
