"""A file for a trainer is replaced only by one that is complete and loadable; otherwise the older one stays."""

from __future__ import annotations

from pathlib import Path

import pytest

from rolloutdeck.safe_pickle.errors import SafePickleError
from rolloutdeck.safe_pickle.rewrite.atomic import open_checked_output
from tests.rolloutdeck.safe_pickle.dumps import HOSTILE, MAIN


@pytest.fixture
def target(tmp_path: Path) -> Path:
    path = tmp_path / "gen_batch.dp"
    path.write_bytes(b"older")
    return path


def test_a_loadable_batch_replaces_the_older_one_when_it_is_complete(target: Path) -> None:
    with open_checked_output(target) as file:
        file.write(MAIN.read_bytes())
        assert target.read_bytes() == b"older"
    assert target.read_bytes() == MAIN.read_bytes()
    assert list(target.parent.iterdir()) == [target]


def test_a_batch_that_is_not_loadable_is_refused_and_the_older_one_stays(target: Path) -> None:
    with (
        pytest.raises(SafePickleError, match="what was written could not be loaded: ."),
        open_checked_output(target) as file,
    ):
        file.write(HOSTILE.read_bytes())
    assert (target.read_bytes(), list(target.parent.iterdir())) == (b"older", [target])


def test_a_batch_that_was_not_written_to_its_end_is_removed_and_the_older_one_stays(target: Path) -> None:
    with pytest.raises(OSError, match="full"), open_checked_output(target) as file:
        file.write(MAIN.read_bytes())
        raise OSError("the disk is full")
    assert (target.read_bytes(), list(target.parent.iterdir())) == (b"older", [target])
