"""`docs/commands.md` says what the commands say."""

from __future__ import annotations

from scripts.commands_page import PAGE, build_page


def test_the_page_of_all_commands_is_that_of_the_parser() -> None:
    assert PAGE.read_text() == build_page(), "run `make commands-page`"


def test_each_argument_has_a_help_text() -> None:
    assert [line for line in build_page().splitlines() if line.endswith("|  |")] == []
