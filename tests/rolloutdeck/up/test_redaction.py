"""`up PATH` sends files as they are."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rolloutdeck.cli.entry import main


def test_a_folder_is_not_followed_if_texts_must_be_redacted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ROLLOUTDECK_REDACT", "my:redact")
    monkeypatch.setattr(os, "umask", lambda mask: 0)  # it would last for the tests that follow
    assert main(["up", str(tmp_path), "--data", str(tmp_path / "data")]) != 0
    message = capsys.readouterr().err
    assert f"Unset it, or start `rolloutdeck up` without {tmp_path}." in message
    assert not (tmp_path / "data").exists()
