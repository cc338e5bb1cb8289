"""Adds the Markdown files of the repository's root to the site.

Links work in both places: on GitHub they name the files of the repository, on the site the pages made from them.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).parent.parent
PAGES = {"CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md", "SECURITY.md": "security-policy.md"}


def on_files(files: Any, config: Any) -> Any:
    """Add a page for each file."""
    for name, page in PAGES.items():
        text = re.sub(r"\]\(docs/", "](", (ROOT / name).read_text(encoding="utf-8"))
        files.append(File.generated(config, page, content=_linked(text, "")))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Let links to the files of the root lead to their pages."""
    return _linked(markdown, posixpath.dirname(page.file.src_uri))


def _linked(markdown: str, folder: str) -> str:
    for name, page in PAGES.items():
        markdown = re.sub(rf"\]\((?:\.\./)*{name}", f"]({posixpath.relpath(page, folder or '.')}", markdown)
    return markdown
