"""The README's Pulsar examples run on a real broker."""

import re
from pathlib import Path

import claimcheck

README = (Path(__file__).parents[2] / "README.md").read_text()


def test_its_python_runs(pulsar_broker, topic, capfd):
    (code,) = re.findall(r"```python pulsar\n(.*?)```", README, re.DOTALL)
    code = code.replace("pulsar://localhost:6650", pulsar_broker.service_url).replace("invoices", topic)
    # The broker of the tests takes less than 5 MiB; for everything else the code is as it stands.
    stores = {"m": {"type": "memory"}}
    with claimcheck.from_dict({"strategy": "hybrid", "threshold_bytes": 100_000, "stores": stores}) as cc:
        exec(compile(code, "README.md", "exec", dont_inherit=True), {"cc": cc})
