"""A real GRPOTrainer whose prompts contain images: it trains on them, also with a `rollout_func` that replays."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.trainers.verl.process import train

pytestmark = pytest.mark.trainers


def test_images_inside_the_prompts_reach_the_model_with_and_without_a_replay(tmp_path: Path) -> None:
    result = train("../../trl/inside/images.py", "plain", "replay", folder=tmp_path)
    assert result.read_output() == [[True, True]] * 2
    assert "Step 2 is not replayed: its prompts contain images" in result.done.stderr
