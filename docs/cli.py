"""Writes docs/cli.md: what every command says of itself.

    python -m docs.cli

A test compares the page with what the commands say today.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click

from cfp.cli import cli

PAGE = Path(__file__).parent / "cli.md"
WIDTH = 100  # columns of the help texts
_HEAD = """\
<!-- Written by `python -m docs.cli`; tests/test_site.py compares it. -->
# Commands

Every command takes `--help`, and its help has lines to run. `--json` prints one JSON document on
stdout and nothing else there; progress goes to stderr. Exit codes: 0 done, 1 your problem (bad
input, nothing fits, a plan that does not fit), 2 usage, 3 a bug of ours.
"""


def page() -> str:
    """Returns the whole page."""
    parts = [_HEAD]
    for path, command in commands():
        level = "##" if len(path) < 3 else "###"
        context = click.Context(
            command, info_name=" ".join(path), max_content_width=WIDTH, **cli.context_settings
        )
        context.terminal_width = WIDTH
        text = command.get_help(context).rstrip()
        parts.append(f"\n{level} {' '.join(path)}\n\n```text\n{text}\n```\n")
    return "".join(parts)


def commands() -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Yields the words of every command, and the command; groups come before what is in them."""
    yield from _within(("cfp",), cli)


def _within(
    path: tuple[str, ...], command: click.Command
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    yield path, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            yield from _within((*path, name), inner)


if __name__ == "__main__":
    PAGE.write_text(page())
