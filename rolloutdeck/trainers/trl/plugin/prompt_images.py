"""Generations whose prompts contain images: TRL makes them without the `rollout_func` that replays.

TRL looks for images inside of messages only where it generates itself. With a `rollout_func` it trains without them,
and uses only those of a column `image` or `images` (TRL 1.16.0, `GRPOTrainer._generate`). A trainer has no hook before
it calls its `rollout_func`, so a method of the class is wrapped.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any

from rolloutdeck.trainers.common import bind_arguments, catch_errors, once_logger, wrap_method
from rolloutdeck.trainers.trl.plugin.capture import GENERATE_METHOD, ROLLOUT_ATTRIBUTE
from rolloutdeck.trainers.trl.plugin.processes import is_true_in_any_process
from rolloutdeck.trainers.trl.plugin.replay import StepReplayer, generate_batch
from rolloutdeck.trainers.trl.plugin.step_files import has_images

MODULE = "trl.trainer.grpo_trainer"
IMAGE_COLUMNS = ("image", "images")
REASON = "its prompts contain images, which TRL would drop if it were replayed"


def patch(module: ModuleType) -> None:
    wrap_method(module.GRPOTrainer, GENERATE_METHOD, keep_images)


def keep_images(original: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the method, which hides our `rollout_func` from TRL for prompts whose images it would drop."""

    def generate(trainer: Any, *args: Any, **kwargs: Any) -> Any:
        replayer = find_dropping_replayer(trainer, bind_arguments(original, (trainer, *args), kwargs))
        if replayer is None:
            return original(trainer, *args, **kwargs)
        replayer.refuse(trainer, REASON)
        function = getattr(trainer, ROLLOUT_ATTRIBUTE)
        setattr(trainer, ROLLOUT_ATTRIBUTE, None)
        try:
            return original(trainer, *args, **kwargs)
        finally:
            setattr(trainer, ROLLOUT_ATTRIBUTE, function)

    return generate


@catch_errors
def find_dropping_replayer(trainer: Any, arguments: Mapping[str, Any]) -> StepReplayer | None:
    """Returns the trainer's `rollout_func` if it is ours and TRL would drop images of these rows because of it.

    The result is the same in all processes. A custom `rollout_func` behind ours makes its own prompts.
    """
    replayer = inspect.unwrap(getattr(trainer, ROLLOUT_ATTRIBUTE, None))  # type: ignore[arg-type]
    if not isinstance(replayer, StepReplayer) or replayer.otherwise is not generate_batch:
        return None
    rows: Sequence[Mapping[str, Any]] = arguments["inputs"]
    if any(name in rows[0] for name in IMAGE_COLUMNS) or not getattr(trainer, "_is_vlm", True):
        return None
    if not is_true_in_any_process(trainer, any(has_prompt_images(row["prompt"]) for row in rows)):
        return None
    message = "Steps whose prompts contain images are not replayed: TRL would drop the images."
    once_logger.log_once("prompt images", message)
    return replayer


def has_prompt_images(prompt: Any) -> bool:
    return isinstance(prompt, list) and any(map(has_images, prompt))
