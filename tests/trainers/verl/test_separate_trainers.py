"""Replay in verl's V1 where generating and training run apart: a step is several updates, and its dump has a part for
each."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.rolloutdeck.support.fake_server import wait_until
from tests.support.server import Product
from tests.trainers.verl.process import Training, require_python
from tests.trainers.verl.test_async import UPDATES, read_trained_rows
from tests.trainers.verl.test_replay import DUMPS, create_plan, find_run, list_events, run_training, upload_steps

pytestmark = pytest.mark.trainers

MODE = "separate_async"
IN_MODE = f"trainer.v1.trainer_mode={MODE}"
QUEUED = [word.replace("rollout.", "rollout_tq.") for word in DUMPS]


def read_trained_tokens(training: Training, step: int) -> list[list[int]]:
    """What was trained on at all updates of a step; verl itself does not always share them out alike."""
    return sorted(row["responses"] for row in read_trained_rows(training, step, UPDATES[MODE]).values())


def test_steps_of_several_updates_are_replayed_whole_and_repeated(tmp_path: Path) -> None:
    require_python()
    with Product() as product:
        source = run_training(
            product, "v1.py", "apart", tmp_path / "source", "", f"trainer.v1.trainer_mode={MODE}", *QUEUED
        )
        upload_steps(product, "apart", tmp_path / "source/dumps")
        create_plan(product, "round", find_run(product, "apart"), {1: 2, 2: 1}, action="repeat")
        values = {"ROLLOUTDECK_PLAN": "round", "STEPS": "3"}
        result = run_training(product, "v1.py", "again", tmp_path / "again", "other", IN_MODE, **values)
        assert read_trained_tokens(source, 1) != read_trained_tokens(source, 2)
        assert [read_trained_tokens(result, step) for step in (1, 2, 3)] == [
            read_trained_tokens(source, step) for step in (2, 1, 2)
        ]
        wait_until(lambda: len(list_events(product, "again")) == 3)
        assert list_events(product, "again") == [(step, "hit", 4) for step in (1, 2, 3)]
