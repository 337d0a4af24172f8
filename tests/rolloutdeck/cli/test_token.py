"""`rolloutdeck token`."""

from __future__ import annotations

import re

import pytest

from tests.rolloutdeck.support.commands import Command
from tests.rolloutdeck.support.deck import Deck
from tests.rolloutdeck.support.programs import ROOT


@pytest.mark.parametrize("scopes", [("--scope", "ingest,read"), ("--scope", "ingest", "--scope", "read")])
def test_only_the_new_token_is_printed_on_standard_output(
    deck: Deck, command: Command, scopes: tuple[str, ...]
) -> None:
    status, out, err = command("token", "create", "ci", "--project", "math", *scopes)
    assert (status, out) == (0, "rd_secret\n") and "ci" in err and "rd_secret" not in err
    assert deck.posted("/tokens/") == [{"name": "ci", "project": "math", "scopes": ["ingest", "read"]}]
    assert "Created project" not in err and "does not expire" in err and f" on {deck.url} " in err


def test_a_token_expires_after_the_given_days(deck: Deck, command: Command) -> None:
    status, _out, err = command("token", "create", "ci", "--project", "math", "--days", "10")
    assert status == 0 and "expires on 2026-12-06" in err and deck.posted("/tokens/")[0]["days"] == 10
    status, _out, err = command("token", "create", "ci", "--project", "math", "--days", "0")
    assert status and "--days must be at least 1" in err


def test_token_create_says_that_it_created_the_project(deck: Deck, command: Command) -> None:
    deck.new_projects = {"nosuch"}
    status, out, err = command("token", "create", "ci", "--project", "nosuch")
    assert (status, out) == (0, "rd_secret\n") and err.startswith("Created project nosuch.\n")


def test_documented_commands_that_create_a_token_name_its_project(deck: Deck, command: Command) -> None:
    files = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(path for path in (ROOT / "deploy").rglob("*"))]
    texts = [path.read_text() for path in files if path.is_file()]
    documented = [match[1] for text in texts for match in re.finditer(r"rolloutdeck (token create [^`#\n)>]+)", text)]
    assert "token create prometheus --project monitoring --scope read" in documented
    for words in documented:
        status, out, err = command(*words.split())
        assert (status, out) == (0, "rd_secret\n"), f"{words}: {err}"
