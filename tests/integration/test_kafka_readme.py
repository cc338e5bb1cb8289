"""The README's Kafka examples run on a real broker."""

import re
from pathlib import Path

import claimcheck

README = (Path(__file__).parents[2] / "README.md").read_text()


def test_its_python_runs(kafka_broker, topic):
    (code,) = re.findall(r"```python kafka\n(.*?)```", README, re.DOTALL)
    code = code.replace("localhost:9092", kafka_broker.bootstrap_servers)
    code = code.replace("invoices", topic).replace("book-keeping", topic)
    with claimcheck.from_dict({"strategy": "hybrid", "stores": {"m": {"type": "memory", "space": topic}}}) as cc:
        exec(compile(code, "README.md", "exec", dont_inherit=True), {"cc": cc})
