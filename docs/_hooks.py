"""Adds the Markdown files of the repository's root to the site, and tables that are made from code.

Links work in both places: on GitHub they name the files of the repository, on the site the pages made from them.
A comment such as ``<!-- table: options gc -->`` becomes a table:

- ``options COMMAND``: the options of a command, from its help.
- ``keys SECTION``: the keys of a section of the configuration, from the JSON Schema; ``top`` is the top level.
- ``findings PREFIX ...``: the findings of ``claimcheck check`` whose ids begin with one of these words.
"""

from __future__ import annotations

import json
import posixpath
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
PAGES = {"CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md", "SECURITY.md": "security-policy.md"}
# Of findings; the others are warnings.
SEVERITIES = {
    "error": "config-invalid package-missing signing-key-missing encryption-key-failed store-failed store-invalid "
    "redis-version s3-archived s3-expiry-early kafka-settings-invalid kafka-unreachable kafka-topic-missing "
    "kafka-pointer-rejected kafka-payload-missing pulsar-unreachable pulsar-topic-missing",
    "error, warning": "kafka-compacted kafka-limit kafka-group-lag pulsar-limit pulsar-shared-chunks pulsar-backlog",
    "warning, info": "encryption-small-plain store-not-listable kafka-retention",
    "info": "signing-off encryption-works store-works store-no-expiry redis-not-examined s3-not-examined "
    "filesystem-not-examined kafka-not-examined pulsar-not-examined",
}
Table = tuple[list[str], Iterator[list[str]]]
BROKERS = ("kafka", "kafka_config", "pulsar", "admin_url", "help")  # described once, for all commands


def on_files(files: Any, config: Any) -> Any:
    """Add a page for each file."""
    from mkdocs.structure.files import File

    for name, page in PAGES.items():
        text = re.sub(r"\]\(docs/", "](", (ROOT / name).read_text(encoding="utf-8"))
        files.append(File.generated(config, page, content=_linked(text, "")))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Let links to the files of the root lead to their pages, and fill in the tables."""
    return with_tables(_linked(markdown, posixpath.dirname(page.file.src_uri)))


def with_tables(markdown: str) -> str:
    """Return the text of a page with its tables."""
    return re.sub(r"<!-- table: (\w+) ([^>]+?) -->", lambda found: _table(found[1], *found[2].split()), markdown)


def _linked(markdown: str, folder: str) -> str:
    for name, page in PAGES.items():
        markdown = re.sub(rf"\]\((?:\.\./)*{name}", f"]({posixpath.relpath(page, folder or '.')}", markdown)
    return markdown


def _table(kind: str, *names: str) -> str:
    tables: dict[str, Callable[..., Table]] = {"options": _options, "keys": _keys, "findings": _findings}
    head, rows = tables[kind](*names)
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(map(_cell, row)) + " |" for row in lines)


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())


def _options(name: str) -> Table:
    sys.path.insert(0, str(ROOT))
    import click

    from claimcheck.cli._commands import commands

    context = click.Context(commands)
    command = commands.get_command(context, name)
    assert command is not None, name
    records = [each.get_help_record(context) for each in command.params if each.name not in BROKERS]
    return ["option", "meaning"], ([f"`{option}`", text] for option, text in filter(None, records))


def _keys(name: str) -> Table:
    schema = json.loads((ROOT / "docs/reference/claimcheck.schema.json").read_text(encoding="utf-8"))
    section = schema if name == "top" else schema["$defs"][f"{name.capitalize()}Config"]
    return ["key", "default", "meaning"], ([f"`{key}`", *_key(value)] for key, value in section["properties"].items())


def _key(value: dict[str, Any]) -> tuple[str, str]:
    default = value.get("default")
    shown = "" if default is None else f"`{default}`" if isinstance(default, str) else f"`{json.dumps(default)}`"
    text = value["description"].replace("`None`", "`null`")
    return shown, re.sub(r"see `(\w+)Config`", lambda found: f"see [below](#{found[1].lower()})", text)


def _findings(*prefixes: str) -> Table:
    sys.path.insert(0, str(ROOT))
    from claimcheck._operate.findings import WHY

    severities = {name: severity for severity, names in SEVERITIES.items() for name in names.split()}
    assert not severities.keys() - WHY.keys()
    found = sorted((name, why) for name, why in WHY.items() if name.startswith(prefixes))
    rows = ([f"`{name}`", severities.get(name, "warning"), why] for name, why in found)
    return ["finding", "severity", "why it matters"], rows
