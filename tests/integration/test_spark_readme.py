"""What the README shows of Spark runs, on a real broker."""

import re
from pathlib import Path

import pytest
import yaml

README = (Path(__file__).parents[2] / "README.md").read_text()

pytestmark = pytest.mark.timeout(240)  # Spark, on a machine that does other things, too


def test_its_python_runs(spark, pulsar_broker, topic, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    stores = {"disk": {"type": "filesystem", "path": str(tmp_path / "claims")}}
    Path("claimcheck.yaml").write_text(yaml.safe_dump({"threshold_bytes": 1000, "stores": stores}))
    (code,) = re.findall(r"```python spark\n(.*?)```", README, re.DOTALL)
    code = code.replace("pulsar://localhost:6650", pulsar_broker.service_url).replace("orders", topic)
    payloads = [b"small", b"large" * 1000]
    names = {
        "spark": spark,
        "df": spark.createDataFrame([(payload,) for payload in payloads], "payload binary"),
        "measure": lambda payload: {"width": len(payload), "height": 1},
    }

    exec(compile(code, "README.md", "exec", dont_inherit=True), names)

    def found(df, expression):
        query = df.selectExpr(expression).writeStream.format("memory").queryName("readme").outputMode("append")
        query.option("checkpointLocation", str(tmp_path / expression)).trigger(
            availableNow=True
        ).start().awaitTermination()
        return sorted(row[0] for row in spark.table("readme").collect())

    assert found(names["large"], "payload") == sorted(payloads)
    assert found(names["sizes"], "width") == [5, 5000]
