"""What `rolloutdeck up PATH` prints about the folders that it watches."""

from __future__ import annotations

from pathlib import Path

import pytest

from rolloutdeck.up.command import print_watched_paths


def test_a_folder_that_does_not_exist_yet_is_waited_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    print_watched_paths([tmp_path, tmp_path / "later"])
    out = "".join(capsys.readouterr())
    assert f"Watching {tmp_path}.\n" in out and f"Waiting for {tmp_path / 'later'}.\n" in out
