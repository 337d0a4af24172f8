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
    paths = ServerPaths(data=tmp_path, server=tmp_path, sockets=tmp_path)
    with (tmp_path / "out").open("w") as out:
        monkeypatch.setattr(sys, "stdout", out)
        status = os.fstat(out.fileno())
        monkeypatch.setenv("JOURNAL_STREAM", f"{status.st_dev}:{status.st_ino + (not to_journal)}")
        link = "https://deck.example.org/a/sign-in/link/?t=secret"
        text = describe_sign_in({"user": "admin", "token": "t", "link": link}, paths)
    assert ("secret" in text) != to_journal
    assert not to_journal or "ROLLOUTDECK_PUBLIC_URL=https://deck.example.org/a " in text and " bootstrap" in text
