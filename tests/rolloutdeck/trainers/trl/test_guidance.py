"""Guidance rules in a trainer of TRL, without TRL. With a real trainer: `tests/trainers/trl/test_guidance.py`."""

from __future__ import annotations

from importlib import metadata
from types import SimpleNamespace
from typing import Any

import pytest

from rolloutdeck.protocol import parse_guidance
from rolloutdeck.trainers.common import patching
from rolloutdeck.trainers.trl.plugin.guidance import TrlGuidance
from tests.rolloutdeck.support.guiding import build_rules
from tests.support.patching import patch_everywhere

torch = pytest.importorskip("torch")

from tests.rolloutdeck.support.fake_trl import IDS, PROMPTS, Trainer  # noqa: E402


class GuidedTrainer(Trainer):
    """A trainer whose batch has the tensors that the rules change."""

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        self.rewards = self._calculate_rewards(inputs, PROMPTS, ["abc", "a", "ab", "b"], IDS)
        mask = torch.ones(4, 3, dtype=torch.long)
        return {"advantages": torch.ones(4), "completion_mask": mask, "num_items_in_batch": mask.sum()}


def train_guided(*rules: dict[str, Any], **selected: Any) -> tuple[GuidedTrainer, dict[str, Any]]:
    """Returns the trainer and the batch of its first step."""
    trainer, found = GuidedTrainer(), parse_guidance(build_rules(*rules, **selected))
    trainer.accelerator.gather = lambda tensor: tensor
    run: Any = SimpleNamespace(guidance=lambda: SimpleNamespace(rules=found), report_guidance=lambda *_, **__: None)
    guidance = TrlGuidance(trainer, lambda: run)
    guidance.wrap_generation()
    guidance.wrap_rewards()
    return trainer, trainer._generate_and_score_completions([{} for _ in PROMPTS])


def test_a_batch_without_any_row_in_the_loss_is_not_divided_by_zero() -> None:
    """TRL before 1.9 divides the loss by this number of tokens."""
    _, batch = train_guided({"key": "skip", "action": "drop"}, prompts=[(text, [0]) for text in PROMPTS])
    assert (int(batch["completion_mask"].sum()), int(batch["num_items_in_batch"])) == (0, 1)
    _, batch = train_guided({"key": "skip", "action": "drop"}, prompts=[(PROMPTS[0], [0])])
    assert (int(batch["completion_mask"].sum()), int(batch["num_items_in_batch"])) == (6, 6)


@pytest.mark.parametrize(("version", "is_excluded"), [("1.5.1", False), ("1.6.0", True), ("2.0.0.dev0", True)])
def test_masked_rows_count_in_the_baseline_if_trl_would_count_them_as_zero(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, version: str, is_excluded: bool
) -> None:
    patch_everywhere(monkeypatch, patching, "once_logger", patching.OnceLogger())
    monkeypatch.setattr(metadata, "version", lambda name: version)
    trainer, batch = train_guided({"key": "bad"}, baseline="exclude", prompts=[(PROMPTS[0], [0])])
    assert torch.isnan(trainer.rewards[:, 0]).tolist() == [is_excluded, is_excluded, False, False]
    assert batch["advantages"].tolist() == [0, 0, 1, 1]
    assert ("masked rows always count in the baseline" in caplog.text) != is_excluded
