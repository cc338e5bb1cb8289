"""docs/architecture.md names modules; each of them exists."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def test_every_path_in_the_architecture_document_exists():
    text = (ROOT / "docs" / "architecture.md").read_text()
    named = set(re.findall(r"(?:claimcheck|stores|tests|examples)/[\w/.]*[\w/]", text))
    assert len(named) > 30
    assert sorted(path for path in named if not (ROOT / path).exists()) == []
