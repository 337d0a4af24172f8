"""Files that are replaced in one step."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from rolloutdeck.lib import open_replacement


def test_a_file_is_replaced_when_the_block_ends(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text("old")
    with open_replacement(path, mode=0o600, is_synced=True) as file:
        file.write(b"new")
        assert path.read_text() == "old"
    assert path.read_text() == "new" and list(tmp_path.iterdir()) == [path]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize("target", [(Path, "replace"), (os, "fsync"), (os, "fdopen")])
def test_a_failed_write_leaves_the_old_file_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: tuple[object, str]
) -> None:
    def fail(*_: object) -> None:
        raise OSError("No space left on device")

    path = tmp_path / "a.json"
    path.write_text("old")
    monkeypatch.setattr(*target, fail)
    with pytest.raises(OSError, match="No space"), open_replacement(path, is_synced=True) as file:
        file.write(b"new")
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]


def test_an_error_in_the_block_leaves_the_old_file_and_no_other(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text("old")
    with pytest.raises(ZeroDivisionError), open_replacement(path) as file:
        file.write(b"half")
        raise ZeroDivisionError
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]
