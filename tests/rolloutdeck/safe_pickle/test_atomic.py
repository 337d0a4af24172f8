"""What we write for a trainer takes its place as a whole and loadable, or leaves there what was there."""

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


def test_a_loadable_batch_takes_the_place_of_the_older_one_when_it_is_whole(target: Path) -> None:
    with open_checked_output(target) as file:
        file.write(MAIN.read_bytes())
        assert target.read_bytes() == b"older"
    assert target.read_bytes() == MAIN.read_bytes()
    assert list(target.parent.iterdir()) == [target]


def test_a_batch_that_may_not_be_loaded_is_refused_with_its_reason_and_leaves_nothing(target: Path) -> None:
    with (
        pytest.raises(SafePickleError, match="what was written could not be loaded: ."),
        open_checked_output(target) as file,
    ):
        file.write(HOSTILE.read_bytes())
    assert (target.read_bytes(), list(target.parent.iterdir())) == (b"older", [target])


def test_a_batch_that_was_not_written_to_its_end_leaves_nothing(target: Path) -> None:
    with pytest.raises(OSError, match="full"), open_checked_output(target) as file:
        file.write(MAIN.read_bytes())
        raise OSError("the disk is full")
    assert (target.read_bytes(), list(target.parent.iterdir())) == (b"older", [target])
