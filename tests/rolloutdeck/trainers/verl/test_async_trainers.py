"""The plug-in in the one step off and fully async trainers, without verl. With verl: `tests/trainers/verl/`."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from rolloutdeck.trainers.verl.plugin import async_fit, guidance, trainer_async, trainer_v0


def test_the_loop_asks_for_the_rules_before_its_first_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []

    async def fit(trainer: Any) -> None:
        calls.append("fit")

    monkeypatch.setattr(guidance, "find_guidance", calls.append)
    asyncio.run(async_fit.wrap_trainer_fit(fit)("trainer"))
    assert calls == ["trainer", "fit"]


def test_rows_of_fully_async_have_the_version_of_the_weights_that_they_updated(monkeypatch: pytest.MonkeyPatch) -> None:
    class Trainer:
        """In verl's order: the version is increased after the last update of a cycle and before the metrics."""

        def __init__(self) -> None:
            self.config: dict[str, Any] = {"async_training": {}}
            self.reward_extra_infos_dict: dict[str, Any] = {}
            self.current_param_version = 4

        def fit(self) -> None: ...

        def _fit_compute_advantage(self, batch: Any) -> Any:
            return batch

        def _fit_collect_metrics(self, batch: Any) -> None: ...

        def fit_step(self, *, is_last: bool) -> None:
            batch = self._fit_compute_advantage("batch")
            self.current_param_version += is_last
            self._fit_collect_metrics(batch)

    versions: list[Any] = []
    monkeypatch.setattr(trainer_v0, "log_trained_batch", lambda *arguments: versions.append(arguments[-1]))
    trainer_async.patch(SimpleNamespace(SeparateRayPPOTrainer=Trainer))  # type: ignore[arg-type]
    trainer = Trainer()
    for is_last in (False, True, False, True):
        trainer.fit_step(is_last=is_last)
    assert versions == [4, 4, 5, 5]
