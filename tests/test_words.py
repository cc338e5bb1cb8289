"""Plain English: no misspellings, and no phrases that a native speaker would stumble over.

Markdown is checked as a whole but for its code, Python in its comments and strings.
"""

import io
import re
import subprocess
import sys
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PROSE = ["README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "docs", "examples", "claimcheck", "stores"]
SPELLED = [*PROSE, "tests", "Makefile", "pyproject.toml", "mkdocs.yml", "docker-compose.yml"]

BANNED = {
    r"\bstrangers?\b|\bstranger's\b": "third party",
    r"\b(nobody|whoever|somebody)\b": "no one, anyone who, or name the actor",
    r"\bfor ever\b": "forever, indefinitely",
    r"\bof its own accord\b|\bof use\b|\bof no use\b": "automatically; useful, can be used",
    r"\b(let|lets|letting) go of\b|\blet go\b": "release, drop",
    r"\bsays? so\b|\bsaid so\b": "reports it, documents it",
    r"\b(as|what|than) (the client|Kafka|Pulsar|Spark) has it\b": "same as `client.method`",
    r"\b(puts?|lays?) [\w ]{0,30}to rest\b|\bpayloads? rests?\b|\brests in\b": "stores; is stored in",
    r"\b(is|are|was|were|been) (asked|wanted|told)\b(?! to)": "is requested, is expected, is passed",
    r"\bask(s|ed)? for it\b|\bwhat is asked\b": "requests",
    r"\bhand(s|ed)? (it |them )?(out|back)\b": "returns, delivers",
    r"\bgiven back\b|\bgives? back\b|\bgave back\b": "negatively acknowledged, released, returned",
    r"\bgives\b(?! up\b)": "returns, passes, provides",
    r"\bbefalls?\b|\bbefallen\b|\bshall\b|\bthereof\b|\bwhereof\b": "plain words",
    r"\bat (its|their) end\b|\bat home\b": "after a fatal error; finished; reachable",
    r"\bcannot be had\b|\bto be had\b|\bcan be had\b": "cannot be read, is available",
    r"\b(it|this|that|what|which|text|name|bytes?|values?|passwords?) stands?\b": "is",
    r"\bstands? (there|in|as|where)\b": "is",
    r"\bas it stands\b|\bas they stand\b": "unchanged",
    r"\bgo(es)? as (it is|they are|it was)\b|\bwent as (it was|they were)\b": "is sent unchanged",
    r"\bhears? of\b|\bwho listens\b|\bwho hears\b": "is notified of",
    r"\bif need be\b|\bby far\b|\bof course\b|\bindeed\b": "leave it out",
    r"\bknows? nothing of\b|\bhas a word\b|\bthe last word\b|\bits word\b": "does not support, decides",
    r"\bwill do\b(?= so| it)|\bit is no\b|\bthat is no\b|\bare no\b(?! longer| more)": "is not a",
    r"\bbut for\b": "except for, without",
    r"\bsome (ten|twenty|hundred)\b": "about ten",
    r"\bin vain\b|\bby the way\b|\bat once\b(?=[,.] for)": "plain words",
    r"\bon (its|their|his) way\b": "in flight, in transit",
    r"\bdoes (it|so) (himself|itself)\b|\bof itself\b": "automatically",
    r"\bthe room\b|\bno room\b|\bleaves? room\b": "space",
    r"\bcome[s]? (again|back) whole\b|\bwhole again\b": "is redelivered completely",
    r"\bas (it|they) (was|were) (given|handed|told)\b": "unchanged, as passed",
    r"\b(says?|said|tells?) (what|how|which|where|why|when|who|whether)\b": "describes, returns, reports",
}  # fmt: skip
_PATTERNS = [(re.compile(pattern, re.IGNORECASE), better) for pattern, better in BANNED.items()]


def texts(path):
    """Yield the lines of a file that are read by people, with their numbers."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type in (tokenize.STRING, tokenize.COMMENT) or "FSTRING_MIDDLE" in tokenize.tok_name[token.type]:
                yield from enumerate(token.string.splitlines(), token.start[0])
        return
    in_code = False
    for number, line in enumerate(text.splitlines(), 1):
        in_code ^= line.startswith("```")
        if not in_code:
            yield number, re.sub(r"`[^`]*`", "", line)


def hits(path):
    """Return the banned phrases in a file, each with a better wording."""
    return [
        f"{path}:{number}: {match[0]!r}: {better}"
        for number, line in texts(path)
        for pattern, better in _PATTERNS
        for match in pattern.finditer(line)
    ]


@pytest.mark.parametrize("name", PROSE)
def test_no_stumbling_blocks(name):
    files = [ROOT / name] if (ROOT / name).is_file() else (ROOT / name).rglob("*")
    found = [hit for path in files if path.suffix in (".md", ".py") for hit in hits(path)]
    assert not found, "\n".join(found)


def test_spelling():
    command = [sys.executable, "-m", "codespell_lib", *SPELLED]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stdout
