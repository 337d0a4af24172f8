"""The admin's sign-in link is a secret, so it is not written to systemd's journal."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from rolloutdeck.up.command import describe_sign_in
from rolloutdeck.up.paths import ServerPaths


@pytest.mark.parametrize("to_journal", [True, False])
def test_the_journal_gets_the_command_and_others_the_link(
    to_journal: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DATABASE_URL", raising=False)
    text = describe(tmp_path, monkeypatch, to_journal=to_journal)
    assert ("secret" in text) != to_journal
    assert not to_journal or "ROLLOUTDECK_PUBLIC_URL=https://deck.example.org/a " in text and " bootstrap" in text
    assert "DATABASE_URL" not in text


def test_the_journal_names_the_variables_that_the_command_needs_without_their_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without them the command creates another database, and a link that the server rejects."""
    monkeypatch.setenv("DATABASE_URL", "postgres://db/hidden")
    monkeypatch.setenv("ROLLOUTDECK_SECRET_KEY", "hidden")
    text = describe(tmp_path, monkeypatch, to_journal=True)
    assert "with the DATABASE_URL and ROLLOUTDECK_SECRET_KEY of this server:" in text and "hidden" not in text


def describe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, to_journal: bool) -> str:
    paths = ServerPaths(data=tmp_path, server=tmp_path, sockets=tmp_path)
    with (tmp_path / "out").open("w") as out:
        monkeypatch.setattr(sys, "stdout", out)
        status = os.fstat(out.fileno())
        monkeypatch.setenv("JOURNAL_STREAM", f"{status.st_dev}:{status.st_ino + (not to_journal)}")
        link = "https://deck.example.org/a/sign-in/link/?t=secret"
        return describe_sign_in({"user": "admin", "token": "t", "link": link}, paths)
