"""`docs/commands.md` matches the help of the commands."""

from __future__ import annotations

from scripts.commands_page import PAGE, build_page


def test_the_page_matches_the_parser_of_the_commands() -> None:
    assert PAGE.read_text() == build_page(), "run `make commands-page`"


def test_each_command_says_what_it_does() -> None:
    commands = build_page().split("\n## ")[1:]
    assert [name for name, text in (command.split("\n", 1) for command in commands) if text.startswith("\n|")] == []
    for command in commands:
        name, _, text = command.partition("\n\n")
        assert text.split("\n\n")[0].endswith("."), name


def test_each_argument_has_a_help_text() -> None:
    assert [line for line in build_page().splitlines() if line.endswith("|  |")] == []
