"""What the README shows of Spark runs, on a real broker."""

import re
from pathlib import Path

import yaml

from claimcheck.spark import resolve
from claimcheck.spark.sources import register

README = (Path(__file__).parents[2] / "README.md").read_text()


def test_its_stream_runs(spark, pulsar_broker, topic, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    stores = {"disk": {"type": "filesystem", "path": str(tmp_path / "claims"), "create": True}}
    Path("claimcheck.yaml").write_text(yaml.safe_dump({"threshold_bytes": 1000, "stores": stores}))
    payloads = [b"small", b"large" * 1000]
    sink = {"serviceUrl": pulsar_broker.service_url, "topic": topic, "config": str(tmp_path / "claimcheck.yaml")}
    register(spark)
    sent = spark.createDataFrame([(payload,) for payload in payloads], "value binary")
    sent.write.format("claimcheck_pulsar").options(**sink).mode("append").save()
    (code,) = re.findall(r"```python spark pulsar\n(.*?)```", README, re.DOTALL)
    code = code.replace("pulsar://localhost:6650", pulsar_broker.service_url).replace("orders", topic)
    for name in ("checkpoint", "archive"):  # Spark's own working folder is where it was started
        code = code.replace(f'"{name}"', f'"{tmp_path / name}"')
    names = {"spark": spark, "resolve": resolve}

    exec(compile(code, "README.md", "exec", dont_inherit=True), names)

    names["query"].processAllAvailable()
    names["query"].stop()
    written = spark.read.parquet(str(tmp_path / "archive")).collect()
    assert sorted(bytes(row.payload) for row in written) == sorted(payloads)
