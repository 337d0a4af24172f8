"""Writes `docs/commands.md` from the parser of the command line: `make commands-page`."""

from __future__ import annotations

import argparse
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path

from rolloutdeck.cli.entry import build_parser

PAGE = Path(__file__).parents[1] / "docs" / "commands.md"
HEAD = """# Commands

All commands of `rolloutdeck` and their options, as `rolloutdeck COMMAND --help` prints them. This page is generated:
`make commands-page`.

`--url`, `--token` and `--project` default to `ROLLOUTDECK_URL`, `ROLLOUTDECK_TOKEN` and `ROLLOUTDECK_PROJECT`. The user
of `rolloutdeck up` needs no URL and no token on its machine. [.env.example](../.env.example) lists all variables. Exit
status: 0 success, 1 something was lost or failed, 2 bad input or no server, 130 Ctrl-C.
"""


def main() -> None:
    PAGE.write_text(build_page())


def build_page() -> str:
    return HEAD + "".join(map(describe_command, iterate_commands(build_parser())))


def iterate_commands(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """Yields the parsers of commands that have no commands of their own."""
    groups = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    if not groups:
        yield parser
    for group in groups:
        for command in group.choices.values():
            yield from iterate_commands(command)


def describe_command(parser: argparse.ArgumentParser) -> str:
    description = textwrap.wrap(parser.description or "", 120, break_on_hyphens=False)
    lines = [f"\n## {parser.prog.removeprefix('rolloutdeck ')}\n", *description]
    rows = [
        f"| {name_argument(action)} | {describe_argument(parser, action)} |"
        for action in parser._actions
        if not isinstance(action, argparse._HelpAction) and action.help != argparse.SUPPRESS
    ]
    if rows:
        lines += ["", "| argument | |", "|---|---|", *rows]
    return "\n".join(lines) + "\n"


def name_argument(action: argparse.Action) -> str:
    value = action.metavar if isinstance(action.metavar, str) else None
    value = value or ("{" + ",".join(map(str, action.choices)) + "}" if action.choices else action.dest.upper())
    if not action.option_strings:
        return escape(f"`{value}`")
    has_value = action.nargs != 0
    return escape(f"`{', '.join(action.option_strings)}{f' {value}' if has_value else ''}`")


def describe_argument(parser: argparse.ArgumentParser, action: argparse.Action) -> str:
    text = (action.help or "") % {**vars(action), "prog": parser.prog}
    return escape(re.sub(r"\s+", " ", text))


def escape(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    main()
