"""One step off and fully async, which have their own training step: records every batch in the trainer's process.

Fully async counts updates here, while its rollouter counts the prompts it fed: both processes have a producer name, so
that their data of equally numbered steps stays separate.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from rolloutdeck.trainers.common import bind_arguments, catch_errors, wrap_method
from rolloutdeck.trainers.verl.plugin import trainer_v0
from rolloutdeck.trainers.verl.plugin.session import is_fully_async

VERSION_ATTRIBUTE = "_rolloutdeck_version"


def patch(module: ModuleType) -> None:
    wrap_method(module.SeparateRayPPOTrainer, "_fit_collect_metrics", wrap_collect_metrics)
    wrap_method(module.SeparateRayPPOTrainer, "_fit_compute_advantage", wrap_fit_compute_advantage)
    wrap_method(module.SeparateRayPPOTrainer, "fit", trainer_v0.wrap_fit)


def wrap_fit_compute_advantage(original: Callable[..., Any]) -> Callable[..., Any]:
    def _fit_compute_advantage(self: Any, *args: Any, **kwargs: Any) -> Any:
        keep_version(self)
        with trainer_v0.follow_guidance(self):
            return original(self, *args, **kwargs)

    return _fit_compute_advantage


@catch_errors
def keep_version(trainer: Any) -> None:
    """Keeps the version of the weights that the batch updates: verl counts it up before it collects the metrics."""
    setattr(trainer, VERSION_ATTRIBUTE, getattr(trainer, "current_param_version", None))


def wrap_collect_metrics(original: Callable[..., Any]) -> Callable[..., Any]:
    def _fit_collect_metrics(self: Any, *args: Any, **kwargs: Any) -> Any:
        log_step_batch(self, bind_arguments(original, (self, *args), kwargs))
        return original(self, *args, **kwargs)

    return _fit_collect_metrics


@catch_errors
def log_step_batch(trainer: Any, arguments: Mapping[str, Any]) -> None:
    producer, version = "", None
    if is_fully_async(trainer.config):
        producer, version = "trainer", getattr(trainer, VERSION_ATTRIBUTE, None)
    trainer_v0.log_trained_batch(trainer, arguments["batch"], trainer.reward_extra_infos_dict, producer, version)
