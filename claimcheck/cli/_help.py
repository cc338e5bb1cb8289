"""Texts that ``claimcheck`` shows with and without its optional packages."""

from __future__ import annotations

import contextlib
from importlib import metadata

from claimcheck.errors import distribution_name

SUMMARY = "Send payloads of any size through Kafka and Pulsar."

COMMANDS = {
    "init": "Write a configuration file.",
    "check": "Find what is wrong with a configuration, its stores and its topics.",
    "sweep": "Delete expired payloads, and what interrupted writes left behind.",
    "gc": "Delete stored payloads that no message points at.",
    "redrive": "Send dead letters back to their topic.",
    "lifecycle": "Make a bucket delete expired payloads.",
    "put": "Store a payload and write its envelope.",
    "get": "Write the payload of an envelope.",
    "inspect": "Describe an envelope.",
}

EXIT_CODES = """Exit codes:
  0    done
  1    any other error, or Ctrl-C; a sweep or gc with failed entries;
       a redrive with letters that cannot be read
  2    wrong usage
  3    the configuration is wrong, or a package that it needs is missing
  4    the payload is no longer in its store
  5    damaged: not an envelope, a truncated one, or a payload that fails verification
  6    the store cannot be reached; the same command may succeed later
  7    the pointer was rejected: its signature, its store, its size
  143  ended by SIGTERM; unfinished files of get and put were deleted
"""

COMPLETION = """Shell completion:
  bash  eval "$(_CLAIMCHECK_COMPLETE=bash_source claimcheck)"   in ~/.bashrc
  zsh   eval "$(_CLAIMCHECK_COMPLETE=zsh_source claimcheck)"    in ~/.zshrc
  fish  _CLAIMCHECK_COMPLETE=fish_source claimcheck | source    in config.fish
"""


def version() -> str:
    """Return the installed version."""
    with contextlib.suppress(metadata.PackageNotFoundError):
        return metadata.version(distribution_name())
    return "unknown (not installed)"


def plain_help() -> str:
    """Return the help for a machine without the packages that the commands need."""
    commands = "".join(f"  {name:<11}{text}\n" for name, text in COMMANDS.items())
    return f"Usage: claimcheck [OPTIONS] COMMAND [ARGS]...\n\n  {SUMMARY}\n\nCommands:\n{commands}\n{EXIT_CODES}"
