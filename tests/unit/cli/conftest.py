"""A folder of one's own, with a configuration and a payload."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.cli.rig import CONFIG, PAYLOAD


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CLAIMCHECK_CONFIG", raising=False)
    (tmp_path / "claimcheck.yaml").write_text(CONFIG)
    (tmp_path / "payload").write_bytes(PAYLOAD)
    return tmp_path
